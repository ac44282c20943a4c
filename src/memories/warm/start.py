"""Starts a server that makes the next commands fast, when a setting wants it; it lives until nobody asks any more."""

import os
import sys
import time

from memories.warm.place import socket_of

IDLE_MINUTES = 15
_AGAIN_SECONDS = 60  # after a start that failed


def start(store: str) -> None:
    """Start a server of a store, apart from this process, unless one runs or was started just now.

    Args:
        store: Its URL, with an absolute path.
    """
    path = socket_of(store, os.environ)
    if _answers(path):  # it had no time for us
        return
    try:
        mark = f"{path}.start"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.exists(mark) and time.time() - os.stat(mark).st_mtime < _AGAIN_SECONDS:  # noqa: PTH110, PTH116
            return
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        os.utime(mark)
        nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
        options = ["--no-http", "--idle", str(IDLE_MINUTES), "--store", store]
        command = [sys.executable, "-P", "-m", "memories", "serve", *options]
        os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=nothing, setsid=True)
    except OSError:
        return  # the command was done without one, and that is no reason to fail


def _answers(path: str) -> bool:
    """Return whether somebody listens at a path; a server that was killed leaves its socket behind."""
    import socket

    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(0.1)
        try:
            tried.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True
