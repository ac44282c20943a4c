"""What a server tells its supervisor, gets from it, and sees of its store's file."""

import os
import socket


def identity(file: str | None) -> tuple[int, int] | None:
    """Return which file is at a path, without opening it; None if there is none, or if the store is elsewhere."""
    if file is None:
        return None
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def notify(state: str) -> None:
    """Tell systemd something, if it asked to be told; see sd_notify(3)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        told.sendall(state.encode())


def activated() -> socket.socket | None:
    """Return the socket that systemd opened for us, if it did; see sd_listen_fds(3)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    return socket.socket(fileno=3)
