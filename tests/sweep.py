"""Kills the processes that tests started, after the tests have ended: `sweep.py PID FOLDER`.

The process PID runs the tests, in FOLDER. When it has ended for any reason, every process whose
environment names the folder is killed, even servers in their own sessions. If another run has
created a folder with the same name in the meantime, the processes belong to that run and continue.
Linux only.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path


def main(tests: int, folder: str) -> None:
    """Wait for the tests to end, then kill until no process is left, since one may start another in
    the meantime.
    """
    own = os.open(folder, os.O_RDONLY)  # while it is open, no other folder can get its inode
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(tests)], [], [])
    while not _belongs_to_another_run(folder, own) and (
        left := [pid for pid in _processes() if _names(pid, folder)]
    ):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _belongs_to_another_run(folder: str, own: int) -> bool:
    """Return whether the folder was removed and created again; pytest reuses names."""
    try:
        return not os.path.samestat(Path(folder).stat(), os.fstat(own))
    except FileNotFoundError:
        return False


def _processes() -> list[int]:
    """Return the ids of all other processes."""
    return [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit() and int(each.name) != os.getpid()
    ]


def _names(pid: int, folder: str) -> bool:
    """Return whether the environment of a process names a folder."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
