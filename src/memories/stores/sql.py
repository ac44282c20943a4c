"""A filter as SQL conditions, as far as SQLite and PostgreSQL agree on them."""

from typing import Any

from memories.core.times import to_millis
from memories.stores.records import Filter


def plain_conditions(where: Filter) -> list[tuple[str, tuple[Any, ...]]]:
    """Return what a filter says about single columns of `record r`, each with the values of its question marks.

    The first condition is about the state of a record. Namespaces, groups and labels are left to each store.
    """
    current: tuple[str, tuple[Any, ...]]
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        current = "r.created_at <= ? AND (r.ended_at IS NULL OR r.ended_at > ?)", (moment, moment)
    else:
        current = {"live": "r.ended_at IS NULL", "ended": "r.ended_at IS NOT NULL", "any": "true"}[where.state], ()
    more = (
        ("r.ended_by = ?", where.ended_by),
        ("r.created_at >= ?", where.since and to_millis(where.since)),
        ("r.created_at <= ?", where.until and to_millis(where.until)),
        ("r.key = ? AND r.ended_at IS NULL", where.key),
    )
    return [current, *((sql, (value,)) for sql, value in more if value is not None)]
