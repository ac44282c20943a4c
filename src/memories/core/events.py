"""Events: one JSON line per operation in `HOME/events.jsonl`, for statistics.

By default, a line contains no content: no words of a query, and no ids of memories, conversations
or turns. So an erased memory leaves no trace in this file. An operation never fails because its
event can't be written; `memory doctor` calls `problem` to find out why.
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
except ImportError:  # Windows: no lock is needed, since an open file can't be renamed there
    fcntl = None  # type: ignore[assignment]

FILE = "events.jsonl"
MAX_BYTES = 8 << 20  # maximum size of one file: about 40,000 operations
KEPT = 4  # number of older files; `events.1.jsonl` is the newest of them
MAX_TEXT = 120  # maximum length of a text field, in characters
MAX_CONTENT = 500  # maximum length of the field `content`, in characters
OFF, ON, CONTENT = "off", "on", "content"

_BEGIN = b'{"at":"'

# The methods of `Memories` whose calls are recorded, with the name of the operation if it differs.
_READS = {
    "get": "", "list": "", "search": "", "explain": "search", "find_candidates": "search",
    "history": "", "tags": "", "status": "", "log": "", "verify_log": "log", "namespaces": "",
    "stats": "",
    "turns": "", "tail_turns": "turns", "list_conversations": "conversations",
    "conversation": "conversations", "scratchpad": "", "search_scratchpad": "scratchpad",
}  # fmt: skip
WRITES = {
    "create_many": "create", "update": "", "reinforce": "", "delete": "", "restore": "",
    "forget": "", "delete_where": "delete", "forget_where": "forget", "tag_where": "tag",
    "rollback": "", "add_turns": "", "update_conversation": "", "forget_turns": "",
    "pin": "", "unpin": "", "move": "",
}  # fmt: skip
# For each method, the position and name of the argument with the query or the written text.
_TEXTS = {
    "search": (0, "query"), "explain": (0, "query"), "find_candidates": (0, "query"),
    "search_scratchpad": (0, "query"), "create_many": (0, "drafts"), "update": (1, "content"),
    "add_turns": (1, "turns"),
}  # fmt: skip

Figure = str | int | float | None
_LATER = threading.local()  # the lines that `together` has collected
Class = TypeVar("Class")


def note(home: Path, operation: str, *, setting: str = ON, **figures: Figure) -> None:
    """Append an event. If that fails, the event is lost, and `memory doctor` reports the problem.

    The usual fields are `namespace`, `agent`, `project`, `channel`, `ms` (the duration),
    `results`, `written`, `tokens` (the number given to a model) and `outcome`, which is "ok" or the
    name of an error.

    Args:
        home: The settings folder; created if missing.
        operation: The operation, such as `search`.
        setting: The setting `events`: `off`, `on` or `content`. Only `content` records the field
            `content`.
        **figures: The fields: numbers and names. Fields that are None are left out, and long texts
            are truncated. `content` must be redacted already.
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
    """Record the `with` block as one operation, with its duration and outcome.

    Yields:
        The figures; the block may add more.
    """
    start, noted = time.perf_counter(), dict(figures)
    try:
        yield noted
    finally:
        _add_outcome(noted, start, sys.exc_info()[0])
        if config.log_level == "DEBUG":
            _debug(config, operation, noted)
        if noted.get("written") or config.home.exists():  # a read does not create the folder
            noted = {"namespace": config.namespace, **noted}
            note(config.home, operation, setting=config.events, **noted)


def _debug(config: "Config", operation: str, figures: Mapping[str, Figure]) -> None:
    """Log an operation's figures, its store and its embedder, but no content."""
    import logging

    from memories.core import logs
    from memories.core.urls import without_password

    fields = {
        "store": without_password(config.store),
        "embedder": config.embedder,
        "namespace": config.namespace,
        **{name: value for name, value in figures.items() if name != CONTENT},
    }
    logs.event(logging.getLogger(__name__), logging.DEBUG, operation, **fields)


