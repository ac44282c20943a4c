"""Memories in lists and numbers: pages in an order, tags, days, and the status of the store."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.guard.origin import is_reserved
from memories.models import PENDING, Status
from memories.read import versions
from memories.read.lookup import (
    Lookup,
    known_at,
    narrowed,
    order_by,
    still_waiting,
    waiting,
    with_global,
)
from memories.settings import Config
from memories.stores.records import Collection, Filter, Record

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.read.selector import Selector


class Listing(NamedTuple):
    """Filters and order of a list; see `Memories.list`.

    Attributes:
        filters: `tags`, `written_by`, `trust`, `since`, `until` and `as_of`.
        deleted: Deleted memories instead of current ones.
        pending: Those that wait to be accepted instead.
        selector: Expression that each memory must meet beside that.
        project: Only memories of this project, and those that are valid in every one.
        sort: Name of the order.
        reverse: The other way round.
    """

    filters: Mapping[str, Any]
    deleted: bool
    pending: bool
    selector: "Selector | None"
    project: str | Sequence[str] | None
    sort: str
    reverse: bool

    def page(
        self, lookup: Lookup, limit: int, cursor: str | None, now: datetime, half_life_hours: float
    ) -> tuple[Sequence[Record], str | None]:
        """Return the records of a page, and the cursor of the next one.

        Args:
            lookup: The store, and the namespaces that are read.
            limit: How many at most.
            cursor: The cursor of this page; None for the first one.
            now: The present, at which confidence is judged.
            half_life_hours: See `read.versions.compute_confidence`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        where = narrowed(lookup.where(), self.filters, now)
        if self.deleted:
            where = where._replace(state="ended", ended_by="delete")
        if self.pending:
            where = waiting(where)
        confidence = functools.partial(
            versions.confidence, now=now, half_life_hours=half_life_hours
        )
        order = order_by(self.sort, confidence, reverse=self.reverse, as_of=where.as_of is not None)
        if self.selector is None:
            records, more = lookup.page(
                with_global(where, self.project), limit, cursor, order=order
            )
        else:
            from memories.read.selector import listed

            where, selects = listed(self.selector, where)
            records, more = lookup.page(
                with_global(where, self.project), limit, cursor, selects, order
            )
        if where.as_of is not None:
            records = known_at(lookup.store, records, where.as_of)
        return records, more


def count_tags(lookup: Lookup, where: Filter, key: str | None) -> dict[str, int]:
    """Return the tag keys in use, or the values of one key, with the number of memories that have
    each.
    """
    counts = Counter(lookup.store.labels(where, key))
    if where.as_of is not None:
        for record in still_waiting(lookup.store, where):
            counts.subtract(
                value if key else name
                for name, value in record.labels.items()
                if key in (None, name)
            )
    return {
        name: count
        for name, count in counts.items()
        if count > 0 and (key or not is_reserved(name))
    }


def count_days(lookup: Lookup) -> dict[date, int]:
    """Return how many versions of memories were written on each day of UTC, oldest first; not what
    waits.
    """
    where = lookup.where()
    ended = where._replace(state="ended", ended_by=PENDING)
    unaccepted = lookup.store.days(ended) if lookup.store.count(ended, at_most=1) else {}
    written = lookup.store.days(where._replace(state="any"))
    counts = {day: count - unaccepted.get(day, 0) for day, count in written.items()}
    return {date(1970, 1, 1) + timedelta(day): count for day, count in counts.items() if count}


def status(lookup: Lookup, config: Config, embedder: "Embedder | None") -> Status:
    """Return where memories are stored, how many there are, and the damage that a quick check
    finds.
    """
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
    """Yield the findings of a quick check; of damage in other namespaces, no more than that there
    is some.
    """
    for finding in lookup.store.check(deep=False):
        is_ours = finding.ref is None or finding.ref.namespace in lookup.readable
        yield finding.what if is_ours else "a record of another namespace is damaged"
