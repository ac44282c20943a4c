"""Reads a whole store, namespace by namespace and page by page; attaches vectors to records."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from memories.embedders.protocol import Embedder, embed_many
from memories.stores.protocol import Store, scan_pages
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Progress = Callable[[str, int, int], None]  # receives the step, its progress, and the total
PAGE = 250  # number of records read or written in one step


class Part(NamedTuple):
    """A part of a store: one namespace of one collection."""

    collection: Collection
    namespace: str

    def filter(self) -> Filter:
        """Return a filter for all records of this part, including ended ones."""
        return Filter(self.collection, (self.namespace,), state="any")


def parts_of(store: Store, namespaces: Sequence[str] | None = None) -> list[Part]:
    """Return the parts of a store that contain memories or turns, sorted.

    Args:
        store: The store.
        namespaces: Only parts in these namespaces; None means all.
    """
    selected: list[Part] = []
    for collection in sorted(SEARCHED):
        names = store.namespaces(collection)
        if namespaces is not None:
            names = [name for name in names if name in namespaces]
        selected += [Part(collection, name) for name in names]
    return selected


def all_parts_of(store: Store) -> list[Part]:
    """Return the parts of a store that contain records of any kind, the log last."""
    logs = [Part(Collection.LOG, name) for name in store.namespaces(Collection.LOG)]
    return parts_of(store) + logs


def check_readable(store: Store, where: Iterable[Part]) -> None:
    """Check that these parts can be read.

    The parts are read in a transaction, since outside one a damaged store may look empty.

    Raises:
        StoreDamaged: A part can't be read.
    """
    with store.transaction():
        count_records(store, where)


def count_records(store: Store, where: Iterable[Part]) -> int:
    """Return how many records these parts have in total."""
    return sum(store.count(part.filter()) for part in where)


def with_vectors(
    records: Sequence[Record],
    vectors: "Mapping[Ref, NDArray[np.float32]]",
    embedder: Embedder | None,
) -> list[Record]:
    """Return records with their vectors; without an embedder they have none.

    Args:
        records: The records.
        vectors: Existing vectors of the embedder's model.
        embedder: Makes the missing vectors.
    """
    if embedder is None:
        return [record._replace(vectors=None) for record in records]
    dimension = embedder.space.dimension
    complete = {ref: rows for ref, rows in vectors.items() if rows.shape[1] == dimension}
    missing = [record for record in records if record.ref not in complete]
    if missing:
        texts = [record.text for record in missing]
        roles = [record.role for record in missing]
        for record, rows in zip(missing, embed_many(embedder, texts, roles), strict=True):
            complete[record.ref] = rows
    return [record._replace(vectors=complete[record.ref]) for record in records]


def pages(store: Store, part: Part) -> Iterator[list[Record]]:
    """Yield the records of a part, page by page, in the store's order."""
    return scan_pages(store, part.filter(), size=PAGE)
