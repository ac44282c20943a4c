"""The link between a memory and the one that it corrects, and what becomes of it when either of
them changes.

It is kept on both: `corrects` on the newer memory, `corrected_by` and `corrected_at` on the older
one. Only current memories are linked. One that ends keeps its own side, which says what to link
again if it is restored.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from memories.core.times import to_millis
from memories.read.versions import LINK
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Patch, Record


def linked(
    store: Store,
    newer: Record,
    rivals: Sequence[Record],
    *,
    retired: Record | None = None,
    at: datetime | None = None,
) -> Record:
    """Link a memory that is about to be current with the last of those that it corrects, and return
    it so.

    Args:
        store: Where the older one is marked.
        newer: The memory.
        rivals: Current memories that it corrects, as they were before `retired` ended.
        retired: The memory that it replaces: what that one corrected, this one may correct.
        at: When it becomes current; by default when it was written.
    """
    ended = None if retired is None or "corrected_by" in retired.fields else retired.ref.group
    free = [each for each in rivals if each.fields.get("corrected_by") in (None, ended)]
    older = max(
        (each for each in free if each.created_at <= newer.created_at),
        key=_written_at,
        default=None,
    )
    if older is None:
        return newer
    store.patch([_corrected(older, newer, at)])
    return newer._replace(fields={**newer.fields, "corrects": older.ref.group})


def unlink(store: Store, records: Iterable[Record]) -> None:
    """Take memories that are about to end out of their chains: what corrects one corrects what that
    one corrected.

    Args:
        store: Where they are; a transaction runs in it.
        records: Any version of each.
    """
    done: set[str] = set()
    for record in records:
        current = record.ended_at is None
        if record.ref.group in done or (current and not _has_link(record)):
            continue
        done.add(record.ref.group)
        # Read again, since the one before may have been its neighbour.
        live = _live(store, record, record.ref.group)
        older, newer = (None, None) if live is None else _neighbours(store, live)
        if older is not None:
            store.patch(
                [
                    _free(older, "corrected_by", "corrected_at")
                    if newer is None
                    else _corrected(older, newer)
                ]
            )
        if newer is not None:
            store.patch([_patch(newer, corrects=None if older is None else older.ref.group)])


def unlinked(record: Record) -> Record:
    """Return a memory that is about to be added without its links."""
    if not _has_link(record):
        return record
    return record._replace(
        fields={name: value for name, value in record.fields.items() if name not in LINK}
    )


def relink(store: Store, record: Record, known: Mapping[str, Any]) -> Record:
    """Link a memory that was added without links as it was linked before, as far as that still
    holds.

    Args:
        store: Where it was added; a transaction runs in it.
        record: The memory.
        known: The fields of a version that was linked.

    Returns:
        The memory with its links.
    """
    older, newer = (_live(store, record, known.get(name)) for name in ("corrects", "corrected_by"))
    if older is not None and not _still(record, older):
        older = None
    if newer is not None and not _still(newer, record):
        newer = None
    between = (
        older is not None
        and newer is not None
        and older.fields.get("corrected_by") == newer.ref.group
    )
    if older is not None and ("corrected_by" not in older.fields or between):
        store.patch([_corrected(older, record), _patch(record, corrects=older.ref.group)])
        record = record._replace(fields={**record.fields, "corrects": older.ref.group})
    if newer is not None and ("corrects" not in newer.fields or between):
        patch = _corrected(record, newer)
        store.patch([patch, _patch(newer, corrects=record.ref.group)])
        record = record._replace(fields={**record.fields, **patch.fields})
    return record


def release(store: Store, record: Record, older_id: str) -> Record | None:
    """Take back that a memory corrects another; return it as it is then, or None if it does not
    correct that one.
    """
    if record.fields.get("corrects") != older_id:
        return None
    older, _ = _neighbours(store, record)
    if older is not None:
        store.patch([_free(older, "corrected_by", "corrected_at")])
    store.patch([_free(record, "corrects")])
    return _without(record, {"corrects"})


def recheck(store: Store, record: Record) -> Record:
    """Return the next version of a memory without the links that its new text or project has
    ended.
    """
    if not _has_link(record):
        return record
    older, newer = _neighbours(store, record)
    ended: set[str] = set()
    if older is not None and not _still(record, older):
        store.patch([_free(older, "corrected_by", "corrected_at")])
        ended |= {"corrects"}
    if newer is not None and not _still(newer, record):
        store.patch([_free(newer, "corrects")])
        ended |= {"corrected_by", "corrected_at"}
    return _without(record, ended)


def last_correction(store: Store, record: Record) -> Record | None:
    """Return the last memory of the chain that corrects a memory; None if none does now."""
    last, seen = _live(store, record, record.ref.group), {record.ref.group}
    while last is not None:
        _, newer = _neighbours(store, last)
        if newer is None or newer.ref.group in seen:
            break
        seen.add(newer.ref.group)
        last = newer
    return None if last is None or last.ref.group == record.ref.group else last


def recorrected(store: Store, known: Record, new: Record, correction: Record) -> Record:
    """Return the next version of a memory that is said again, so that it corrects what corrected
    it.

    Args:
        store: Where they are; a transaction runs in it.
        known: Its latest version.
        new: Its next version.
        correction: The last memory of the chain that corrects it.
    """
    unlink(store, [known])
    store.patch([_corrected(correction, new)])
    new = _without(new, set(LINK))
    return new._replace(fields={**new.fields, "corrects": correction.ref.group})


def _neighbours(store: Store, record: Record) -> tuple[Record | None, Record | None]:
    """Return the memory that a memory corrects and the one that corrects it, where they still say
    so themselves.
    """
    older, newer = (
        _live(store, record, record.fields.get(name)) for name in ("corrects", "corrected_by")
    )
    if older is not None and older.fields.get("corrected_by") != record.ref.group:
        older = None
    if newer is not None and newer.fields.get("corrects") != record.ref.group:
        newer = None
    return older, newer


def _still(newer: Record, older: Record) -> bool:
    from memories.write.compare.corrections import (
        corrects,
    )  # which reads word lists, and few changes need them

    same_project = newer.labels.get("project") == older.labels.get("project")
    return same_project and corrects(newer.text, older.text, None, threshold=1.0)


def _live(store: Store, beside: Record, group: str | None) -> Record | None:
    if group is None:
        return None
    where = Filter(Collection.MEMORY, (beside.ref.namespace,), group=group)
    return next(iter(store.scan(where, limit=1)), None)


def _has_link(record: Record) -> bool:
    return any(name in record.fields for name in LINK)


def _written_at(record: Record) -> datetime:
    return record.created_at


def _without(record: Record, names: set[str]) -> Record:
    return record._replace(
        fields={name: value for name, value in record.fields.items() if name not in names}
    )


def _corrected(older: Record, newer: Record, at: datetime | None = None) -> Patch:
    return _patch(
        older, corrected_by=newer.ref.group, corrected_at=to_millis(at or newer.created_at)
    )


def _free(record: Record, *names: str) -> Patch:
    return _patch(record, **dict.fromkeys(names))


def _patch(record: Record, **fields: str | int | None) -> Patch:
    return Patch(record.ref, record.ended_at, record.ended_by, fields)
