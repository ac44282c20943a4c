"""What was done with the memory, one JSON line an operation, in `HOME/events.jsonl`: figures, never
what anybody wrote.

A line has no id of a memory, conversation or turn and no word of a query, so erasing one leaves
nothing behind here. Noting is only a statistic: it never fails an operation. `problem` tells why it
can't be done, for `memory doctor`.
"""

import contextlib
import errno
import functools
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memories.core.disk import CREATING, make_folder, replacing

if TYPE_CHECKING:
    from memories.settings import Config

try:
    import fcntl
except (
    ImportError
):  # Windows: an open file can't be renamed there, so that nobody loses what another one rotates
    fcntl = None  # type: ignore[assignment]

FILE = "events.jsonl"
MAX_BYTES = 8 << 20  # of one file: about 40,000 operations
KEPT = 4  # older files: `events.1.jsonl` is the newest of them
MAX_TEXT = 120  # characters of a figure that is a text
MAX_CONTENT = 500  # characters of what was asked or written, if that is kept
OFF, ON, CONTENT = "off", "on", "content"

_BEGIN = b'{"at":"'

# The verbs of `Memories` that are noted, by another name where that of the command is shorter;
# those that write.
_READS = {
    "get": "", "list": "", "search": "", "explain": "search", "history": "", "tags": "", "status": "", "log": "",
    "namespaces": "", "stats": "", "tail_turns": "turns", "turns": "", "list_conversations": "conversations",
    "conversation": "conversations", "verify_log": "log", "scratchpad": "",
    "search_scratchpad": "scratchpad",
}  # fmt: skip
WRITES = {
    "create_many": "create", "update": "", "reinforce": "", "delete": "", "restore": "", "forget": "",
    "delete_where": "delete", "forget_where": "forget", "tag_where": "tag", "rollback": "", "add_turns": "",
    "update_conversation": "", "forget_turns": "", "pin": "", "unpin": "",
}  # fmt: skip

Figure = str | int | float | None
_LATER = threading.local()  # the lines of `together`
Kind = TypeVar("Kind")


def note(home: Path, operation: str, *, setting: str = ON, **figures: Figure) -> None:
    """Append what was done; what can't be written is lost, and `memory doctor` says so.

    The usual figures are `namespace`, `agent`, `project`, `channel`, `ms` (how long it took),
    `results`, `written`, `tokens` (how many were given to a model) and `outcome`, which is "ok" or
    the name of an error.

    Args:
        home: The folder of the settings; it is made if it is missing.
        operation: What was done, such as `search`.
        setting: `events` of the settings: `off`, `on`, or `content`, without which a figure
            `content` is left out.
        **figures: Numbers and names; None is left out, a long text is cut. `content` has to be
            redacted already.
    """
    if setting == OFF:
        return
    if setting != CONTENT:
        figures.pop(CONTENT, None)
    later: dict[Path, list[bytes]] | None = getattr(_LATER, "lines", None)
    if later is not None:
        later.setdefault(home, []).append(_line(operation, figures))
        return
    with contextlib.suppress(OSError):
        append(home, operation, figures)


@contextlib.contextmanager
def noting(config: "Config", operation: str, **figures: Figure) -> Iterator[dict[str, Figure]]:
    """Note what is done inside, with how long it took and how it ended; more figures may be put
    into what it yields.
    """
    began, known = time.perf_counter(), dict(figures)
    try:
        yield known
    finally:
        _finish(known, began, sys.exc_info()[0])
        if config.log_level == "DEBUG":
            _debug(config, operation, known)
        if known.get("written") or config.home.exists():  # reading makes no folder
            note(
                config.home,
                operation,
                setting=config.events,
                **{"namespace": config.namespace, **known},
            )


def _debug(config: "Config", operation: str, known: Mapping[str, Figure]) -> None:
    """Log the figures of an operation, and what it worked with; never a text."""
    import logging

    from memories.core import logs
    from memories.core.urls import without_password

    figures = {name: value for name, value in known.items() if name != CONTENT}
    means = {
        "store": without_password(config.store),
        "embedder": config.embedder,
        "namespace": config.namespace,
    }
    logs.event(logging.getLogger(__name__), logging.DEBUG, operation, **{**means, **figures})


