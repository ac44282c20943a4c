"""Copies a whole store to another one, and changes a store's embedder.

The store stays usable in the meantime. Both operations can be interrupted at any moment, and
resume when they are run again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memories.core.batches import by_count
from memories.embedders.protocol import Embedder, embed_many
from memories.errors import Conflict, RequestError, StoreError
from memories.guard.validate import amount
from memories.stores.protocol import Store, add_count_to_errors
from memories.stores.records import (
    SEARCHED,
    Collection,
    Patch,
    Record,
    Ref,
    immutable_parts,
    patch_for_copy,
    split_ends_first,
)
from memories.transfer.lines import content_hash
from memories.transfer.pages import (
    PAGE,
    Part,
    Progress,
    all_parts_of,
    check_readable,
    count_records,
    pages,
    parts_of,
    with_vectors,
)

MAX_PASSES = 20
FEW_CHANGES = 100  # after a pass that copies no more records than this, the last step begins
PATIENCE = 10  # after this many passes, `reembed` makes other writers wait
FEW_LEFT = 10  # maximum number of records embedded while writers wait, as an embedder may be slow


# --- migrate


class PartDigest(NamedTuple):
    """Count and digest of all records of a part, for comparing two stores.

    Attributes:
        records: The number of records.
        digest: The sum of their content hashes, which does not depend on their order.
    """

    records: int
    digest: int


@dataclass(slots=True)
class Migrated:
    """The result of a migration.

    Attributes:
        copied: The number of memories and turns that were copied. Log entries are copied too, but
            not counted.
        changed: The number of updates to records that changed after they were copied.
        removed: The number of records that were forgotten in the original after they were copied.
        without_vector: The number of records in the copy that only a word search can find.
        contents: The contents of each part, which are the same in the original and the copy.
    """

    copied: int = 0
    changed: int = 0
    removed: int = 0
    without_vector: int = 0
    contents: dict[Part, PartDigest] = field(default_factory=dict)


def migrate(
    source: Store, target: Store, embedder: Embedder | None, *, progress: Progress
) -> Migrated:
    """Copy a whole store into another one while the original stays in use, and verify the copy.

    During the last step, programs that write to the original wait, so the copy contains
    everything written before that step. The original is not changed. Its damaged records are left
    out; the original's `damaged` names them.

    Args:
        source: The original.
        target: The other store: empty, or an incomplete copy.
        embedder: The embedder with which the target was opened. Vectors in its space are
            copied, and others are recomputed.
        progress: Called with the progress so far.

    Raises:
        RequestError: There is nothing to copy, or the target has records that the original does not
            have.
        StoreError: The copy differs from the original.
        StoreDamaged: A part of the original can't be read.
    """
    all_seen = set(all_parts_of(source))
    if not all_seen:
        raise RequestError("the store has no records, so there is nothing to migrate")
    check_readable(source, all_seen)
    memories = Part(Collection.MEMORY, min(all_seen).namespace).filter()
    migration = _Migration(source, target, embedder, source.info(memories).model)
    for part in all_seen:
        migration.check_target(part)
    with add_count_to_errors(lambda: migration.written, "copied"):
        for _ in range(MAX_PASSES):
            written_before = migration.written
            sources = all_parts_of(source)
            all_seen.update(sources)
            total, copied = count_records(source, sources), 0
            for part in sources:
                for page in pages(source, part):
                    migration.copy(page)
                    copied += len(page)
                    progress("copying", min(copied, total), total)
            if migration.written - written_before <= FEW_CHANGES:
                break
        with source.transaction():
            # Parts seen earlier are included: all their records may have been forgotten since.
            for part in sorted(all_seen.union(all_parts_of(source))):
                migration.result.contents[part] = migration.finish(part)
    migration.remove_surplus()
    migration.verify(progress)
    return migration.result


class _Migration:
    """Copies records from one store to another, and remembers which records it copied."""

    def __init__(
        self, source: Store, target: Store, embedder: Embedder | None, model: str | None
    ) -> None:
        self.result = Migrated()
        self._source, self._target, self._embedder = source, target, embedder
        self._same_space = embedder is not None and embedder.space.model == model
        self._copied: set[int] = set()  # hashes of addresses; 1,000,000 take 60 MB
        self._surplus: list[Ref] = []
        self._damaged_in_source: set[Ref | None] = set()  # records that are intact only in the copy

    @property
    def written(self) -> int:
        """How many records have been written to the copy so far."""
        return self.result.copied + self.result.changed

    def check_target(self, part: Part) -> None:
        """Check that every record in the target is also in the original.

        Raises:
            RequestError: The target has a record that the original lacks, so it isn't a copy.
        """
        if not self._target.count(part.filter(), at_most=1):
            return
        for ref in self._only_in_target(part):
            raise _not_a_copy(ref)

    def copy(self, page: Sequence[Record]) -> None:
        """Copy new records, and changes to records that were copied earlier."""
        missing, changed = self._compare(page)
        self._update(changed)
        try:
            self._append(missing)
        except Conflict:
            # The key of a memory that was copied now belongs to another memory. `finish` handles
            # this, since it sees both memories at once.
            return

    def finish(self, part: Part) -> PartDigest:
        """Copy the rest of a part while other writers wait, and return the original's contents.

        Existing records are updated before new ones are added, since a new memory may have taken
        the key of a memory that has ended.
        """
        missing: list[Record] = []
        changed: list[Patch] = []
        count = digest = 0
        for page in pages(self._source, part):
            missing_in_page, changed_in_page = self._compare(page)
            missing += missing_in_page
            changed += changed_in_page
            count += len(page)
            digest += sum(map(content_hash, page))
        self._update(changed)
        try:
            for batch in by_count(missing, PAGE):
                self._append(batch)
        except Conflict as exc:
            raise RequestError(
                f"the target is not a copy of this store: {exc}; migrate to an empty store"
            ) from exc
        if self._target.count(part.filter()) > count:
            self._surplus += self._only_in_target(part)
        return PartDigest(count, digest % 2**128)

    def remove_surplus(self) -> None:
        """Remove records that were forgotten in the original after they were copied.

        Raises:
            RequestError: Another program has written to the target in the meantime.
        """
        for ref in self._surplus:
            if hash(ref) not in self._copied:
                raise _not_a_copy(ref)
        if self._surplus:
            self._target.remove(self._surplus)
            self.result.removed = len(self._surplus)

    def verify(self, progress: Progress) -> None:
        """Compare counts and content hashes of the copy with those of the original.

        Raises:
            StoreError: The two differ.
        """
        total = sum(contents.records for contents in self.result.contents.values())
        verified = 0
        for part, original in self.result.contents.items():
            if part.collection in SEARCHED:
                info = self._target.info(part.filter())
                self.result.without_vector += info.without_vector_count
            count = digest = 0
            for page in pages(self._target, part):
                records = [record for record in page if record.ref not in self._damaged_in_source]
                count += len(records)
                digest += sum(map(content_hash, records))
                verified += len(page)
                progress("verifying", min(verified, total), total)
            if PartDigest(count, digest % 2**128) != original:
                found = amount(count, "record", "records")
                counts = f"{found}, not {original.records}"
                difference = "different contents" if count == original.records else counts
                raise StoreError(
                    f"the copy differs from the original in namespace {part.namespace}: "
                    f"{part.collection} has {difference}; keep using the original, which was not "
                    "changed, and run this again"
                )

    def _compare(self, page: Sequence[Record]) -> tuple[list[Record], list[Patch]]:
        """Compare records of the original with the target.

        Returns:
            The records that the target lacks, and patches for the outdated copies of others.

        Raises:
            RequestError: The target has a different record at one of the addresses.
        """
        refs = [record.ref for record in page]
        in_target = {record.ref: record for record in self._target.read(refs)}
        missing: list[Record] = []
        changed: list[Patch] = []
        for record in page:
            copy = in_target.get(record.ref)
            if copy is None:
                missing.append(record)
            elif immutable_parts(record) != immutable_parts(copy):
                raise _not_a_copy(record.ref)
            elif (patch := patch_for_copy(record, copy)) is not None:
                changed.append(patch)
        return missing, changed

    def _update(self, patches: Sequence[Patch]) -> None:
        for group in split_ends_first(patches):
            for batch in by_count(group, PAGE):
                self._target.patch(batch)
        self.result.changed += len(patches)

    def _append(self, records: Sequence[Record]) -> None:
        if not records:
            return
        texts = [record for record in records if record.ref.collection in SEARCHED]
        entries = [record for record in records if record.ref.collection not in SEARCHED]
        refs = [record.ref for record in texts]
        vectors = self._source.vectors(refs) if self._same_space else {}
        self._target.append([*with_vectors(texts, vectors, self._embedder), *entries])
        self._copied.update(hash(record.ref) for record in records)
        self.result.copied += len(texts)

    def _only_in_target(self, part: Part) -> Iterator[Ref]:
        """Yield addresses that only the target has.

        Records that were copied earlier and are now damaged in the original stay in the target.
        """
        for page in pages(self._target, part):
            refs = [record.ref for record in page]
            mark = self._source.damaged.mark()
            missing = set(refs) - {record.ref for record in self._source.read(refs)}
            damaged = {finding.ref for finding in self._source.damaged.since(mark)}
            self._damaged_in_source |= missing & damaged
            yield from missing - damaged


def _not_a_copy(ref: Ref) -> RequestError:
    return RequestError(
        "the target is not a copy of this store: it has a record that this store lacks, "
        f"{ref.collection} {ref.group} ({ref.position}) in namespace {ref.namespace}; if this "
        "store forgot or moved the record after it was copied, forget it in the target; otherwise "
        "migrate to an empty store, or merge the stores with memory export and memory import"
    )


# --- reembed


class Reembedded(NamedTuple):
    """The result of changing the embedder.

    Attributes:
        embedded: How many records were embedded.
        before: The store's previous model.
        model: The store's new model.
    """

    embedded: int
    before: str | None
    model: str


def reembed(store: Store, embedder: Embedder, *, progress: Progress) -> Reembedded:
    """Embed every record with this embedder, then switch searches to the new vectors.

    Searches use the old vectors until then. If an earlier run was interrupted, this one continues
    it. If the store already uses this embedder, only missing vectors are computed.

    Raises:
        StoreError: Other programs add records faster than they can be embedded, or the store does
            not keep staged vectors.
        StoreDamaged: Some records can't be read.
    """
    space = embedder.space
    sources = parts_of(store)
    if not sources:
        embedder.embed(space.model)  # an unavailable model fails now, not at the next write
        return Reembedded(0, None, space.model)
    check_readable(store, sources)
    before = store.info(sources[0].filter()).model
    run = _Reembedding(store, embedder, progress, count_records(store, sources))
    for number in range(MAX_PASSES):
        run.embed_most()
        try:
            if run.switch(0 if number < PATIENCE else FEW_LEFT):
                return Reembedded(run.embedded, before, space.model)
        except Conflict:
            continue  # in a store without transactions, another program has written in the meantime
    raise StoreError(
        "other programs add records faster than they can be embedded; run this again later"
    )


class _Reembedding:
    """Embeds the records that have no vectors yet.

    Attributes:
        embedded: How many records were embedded.
    """

    def __init__(self, store: Store, embedder: Embedder, progress: Progress, total: int) -> None:
        self.embedded = 0
        self._store, self._embedder, self._progress, self._total = store, embedder, progress, total
        self._last_refs: set[Ref] = set()

    def embed_most(self) -> None:
        """Embed page by page; records written in the meantime may be left to the next pass."""
        for collection in SEARCHED:
            for _ in range(self._total // PAGE + 1):
                if self._embed(collection, PAGE) < PAGE:
                    break

    def switch(self, max_left: int) -> bool:
        """If few enough records are left, embed them and switch searches to the new vectors.

        Returns:
            Whether searches were switched.
        """
        space = self._embedder.space
        with self._store.transaction():
            left = [
                len(self._store.unstaged(space, collection, limit=max_left + 1))
                for collection in SEARCHED
            ]
            if max(left) > max_left:
                return False
            if any(left):
                for collection in SEARCHED:
                    self._embed(collection, max_left)
            self._store.switch(space)
            return True

    def _embed(self, collection: Collection, limit: int) -> int:
        records = self._store.unstaged(self._embedder.space, collection, limit=limit)
        refs = {record.ref for record in records}
        if refs and refs == self._last_refs:
            raise StoreError(
                "the store does not keep the new vectors; if another reembed is running, wait for "
                "it and run this again; searches still use the old vectors"
            )
        self._last_refs = refs
        if records:
            texts = [record.text for record in records]
            roles = [record.role for record in records]
            vectors = embed_many(self._embedder, texts, roles)
            rows = {record.ref: rows for record, rows in zip(records, vectors, strict=True)}
            self._store.stage(self._embedder.space, rows)
        self.embedded += len(records)
        self._progress("embedding", min(self.embedded, self._total), self._total)
        return len(records)
