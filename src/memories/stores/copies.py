"""Compare a record with its copy in another store, and bring the copy up to date."""

from collections.abc import Sequence
from typing import Any

from memories.core.times import to_millis
from memories.stores.records import Patch, Record


def immutable(record: Record) -> tuple[Any, ...]:
    """Return the parts of a record that never change."""
    labels = sorted(record.labels.items())
    return (
        *record.ref,
        record.text,
        to_millis(record.created_at),
        record.key,
        record.session,
        labels,
    )


def mutable(record: Record) -> tuple[Any, ...]:
    """Return the parts of a record that may change, except its accesses, which are only a
    statistic.
    """
    ended_at = None if record.ended_at is None else to_millis(record.ended_at)
    fields = sorted((name, plain_number(value)) for name, value in record.fields.items())
    return ended_at, record.ended_by, fields


def change(record: Record, copy: Record) -> Patch | None:
    """Return the patch that makes a copy equal to the record; None if it is."""
    if mutable(record) == mutable(copy):
        return None
    return Patch(
        record.ref,
        record.ended_at,
        record.ended_by,
        dict.fromkeys(copy.fields) | dict(record.fields),
    )


def ends_first(patches: Sequence[Patch]) -> tuple[list[Patch], list[Patch]]:
    """Return patches in two steps: those that end records come first, since they free keys."""
    ended = [patch for patch in patches if patch.ended_at is not None]
    return ended, [patch for patch in patches if patch.ended_at is None]


def plain_number(value: Any) -> Any:
    """Return a whole number as such: some stores keep only one kind of numbers."""
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )
