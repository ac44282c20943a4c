"""A queue on disk for what could not be stored yet: one JSON object a line, in order, kept through
crashes.
"""

import glob
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from memories.errors import SystemFault
from memories.settings import Config
from memories.stores import local_path

MAX_BYTES = 256 * 1_048_576
MAX_FAILED = 3  # groups; if so many fail, it is not for what is in them
DRAIN_SECONDS = 1.0  # that somebody who only wants to add something spends on what others left
GROUP_SECONDS = 5.0  # and on what stands before it
_log = logging.getLogger(__name__)

Entry = dict[str, Any]


class QueueFull(OSError):
    """The queue has reached its limit; nothing was added."""


class Drained(NamedTuple):
    """The result of a drain.

    Attributes:
        done: How many entries were dealt with.
        failed: The groups whose first entry could not be dealt with now, and why.
    """

    done: int
    failed: Mapping[str, SystemFault]


def files_of(config: Config, namespace: str) -> tuple[Path, str]:
    """Return the folder for files beside the store of the settings, and the prefix of their names
    for a namespace.

    It is the folder of the store if that is one file, else the home. A server is told apart by its
    address and by the database or collection; the user and the password may change while something
    waits.
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
    return (
        config.home,
        f"{hashlib.blake2b(repr(place).encode(), digest_size=8).hexdigest()}.{namespace}",
    )


def waiting(config: Config) -> int:
    """Return how many turns wait to be stored, of all namespaces."""
    folder, name = files_of(config, "")
    return sum(len(_read(path)[0]) for path in folder.glob(f"{glob.escape(name)}*.turns.jsonl"))


def refused(config: Config) -> dict[Path, int]:
    """Return the files with turns that were put aside, of all namespaces, and how many each has."""
    folder, name = files_of(config, "")
    found = sorted(folder.glob(f"{glob.escape(name)}*.turns.jsonl.refused"))
    return {path: sum(len(lines) for lines in _read(path)) for path in found}


def lines_of(config: Config) -> Iterator[tuple[Path, int, str]]:
    """Yield every line that waits or was put aside, of all namespaces: its file, its number and
    itself.
    """
    folder, name = files_of(config, "")
    for path in sorted(folder.glob(f"{glob.escape(name)}*.turns.jsonl*")):
        if path.suffix in (".jsonl", ".refused"):
            text = path.read_text("utf-8", "backslashreplace")
            yield from (
                (path, number, line) for number, line in enumerate(text.splitlines(), 1) if line
            )


class RetryQueue:
    """A queue in a file that several processes share.

    An entry is on the disk before `add` returns, and is removed only after it was dealt with: after
    a crash in between it is dealt with again, so doing that twice must do no harm. Entries of a
    group are dealt with in the order in which they came. One process at a time deals with entries;
    others may add some.
    """

    def __init__(self, path: Path, group: str = "conversation_id") -> None:
        """Remember where the queue is; there is no file while nothing waits.

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
        """Return the queue of turns in a folder, with this prefix of its files; see `files_of`."""
        return cls(folder / f"{name}.turns.jsonl")

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def add(self, entry: Entry) -> None:
        """Add an entry at the end.

        Raises:
            QueueFull: The queue would be larger than `MAX_BYTES`.
            OSError: The disk refused it; nothing was added.
        """
        with locked(self._file_lock):
            _append(self.path, json.dumps(entry), MAX_BYTES)

    def entries(self, group: str | None = None) -> list[Entry]:
        """Return what waits, oldest first; only of one group, if it is named."""
        return [
            entry
            for entry in _read(self.path)[0]
            if group is None or self._group_of(entry) == group
        ]

    def refused_count(self) -> int:
        """Return how many lines were put aside."""
        return sum(len(lines) for lines in _read(self.refused))

    def drain(self, deal_with: Callable[[Entry], object], *, before: str | None = None) -> Drained:
        """Deal with what waits, in order, unless another process is doing that already.

        Args:
            deal_with: Raises `ValueError` for an entry that will never be accepted; it is put
                aside, into a file beside the queue named `.refused`. Raises `SystemFault` for one
                that can't be dealt with now; its group then waits while others go on. Anything
                else, such as `ConnectionError`, ends the draining and is raised.
            before: A group that must be empty first: it is dealt with before others, and those only
                for a short time. Without it, all is dealt with.
        """
        if not self:
            return Drained(0, {})
        waits = GROUP_SECONDS if before is not None and self.entries(before) else 0
        with try_lock(self._drain_lock, waits) as held:
            return self._drain(deal_with, before) if held else Drained(0, {})

    def discard(self, group: str) -> int:
        """Remove the entries of a group, refused ones included; return how many there were.

        Damaged lines that hold its name are removed too, and whatever a crash left half-written.
        """
        files = (self.path, self.refused)
        if not any(path.exists() or _scratch(path).exists() for path in files):
            return 0
        gone = 0
        with locked(self._drain_lock), locked(self._file_lock):
            for path in files:
                _scratch(path).unlink(missing_ok=True)
                entries, damaged = _read(path)
                kept = [entry for entry in entries if self._group_of(entry) != group]
                unread = [line for line in damaged if json.dumps(group) not in line]
                if len(kept) + len(unread) < len(entries) + len(damaged) or not _is_whole(path):
                    _rewrite(path, [*map(json.dumps, kept), *unread])
                gone += len(entries) - len(kept)
        return gone

    def move_to(self, other: "RetryQueue") -> int:
        """Add all that waits here, and what was put aside, to another queue; return how many
        entries waited.

        A crash in between leaves some in both; storing a turn twice stores it once.
        """
        if not (self.path.exists() or self.refused.exists()):
            return 0
        first, second = sorted(
            (self._file_lock, other._file_lock)
        )  # so that two moves don't wait for each other
        with locked(self._drain_lock), locked(first), locked(second):
            entries, damaged = _read(self.path)
            for entry in entries:
                _append(other.path, json.dumps(entry), MAX_BYTES)
            aside, unread = _read(self.refused)
            for line in (*damaged, *map(json.dumps, aside), *unread):
                _append(other.refused, line)
            for path in (self.path, self.refused):
                _rewrite(path, [])
        return len(entries)

    # --- inside
    # ----------------------------------------------------------------------------------------------------

    def _group_of(self, entry: Entry) -> str:
        return str(entry.get(self._group))

    def _drain(self, deal_with: Callable[[Entry], object], before: str | None) -> Drained:
        waiting, damaged = _read(self.path)
        for line in damaged:
            _log.error("a damaged line of the queue %s was put aside", self.path)
            _append(self.refused, line)
        order = sorted(range(len(waiting)), key=lambda at: self._group_of(waiting[at]) != before)
        began = time.monotonic()
        done: set[int] = set()
        failed: dict[str, SystemFault] = {}
        try:
            for at in order:
                group = self._group_of(waiting[at])
                patience = GROUP_SECONDS if group == before else DRAIN_SECONDS
                if len(failed) >= MAX_FAILED or (
                    before is not None and time.monotonic() - began > patience
                ):
                    break
                if group not in failed and self._try(deal_with, waiting[at], failed):
                    done.add(at)
        finally:
            if done or damaged or not waiting:
                self._take_out(done)
        return Drained(len(done), failed)

    def _try(
        self, deal_with: Callable[[Entry], object], entry: Entry, failed: dict[str, SystemFault]
    ) -> bool:
        """Deal with an entry; return whether it can be removed."""
        try:
            deal_with(entry)
        except ConnectionError:
            raise
        except SystemFault as exc:
            failed[self._group_of(entry)] = exc
            return False
        except ValueError as exc:
            _log.error("a queued entry was refused for good: %s", exc)
            _append(self.refused, json.dumps(entry))
        return True

    def _take_out(self, done: set[int]) -> None:
        """Rewrite the queue without the entries at these places and without damaged lines; later
        entries stay.
        """
        with locked(self._file_lock):
            now, _ = _read(self.path)
            _rewrite(
                self.path, [json.dumps(entry) for at, entry in enumerate(now) if at not in done]
            )


