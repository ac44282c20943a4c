"""The records of one file in memory, and what a filter means among them. What lies on the disk is not known here."""

import itertools
import json
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, Self

from memories.errors import Conflict
from memories.stores.files import lines as files_lines
from memories.stores.records import Collection, Filter, Patch, Record
from memories.times import from_millis, to_millis

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Every word of the records that this process has searched, each with its own number.
WORDS: dict[str, int] = {}
_numbers = itertools.count()

Address = tuple[str, int]
Order = tuple[bool, str, int]


class Entry:
    """A record and its line; what is computed of it is kept with it, for it never changes."""

    def __init__(self, record: Record, line: str | None = None) -> None:
        """Take a record in, and its line if it has one already."""
        self.record = record
        self.line = files_lines.written(files_lines.to_json(record)) if line is None else line

    @property
    def address(self) -> Address:
        """Where it stands in its file."""
        return self.record.ref.group, self.record.ref.position

    @cached_property
    def words(self) -> "array[int]":
        """The words that it is found by, each as its number in `WORDS`."""
        from memories.stores.words import tokens_of

        return array("i", [WORDS.setdefault(token, next(_numbers)) for token in tokens_of(self.record)])

    @cached_property
    def vector_key(self) -> bytes:
        """What its vectors are kept under: a text that was edited by hand has none."""
        ref = self.record.ref
        return blake2b(f"{ref.group}\0{ref.position}\0{self.record.text}".encode(), digest_size=16).digest()

    @cached_property
    def order(self) -> Order:
        """What orders it as in a SQLite store: names before ids."""
        return order_of(*self.address)


class Damage(NamedTuple):
    """Why a file can't be read.

    Attributes:
        line: The number of the line.
        reason: What is wrong with it.
    """

    line: int
    reason: str


class Pool:
    """The records of one file, in the order of its lines. It never changes: a change gives another one.

    Attributes:
        entries: The records by their addresses.
        added: Records that the file does not have yet, if that is all that it lacks; None if it must be rewritten.
        merged: The file has several lines for one address.
        damage: Why there are none, if the file can't be read.
    """

    def __init__(
        self,
        entries: Mapping[Address, Entry],
        added: tuple[Entry, ...] | None = (),
        *,
        merged: bool = False,
        damage: Damage | None = None,
    ) -> None:
        """Take the entries; they are not copied."""
        self.entries = entries
        self.added = added
        self.merged = merged
        self.damage = damage

    @cached_property
    def by_group(self) -> Mapping[str, Sequence[Entry]]:
        """The records of each group."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            found.setdefault(entry.record.ref.group, []).append(entry)
        return found

    @property
    def changed(self) -> bool:
        """Whether the file is to be written."""
        return self.added != ()

    def saved(self) -> Self:
        """Return it as it is once its file was written."""
        pool = type(self)(self.entries, merged=self.merged)
        if "by_group" in self.__dict__:
            pool.__dict__["by_group"] = self.by_group
        return pool

    def data(self) -> bytes:
        """Return the whole file."""
        return "".join(f"{entry.line}\n" for entry in self.entries.values()).encode()

    def plus(self, records: Iterable[Record]) -> Self:
        """Return it with new records at the end.

        Raises:
            Conflict: A position or a key is taken.
        """
        entries = dict(self.entries)
        keys = {entry.record.key for entry in entries.values() if entry.record.ended_at is None} - {None}
        new: list[Entry] = []
        for record in records:
            entry = Entry(record)
            key = record.key if record.ended_at is None else None
            if entry.address in entries or key in keys:
                what = f"version {record.ref.position} of {record.ref.group}"
                raise Conflict(f"{what} or its key was written by somebody else first; read it again")
            entries[entry.address] = entry
            keys |= {key} - {None}
            new.append(entry)
        return type(self)(entries, None if self.added is None else (*self.added, *new), merged=self.merged)

    def patched(self, patches: Iterable[Patch]) -> Self:
        """Return it with changed records; those that don't exist are left out.

        Raises:
            Conflict: A record would become live again whose key another one has now.
        """
        entries = dict(self.entries)
        for patch in patches:
            address = patch.ref.group, patch.ref.position
            entry = entries.get(address)
            if entry is None:
                continue
            record = entry.record._replace(
                ended_at=None if patch.ended_at is None else kept(patch.ended_at),
                ended_by=patch.ended_by,
                fields={
                    name: value for name, value in {**entry.record.fields, **patch.fields}.items() if value is not None
                },
            )
            others = (other for other in entries.values() if other is not entry)
            if entry.record.ended_at is not None and _key_taken(others, record):
                raise Conflict(f"another record has the key of {patch.ref.group} now; read it again")
            entries[address] = changed = Entry(record, files_lines.rewritten(entry.line, record))
            _keep_computed(entry, changed)
        same = all(entries[address] is entry for address, entry in self.entries.items())
        return self if same else type(self)(entries, None, merged=self.merged)

    def minus(self, addresses: Iterable[Address]) -> Self:
        """Return it without these records."""
        gone = self.entries.keys() & set(addresses)
        if not gone:
            return self
        left = {address: entry for address, entry in self.entries.items() if address not in gone}
        return type(self)(left, None, merged=self.merged)


def parse(text: str, collection: Collection, namespace: str, before: Pool | None = None) -> Pool:
    """Return the records of whole lines; if one of them is none, there are no records, and `damage` says why.

    Args:
        text: The lines.
        collection: Memories or turns.
        namespace: Whose records they are.
        before: The records of the lines before them.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        objects = json.loads(f"[{','.join(lines)}]")
        if len(objects) != len(lines):
            raise ValueError("two objects are in one line")
        records = [files_lines.to_record(each, collection, namespace) for each in objects]
    except (ValueError, RecursionError):
        return Pool({}, damage=_first_damage(text, collection, namespace))
    entries = [Entry(record, line) for record, line in zip(records, lines, strict=True)]
    return _settled([*before.entries.values(), *entries] if before else entries)


