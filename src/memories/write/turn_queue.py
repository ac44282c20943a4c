"""A crash-safe queue on disk for turns that could not be stored yet: one JSON object per line, in
order. Readers see its turns as if they were stored.
"""

import glob
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from memories.core.disk import (
    CREATING,
    flush_folder,
    locked,
    read_file,
    replacing,
    try_lock,
    write_all,
)
from memories.core.urls import local_path
from memories.errors import SystemFault
from memories.read.conversations import Conversation, ConversationPage
from memories.read.turns import Turn, conversation_id, scoped_key
from memories.settings import Config
from memories.stores.protocol import Store, find_first
from memories.stores.records import ROLE, SPEAKER, Collection, Filter

MAX_BYTES = 256 * 1_048_576
MAX_FAILED = 3  # if this many groups fail, draining stops, since the store is the likely cause
DRAIN_SECONDS = 1.0  # time that a caller spends on other groups when it only adds an entry
GROUP_SECONDS = 5.0  # time that such a caller then spends on earlier entries in its own group
_log = logging.getLogger(__name__)
_CHANNEL = "channel"
_TEXTS = ("conversation_id", "role", "text", "ts")

Entry = dict[str, Any]


class QueueFull(OSError):
    """The queue has reached its limit; nothing was added."""


class Drained(NamedTuple):
    """The result of draining a queue.

    Attributes:
        done: The number of entries that were processed.
        failed: The groups whose first entry can't be processed at present, each with the reason.
    """

    done: int
    failed: Mapping[str, SystemFault]


def files_of(config: Config, namespace: str) -> tuple[Path, str]:
    """Return the folder for a namespace's files next to the store, and the prefix of their names.

    If the store is a single file, this is the file's folder; otherwise the home folder. A server
    is identified by its address and by the database or collection, since the user and the
    password may change while entries are queued.
    """
    kind, file = config.store.partition("://")[0], local_path(config.store)
    if kind == "sqlite" and file is not None:
        return file.parent, f"{file.name}.{namespace}"
    parts = urlsplit(config.store)
    schema = parse_qs(parts.query).get("schema", [""])[-1]
    place = (
        kind,
        parts.netloc.rpartition("@")[2].lower(),
        parts.path.strip("/") or config.collection_name,
        schema,
    )
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).hexdigest()
    return config.home, f"{digest}.{namespace}"


def count_waiting(config: Config) -> int:
    """Return the number of turns, in all namespaces, that are waiting to be stored."""
    folder, name = files_of(config, "")
    return sum(len(_read(path)[0]) for path in folder.glob(f"{glob.escape(name)}*.turns.jsonl"))


def count_refused(config: Config) -> dict[Path, int]:
    """Return the files of refused turns in all namespaces, each with its number of turns."""
    folder, name = files_of(config, "")
    paths = sorted(folder.glob(f"{glob.escape(name)}*.turns.jsonl.refused"))
    return {path: _count_lines(path) for path in paths}


def lines_of(config: Config) -> Iterator[tuple[Path, int, str]]:
    """Yield every queued or refused line in all namespaces, with its file and number."""
    folder, name = files_of(config, "")
    for path in sorted(folder.glob(f"{glob.escape(name)}*.turns.jsonl*")):
        if path.suffix in (".jsonl", ".refused"):
            text = path.read_text("utf-8", "backslashreplace")
            for number, line in enumerate(text.splitlines(), 1):
                if line:
                    yield path, number, line