def _read(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the entries, and the damaged lines. A half-written last line was never
    acknowledged.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        return [], []
    found: list[Entry] = []
    damaged: list[str] = []
    for line in data.split(b"\n")[:-1]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            found.append(entry)
        else:
            damaged.append(line.decode("utf-8", "backslashreplace"))
    return found, damaged


def _scratch(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _is_whole(path: Path) -> bool:
    """Return whether a file's last line was written to its end."""
    return not path.exists() or read_file(path)[-1:] in {b"", b"\n"}


def _append(path: Path, line: str, most: int | None = None) -> None:
    """Add a line to a file, over what a crash left half-written; it is on the disk when this
    returns.

    Raises:
        QueueFull: The file would be larger than `most` bytes.
    """
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    new = not path.exists()
    fd = os.open(path, CREATING | os.O_RDWR, 0o600)
    try:
        whole = _end_of_last_line(fd, os.fstat(fd).st_size)
        if most is not None and whole + len(data) > most:
            raise QueueFull(f"the queue {path} is full ({most} bytes); repair the store first")
        os.lseek(fd, whole, os.SEEK_SET)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if new:
        flush_folder(path.parent)


def _rewrite(path: Path, lines: Sequence[str]) -> None:
    """Replace a file by one with these lines, in one step; remove it if there are none."""
    if lines:
        with replacing(path, _scratch(path)) as file:
            file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
    else:
        path.unlink(missing_ok=True)
        flush_folder(path.parent)


def _end_of_last_line(fd: int, size: int) -> int:
    """Return where the last whole line ends."""
    step = 65_536
    for start in range(max(0, size - step), -step, -step):
        at = max(0, start)
        os.lseek(fd, at, os.SEEK_SET)
        found = os.read(fd, min(step, size - at)).rfind(b"\n")
        if found >= 0:
            return at + found + 1
    return 0