def ended(memories: Any, operation: str, began: float, given: Any, result: Any) -> None:
    """Note what one thread began and another one has ended, as `noted` does.

    Args:
        memories: Whose verb it is.
        operation: How it is noted.
        began: When, as `time.perf_counter` tells.
        given: What it was given first.
        result: What came of it; an exception if it failed.
    """
    config, failed = memories.config, isinstance(result, BaseException)
    if config.events == OFF:
        return
    known: dict[str, Figure] = dict(memories.event_figures())
    if config.events == CONTENT:
        known[CONTENT] = _told((given,), config)
    if not failed:
        known["written"] = _counted(result)
    _finish(known, began, type(result) if failed else None)
    if not failed or config.home.exists():
        note(
            config.home,
            operation,
            setting=config.events,
            **{"namespace": config.namespace, **known},
        )


def _finish(known: dict[str, Figure], began: float, error: type[BaseException] | None) -> None:
    """Put how an operation ended, and how long it took, among its figures."""
    known["outcome"] = known.get("outcome", "ok") if error is None else error.__name__
    known["ms"] = round((time.perf_counter() - began) * 1000, 2)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Write down at the end, at once, what this thread notes inside."""
    lines: dict[Path, list[bytes]] = {}
    _LATER.lines = lines
    try:
        yield
    finally:
        _LATER.lines = None
        for home, some in lines.items():
            with contextlib.suppress(OSError):
                _write(home, b"".join(some))


def observed(kind: type[Kind]) -> type[Kind]:
    """Have each verb of `Memories` noted, and reads that wait for it counted after those that
    write.
    """
    for verb, name in {**_READS, **WRITES}.items():
        setattr(kind, verb, noted(getattr(kind, verb), verb, name or verb))
    return kind


def noted(method: Callable[..., Any], verb: str, name: str) -> Callable[..., Any]:
    """Return what does the same as a verb of `Memories` and is noted; of what does the work of one
    elsewhere as well.

    Args:
        method: Does it; its first argument is the memory.
        verb: The verb.
        name: How it is noted.
    """

    def doing(self: Any, *args: Any, **given: Any) -> Any:
        config = self.config
        if config.events == OFF and config.log_level != "DEBUG":
            return method(self, *args, **given)
        with noting(config, name) as known:
            if config.events == CONTENT:
                known[CONTENT] = _told(args, config)
            try:
                result = method(self, *args, **given)
            finally:
                known.update(self.event_figures())  # now: what writes has found the project
            known["written" if verb in WRITES else "results"] = _counted(result)
        return result

    if verb not in WRITES and verb != "status":
        return functools.wraps(method)(doing)

    @functools.wraps(method)
    def flushing(self: Any, *args: Any, **given: Any) -> Any:
        result = doing(self, *args, **given)
        self.flush_accesses()
        return result

    return flushing


def _told(args: tuple[Any, ...], config: "Config") -> str | None:
    """Return the text that an operation was given, without secrets."""
    from memories.guard.redactor import redact

    first = (
        args[0][0] if args and isinstance(args[0], list) and args[0] else args[0] if args else None
    )
    text = first if isinstance(first, str) else getattr(first, "content", None)
    if not isinstance(text, str):
        return None
    return redact(
        text[: 8 * MAX_CONTENT], personal=config.redact == "pii", own=config.redact_rules
    ).text


def _counted(result: Any) -> int:
    """Return how much came back, or how much was written."""
    result = getattr(result, "found", result)  # in a scratchpad
    if isinstance(result, list):
        return sum(bool(getattr(each, "stored", True)) for each in result)
    for name in (
        "memories",
        "hits",
        "versions",
        "entries",
        "counts",
    ):  # of a page, an explanation, …, a change of many
        found = getattr(result, name, None)
        if isinstance(found, Mapping):
            return 0 if result.dry_run else sum(found.values())
        if isinstance(found, tuple):
            return len(found)
    if isinstance(result, tuple | dict) and not hasattr(result, "_fields"):
        return len(result)
    return 1


def append(home: Path, operation: str, figures: dict[str, Figure]) -> None:
    """Do what `note` does, and raise what stands against it.

    Raises:
        OSError: The file can't be written.
    """
    _write(home, _line(operation, figures))


def _write(home: Path, lines: bytes) -> None:
    fd = _open(home)
    try:
        size = _size(fd)
        written = os.write(fd, lines)  # once: two writers' lines never mix
        if written < len(lines):
            raise OSError(errno.ENOSPC, "only a part of a line could be written: the disk is full")
        if size > MAX_BYTES:
            _rotate(home, fd)
    finally:
        os.close(fd)


def problem(home: Path) -> str:
    """Return why operations can't be noted; empty if they can, which noting this one shows."""
    if not os.path.lexists(home):
        return ""
    try:
        append(home, "doctor", {"outcome": "ok"})
    except OSError as exc:
        return f"{home / FILE}: {exc.strerror or exc}"
    return ""


