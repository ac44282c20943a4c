"""A whole store, namespace by namespace and page by page, and the vectors of its records."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import Embedder, embed_many
from memories.stores.protocol import Store
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What is being done, how much of it is done, and how much it is in all.
Progress = Callable[[str, int, int], None]

PAGE = 250  # records that are read or written in one step


class Place(NamedTuple):
    """A namespace of a collection."""

    collection: Collection
    namespace: str

    def searched(self) -> Filter:
        """Return a filter of its namespace that a store can be asked about its vectors by."""
        return Filter(Collection.MEMORY, (self.namespace,), state="any")

    def everything(self) -> Filter:
        """Return the filter of all its records, ended ones included."""
        return Filter(self.collection, (self.namespace,), state="any")


def places(store: Store, namespaces: Sequence[str] | None = None) -> list[Place]:
    """Return the places where a store has memories and turns, in order; only those of `namespaces`,
    if given.
    """
    found = [
        Place(collection, name)
        for collection in sorted(SEARCHED)
        for name in store.namespaces(collection)
    ]
    return [place for place in found if namespaces is None or place.namespace in namespaces]


def all_places(store: Store) -> list[Place]:
    """Return the places where a store has records of any kind, the log last."""
    return places(store) + [
        Place(Collection.LOG, name) for name in store.namespaces(Collection.LOG)
    ]


def refuse_damaged(store: Store, among: Iterable[Place]) -> None:
    """Refuse to go on if one of these places can't be read: outside a transaction a store may read
    damage as empty.

    Raises:
        StoreDamaged: One can't be read.
    """
    with store.transaction():
        total(store, among)


def total(store: Store, among: Iterable[Place]) -> int:
    """Return how many records these places have in all."""
    return sum(store.count(place.everything()) for place in among)


def with_vectors(
    records: Sequence[Record], kept: "Mapping[Ref, NDArray[np.float32]]", embedder: Embedder | None
) -> list[Record]:
    """Return records with their vectors; without an embedder they have none.

    Args:
        records: The records.
        kept: Vectors of the embedder's model that some of them have already.
        embedder: Makes the others.
    """
    if embedder is None:
        return [record._replace(vectors=None) for record in records]
    vectors = {ref: rows for ref, rows in kept.items() if rows.shape[1] == embedder.space.dimension}
    bare = [record for record in records if record.ref not in vectors]
    made = (
        embed_many(embedder, [record.text for record in bare], [record.role for record in bare])
        if bare
        else []
    )
    vectors |= {record.ref: rows for record, rows in zip(bare, made, strict=True)}
    return [record._replace(vectors=vectors[record.ref]) for record in records]


def pages(store: Store, place: Place) -> Iterator[list[Record]]:
    """Yield all records of a place in the store's order."""
    after = None
    while page := store.scan(place.everything(), limit=PAGE, after=after):
        yield page
        after = (page[-1].ref.group, page[-1].ref.position)
