"""Export: all records of a store as lines of JSON."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from memories.stores.protocol import Store
from memories.stores.records import Collection, Record
from memories.transfer.lines import header_line, is_id, to_line
from memories.transfer.pages import PAGE, Place, Progress, pages, places, total


def export(
    store: Store,
    write: Callable[[str], object],
    *,
    namespaces: Sequence[str] | None,
    with_vectors: bool = False,
    progress: Progress,
) -> int:
    """Write every record as a line of JSON, in order of collection, namespace, group and position.

    It is one state of the store: other writers wait until it is done, so `write` should not block. Damaged records
    are left out; `damaged` of the store names them.

    Args:
        store: What is exported.
        write: Takes a line with its line break.
        namespaces: Only these; None for all.
        with_vectors: Also write the vectors that the store has.
        progress: Is told how much is done.

    Returns:
        How many records.

    Raises:
        StoreDamaged: A part of the store can't be read.
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
    """Yield records by the name of their group in any store; some keep ids apart from other names."""
    if place.collection is Collection.MEMORY:  # all groups are ids
        return (record for page in pages(store, place) for record in page)

    def of_kind(kind: bool) -> Iterator[Record]:
        return (record for page in pages(store, place) for record in page if is_id(record.ref.group) is kind)

    return heapq.merge(of_kind(False), of_kind(True), key=lambda record: (record.ref.group, record.ref.position))
