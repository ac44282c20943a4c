"""Whose command a thread of the server runs: its streams, environment and working folder stand in for the server's.

The command reads `sys.stdin`, `os.environ` and relative paths as it does in a process of its own; `install` replaces
the first two by objects that look up the caller, and the folder belongs to the thread where the system allows it.
"""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

_CLONE_FS = 0x200  # of unshare(2): the thread has a working folder and a umask of its own
_folder_lock = threading.Lock()  # where threads can't have one, commands run one after the other


class Direct(BaseException):
    """The command needs a process of its own; nothing was changed. Not an `Exception`, so that nothing handles it."""


class Caller(NamedTuple):
    """Who asked for a command.

    Attributes:
        environment: The variables that were sent.
        is_carried: Whether a variable would have been sent; the others are those of the server.
        terminals: Whether each of the three standard streams is a terminal.
        given: What is on standard input; None if it was not sent.
        folder: The working folder.
        umask: Which permissions new files do not get.
        written: What was printed, and to which stream.
    """

    environment: dict[str, str]
    is_carried: Callable[[str], bool]
    terminals: Sequence[bool]
    given: io.BytesIO | None
    folder: str
    umask: int
    written: list[tuple[int, bytes]]


_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def install() -> None:
    """Let `sys.stdin`, `sys.stdout`, `sys.stderr` and `os.environ` be those of the caller, if there is one."""
    sys.stdin = _Input(sys.stdin)
    sys.stdout, sys.stderr = _Output(1, sys.stdout), _Output(2, sys.stderr)
    os.environ = _Environment(os.environ)  # type: ignore[assignment] # noqa: B003 - that is what is meant


def own_folder() -> bool:
    """Give this thread a working folder of its own; return whether the system did."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FS) == 0)


@contextlib.contextmanager
def standing_for(caller: Caller, *, apart: bool) -> Iterator[None]:
    """Be the caller while inside.

    Args:
        caller: Who asked.
        apart: Whether this thread has a working folder of its own.
    """
    token = _caller.set(caller)
    with contextlib.nullcontext() if apart else _folder_lock:
        mask = os.umask(caller.umask)
        try:
            _enter(caller.folder)
            yield
        finally:
            _caller.reset(token)
            os.umask(mask)
            os.chdir("/")


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as exc:  # the server may see other places than the caller
        raise Direct from exc


class _Output:
    """Standard output or standard error of whoever is asked for."""

    encoding, errors, closed = "utf-8", "backslashreplace", False

    def __init__(self, number: int, own: Any) -> None:
        self._number, self._own = number, own
        self.buffer = _Bytes(number, own.buffer)

    def write(self, text: str) -> int:
        self.buffer.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        self.buffer.flush()

    def isatty(self) -> bool:
        caller = _caller.get()
        return bool(self._own.isatty()) if caller is None else caller.terminals[self._number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Bytes:
    """What `_Output` writes to; click keeps it, so it has to look up the caller each time."""

    def __init__(self, number: int, own: Any) -> None:
        self._number, self._own = number, own

    def write(self, data: bytes) -> int:
        caller = _caller.get()
        if caller is None:
            return int(self._own.write(data))
        caller.written.append((self._number, bytes(data)))
        return len(data)

    def flush(self) -> None:
        if _caller.get() is None:
            self._own.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Input:
    """Standard input of whoever is asked for; what was not sent can't be read here."""

    encoding, closed = "utf-8", False

    def __init__(self, own: Any) -> None:
        self._own = own

    @property
    def buffer(self) -> Any:
        caller = _caller.get()
        if caller is None:
            return self._own.buffer
        if caller.given is None:
            raise Direct
        return caller.given

    def readline(self) -> str:
        return str(self._own.readline()) if _caller.get() is None else self.buffer.readline().decode()

    def read(self) -> str:
        return str(self._own.read()) if _caller.get() is None else self.buffer.read().decode()

    def isatty(self) -> bool:
        caller = _caller.get()
        return bool(self._own.isatty()) if caller is None else caller.terminals[0]

    def fileno(self) -> int:
        if _caller.get() is not None:
            raise Direct
        return int(self._own.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Environment(MutableMapping[str, str]):
    """The environment of whoever is asked for; what is set in it is set for the server too, as libraries want it."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getitem__(self, name: str) -> str:
        return self._of(name)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._of(str(name))

    def _of(self, name: str) -> Mapping[str, str]:
        """Return the variables of whoever is asked for, for one of this name."""
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
        return iter([*(name for name in self._own if not caller.is_carried(name)), *caller.environment])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def copy(self) -> dict[str, str]:
        return dict(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
