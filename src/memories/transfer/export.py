"""Export and import: all records of a store as lines of JSON, and back.

Both can be stopped at any moment and run again: what is there already is recognized and left.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import Embedder, embed_many
from memories.errors import Conflict, InvalidInput
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record, Ref
from memories.transfer.lines import content_hash, header_line, is_id, read_header, read_line, to_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What is being done, how much of it is done, and how much it is in all.
Progress = Callable[[str, int, int], None]

PAGE = 250  # records that are read or written in one step
MAX_BATCH = 2_000  # records of one memory or conversation that are imported in one step
MAX_BATCH_CHARACTERS = 33_554_432
MAX_SHOWN = 100  # conflicts that are named; all are counted


class Place(NamedTuple):
    """A namespace of a collection."""

    collection: Collection
    namespace: str

    def everything(self) -> Filter:
        """Return the filter of all its records, ended ones included."""
        return Filter(self.collection, (self.namespace,), state="any")


def places(store: Store, namespaces: Sequence[str] | None = None) -> list[Place]:
    """Return where a store has records, in order; only in these namespaces if some are given."""
    found = [Place(collection, name) for collection in sorted(Collection) for name in store.namespaces(collection)]
    return [place for place in found if namespaces is None or place.namespace in namespaces]


def refuse_damaged(store: Store, among: Iterable[Place]) -> None:
    """Raise if some of these places can't be read: a store may read what is damaged as empty, but not in a transaction.

    Raises:
        StoreDamaged: One can't.
    """
    with store.transaction():
        total(store, among)


def total(store: Store, among: Iterable[Place]) -> int:
    """Return how many records these places have."""
    return sum(store.count(place.everything()) for place in among)


def with_vectors(
    records: Sequence[Record], kept: "Mapping[Ref, NDArray[np.float32]]", embedder: Embedder | None
) -> list[Record]:
    """Return records with vectors to be stored; without an embedder they have none.

    Args:
        records: The records.
        kept: Vectors that some of them have already, of the embedder's model.
        embedder: Makes the others.
    """
    if embedder is None:
        return [record._replace(vectors=None) for record in records]
    vectors = {ref: rows for ref, rows in kept.items() if rows.shape[1] == embedder.space.dimension}
    bare = [record for record in records if record.ref not in vectors]
    made = embed_many(embedder, [record.text for record in bare]) if bare else []
    vectors |= {record.ref: rows for record, rows in zip(bare, made, strict=True)}
    return [record._replace(vectors=vectors[record.ref]) for record in records]


def pages(store: Store, place: Place) -> Iterator[list[Record]]:
    """Yield all records of a place in the store's order."""
    after = None
    while page := store.scan(place.everything(), limit=PAGE, after=after):
        yield page
        after = (page[-1].ref.group, page[-1].ref.position)


def export(
    store: Store,
    write: Callable[[str], object],
    *,
    namespaces: Sequence[str] | None,
    with_vectors: bool = False,
    progress: Progress,
) -> int:
    """Write every record as a line of JSON, in order of collection, namespace, group and position.

    It is one state of the store: other writers wait meanwhile, so write to something that does not.

    Args:
        store: What is exported.
        write: Takes a line, with its end.
        namespaces: Only these; None for all.
        with_vectors: Also write the vectors as the store keeps them.
        progress: Is told how far it is.

    Returns:
        How many records.

    Raises:
        StoreDamaged: Some of them can't be read.
    """
    if not places(store, namespaces):
        write(header_line(None) + "\n")
        return 0
    count = 0
    with store.transaction():
        among = places(store, namespaces)
        whole = total(store, among)
        model = store.info(among[0].everything()).model if with_vectors and among else None
        write(header_line(model) + "\n")
        for place in among:
            records = _in_order(store, place)
            while page := list(islice(records, PAGE)):
                vectors = store.vectors([record.ref for record in page]) if with_vectors else {}
                for record in page:
                    write(to_line(record, vectors.get(record.ref)) + "\n")
                count += len(page)
                progress("exporting", count, whole)
    return count


def _in_order(store: Store, place: Place) -> Iterator[Record]:
    """Yield records by the name of their group, whatever the store: some keep ids apart from other names."""
    if place.collection is Collection.MEMORY:  # all of them are ids
        return (record for page in pages(store, place) for record in page)

    def of_kind(kind: bool) -> Iterator[Record]:
        return (record for page in pages(store, place) for record in page if is_id(record.ref.group) is kind)

    return heapq.merge(of_kind(False), of_kind(True), key=lambda record: (record.ref.group, record.ref.position))


class Rejected(NamedTuple):
    """A record that was not imported, and why; nothing was overwritten."""

    line: int
    ref: Ref
    reason: str


@dataclass(slots=True)
class Imported:
    """What became of an import.

    Attributes:
        imported: Records that were stored.
        known: Records that were there already, the same.
        conflicts: Records that were not stored, the first `MAX_SHOWN` of them.
        conflict_count: How many were not stored.
        without_vector: Records that were stored without a vector, as there is no embedder.
    """

    imported: int = 0
    known: int = 0
    conflicts: list[Rejected] = field(default_factory=list)
    conflict_count: int = 0
    without_vector: int = 0


class _Line(NamedTuple):
    number: int
    record: Record


def import_(
    store: Store,
    lines: Iterable[bytes],
    embedder: Embedder | None,
    *,
    namespaces: Sequence[str] | None,
    dry_run: bool = False,
) -> Imported:
    """Store the records of an export; what is there already is left as it is.

    Args:
        store: Where to.
        lines: The lines, one after the other, UTF-8.
        embedder: Makes the vectors that the lines don't have; None to go by words alone.
        namespaces: Only these may be written to; None for all.
        dry_run: Write nothing, only tell what would become of it.

    Raises:
        InvalidInput: A line is not acceptable. The lines before its batch were stored; run it again when it is mended.
    """
    importer = _Importer(store, embedder, dry_run=dry_run)
    for batch in _batches(_read(lines, importer, namespaces)):
        importer.store_batch(batch)
    return importer.result


