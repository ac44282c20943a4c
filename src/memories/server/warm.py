"""Runs commands for clients of a Unix socket, each in a thread, and returns their output and exit
codes.

`memories.warm` is the client and describes the messages. A command uses `sys.stdin`, `os.environ`
and relative paths as if it ran in its own process: `install_stand_ins` replaces the standard
streams and `os.environ` with objects that look up the caller. Each thread has its own working
folder if the system supports that.
"""

import contextlib
import contextvars
import functools
import io
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from memories import __version__
from memories.core.deadline import DEADLINE, Deadline
from memories.embedders import Embedder
from memories.identity.place import here
from memories.memories import Memories
from memories.models import Draft
from memories.server.group_commit import Ending, GroupCommit
from memories.settings import Config
from memories.stores import Store
from memories.warm import DIRECT, GREETING, HOOK, absolute, is_carried
from memories.write.create import Created

STOPPED = "stopped by a request"  # logged after `memory serve --stop`
_CLONE_FS = 0x200  # flag of unshare(2): gives the thread its own working folder and umask
# if threads can't have working folders of their own, commands run one at a time
_folder_lock = threading.Lock()


class Direct(BaseException):
    """Raised when a command must run in its own process; nothing was changed. It is not an
    `Exception`, so that no command catches it.
    """


class Caller(NamedTuple):
    """The process that sent a command.

    Attributes:
        environment: The environment variables that were sent.
        is_carried: Returns whether clients send a given variable. For other variables, the server's
            own values apply.
        terminals: Whether each of the three standard streams is a terminal.
        input: Standard input; None if it was not sent.
        folder: The working folder.
        umask: The file mode creation mask, see umask(2).
        written: The output so far: pairs of stream number and data.
    """

    environment: dict[str, str]
    is_carried: Callable[[str], bool]
    terminals: Sequence[bool]
    input: io.BytesIO | None
    folder: str
    umask: int
    written: list[tuple[int, bytes]]


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def install_stand_ins() -> None:
    """Replace `sys.stdin`, `sys.stdout`, `sys.stderr` and `os.environ` with objects that act as the
    caller's while a thread serves a caller.
    """
    sys.stdin = _Input(0, sys.stdin)
    sys.stdout, sys.stderr = _Output(1, sys.stdout), _Output(2, sys.stderr)
    os.environ = _Environment(os.environ)  # type: ignore[assignment] # noqa: B003 - intended


def own_folder() -> bool:
    """Give this thread its own working folder; return whether the system supports that."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) == 0)


@contextlib.contextmanager
def standing_for(caller: Caller, *, apart: bool) -> Iterator[None]:
    """Act as the caller inside the context.

    Args:
        caller: The caller.
        apart: Whether this thread has its own working folder.
    """
    token = _caller.set(caller)
    with contextlib.nullcontext() if apart else _folder_lock:
        mask = os.umask(caller.umask)
        try:
            try:
                os.chdir(caller.folder)
            # the server's view of the file system may differ from the caller's
            except OSError as exc:
                raise Direct from exc
            yield
        finally:
            _caller.reset(token)
            os.umask(mask)
            os.chdir("/")


class _Stream:
    """One of the three standard streams: the caller's or, if there is no caller, the server's."""

    encoding, closed = "utf-8", False

    def __init__(self, number: int, own: Any) -> None:
        self._number, self._own = number, own

    def isatty(self) -> bool:
        caller = _caller.get()
        return bool(self._own.isatty()) if caller is None else caller.terminals[self._number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Output(_Stream):
    errors = "backslashreplace"

    def __init__(self, number: int, own: Any) -> None:
        super().__init__(number, own)
        self.buffer = _Bytes(number, own.buffer)

    def write(self, text: str) -> int:
        self.buffer.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        self.buffer.flush()


class _Bytes(_Stream):
    """The binary stream of `_Output`. It looks up the caller on each use, because click keeps a
    reference to the stream.
    """

    def write(self, data: bytes) -> int:
        caller = _caller.get()
        if caller is None:
            return int(self._own.write(data))
        caller.written.append((self._number, bytes(data)))
        return len(data)

    def flush(self) -> None:
        if _caller.get() is None:
            self._own.flush()


class _Input(_Stream):
    """The caller's standard input; reading raises `Direct` if the client sent no input."""

    @property
    def buffer(self) -> Any:
        caller = _caller.get()
        if caller is None:
            return self._own.buffer
        if caller.input is None:
            raise Direct
        return caller.input

    def readline(self) -> str:
        if _caller.get() is None:
            return str(self._own.readline())
        return str(self.buffer.readline().decode())

    def read(self) -> str:
        if _caller.get() is None:
            return str(self._own.read())
        return str(self.buffer.read().decode())

    def fileno(self) -> int:
        if _caller.get() is not None:
            raise Direct
        return int(self._own.fileno())