class RetryQueue:
    """A queue in a file that several processes share.

    An entry is on disk before `add` returns, and is removed only after it has been processed. After
    a crash between processing and removal, the entry is processed again, so processing must be
    idempotent. A group's entries are processed in order, by one process at a time; others may add
    entries at the same time.
    """

    def __init__(self, path: Path, group: str = "conversation_id") -> None:
        """Open a queue; an empty queue has no file.

        Args:
            path: The file.
            group: The field of an entry that names its group.
        """
        self.path = path
        self.refused = path.with_name(f"{path.name}.refused")
        self._group = group
        self._file_lock = path.with_name(f"{path.name}.lock")
        self._drain_lock = path.with_name(f"{path.name}.drain.lock")

    @classmethod
    def of_turns(cls, folder: Path, name: str) -> Self:
        """Return the queue of turns in a folder; see `files_of` for the names of its files."""
        return cls(folder / f"{name}.turns.jsonl")

    def __bool__(self) -> bool:
        """Return whether the queue has entries."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def add(self, entry: Entry) -> None:
        """Add an entry at the end.

        Raises:
            QueueFull: The queue would be larger than `MAX_BYTES`.
            OSError: The entry could not be written; nothing was added.
        """
        with locked(self._file_lock):
            _append(self.path, json.dumps(entry), MAX_BYTES)

    def entries(self, group: str | None = None) -> list[Entry]:
        """Return the queued entries, oldest first; with `group`, only that group's."""
        entries, _ = _read(self.path)
        if group is None:
            return entries
        return [entry for entry in entries if self._group_of(entry) == group]

    def refused_count(self) -> int:
        """Return the number of refused lines."""
        return _count_lines(self.refused)

    def drain(self, process: Callable[[Entry], object], *, before: str | None = None) -> Drained:
        """Process the entries in order, unless another process is already doing so.

        Args:
            process: Processes an entry. It raises `ValueError` for an entry that will never be
                accepted; such an entry is moved to a file next to the queue, with `.refused` added
                to its name. It raises `SystemFault` for an entry that can't be processed now; the
                entry's group then waits while others continue. Any other exception, such as
                `ConnectionError`, stops the processing and propagates.
            before: A group to process first; the others then get only a short time. None to process
                all entries.
        """
        if not self:
            return Drained(0, {})
        seconds = 0.0
        if before is not None and self.entries(before):
            seconds = GROUP_SECONDS
        with try_lock(self._drain_lock, seconds) as held:
            if held:
                return self._drain(process, before)
            return Drained(0, {})

    def discard(self, group: str) -> int:
        """Remove a group's entries, including refused ones; return how many there were.

        Half-written lines, and damaged lines that contain the group's name, are removed too.
        """
        files = (self.path, self.refused)
        if not any(path.exists() or _scratch(path).exists() for path in files):
            return 0
        count = 0
        with locked(self._drain_lock), locked(self._file_lock):
            for path in files:
                _scratch(path).unlink(missing_ok=True)
                entries, damaged = _read(path)
                other_entries = [entry for entry in entries if self._group_of(entry) != group]
                other_lines = [line for line in damaged if json.dumps(group) not in line]
                count += len(entries) - len(other_entries)
                is_half_written = path.exists() and read_file(path)[-1:] not in {b"", b"\n"}
                if is_half_written or other_entries != entries or other_lines != damaged:
                    _rewrite(path, [*map(json.dumps, other_entries), *other_lines])
        return count

    def move_to(self, other: "RetryQueue") -> int:
        """Move all entries, including refused ones, to another queue; return the number of queued
        ones.

        A crash during the move leaves some entries in both queues. This is harmless, since a turn
        is never stored twice.
        """
        if not (self.path.exists() or self.refused.exists()):
            return 0
        # Locked in a fixed order, so that two moves don't deadlock.
        first, second = sorted((self._file_lock, other._file_lock))
        with locked(self._drain_lock), locked(first), locked(second):
            entries, damaged = _read(self.path)
            for entry in entries:
                _append(other.path, json.dumps(entry), MAX_BYTES)
            refused_entries, refused_lines = _read(self.refused)
            for line in (*damaged, *map(json.dumps, refused_entries), *refused_lines):
                _append(other.refused, line)
            for path in (self.path, self.refused):
                _rewrite(path, [])
        return len(entries)

    def _group_of(self, entry: Entry) -> str:
        return str(entry.get(self._group))

    def _drain(self, process: Callable[[Entry], object], before: str | None) -> Drained:
        entries, damaged = _read(self.path)
        for line in damaged:
            _log.error("a damaged line in the queue %s was set aside", self.path)
            _append(self.refused, line)
        order = sorted(range(len(entries)), key=lambda at: self._group_of(entries[at]) != before)
        started_at = time.monotonic()
        processed: set[int] = set()
        failed: dict[str, SystemFault] = {}
        try:
            for at in order:
                group = self._group_of(entries[at])
                patience = GROUP_SECONDS if group == before else DRAIN_SECONDS
                is_late = before is not None and time.monotonic() - started_at > patience
                if is_late or len(failed) >= MAX_FAILED:
                    break
                if group not in failed and self._try(process, entries[at], failed):
                    processed.add(at)
        finally:
            if processed or damaged or not entries:
                with locked(self._file_lock):
                    current, _ = _read(self.path)  # others may have added entries in the meantime
                    remaining = [entry for at, entry in enumerate(current) if at not in processed]
                    _rewrite(self.path, list(map(json.dumps, remaining)))
        return Drained(len(processed), failed)

    def _try(
        self, process: Callable[[Entry], object], entry: Entry, failed: dict[str, SystemFault]
    ) -> bool:
        """Process an entry; return whether it can be removed from the queue."""
        try:
            process(entry)
        except ConnectionError:
            raise
        except SystemFault as exc:
            failed[self._group_of(entry)] = exc
            return False
        except ValueError as exc:
            _log.error("a queued entry was permanently refused: %s", exc)
            _append(self.refused, json.dumps(entry))
        return True