def _first_damage(text: str, collection: Collection, namespace: str) -> Damage:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                files_lines.to_record(json.loads(line), collection, namespace)
        except json.JSONDecodeError as exc:
            return Damage(number, f"it is no JSON ({exc.msg} at {exc.colno})")
        except (ValueError, RecursionError) as exc:
            return Damage(number, str(exc))
    raise AssertionError("a damaged line was found and is gone")


def _settled(entries: Sequence[Entry]) -> Pool:
    """Return entries as a pool. A merge may have brought two lines for one: both are kept.

    The same twice is one, ended if either has ended. Of two different ones the second gets the next position that no
    line has, and of two versions of a memory the first no longer counts as current.
    """
    found: dict[Address, Entry] = {}
    for entry in entries:
        found.setdefault(entry.address, entry)
    if len(found) == len(entries):
        return Pool(found)
    taken, found = set(found), {}
    for entry in entries:
        address = entry.address
        other = found.setdefault(address, entry)
        if other is entry:
            continue
        if other.record.text == entry.record.text and other.record.labels == entry.record.labels:
            if other.record.ended_at is None:
                found[address] = entry
            continue
        position = address[1] + 1
        while (address[0], position) in taken:
            position += 1
        taken.add((address[0], position))
        moved = entry.record._replace(ref=entry.record.ref._replace(position=position))
        found[moved.ref.group, position] = Entry(moved, entry.line)
        if other.record.ref.collection is Collection.MEMORY and other.record.ended_at is None:
            ended_at = max(other.record.created_at, moved.created_at)
            found[address] = Entry(other.record._replace(ended_at=ended_at, ended_by="update"), other.line)
    return Pool(found, merged=True)


def _keep_computed(before: Entry, after: Entry) -> None:
    """Keep what was computed of an entry: text, labels and address are the same."""
    for name in ("words", "vector_key", "order"):
        if name in before.__dict__:
            after.__dict__[name] = before.__dict__[name]


def _key_taken(entries: Iterable[Entry], record: Record) -> bool:
    if record.key is None or record.ended_at is not None:
        return False
    return any(entry.record.key == record.key and entry.record.ended_at is None for entry in entries)


# --- filters ---------------------------------------------------------------------------------------------------------


def meant(pool: Pool, where: Filter) -> list[Entry]:
    """Return the records of a pool that a filter means; that it is of the filter's namespace is known."""
    among: Iterable[Entry] = pool.entries.values()
    if where.group is not None and not where.prefix:
        among = pool.by_group.get(where.group, ())
    fits = _condition(where)
    return [entry for entry in among if fits(entry.record)]


def _condition(where: Filter) -> Callable[[Record], bool]:
    checks: list[Callable[[Record], bool]] = [_liveness(where)]
    if where.labels:
        wanted = where.labels.items()
        checks.append(lambda record: wanted <= record.labels.items())
    if where.ended_by is not None:
        checks.append(lambda record: record.ended_by == where.ended_by)
    if where.since is not None:
        since = kept(where.since)
        checks.append(lambda record: record.created_at >= since)
    if where.until is not None:
        until = kept(where.until)
        checks.append(lambda record: record.created_at <= until)
    if where.group and where.prefix:
        beginning = where.group
        checks.append(lambda record: record.ref.group.startswith(beginning))
    if where.key is not None:
        checks.append(lambda record: record.key == where.key and record.ended_at is None)
    return checks[0] if len(checks) == 1 else lambda record: all(check(record) for check in checks)


def _liveness(where: Filter) -> Callable[[Record], bool]:
    """Return the condition on when a record was current."""
    if where.as_of is not None:
        moment = kept(where.as_of)
        return lambda record: record.created_at <= moment and (record.ended_at is None or record.ended_at > moment)
    if where.state == "live":
        return lambda record: record.ended_at is None
    if where.state == "ended":
        return lambda record: record.ended_at is not None
    return lambda _: True


def kept(moment: datetime) -> datetime:
    """Return a time in UTC, in the resolution in which times are kept."""
    return from_millis(to_millis(moment))


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def order_of(group: str, position: int) -> Order:
    """Return what orders a record in a scan."""
    return bool(_ID.fullmatch(group)), group, position
