"""Whether a record in one store is a copy of a record in another, and what makes it the same again."""

from collections.abc import Sequence
from typing import Any

from memories.stores.records import Patch, Record
from memories.times import to_millis


def lasting(record: Record) -> tuple[Any, ...]:
    """Return what never changes in a record."""
    labels = sorted(record.labels.items())
    return (*record.ref, record.text, to_millis(record.created_at), record.key, record.session, labels)


def passing(record: Record) -> tuple[Any, ...]:
    """Return what may change in a record, but for the statistic of its accesses."""
    ended_at = None if record.ended_at is None else to_millis(record.ended_at)
    fields = sorted((name, _number(value)) for name, value in record.fields.items())
    return ended_at, record.ended_by, fields


def change(record: Record, copy: Record) -> Patch | None:
    """Return what makes a copy say what the record says; None if it does."""
    if passing(record) == passing(copy):
        return None
    return Patch(record.ref, record.ended_at, record.ended_by, dict.fromkeys(copy.fields) | dict(record.fields))


def in_turn(patches: Sequence[Patch]) -> tuple[list[Patch], list[Patch]]:
    """Return changes in two steps: records that end come first, for they give their keys up."""
    ended = [patch for patch in patches if patch.ended_at is not None]
    return ended, [patch for patch in patches if patch.ended_at is None]


def _number(value: Any) -> Any:
    """Return a whole number as such: some stores keep only one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
