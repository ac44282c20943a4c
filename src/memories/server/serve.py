"""Runs the server process, from start to exit."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories import __version__
from memories.cli.serve import send, stop_command_server
from memories.core.urls import is_loopback, local_path, store_option, without_password
from memories.embedders import open_embedder, own_embedder
from memories.errors import MemoriesError
from memories.identity import tokens
from memories.server import sockets
from memories.server.group_commit import GroupCommit
from memories.server.sockets import AlreadyRunning, Listening, ServeOptions
from memories.server.warm import STOPPED, CommandSocket, Run, install_stand_ins
from memories.settings import Config
from memories.stores import open_store

if TYPE_CHECKING:
    from memories.server.http import Web

LOOK_SECONDS = 5.0  # seconds between two checks of the store's file
SIGNAL_SECONDS = 1.0  # maximum number of seconds until a signal is handled
RESTART = 75  # exit code that asks a supervisor to restart the server
_HANDOVER_SECONDS = 10.0  # seconds that a stopping server gets to complete its queued writes
_IDLE = "idle"
ALREADY = "a server for this store is already running"


def serve(config: Config, options: ServeOptions, run: Run, preload: Callable[[], None]) -> int:
    """Serve a store until a signal or a request ends the process; return the exit code.

    Args:
        config: The settings.
        options: The options of the server.
        run: Runs a command.
        preload: Imports the modules that commands need.

    Raises:
        ConfigError: The settings or options are invalid.
        OSError: The address is not available.
    """
    web: type[Web] | None = None
    if options.http:
        from memories.server import http

        web = http.Web
        web.check(config, options.host, loopback=is_loopback(options.host))
    try:
        with contextlib.ExitStack() as stack:
            listening = _listen(stack, config, options)
            address = stack.enter_context(sockets.bind_address(options)) if options.http else None
            process = Process(config, options, listening, run)
            threading.Thread(target=process.warm_up, args=(preload,), daemon=True).start()
            try:
                return process.run(web, address)
            finally:
                process.close()
    except AlreadyRunning:
        url = (send(config, "status") or {}).get("url")
        where = f"; it is at {url}" if url else ""
        stop = f"memory serve --stop{store_option(config)}"
        _say(f"{ALREADY} ({without_password(config.store)}){where}; {stop} ends it")
        return 0


def _listen(stack: contextlib.ExitStack, config: Config, options: ServeOptions) -> Listening:
    """Listen for commands. A server without HTTP, such as one that a hook started, gives way to a
    server with HTTP.

    Raises:
        AlreadyRunning: Another process serves the store.
    """
    deadline = None
    while True:
        try:
            return stack.enter_context(sockets.listen(config))
        except AlreadyRunning:
            if deadline is None:
                if not (options.http and stop_command_server(config)):
                    raise
                deadline = time.monotonic() + _HANDOVER_SECONDS
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # a server also works if its log can't be written
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class Process:
    """A server's open store, model, write queue and sockets."""

    def __init__(self, config: Config, options: ServeOptions, sockets: Listening, run: Run) -> None:
        self._options, self._sockets = options, sockets
        self._ending = threading.Event()
        self._why = ""
        self._stop: Callable[[], None] = self._ending.set
        file = local_path(config.store)
        self._file = None if file is None else str(file)
        self._socket_identity = _file_identity(sockets.path)
        self._seen = _file_identity(self._file)
        self.embedder = open_embedder(config.embedder, config)
        space = self.embedder.space if self.embedder else None
        self.store = open_store(config.store, space, config)
        self.embedder = own_embedder(self.store, self.embedder, config)
        self.group_commit = GroupCommit(self.store, self.fits)
        install_stand_ins()
        self.config = config
        self.last_at = time.monotonic()
        self._began, self._url = time.time(), ""
        self.warm = CommandSocket(sockets.command, self, run)

    def warm_up(self, preload: Callable[[], None]) -> None:
        """Load everything that the first command would otherwise have to wait for."""
        preload()
        if self.embedder is not None and self.config.embedder in ("minilm", "e5"):
            self.embedder.embed("warm")

    def status(self) -> dict[str, Any]:
        """Return the state of the server, for `memory serve --status`."""
        return {
            "running": True,
            "process": os.getpid(),
            "version": __version__,
            "store": without_password(self.config.store),
            "socket": self._sockets.path,
            "url": self._url or None,
            "seconds": round(time.time() - self._began),
            "commands": self.warm.answered,
            "writes": self.group_commit.writes,
            "commits": self.group_commit.commits,
            "writes_waiting": self.group_commit.waiting,
            "problem": self.group_commit.problem or None,
        }

    def fits(self) -> bool:
        """Return whether the store is still the same file as at the first check."""
        identity = _file_identity(self._file)
        if self._seen is None:
            self._seen = identity
        return identity == self._seen

    def end(self, why: str) -> None:
        """End the process once its running requests have finished.

        Args:
            why: The reason, for the log.
        """
        if not self._why:
            self._why = why
            self._stop()

    def run(self, web: "type[Web] | None", address: socket.socket | None) -> int:
        """Serve until a signal arrives or `end` is called; return the exit code."""
        signals: list[int] = []

        def stop(number: int, _: object) -> None:
            signals.append(number)
            self._stop()

        os.chdir("/")  # so that the folder where the server was started can be removed
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        if web is None or address is None:
            self._ready("")
            while not self._ending.wait(SIGNAL_SECONDS):
                # a signal that arrives just before a wait is handled only after the wait, so waits
                # are short
                pass
        else:
            serving = web(self, self._options, address)
            self._stop = serving.stop
            self._ready(serving.url)
            self._say_how_to_sign_in(serving.login)
            serving.run(self._sockets.web, address)
        if self._why:
            _say(f"memory serve: {self._why}; ending")
            if not signals and self._why not in (_IDLE, STOPPED):
                return RESTART
        return 0

    def _ready(self, url: str) -> None:
        self._url = url
        sockets.notify("READY=1")
        _say(
            f"memory serve: {without_password(self.config.store)}, {url or 'for the command only'}"
        )

    def _say_how_to_sign_in(self, address: str) -> None:
        """Print a link to the page. On a terminal it includes the token; elsewhere it does not,
        since the token must not get into a log.
        """
        own = tokens.own(self.config.home)
        if sys.stdin.isatty() and sys.stderr.isatty():
            _say("memory serve: open this link; it gives full access. Ctrl-C ends the server")
            _say(f"{address}#{own}")
        else:
            where = tokens.own_file(self.config.home)
            others = "memory tokens create NAME --allow NAMESPACE:rw"
            _say(
                f"memory serve: sign in at {address} with the token in {where}, or one of: {others}"
            )

    def _watch(self) -> None:
        """End the process if it has been idle too long, or if its store or socket is gone."""
        while True:
            time.sleep(min(LOOK_SECONDS, self._options.idle_seconds or LOOK_SECONDS))
            if not self.fits():
                self.end("the store was removed or replaced")
            if _file_identity(self._sockets.path) != self._socket_identity:
                self.end("its socket was removed")  # no client can reach the server any more
            quiet_seconds = time.monotonic() - max(self.last_at, self.warm.last_at)
            is_busy = self.warm.busy or self.group_commit.waiting
            idle_seconds = self._options.idle_seconds
            if idle_seconds is not None and quiet_seconds > idle_seconds and not is_busy:
                self.end(_IDLE)

    def close(self) -> None:
        """Accept no more requests, complete the waiting writes, and close the store."""
        sockets.notify("STOPPING=1")
        # so that a new client runs its command itself
        Path(self._sockets.path).unlink(missing_ok=True)
        self.warm.close()
        drained = self.group_commit.close()
        if drained:
            # a thread may still be reading; if so, the system closes the files at exit
            with contextlib.suppress(MemoriesError):
                self.store.close()


def _file_identity(file: str | None) -> tuple[int, int] | None:
    """Return a file's device and inode without opening it. Return None if the file is missing or
    the store is not a file.
    """
    if file is None:
        return None
    try:
        status = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino
