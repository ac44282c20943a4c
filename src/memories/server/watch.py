"""How a server is run, what it tells its supervisor, gets from it, and sees of its store's file."""

import os
import socket
from typing import NamedTuple


class Asked(NamedTuple):
    """How a server is to be run.

    Attributes:
        host: Where HTTP is served.
        port: Of HTTP; 0 for any that is free.
        http: Whether HTTP is served at all, and not the command alone.
        names: Names under which browsers and proxies may ask for it.
        tls: The files of a certificate and of its key; empty without TLS.
        issuer: The URL of an OAuth issuer whose tokens count too.
        public_url: The URL under which clients elsewhere reach it.
        idle_seconds: How long it lives without being asked anything; None for as long as it takes.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    http: bool = True
    names: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    issuer: str | None = None
    public_url: str | None = None
    idle_seconds: float | None = None


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
