"""A server's options, lock and sockets, and its messages to and from systemd."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memories import warm
from memories.config import load_config
from memories.core.disk import CREATING, make_folder
from memories.errors import ConfigError, MemoriesError
from memories.settings import Config


class ServeOptions(NamedTuple):
    """A server's options.

    Attributes:
        host: The address for HTTP.
        port: The port for HTTP; 0 for any free port.
        http: Whether to serve HTTP as well as commands.
        names: Host names that browsers and proxies may use for the server.
        tls: The paths of the certificate and its key; empty for no TLS.
        issuer: The URL of an OAuth issuer whose tokens are accepted too.
        public_url: The URL at which remote clients reach the server.
        idle_seconds: How long the server runs without a request; None for no limit.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    http: bool = True
    names: tuple[str, ...] = ()
    tls: tuple[str, ...] = ()
    issuer: str | None = None
    public_url: str | None = None
    idle_seconds: float | None = None


class AlreadyRunning(Exception):
    """Another process serves this store."""


class Listening(NamedTuple):
    """The Unix sockets of a server that holds the lock.

    Attributes:
        path: The path of the socket for commands.
        command: The socket for commands.
        web: The socket for HTTP.
    """

    path: str
    command: socket.socket
    web: socket.socket


def socket_paths(config: Config) -> list[str]:
    """Return the path of a store's socket, then other paths that clients may try."""
    environment: Any = os.environ
    main = warm.socket_of(config.store, environment)
    unset = {name: value for name, value in os.environ.items() if name != "MEMORY_STORE"}
    try:
        usual = load_config(environment=unset, folder=config.home, tell=lambda _: None)
    except MemoriesError:
        return [main]
    return [main, warm.socket_of("", environment)] if usual.store == config.store else [main]


@contextlib.contextmanager
def listen(config: Config) -> Iterator[Listening]:
    """Listen for a store's clients inside the context; remove the sockets afterwards.

    Raises:
        AlreadyRunning: Another process serves the store.
        ConfigError: Other users can write to the sockets' folder.
    """
    main, *others = socket_paths(config)
    folder = Path(main).parent
    make_folder(folder)
    if not warm.is_ours(main):
        raise ConfigError(
            f"{folder} is not a folder that only you can use; remove it, or run: chmod 700 {folder}"
        )
    lock = os.open(f"{main}.lock", CREATING | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning from None
        with contextlib.ExitStack() as stack:
            web = stack.enter_context(_listen_at(f"{main.removesuffix('.sock')}.http"))
            command = stack.enter_context(_listen_at(main))
            for other in others:
                stack.enter_context(_link(Path(other), main))
            yield Listening(main, command, web)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _listen_at(path: str) -> Iterator[socket.socket]:
    """Listen on a socket at a path. The socket is bound under a temporary name and then renamed, so
    that a client never finds a socket that doesn't respond.
    """
    scratch = f"{path}.{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(scratch).unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        listening.bind(scratch)
    finally:
        os.umask(mask)
    listening.listen(128)
    Path(scratch).replace(path)
    ours = os.lstat(path).st_ino
    try:
        yield listening
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_ino == ours:
                Path(path).unlink()
        listening.close()


@contextlib.contextmanager
def _link(path: Path, target: str) -> Iterator[None]:
    """Make a path a symbolic link to a socket until the block ends."""
    scratch = Path(f"{path}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.readlink(path) == target:  # noqa: PTH115
                path.unlink()


def bind_address(options: ServeOptions) -> socket.socket:
    """Return the TCP socket that systemd opened; if there is none, open one.

    Raises:
        ConfigError: The server can't listen on the address.
    """
    if (activated := socket_from_systemd()) is not None:
        return activated
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=128)
    except (OSError, UnicodeError) as exc:
        message = getattr(exc, "strerror", None) or str(exc)
        reason, _, _ = message.partition(" (while attempting to bind")
        has_wrong_port = getattr(exc, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {reason}; choose another with "
            f"{'--port' if has_wrong_port else '--host'}"
        ) from exc


def notify(state: str) -> None:
    """Report a state to systemd, if it started this process; see sd_notify(3)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        connection.sendall(state.encode())


def socket_from_systemd() -> socket.socket | None:
    """Return the socket that systemd opened for us, if any; see sd_listen_fds(3)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    return socket.socket(fileno=3)
