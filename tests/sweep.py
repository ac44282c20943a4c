"""Ends the processes that tests started, once the tests are over. `sweep.py PID FOLDER`.

The process with PID runs the tests, in FOLDER. When it is gone, however it ended, every process
whose environment names that folder is killed: servers in sessions of their own too. Linux only.
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
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(tests)], [], [])
    while left := [pid for pid in _processes() if _names(pid, folder)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