def files(home: Path) -> list[Path]:
    """Return the files that there are, the oldest first."""
    named = [*(_old(home, number) for number in range(KEPT, 0, -1)), home / FILE]
    return [path for path in named if path.is_file()]


def read(home: Path, since: str = "") -> Iterator[dict[str, Any]]:
    """Yield what was noted, oldest first; a line that is not whole is left out.

    Args:
        home: The folder of the settings.
        since: Only what was noted at this time or later, as `2026-11-22T13:40:00.000Z`.
    """
    for path in files(home):
        with (
            contextlib.suppress(FileNotFoundError),
            path.open("rb") as stream,
        ):  # it may be rotated away meanwhile
            for line in stream:
                begin = len(_BEGIN)
                if since and line[begin : begin + len(since)] < since.encode():
                    continue
                if event := _event(line):
                    yield event


def forget(home: Path, gone: Callable[[dict[str, Any]], bool]) -> int:
    """Remove events for good, such as those of a namespace that is erased; return how many.

    Args:
        home: The folder of the settings.
        gone: Whether an event goes.

    Raises:
        OSError: A file can't be written anew.
    """
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(home / FILE, os.O_RDWR)
        try:
            _rotate(home, fd)  # nobody appends to the older ones
        finally:
            os.close(fd)
    for path in files(home):
        lines = path.read_bytes().splitlines(keepends=True)
        left = [
            line for line in lines if (event := _event(line)) and not gone(event)
        ]  # what is not whole goes too
        removed += len(lines) - len(left)
        if len(left) < len(lines) and path.name != FILE:
            with replacing(path) as stream:
                stream.writelines(left)
    return removed


@functools.cache
def _json() -> Callable[[object], str]:
    import json

    return json.JSONEncoder(separators=(",", ":")).encode


def _line(operation: str, figures: dict[str, Figure]) -> bytes:
    now = time.time()
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"
    event: dict[str, Figure] = {"at": at, "op": operation}
    for name, value in figures.items():
        most = MAX_CONTENT if name == CONTENT else MAX_TEXT
        if value is not None:
            event[name] = value[:most] if isinstance(value, str) else value
    return _json()(event).encode() + b"\n"  # ASCII, so that no cut text can break it


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; of the line behind one that was cut, since the disk was full,
    that one.
    """
    import json

    for begin in (0, line.rfind(_BEGIN)):
        with contextlib.suppress(ValueError):
            event = json.loads(line[begin:])
            if (
                isinstance(event, dict)
                and isinstance(event.get("op"), str)
                and isinstance(event.get("at"), str)
            ):
                return event
    return None


def _open(home: Path) -> int:
    flags = (
        CREATING | os.O_APPEND | os.O_RDWR | getattr(os, "O_NONBLOCK", 0)
    )  # a pipe keeps nobody waiting
    try:
        return os.open(home / FILE, flags, 0o600)
    except FileNotFoundError:
        make_folder(home)
        return os.open(home / FILE, flags, 0o600)


def _size(fd: int) -> int:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    return found.st_size


def _old(home: Path, number: int) -> Path:
    return home / f"events.{number}.jsonl"


def _rotate(home: Path, fd: int) -> None:
    """Give the file, which is open, the name of an old one; whoever comes second finds that it has
    been done.
    """
    path = home / FILE
    if fcntl is not None:
        try:
            fcntl.flock(
                fd, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # of this file: another one does it just now
        except BlockingIOError:
            return
        if not (path.exists() and path.stat().st_ino == os.fstat(fd).st_ino):
            return
    for number in range(KEPT - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            _old(home, number).replace(_old(home, number + 1))
    path.replace(_old(home, 1))