def _read(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the entries and the damaged lines.

    A half-written last line is left out, since it was never acknowledged.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        return [], []
    entries: list[Entry] = []
    damaged: list[str] = []
    for line in data.split(b"\n")[:-1]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            entries.append(entry)
        else:
            damaged.append(line.decode("utf-8", "backslashreplace"))
    return entries, damaged


def _count_lines(path: Path) -> int:
    entries, damaged = _read(path)
    return len(entries) + len(damaged)


def _scratch(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _append(path: Path, line: str, most: int | None = None) -> None:
    """Add a line to a file, replacing a half-written last line. Return once the line is on disk.

    Raises:
        QueueFull: The file would be larger than `most` bytes.
    """
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    is_new = not path.exists()
    fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    try:
        end = _end_of_last_line(fd, os.fstat(fd).st_size)
        if most is not None and end + len(data) > most:
            raise QueueFull(f"the queue {path} is full ({most} bytes); repair the store first")
        os.lseek(fd, end, os.SEEK_SET)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if is_new:
        flush_folder(path.parent)


def _rewrite(path: Path, lines: Sequence[str]) -> None:
    """Replace a file's contents atomically; remove the file if there are no lines."""
    if lines:
        with replacing(path, _scratch(path)) as file:
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
    else:
        path.unlink(missing_ok=True)
        flush_folder(path.parent)


def _end_of_last_line(fd: int, size: int) -> int:
    """Return the end of the last complete line."""
    step = 65_536
    for start in range(max(0, size - step), -step, -step):
        at = max(0, start)
        os.lseek(fd, at, os.SEEK_SET)
        last_break = os.read(fd, min(step, size - at)).rfind(b"\n")
        if last_break >= 0:
            return at + last_break + 1
    return 0


# --- queued turns, as readers see them


def waiting_turns(queue: RetryQueue, namespace: str, conversation: str | None = None) -> list[Turn]:
    """Return the queued turns, oldest first; if a conversation is given, only its turns."""
    if conversation is not None:
        conversation = conversation_id(conversation)
    if not queue:
        return []
    return list(_to_turns(queue.entries(conversation), namespace))


def select_unstored(store: Store, turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns in the queue that are not stored yet.

    A stored turn usually leaves the queue a moment later. After a crash, it may stay longer.
    """
    unstored: list[Turn] = []
    for turn in turns:
        key = scoped_key(turn.conversation_id, turn.message_id)
        where = Filter(Collection.HISTORY, (turn.namespace,), key=key)
        if key is None or find_first(store, where) is None:
            unstored.append(turn)
    return unstored


def number_turns(store: Store, turns: Sequence[Turn], where: Filter) -> list[Turn]:
    """Return a conversation's queued turns that match a filter, with their future indexes.

    Turns that are already stored are left out.
    """
    if not turns:
        return []
    own = Filter(Collection.HISTORY, (turns[0].namespace,), group=turns[0].conversation_id)
    stored = find_first(store, own, newest_first=True)
    last = -1 if stored is None else stored.ref.position
    matching: list[Turn] = []
    for turn in select_unstored(store, turns):
        last = max(last + 1, turn.index)
        if _meets(turn, where):
            matching.append(replace(turn, index=last))
    return matching


def with_waiting(page: ConversationPage, turns: Sequence[Turn], *, first: bool) -> ConversationPage:
    """Return a page of conversations, each with its number of queued turns.

    Args:
        page: Stored conversations.
        turns: The queued turns.
        first: Whether this is the first page. The first page begins with the conversations that
            have no stored turns.
    """
    by_conversation: dict[str, list[Turn]] = {}
    for turn in turns:
        by_conversation.setdefault(turn.conversation_id, []).append(turn)
    namespace = turns[0].namespace if turns else ""
    conversations = []
    for stored in page.conversations:
        count = stored.waiting_count
        if stored.namespace == namespace:
            count = len(by_conversation.pop(stored.id, ()))
        conversations.append(replace(stored, waiting_count=count))
    if first:
        new = [_new_conversation(queued) for queued in by_conversation.values()]
        conversations = [*new, *conversations]
    return page._replace(conversations=tuple(conversations))


def _new_conversation(turns: Sequence[Turn]) -> Conversation:
    first, last = turns[0], turns[-1]
    return Conversation(
        first.conversation_id,
        first.namespace,
        0,
        first.created_at,
        last.created_at,
        waiting_count=len(turns),
    )


def _to_turns(entries: Sequence[dict[str, Any]], namespace: str) -> Iterator[Turn]:
    """Yield entries as turns, numbered as if their conversations had no stored turns."""
    last: dict[str, int] = {}
    for entry in entries:
        if not all(isinstance(entry.get(name), str) for name in _TEXTS):
            continue  # an unreadable entry, which the next drain sets aside
        conversation = entry["conversation_id"]
        try:
            created_at = datetime.fromisoformat(entry["ts"]).astimezone()
            index = max(last.get(conversation, -1) + 1, int(entry.get("turn_index", 0)))
        except (ValueError, TypeError, OverflowError):
            continue
        last[conversation] = index
        yield Turn(
            conversation_id=conversation,
            index=index,
            namespace=namespace,
            content=entry["text"],
            role=entry["role"],
            speaker=entry.get("speaker"),
            created_at=created_at,
            session=index,
            message_id=entry.get("message_id"),
            tags={_CHANNEL: entry[_CHANNEL]} if entry.get(_CHANNEL) else {},
            waiting=True,
        )


def _meets(turn: Turn, where: Filter) -> bool:
    labels = {ROLE: turn.role}
    if turn.speaker is not None:
        labels[SPEAKER] = turn.speaker
    if where.since is not None and turn.created_at < where.since:
        return False
    if where.until is not None and turn.created_at > where.until:
        return False
    return where.labels.items() <= labels.items()