class _Environment(MutableMapping[str, str]):
    """The caller's environment. Setting a variable also sets it in the server's environment, as
    libraries expect.
    """

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getitem__(self, name: str) -> str:
        return self._of(name)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._of(str(name))

    def _of(self, name: str) -> Mapping[str, str]:
        """Return the environment in which a variable is looked up: the caller's if clients send the
        variable, else the server's.
        """
        caller = _caller.get()
        own: Mapping[str, str] = self._own
        return own if caller is None or not caller.is_carried(name) else caller.environment

    def __setitem__(self, name: str, value: str) -> None:
        caller = _caller.get()
        if caller is not None:
            caller.environment[name] = value
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        caller = _caller.get()
        if caller is not None:
            caller.environment.pop(name, None)
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        caller = _caller.get()
        if caller is None:
            return iter(self._own)
        own = [name for name in self._own if not caller.is_carried(name)]
        return iter([*own, *caller.environment])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, str]:
        return dict(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


_THREADS = 16
_MOST_OPEN = 256
_MOST_LINE = 4 << 20  # maximum bytes in a request's line; more than a system allows for arguments
_READ_SECONDS = 10.0
_DOT_SECONDS = 1.0
_MAX_INPUT = 64 << 20

# Runs a command: `__main__.run_for_client`. It takes the command's arguments, a function that opens
# the memory, and the id for a new memory. It returns the exit code and the changes.
Run = Callable[[Sequence[str], Callable[[Config, bool], Memories], str], tuple[int, str]]


class Served(Protocol):
    """The parts of a server that commands use; see `serve.Process`.

    Attributes:
        config: The settings that the server was started with.
        store: The open store.
        embedder: The store's model; None to search by words only.
        group_commit: The store's write queue.
    """

    config: Config
    store: Store
    embedder: Embedder | None
    group_commit: GroupCommit

    def fits(self) -> bool:
        """Return whether the store is still the one that was opened."""

    def end(self, why: str) -> None:
        """End the server; the reason is logged."""

    def status(self) -> Mapping[str, Any]:
        """Return the state of the server."""


class _Grouped(Memories):
    """The `Memories` of one command. Its new memories share transactions with those of other
    commands; `GroupCommit.create` also records the event.
    """

    group_commit: GroupCommit

    def create_many(
        self, drafts: Any, *, force: bool = False, redact: bool = True, within: Any = ()
    ) -> list[Created]:
        if within or isinstance(drafts, str):
            return super().create_many(drafts, force=force, redact=redact, within=within)
        drafts = [draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts]
        try:
            return self.group_commit.create(self, drafts, force, redact)
        except Ending:
            raise Direct from None


class CommandSocket:
    """Accepts commands on a listening socket until the socket is closed."""

    def __init__(self, listening: socket.socket, served: Served, run: Run) -> None:
        """Start accepting commands.

        Args:
            listening: The socket; `close` closes it.
            served: The parts of the server that commands use.
            run: Runs a command.
        """
        self._socket, self._served, self._run = listening, served, run
        self._greeting = f"{GREETING} {__version__}\n".encode()
        self._url = absolute(served.config.store)
        self._thread = threading.local()
        self._deadline = functools.lru_cache(maxsize=16)(Deadline)
        self._open: set[socket.socket] = set()
        self._working: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.answered = 0
        self.last_at = time.monotonic()
        self._pool = ThreadPoolExecutor(_THREADS, "warm", initializer=self._begin_thread)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        threading.Thread(target=self._tick, name="dots", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a command is running."""
        return bool(self._open)

    def close(self, seconds: float = 3.0) -> None:
        """Accept no more commands; wait briefly for the running ones."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        until = time.monotonic() + seconds
        while self._open and time.monotonic() < until:
            time.sleep(0.01)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_thread(self) -> None:
        self._thread.apart = own_folder()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                # no file descriptors are left; closing the open connections frees some
                time.sleep(0.05)
                continue
            if self._closed or len(self._open) >= _MOST_OPEN or not _is_own(connection):
                connection.close()
                continue
            with self._lock:
                self._open.add(connection)
            try:
                connection.settimeout(_READ_SECONDS)
                connection.sendall(self._greeting)
                self._pool.submit(self._serve, connection)
            # the client has disconnected, or the server is stopping
            except (OSError, RuntimeError):
                self._drop(connection)

    def _tick(self) -> None:
        """Send a heartbeat to clients whose command is still running."""
        while not self._closed or self._open:
            time.sleep(_DOT_SECONDS)
            with self._lock:
                for connection in self._working:
                    with contextlib.suppress(OSError):
                        connection.send(b".", socket.MSG_DONTWAIT)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
            self._working.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        """Read one request from a connection, run its command, and send the response."""
        try:
            message = self._read(connection)
            if message is None:
                return
            request, stdin = message
            # a client runs its command itself unless it sees this byte first
            if request["argv"][:1] == [HOOK]:
                connection.sendall(b".")
            with self._lock:
                self._working.add(connection)
            answer = contextvars.copy_context().run(self._run_command, request, stdin)
            with self._lock:
                self._working.discard(connection)
            connection.sendall(answer)
            if answer != DIRECT:
                self.answered += 1
            self.last_at = time.monotonic()
        except (OSError, ValueError):  # the client has disconnected, or is not one of ours
            return
        finally:
            self._drop(connection)

    def _read(self, connection: socket.socket) -> tuple[dict[str, Any], bytes] | None:
        """Return the request and its standard input; None if there is no command to run."""
        data = bytearray()
        while b"\n" not in data:
            piece = connection.recv(1 << 16)
            if not piece or len(data) > _MOST_LINE:
                return None
            data += piece
        line, _, stdin = bytes(data).partition(b"\n")
        if not line.startswith(b"{"):
            self._manage(connection, line.decode())
            return None
        request = json.loads(line)
        pieces, missing = [stdin], min(request["input"], _MAX_INPUT) - len(stdin)
        while missing > 0:
            piece = connection.recv(min(missing, 1 << 16))
            if not piece:
                return None
            pieces.append(piece)
            missing -= len(piece)
        return request, b"".join(pieces)

    def _manage(self, connection: socket.socket, line: str) -> None:
        """Answer a line that contains no command; see `memories.cli.serve`."""
        word, _, version = line.partition(" ")
        if word == "newer" and _number(version) > _number(__version__):
            self._served.end("a newer version of the program was installed")
        elif word in ("status", "stop"):
            connection.sendall(json.dumps(self._served.status()).encode() + b"\n")
            if word == "stop":
                self._served.end(STOPPED)

    def _run_command(self, request: dict[str, Any], stdin: bytes) -> bytes:
        environment = {str(name): str(value) for name, value in request["env"].items()}
        written: list[tuple[int, bytes]] = []
        caller = Caller(
            environment,
            is_carried,
            terminals=request["terminals"],
            input=io.BytesIO(stdin) if request["input"] >= 0 else None,
            folder=request["cwd"],
            umask=request["umask"],
            written=written,
        )
        if not self._served.fits():
            self._served.end("the store was removed or replaced")
            return DIRECT
        if process_wide(environment, self._url) != process_wide(os.environ, self._url):
            return DIRECT
        try:
            with standing_for(caller, apart=self._thread.apart):
                folder = os.stat(".")  # noqa: PTH116
                if [folder.st_dev, folder.st_ino] != request["folder"]:
                    return DIRECT  # a different folder with the same path, as in a container
                DEADLINE.set(self._deadline)
                code, changed = self._run(
                    request["argv"], self._opener(request["argv"]), request["once"]
                )
        except Direct:
            return DIRECT
        except Exception as exc:  # noqa: BLE001 - a bug; the client shows what the command would have shown
            code, changed = 1, ""
            text = "".join(traceback.format_exception(exc))
            written.append((2, text.encode("utf-8", "backslashreplace")))
        self._served.fits()  # remembers the store's file if the command created it
        return _encode(code, changed, written)

    def _opener(self, arguments: Sequence[str]) -> Callable[[Config, bool], Memories]:
        def open_memories(config: Config, shared: bool) -> Memories:
            served = self._served
            # in the server, a command can't write its own log
            is_context = arguments[0] == "context" and config.sources["log_level"] != "default"
            if is_context or config.log_level == "DEBUG" or not self._is_served(config):
                raise Direct
            memories = _Grouped(
                served.store,
                shared=shared,
                embedder=served.embedder or "none",
                config=config,
                channel="hook" if arguments[0] == HOOK else "cli",
                # resolved here, because the thread that writes has a different working folder
                place=here(config, Path.cwd()),
            ).at_home()
            memories.group_commit = served.group_commit
            return memories

        return open_memories

    def _is_served(self, config: Config) -> bool:
        """Return whether a command's settings match those of the open store and model."""
        own = self._served.config
        if absolute(config.store) != self._url:
            return False
        if any(getattr(config, name) != getattr(own, name) for name in _OF_STORE):
            return False
        if any(_reveal(getattr(config, name)) != _reveal(getattr(own, name)) for name in _SECRET):
            return False
        return config.home == own.home or config.home.resolve() == own.home.resolve()


def process_wide(environment: Mapping[str, str], store: str) -> dict[str, str]:
    """Return the variables that libraries read from their own process: the time zone and, for a
    PostgreSQL store, the variables of libpq, such as PGHOST. A server can't use a caller's values.
    """
    is_postgres = store.startswith("postgres")
    return {
        name: value
        for name, value in environment.items()
        if name == "TZ" or (is_postgres and name.startswith("PG"))
    }


# The settings that determine the store and the model. If a client's values differ from the
# server's, the client runs its command itself.
_OF_STORE = (
    "embedder", "embedder_url", "embedder_dimensions", "embedder_timeout", "embedder_fallback",
    "embedder_plain_http", "embedder_cache_mb", "embedder_calibration", "collection_name",
    "file_migrate_at",
    "file_migrate_to", "compact", "chromadb_host", "chromadb_port", "token_file", "plain_http",
    "mcp_endpoint",
)  # fmt: skip
_SECRET = ("embedder_api_key", "openai_api_key", "voyage_api_key", "cohere_api_key", "token")


def _reveal(secret: Any) -> str:
    return "" if secret is None else str(secret.reveal())


def _encode(code: int, changed: str, written: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a response: a line with the exit code and each part's length, then the parts."""
    parts: list[tuple[int, bytes]] = []
    if changed:
        parts.append((3, changed.encode("utf-8", "surrogateescape")))
    for number, data in written:
        if parts and parts[-1][0] == number:
            parts[-1] = number, parts[-1][1] + data
        else:
            parts.append((number, data))
    head = " ".join([str(code), "done", *(f"{number}:{len(data)}" for number, data in parts)])
    return b"".join([f"{head}\n".encode(), *(data for _, data in parts)])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _is_own(connection: socket.socket) -> bool:
    """Return whether a client runs as this user; True if the system can't tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder's permissions keep other users out
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return bool(uid == os.geteuid())