def note_finished(memories: Any, operation: str, start: float, argument: Any, result: Any) -> None:
    """Record an operation begun in one thread and finished in another; see `note_calls`.

    Args:
        memories: The `Memories` that performed the operation.
        operation: The name of the operation.
        start: When the operation began, by `time.perf_counter`.
        argument: The argument with the query or the written text.
        result: The result; an exception if it failed.
    """
    config, has_failed = memories.config, isinstance(result, BaseException)
    if config.events == OFF:
        return
    figures: dict[str, Figure] = {
        "namespace": config.namespace,
        **memories.event_figures(),
    }
    if config.events == CONTENT:
        figures[CONTENT] = _redacted_content(argument, config)
    if not has_failed:
        figures["written"] = _count(result)
    _add_outcome(figures, start, type(result) if has_failed else None)
    if not has_failed or config.home.exists():
        note(config.home, operation, setting=config.events, **figures)


def _add_outcome(
    figures: dict[str, Figure], start: float, error: type[BaseException] | None
) -> None:
    """Add the outcome and the duration of an operation to its figures."""
    figures.setdefault("outcome", "ok")
    if error is not None:
        figures["outcome"] = error.__name__
    figures["ms"] = round((time.perf_counter() - start) * 1000, 2)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Collect the events that this thread records in the `with` block; write them at its end."""
    lines_by_home: dict[Path, list[bytes]] = {}
    _LATER.lines = lines_by_home
    try:
        yield
    finally:
        _LATER.lines = None
        for home, lines in lines_by_home.items():
            with contextlib.suppress(OSError):
                _write(home, b"".join(lines))


def note_methods(memories_class: type[Class]) -> type[Class]:
    """Class decorator that records each operation of `Memories`."""
    for method, operation in {**_READS, **WRITES}.items():
        function = getattr(memories_class, method)
        setattr(memories_class, method, note_calls(function, method, operation or method))
    return memories_class


def note_calls(function: Callable[..., Any], method: str, operation: str) -> Callable[..., Any]:
    """Decorator that records calls to a method of `Memories`, or to a function that stands in for
    one.

    After a write or `status`, it also saves the pending access counts.

    Args:
        function: The function; its first argument is the `Memories`.
        method: The name of the method.
        operation: The name of the operation.
    """

    def call_and_note(self: Any, *args: Any, **options: Any) -> Any:
        config = self.config
        if config.events == OFF and config.log_level != "DEBUG":
            return function(self, *args, **options)
        with noting(config, operation) as figures:
            if config.events == CONTENT and method in _TEXTS:
                position, name = _TEXTS[method]
                argument = args[position] if position < len(args) else options.get(name)
                figures[CONTENT] = _redacted_content(argument, config)
            try:
                result = function(self, *args, **options)
            finally:
                figures.update(self.event_figures())  # a write's project is known only now
            figures["written" if method in WRITES else "results"] = _count(result)
        return result

    if method not in WRITES and method != "status":
        return functools.wraps(function)(call_and_note)

    @functools.wraps(function)
    def call_and_count_reads(self: Any, *args: Any, **options: Any) -> Any:
        result = call_and_note(self, *args, **options)
        self.flush_accesses()
        return result

    return call_and_count_reads


def _redacted_content(argument: Any, config: "Config") -> str | None:
    """Return the text in an argument, or in the first element of a list, without secrets."""
    from memories.guard.redactor import redact

    if isinstance(argument, list) and argument:
        argument = argument[0]
    text = getattr(argument, "content", argument)
    if not isinstance(text, str):
        return None
    beginning = text[: 8 * MAX_CONTENT]
    return redact(beginning, personal=config.redact == "pii", user_rules=config.redact_rules).text


def _count(result: Any) -> int:
    """Return the number of memories or turns that an operation returned or wrote."""
    result = getattr(result, "explanation", result)  # the result of a search in a scratchpad
    if isinstance(result, list):
        return sum(bool(getattr(element, "stored", True)) for element in result)
    # The attribute that contains the results, in pages, explanations, histories, scratchpads and
    # bulk changes.
    for name in ("memories", "hits", "versions", "entries", "counts"):
        part = getattr(result, name, None)
        if isinstance(part, Mapping):
            return 0 if result.dry_run else sum(part.values())
        if isinstance(part, tuple):
            return len(part)
    if isinstance(result, tuple | dict) and not hasattr(result, "_fields"):
        return len(result)
    return 1


def append(home: Path, operation: str, figures: dict[str, Figure]) -> None:
    """Append an event as `note` does, but raise errors.

    Raises:
        OSError: The file can't be written.
    """
    _write(home, _line(operation, figures))


def _write(home: Path, lines: bytes) -> None:
    fd = _open(home)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        written = os.write(fd, lines)  # one call, so that two writers' lines never mix
        if written < len(lines):
            raise OSError(errno.ENOSPC, "only part of a line could be written: the disk is full")
        if status.st_size > MAX_BYTES:
            _rotate(home, fd)
    finally:
        os.close(fd)


def problem(home: Path) -> str:
    """Write a test event; return why it failed, or an empty string if it succeeded."""
    if not os.path.lexists(home):
        return ""
    try:
        append(home, "doctor", {"outcome": "ok"})
    except OSError as exc:
        return f"{home / FILE}: {exc.strerror or exc}"
    return ""


def files(home: Path) -> list[Path]:
    """Return the existing event files, oldest first."""
    older = [_older_file(home, number) for number in range(KEPT, 0, -1)]
    return [path for path in (*older, home / FILE) if path.is_file()]


def files_with_content(home: Path) -> list[str]:
    """Return the event files that contain the text of memories. Some of these memories may have
    been erased since.
    """
    mark = f',"{CONTENT}":'.encode()
    return [str(path) for path in files(home) if mark in path.read_bytes()]


def read(home: Path, since: str = "") -> Iterator[dict[str, Any]]:
    """Yield events, oldest first; incomplete lines are skipped.

    Args:
        home: The folder of the settings.
        since: Only events from this time or later, such as `2026-11-22T13:40:00.000Z`.
    """
    start = len(_BEGIN)
    for path in files(home):
        # Another process may rotate the file away in the meantime.
        with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
            for line in stream:
                if since and line[start : start + len(since)] < since.encode():
                    continue
                event = _parse(line)
                if event:
                    yield event


def forget(home: Path, is_forgotten: Callable[[dict[str, Any]], bool]) -> int:
    """Permanently remove events, for example those of an erased namespace.

    Args:
        home: The folder of the settings.
        is_forgotten: Returns whether an event is removed.

    Returns:
        The number of removed events; incomplete lines are removed too.

    Raises:
        OSError: A file can't be rewritten.
    """
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(home / FILE, os.O_RDWR)
        try:
            _rotate(home, fd)  # so that nothing is appended to the files while they are rewritten
        finally:
            os.close(fd)
    for path in files(home):
        lines = path.read_bytes().splitlines(keepends=True)
        remaining: list[bytes] = []
        for line in lines:
            event = _parse(line)
            if event and not is_forgotten(event):
                remaining.append(line)
        removed += len(lines) - len(remaining)
        if len(remaining) < len(lines) and path.name != FILE:
            with replacing(path) as stream:
                stream.writelines(remaining)
    return removed


def _line(operation: str, figures: dict[str, Figure]) -> bytes:
    import json

    now = time.time()
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"
    event: dict[str, Figure] = {"at": at, "op": operation}
    for name, value in figures.items():
        if isinstance(value, str):
            event[name] = value[: MAX_CONTENT if name == CONTENT else MAX_TEXT]
        elif value is not None:
            event[name] = value
    line = json.dumps(event, separators=(",", ":"))
    return line.encode() + b"\n"  # ASCII, so that truncation can't split a character


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line.

    If the disk was full, an incomplete event and the next one may share a line. Then the second one
    is returned.
    """
    import json

    for start in (0, line.rfind(_BEGIN)):
        with contextlib.suppress(ValueError):
            event = json.loads(line[start:])
            if isinstance(event, dict) and _is_text(event, "op") and _is_text(event, "at"):
                return event
    return None


def _is_text(event: dict[str, Any], name: str) -> bool:
    return isinstance(event.get(name), str)


def _open(home: Path) -> int:
    # Don't block: the file may be a pipe.
    flags = CREATING | os.O_APPEND | os.O_RDWR | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(home / FILE, flags, 0o600)
    except FileNotFoundError:
        make_folder(home)
        return os.open(home / FILE, flags, 0o600)


def _older_file(home: Path, number: int) -> Path:
    return home / f"events.{number}.jsonl"


def _rotate(home: Path, fd: int) -> None:
    """Rename the open file to `events.1.jsonl`, unless another process has renamed it."""
    path = home / FILE
    if fcntl is not None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is rotating this file
            return
        if not (path.exists() and path.stat().st_ino == os.fstat(fd).st_ino):
            return
    for number in range(KEPT - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            _older_file(home, number).replace(_older_file(home, number + 1))
    path.replace(_older_file(home, 1))
