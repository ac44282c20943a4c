"""The process of a server: its lock, its sockets, what it serves, and how it ends."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories import __version__
from memories.config import load_config
from memories.core.disk import CREATING, make_folder
from memories.core.urls import is_loopback, without_password
from memories.embedders import open_embedder
from memories.errors import ConfigError, MemoriesError
from memories.identity import tokens
from memories.server import caller, watch
from memories.server.warm import Run, Served, Warm
from memories.server.watch import Asked
from memories.server.writers import Writers
from memories.settings import Config
from memories.stores import local_path, open_store
from memories.warm import place

if TYPE_CHECKING:
    from memories.server.http import Web

LOOK_SECONDS = 5.0  # between two looks at the store's file
SIGNAL_SECONDS = 1.0  # after which a signal is handled at the latest
RESTART = 75  # the exit code that asks a supervisor to start it again
ALREADY = "a server of this store is running already"


class AlreadyRunning(Exception):
    """Another process serves this store."""


class Listening(NamedTuple):
    """The sockets of a server in its folder, while it holds the lock.

    Attributes:
        path: Of the socket for the command.
        command: That socket.
        web: The one for HTTP.
    """

    path: str
    command: socket.socket
    web: socket.socket


def serve(config: Config, asked: Asked, run: Run, preload: Callable[[], None]) -> int:
    """Serve a store until the process is told to end; return the exit code.

    Args:
        config: The settings.
        asked: How it is run.
        run: Runs a command.
        preload: Imports what commands need.

    Raises:
        ConfigError: It can't be served so.
        OSError: It can't listen there.
    """
    web = _web(config, asked) if asked.http else None
    try:
        with listening(config) as sockets, _address(asked) if asked.http else contextlib.nullcontext() as address:
            process = Process(config, asked, sockets, run)
            threading.Thread(target=process.warm_up, args=(preload,), daemon=True).start()
            try:
                return process.run(web, address)
            finally:
                process.close()
    except AlreadyRunning:
        _say(f"{ALREADY} ({without_password(config.store)})")
        return 0


def _web(config: Config, asked: Asked) -> "type[Web]":
    """Return what serves HTTP.

    Raises:
        ConfigError: The address is open to others.
    """
    from memories.server.http import Web

    Web.check(config, asked.host, loopback=is_loopback(asked.host))
    return Web


def _address(asked: Asked) -> socket.socket:
    activated = watch.activated()
    if activated is not None:
        return activated
    family = socket.AF_INET6 if ":" in asked.host else socket.AF_INET
    try:
        return socket.create_server((asked.host, asked.port), family=family, backlog=128)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {asked.host} port {asked.port}: {exc.strerror or exc}; choose another with --port"
        ) from exc


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# --- sockets ---------------------------------------------------------------------------------------------------------


def paths(config: Config) -> list[str]:
    """Return the path of the socket of a store, then those by which clients may look for it as well."""
    environment: Any = os.environ
    main = place.socket_of(config.store, environment)
    rest = {name: value for name, value in os.environ.items() if name != "MEMORY_STORE"}
    try:
        usual = load_config(environment=rest, folder=config.home, tell=lambda _: None)
    except MemoriesError:
        return [main]
    return [main, place.socket_of("", environment)] if usual.store == config.store else [main]


@contextlib.contextmanager
def listening(config: Config) -> Iterator[Listening]:
    """Listen for clients of a store while inside; leave no socket behind.

    Raises:
        AlreadyRunning: Another process does.
        ConfigError: Others may write the folder of the sockets.
    """
    main, *others = paths(config)
    folder = Path(main).parent
    make_folder(folder)
    if not place.is_ours(main):
        raise ConfigError(f"{folder} is not a folder that only you can enter; remove it, or: chmod 700 {folder}")
    lock = os.open(f"{main}.lock", CREATING | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning from None
        with contextlib.ExitStack() as stack:
            web = stack.enter_context(_bound(f"{main.removesuffix('.sock')}.http"))
            command = stack.enter_context(_bound(main))
            for other in others:
                stack.enter_context(_linked(Path(other), main))
            yield Listening(main, command, web)
    finally:
        os.close(lock)


@contextlib.contextmanager
def _bound(path: str) -> Iterator[socket.socket]:
    """Listen at a path. It is bound elsewhere and then renamed, so that whoever finds it is answered."""
    scratch = f"{path}.{os.getpid()}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(scratch).unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        made.bind(scratch)
    finally:
        os.umask(mask)
    made.listen(128)
    Path(scratch).replace(path)
    ours = os.lstat(path).st_ino
    try:
        yield made
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_ino == ours:
                Path(path).unlink()
        made.close()


@contextlib.contextmanager
def _linked(path: Path, target: str) -> Iterator[None]:
    """Let a second path lead to a socket."""
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


# --- the process -----------------------------------------------------------------------------------------------------


class Process:
    """What a server has open."""

    def __init__(self, config: Config, asked: Asked, sockets: Listening, run: Run) -> None:
        self._asked, self._sockets = asked, sockets
        self._ending = threading.Event()
        self._why = ""
        self._stop: Callable[[], None] = self._ending.set
        file = local_path(config.store)
        self._file = None if file is None else str(file)
        self._seen = watch.identity(self._file)
        self.embedder = open_embedder(config.embedder, config)
        self.store = open_store(config.store, self.embedder.space if self.embedder else None, config)
        self.writers = Writers(self.store, self.fits)
        caller.install()
        self.config = config
        self.last_at = time.monotonic()
        self._began, self._url = time.time(), ""
        known = place.absolute(config.store), self.store, self.embedder, self.writers, __version__
        self.warm = Warm(sockets.command, Served(config, *known, self.fits, self.end, self.status), run)

    def warm_up(self, preload: Callable[[], None]) -> None:
        """Load what the first command would wait for."""
        preload()
        if self.embedder is not None and self.config.embedder in ("minilm", "e5"):
            self.embedder.embed("warm")

    def status(self) -> dict[str, Any]:
        """Return how it is, for `memory serve --status`."""
        return {
            "running": True,
            "process": os.getpid(),
            "version": __version__,
            "store": without_password(self.config.store),
            "socket": self._sockets.path,
            "url": self._url or None,
            "seconds": round(time.time() - self._began),
            "commands": self.warm.answered,
            "writes": self.writers.writes,
            "commits": self.writers.commits,
            "writes_waiting": self.writers.waiting,
            "problem": self.writers.problem or None,
        }

    def fits(self) -> bool:
        """Return whether the store is still the file that was opened; also when it was not there yet."""
        found = watch.identity(self._file)
        if self._seen is None:
            self._seen = found
        return found == self._seen

    def end(self, why: str) -> None:
        """End the process, once what is being done is done."""
        if not self._why:
            self._why = why
            self._stop()

    def run(self, web: "type[Web] | None", address: socket.socket | None) -> int:
        """Serve until it is told to end; return the exit code."""
        told: list[int] = []

        def stop(number: int, _: object) -> None:
            told.append(number)
            self._stop()

        os.chdir("/")  # no folder is kept from being removed
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        threading.Thread(target=self._look, name="look", daemon=True).start()
        if web is None or address is None:
            self._ready("")
            while not self._ending.wait(SIGNAL_SECONDS):
                pass  # a signal that arrives just before a wait begins is handled once the wait is over
        else:
            serving = web(self, self._asked, address)
            self._stop = serving.stop
            self._ready(serving.url)
            self._tell_sign_in(serving.login)
            serving.run(self._sockets.web, address)
        if self._why:
            _say(f"memory serve: {self._why}; ending")
            return 0 if told or self._why in ("idle", "told to stop") else RESTART
        return 0

    def _ready(self, url: str) -> None:
        self._url = url
        watch.notify("READY=1")
        _say(f"memory serve: {without_password(self.config.store)}, {url or 'for the command only'}")

    def _tell_sign_in(self, address: str) -> None:
        """Tell how a person opens the page: by a link at a terminal; a log must not have the token that is in it."""
        own = tokens.own(self.config.home)
        if sys.stdin.isatty() and sys.stderr.isatty():
            _say(f"memory serve: open {address}#{own} to sign in; who has this link may do everything")
        else:
            where = tokens.own_file(self.config.home)
            others = "memory tokens create NAME --allow NAMESPACE:rw"
            _say(f"memory serve: sign in at {address} with the token in {where}, or one of: {others}")

    def _look(self) -> None:
        """End it when it is idle, or when the store is another one."""
        while True:
            time.sleep(min(LOOK_SECONDS, self._asked.idle_seconds or LOOK_SECONDS))
            if not self.fits():
                self.end("the store was removed or replaced")
            quiet = time.monotonic() - max(self.last_at, self.warm.last_at)
            patience = self._asked.idle_seconds
            if patience is not None and quiet > patience and not self.warm.busy and not self.writers.waiting:
                self.end("idle")

    def close(self) -> None:
        """Accept nothing more, make the writes that wait, close the store."""
        watch.notify("STOPPING=1")
        Path(self._sockets.path).unlink(missing_ok=True)  # so that a new client does its own work
        self.warm.close()
        drained = self.writers.close()
        if drained:
            with contextlib.suppress(MemoriesError):  # a thread may still be reading: the system closes what is open
                self.store.close()
