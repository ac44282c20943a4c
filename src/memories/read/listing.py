"""A page of memories: which of them, in which order, from where on."""

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.read import versions
from memories.read.lookup import Lookup, known_at, narrowed, order_by, waiting, with_global
from memories.stores.records import Record

if TYPE_CHECKING:
    from memories.read.selector import Selector


class Listing(NamedTuple):
    """What is listed; see `Memories.list`.

    Attributes:
        filters: `tags`, `written_by`, `trust`, `since`, `until` and `as_of`.
        deleted: Deleted memories instead of current ones.
        pending: Those that wait to be accepted instead.
        selector: What each memory must meet beside that.
        project: Only memories of this project, and those that are valid in every one.
        sort: What the order goes by.
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
            lookup: Who asks.
            limit: How many at most.
            cursor: The cursor of this page; None for the first one.
            now: The present, at which confidence is judged.
            half_life_hours: See `decay`.

        Raises:
            InvalidInput: A value is not acceptable.
        """
        where = narrowed(lookup.where(), self.filters, now)
        if self.deleted:
            where = where._replace(state="ended", ended_by="delete")
        if self.pending:
            where = waiting(where)
        confidence = functools.partial(versions.confidence, now=now, half_life_hours=half_life_hours)
        order = order_by(self.sort, confidence, reverse=self.reverse, as_of=where.as_of is not None)
        if self.selector is None:
            records, more = lookup.page(with_global(where, self.project), limit, cursor, order=order)
        else:
            from memories.read.selector import listed

            where, selects = listed(self.selector, where)
            records, more = lookup.page(with_global(where, self.project), limit, cursor, selects, order)
        if where.as_of is not None:
            records = known_at(lookup.store, records, where.as_of)
        return records, more