def _read(lines: Iterable[bytes], importer: "_Importer", namespaces: Sequence[str] | None) -> Iterator[_Line]:
    """Yield the records of lines, after the importer was told the model that the header names."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if number == 1:
                importer.model = read_header(text)
            elif text.strip():
                record = read_line(text)
                if namespaces is not None and record.ref.namespace not in namespaces:
                    raise InvalidInput(
                        f"is of namespace {record.ref.namespace}; name that one, or add --all-namespaces"
                    )
                yield _Line(number, record)
        except UnicodeDecodeError as exc:
            raise InvalidInput(f"line {number} is not UTF-8 (at byte {exc.start}); save it as UTF-8") from None
        except InvalidInput as exc:
            raise InvalidInput(f"line {number} {exc}; nothing of its batch was stored") from exc


def _batches(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Yield lines in batches that end between memories, so that none is there by half, if they are not too large."""
    batch: list[_Line] = []
    size = 0
    for line in lines:
        between = bool(batch) and _owner(batch[-1].record.ref) != _owner(line.record.ref)
        if len(batch) >= MAX_BATCH or size >= MAX_BATCH_CHARACTERS or (len(batch) >= PAGE and between):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.record.text)
    if batch:
        yield batch


def _owner(ref: Ref) -> Ref:
    """Return the memory or the conversation that a record belongs to."""
    return ref._replace(position=0)


class _Importer:
    """Stores batch after batch; remembers what had a conflict, so that the rest of it is left out too."""

    def __init__(self, store: Store, embedder: Embedder | None, *, dry_run: bool) -> None:
        self.model: str | None = None
        self.result = Imported()
        self._store = store
        self._embedder = embedder
        self._dry_run = dry_run
        self._blocked: set[Ref] = set()
        self._looked_at: set[Place] = set()

    def store_batch(self, batch: Sequence[_Line]) -> None:
        """Store the new records of a batch, those of each memory or conversation together or not at all."""
        new = self._new(batch)
        if self._dry_run:
            self._refuse_damaged({Place(line.record.ref.collection, line.record.ref.namespace) for line in batch})
            taken = {line.record.ref for line in new if self._key_is_taken(line.record)}
            self._count(new, {_owner(ref) for ref in taken})
            return
        ready = self._embedded(new)  # before others have to wait
        with self._store.transaction():
            new = self._new(new)  # somebody may have written meanwhile
            new = [ready[line.record.ref] for line in new]
            refused = self._append(new)
        self._count(new, refused)

    def _refuse_damaged(self, among: set[Place]) -> None:
        """Raise where writing would; a dry run may not open a transaction, which makes a store."""
        for place in among - self._looked_at:
            self._store.info(place.everything())
        self._looked_at |= among

    def _new(self, batch: Sequence[_Line]) -> list[_Line]:
        """Return what is not there yet; count what is, and note what is there with another content."""
        there = {record.ref: record for record in self._store.read([line.record.ref for line in batch])}
        fresh: list[_Line] = []
        for line in batch:
            ref = line.record.ref
            if ref not in there:
                there[ref] = line.record
                fresh.append(line)
            elif content_hash(there[ref]) == content_hash(line.record):
                self.result.known += 1
            else:
                self._reject(line, "another record has this address")
                self._blocked.add(_owner(ref))
        return self._unblocked(fresh, "belongs to what has a conflict")

    def _unblocked(self, lines: Sequence[_Line], reason: str) -> list[_Line]:
        for line in lines:
            if _owner(line.record.ref) in self._blocked:
                self._reject(line, reason)
        return [line for line in lines if _owner(line.record.ref) not in self._blocked]

    def _append(self, lines: Sequence[_Line]) -> set[Ref]:
        """Append records; return the memories and conversations that were refused, for a key that is taken."""
        try:
            self._store.append([line.record for line in lines])
        except Conflict:
            refused = set()
            for owner in dict.fromkeys(_owner(line.record.ref) for line in lines):
                try:
                    self._store.append([line.record for line in lines if _owner(line.record.ref) == owner])
                except Conflict:
                    refused.add(owner)
            return refused
        return set()

    def _count(self, lines: Sequence[_Line], refused: set[Ref]) -> None:
        self._blocked |= refused
        stored = self._unblocked(lines, "its key is in use by another record")
        self.result.imported += len(stored)
        self.result.without_vector += sum(self._embedder is None for _ in stored)

    def _reject(self, line: _Line, reason: str) -> None:
        self.result.conflict_count += 1
        if len(self.result.conflicts) < MAX_SHOWN:
            self.result.conflicts.append(Rejected(line.number, line.record.ref, reason))

    def _key_is_taken(self, record: Record) -> bool:
        if record.key is None or record.ended_at is not None:
            return False
        where = Filter(record.ref.collection, (record.ref.namespace,), key=record.key)
        return bool(self._store.scan(where, limit=1))

    def _embedded(self, lines: Sequence[_Line]) -> dict[Ref, _Line]:
        """Return the lines with vectors, by address."""
        records = [line.record for line in lines]
        kept = {record.ref: record.vectors for record in records if record.vectors is not None}
        ours = self._embedder is not None and self.model == self._embedder.space.model
        ready = with_vectors(records, kept if ours else {}, self._embedder)
        return {record.ref: line._replace(record=record) for line, record in zip(lines, ready, strict=True)}
