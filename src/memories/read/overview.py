"""What is told of all memories together: how many have each tag, how many were written a day, how the store is."""

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from typing import TYPE_CHECKING

from memories.guard.origin import is_reserved
from memories.models import PENDING, Status
from memories.read.lookup import Lookup, still_waiting, waiting
from memories.settings import Config
from memories.stores.records import Collection, Filter

if TYPE_CHECKING:
    from memories.embedders import Embedder


def count_tags(lookup: Lookup, where: Filter, key: str | None) -> dict[str, int]:
    """Return the tag keys in use, or the values of one key, with the number of memories that have each."""
    counts = Counter(lookup.store.labels(where, key))
    if where.as_of is not None:
        for record in still_waiting(lookup.store, where):
            counts.subtract(value if key else name for name, value in record.labels.items() if key in (None, name))
    return {name: count for name, count in counts.items() if count > 0 and (key or not is_reserved(name))}


def count_days(lookup: Lookup) -> dict[date, int]:
    """Return how many versions of memories were written on each day of UTC, oldest first; not what waits."""
    where = lookup.where()
    ended = where._replace(state="ended", ended_by=PENDING)
    unaccepted = lookup.store.days(ended) if lookup.store.count(ended, at_most=1) else {}
    written = lookup.store.days(where._replace(state="any"))
    counts = {day: count - unaccepted.get(day, 0) for day, count in written.items()}
    return {date(1970, 1, 1) + timedelta(day): count for day, count in counts.items() if count}


def status(lookup: Lookup, config: Config, embedder: "Embedder | None") -> Status:
    """Return where memories are stored, how many there are, and what a quick look finds wrong."""
    from memories.read.turns import count

    store, where = lookup.store, lookup.where()
    history = where._replace(collection=Collection.HISTORY)
    info, of_turns = store.info(where), store.info(history)
    return Status(
        store=info.url,
        collection=info.collection or config.collection_name,
        namespace=lookup.namespace,
        namespaces_read=lookup.readable,
        memory_count=store.count(where),
        deleted_count=store.count(where._replace(state="ended", ended_by="delete")),
        without_vector_count=info.without_vector_count + of_turns.without_vector_count,
        turn_count=count(store, history),
        embedder=embedder.space.model if embedder else "none",
        store_model=info.model,
        schema_version=info.schema_version,
        size_bytes=info.size_bytes,
        erasing=info.erasing,
        log_bytes=info.log_bytes,
        missing_commits=info.missing_commits,
        damage=tuple(_damage(lookup)),
        read_only=info.read_only,
        compact=info.compact,
        pending_count=store.count(waiting(where)),
    )


def _damage(lookup: Lookup) -> Iterator[str]:
    """Yield what a quick look finds wrong in the store; of other namespaces, no more than that."""
    for finding in lookup.store.check(deep=False):
        is_ours = finding.ref is None or finding.ref.namespace in lookup.readable
        yield finding.what if is_ours else "a record of another namespace is damaged"
