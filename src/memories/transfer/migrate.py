"""Copies a whole store into another one and verifies the copy; gives a store vectors of another
embedder.

The store stays in use meanwhile. Both can be stopped at any moment and run again; what is done
stays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memories.core.batches import by_count
from memories.embedders.protocol import Embedder, embed_many
from memories.errors import Conflict, RequestError, StoreError
from memories.stores.protocol import Store
from memories.stores.records import (
    SEARCHED,
    Collection,
    Record,
    Ref,
    immutable_parts,
    mutable_parts,
    patch_for_copy,
    split_ends_first,
)
from memories.transfer.lines import content_hash
from memories.transfer.pages import (
    PAGE,
    Place,
    Progress,
    all_places,
    pages,
    places,
    refuse_damaged,
    total,
    with_vectors,
)

FEW = 100  # records that may be left for the last step, while other writers wait
MAX_PASSES = 20
MAX_TOUCHES = 100


class Contents(NamedTuple):
    """How many records a place has, and the sum of their content hashes, which does not depend on
    their order.
    """

    records: int
    digest: int


@dataclass(slots=True)
class Migrated:
    """What a migration did.

    Attributes:
        copied: Memories and turns that were copied; entries of the log come with them.
        changed: Records that were copied before and changed since.
        removed: Records that were copied and then forgotten in the original.
        without_vector: Records of the copy that only words can find.
        contents: What each place has, in the original and, the same, in the copy.
    """

    copied: int = 0
    changed: int = 0
    removed: int = 0
    without_vector: int = 0
    contents: dict[Place, Contents] = field(default_factory=dict)


def migrate(
    source: Store, target: Store, embedder: Embedder | None, *, progress: Progress
) -> Migrated:
    """Copy a whole store into another one while the original stays in use, and verify the copy.

    Other writers of the original wait during the last step, so the copy has everything that was
    written until then. The original is not changed. Its damaged records are left out; its `damaged`
    names them.

    Args:
        source: The original.
        target: The other one: empty, or a copy that was begun.
        embedder: The one that the target was opened with. Vectors of its space are copied, others
            are made again.
        progress: Is told how much is done.

    Raises:
        RequestError: There is nothing to copy, or the target has records that the original does not
            have.
        StoreError: The copy differs from the original.
        StoreDamaged: A part of the original can't be read.
    """
    among = set(all_places(source))
    if not among:
        raise RequestError("the store has no records, so there is nothing to migrate")
    refuse_damaged(source, among)
    mover = _Mover(source, target, embedder, source.info(min(among).searched()).model)
    for place in among:
        mover.refuse_others(place)
    for _ in range(MAX_PASSES):
        before = mover.written
        whole, done = total(source, all_places(source)), 0
        among.update(all_places(source))
        for place in all_places(source):
            for page in pages(source, place):
                mover.copy(page)
                done += len(page)
                progress("copying", min(done, whole), whole)
        if mover.written - before <= FEW:
            break
    with source.transaction():
        for place in sorted(
            among.union(all_places(source))
        ):  # of some all may have been forgotten meanwhile
            mover.result.contents[place] = mover.finish(place)
    mover.remove_surplus()
    mover.verify(progress)
    return mover.result


class _Mover:
    """Copies records from one store to another, and knows which ones it copied."""

    def __init__(
        self, source: Store, target: Store, embedder: Embedder | None, model: str | None
    ) -> None:
        self.result = Migrated()
        self._source, self._target, self._embedder = source, target, embedder
        self._same_space = embedder is not None and embedder.space.model == model
        self._copied: set[int] = set()  # hashes of addresses: 1,000,000 of them take 60 MB
        self._surplus: list[Ref] = []
        self._saved: set[Ref | None] = set()  # only the copy has them whole

    @property
    def written(self) -> int:
        """How many records were written so far."""
        return self.result.copied + self.result.changed

    def refuse_others(self, place: Place) -> None:
        """Refuse a target that has records of its own: it is not a copy of the original.

        Raises:
            RequestError: It has some.
        """
        other = (
            next(self._only_there(place), None)
            if self._target.count(place.everything(), at_most=1)
            else None
        )
        if other is not None:
            raise _is_no_copy(other)

    def copy(self, page: Sequence[Record]) -> None:
        """Copy what the target does not have, and what changed since it was copied."""
        missing, changed = self._compare(page)
        self._change(changed)
        try:
            self._append(missing)
        except Conflict:
            # A key went from one memory to another after that one was copied; `finish` sees both at
            # once.
            return

    def finish(self, place: Place) -> Contents:
        """Copy the rest of a place while nobody writes to the original; return what the original
        has.

        Ends come before what is new, since a key may have gone from one memory to another.
        """
        missing: list[Record] = []
        changed: list[tuple[Record, Record]] = []
        count = digest = 0
        for page in pages(self._source, place):
            new, old = self._compare(page)
            missing += new
            changed += old
            count += len(page)
            digest += sum(map(content_hash, page))
        self._change(changed)
        try:
            for batch in by_count(missing, PAGE):
                self._append(batch)
        except Conflict as exc:
            raise RequestError(
                f"the target is no copy of this store: {exc}; migrate to an empty store"
            ) from exc
        if self._target.count(place.everything()) > count:
            self._surplus += self._only_there(place)
        return Contents(count, digest % 2**128)

    def remove_surplus(self) -> None:
        """Remove from the copy what was forgotten in the original after it was copied.

        Raises:
            RequestError: Somebody else has written to the target meanwhile.
        """
        for ref in self._surplus:
            if hash(ref) not in self._copied:
                raise _is_no_copy(ref)
        if self._surplus:
            self._target.remove(self._surplus)
            self.result.removed = len(self._surplus)

    def verify(self, progress: Progress) -> None:
        """Compare counts and content hashes of the copy with those of the original.

        Raises:
            StoreError: They differ.
        """
        whole, done = sum(contents.records for contents in self.result.contents.values()), 0
        for place, original in self.result.contents.items():
            if place.collection in SEARCHED:
                self.result.without_vector += self._target.info(
                    place.everything()
                ).without_vector_count
            count = digest = 0
            for page in pages(self._target, place):
                same = [record for record in page if record.ref not in self._saved]
                count += len(same)
                digest += sum(map(content_hash, same))
                done += len(page)
                progress("verifying", min(done, whole), whole)
            if Contents(count, digest % 2**128) != original:
                raise StoreError(
                    f"the copy is not the same: {place.collection} of {place.namespace} has {count} records there and "
                    f"{original.records} in the original, or they say something else; go on using the original, which "
                    "was not changed, and run it again"
                )

    def _compare(self, page: Sequence[Record]) -> tuple[list[Record], list[tuple[Record, Record]]]:
        """Return what the target does not have, and what is otherwise there, each with the record
        there.

        Raises:
            RequestError: The target has another record at one of the addresses.
        """
        there = {
            record.ref: record for record in self._target.read([record.ref for record in page])
        }
        missing = [record for record in page if record.ref not in there]
        pairs = [(record, there[record.ref]) for record in page if record.ref in there]
        for record, other in pairs:
            if immutable_parts(record) != immutable_parts(other):
                raise _is_no_copy(record.ref)
        return missing, [
            (record, other)
            for record, other in pairs
            if mutable_parts(record) != mutable_parts(other) or record.accesses > other.accesses
        ]

    def _change(self, pairs: Sequence[tuple[Record, Record]]) -> None:
        """Bring what was copied before up to date."""
        patches = [
            patch
            for patch in (patch_for_copy(record, other) for record, other in pairs)
            if patch is not None
        ]
        for some in split_ends_first(patches):
            for batch in by_count(some, PAGE):
                self._target.patch(batch)
        self.result.changed += len(patches)
        for number in range(
            MAX_TOUCHES
        ):  # a statistic: more than so many reads meanwhile are not worth the time
            behind = [
                record.ref for record, other in pairs if record.accesses > other.accesses + number
            ]
            if not behind:
                break
            self._target.touch(behind)

    def _append(self, records: Sequence[Record]) -> None:
        if records:
            texts = [record for record in records if record.ref.collection in SEARCHED]
            entries = [record for record in records if record.ref.collection not in SEARCHED]
            kept = (
                self._source.vectors([record.ref for record in texts]) if self._same_space else {}
            )
            self._target.append([*with_vectors(texts, kept, self._embedder), *entries])
            self._copied.update(hash(record.ref) for record in records)
            self.result.copied += len(texts)

    def _only_there(self, place: Place) -> Iterator[Ref]:
        """Yield the addresses that only the target has; what is damaged here and was copied before
        stays there.
        """
        for page in pages(self._target, place):
            refs, mark = [record.ref for record in page], self._source.damaged.mark()
            missing = set(refs) - {record.ref for record in self._source.read(refs)}
            damaged = {finding.ref for finding in self._source.damaged.since(mark)}
            self._saved |= missing & damaged
            yield from missing - damaged


def _is_no_copy(ref: Ref) -> RequestError:
    return RequestError(
        f"the target is no copy of this store: it has a record of its own, {ref.collection} {ref.group} "
        f"({ref.position}) in namespace {ref.namespace}, or that one was forgotten here since; forget it there, or "
        "migrate to an empty store; to merge two stores use memory export and memory import"
    )


# passes; if each left something new, the next ones embed the rest while other writers wait
PATIENCE = 10
FEW_LEFT = 10  # records at most that they wait for: the embedder may be slow


class Reembedded(NamedTuple):
    """What a change of the embedder did: how many records were embedded, and which model the store
    had and has.
    """

    embedded: int
    before: str | None
    model: str


def reembed(store: Store, embedder: Embedder, *, progress: Progress) -> Reembedded:
    """Give every record vectors of this embedder, then search by them; before that, searches go by
    the old ones.

    It goes on where it was stopped. With the embedder in use it completes what has no vectors yet.

    Raises:
        StoreError: Others write faster than it embeds, or the store does not keep what is staged.
        StoreDamaged: Some records can't be read.
    """
    space = embedder.space
    among = places(store)
    if not among:
        embedder.embed(space.model)  # a model that can't be had is told now, not by the next write
        return Reembedded(0, None, space.model)
    refuse_damaged(store, among)
    before = store.info(among[0].everything()).model
    run = _Run(store, embedder, progress, total(store, among))
    for number in range(MAX_PASSES):
        run.embed_most()
        try:
            if run.switch(0 if number < PATIENCE else FEW_LEFT):
                return Reembedded(run.done, before, space.model)
        except Conflict:
            continue  # a store without transactions, and somebody has written meanwhile
    raise StoreError(
        "others write faster than the embedder embeds; run it again when there is less to do"
    )


class _Run:
    """Embeds the records that have no vectors yet.

    Attributes:
        done: How many records were embedded.
    """

    def __init__(self, store: Store, embedder: Embedder, progress: Progress, whole: int) -> None:
        self.done = 0
        self._store, self._embedder, self._progress, self._whole = store, embedder, progress, whole
        self._seen: set[Ref] = set()

    def embed_most(self) -> None:
        """Embed page after page, but not for ever: what is written meanwhile waits for the next
        pass.
        """
        for collection in SEARCHED:
            for _ in range(self._whole // PAGE + 1):
                if self._embed(collection, PAGE) < PAGE:
                    break

    def switch(self, few: int) -> bool:
        """Search by the new vectors if at most `few` records are left to embed; return whether that
        was done.
        """
        space = self._embedder.space
        with self._store.transaction():
            left = [
                len(self._store.unstaged(space, collection, limit=few + 1))
                for collection in SEARCHED
            ]
            if max(left) > few:
                return False
            for collection in SEARCHED if any(left) else ():
                self._embed(collection, few)
            self._store.switch(space)
            return True

    def _embed(self, collection: Collection, limit: int) -> int:
        records = self._store.unstaged(self._embedder.space, collection, limit=limit)
        refs = {record.ref for record in records}
        if refs and refs == self._seen:
            raise StoreError(
                "the store does not keep the vectors that are staged; if another reembed is running, wait for it, and "
                "run this again; searches go by the old ones"
            )
        self._seen = refs
        if records:
            vectors = embed_many(
                self._embedder,
                [record.text for record in records],
                [record.role for record in records],
            )
            rows = {record.ref: rows for record, rows in zip(records, vectors, strict=True)}
            self._store.stage(self._embedder.space, rows)
        self.done += len(records)
        self._progress("embedding", min(self.done, self._whole), self._whole)
        return len(records)
