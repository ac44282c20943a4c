"""Ends the processes that tests started, once the tests are over. `sweep.py PID FOLDER`.

The process with PID runs the tests, in FOLDER. When it is gone, however it ended, every process
whose environment names that folder is killed: servers in sessions of their own too. If another run
has made a folder of that name in the meantime, they are that run's, and go on. Linux only.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path


def main(tests: int, folder: str) -> None:
    """Wait for the tests to end; kill until none is left, for a process may start another one
    meanwhile.
    """
    own = os.open(folder, os.O_RDONLY)  # while it is open, no other folder gets its inode
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(tests)], [], [])
    while not _belongs_to_another_run(folder, own) and (
        left := [pid for pid in _processes() if _names(pid, folder)]
    ):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _belongs_to_another_run(folder: str, own: int) -> bool:
    """Return whether a folder was removed and made again; pytest gives names a second time."""
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
    except OSError:  # it has ended, or is another user's
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
