"""Links between memories and the memories that they correct, kept up to date when either changes.

Both sides store the link: the newer memory in `corrects`, the older one in `corrected_by` and
`corrected_at`. Only current memories are linked. A memory that ends keeps its own side, so that it
can be linked again if it is restored.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from memories.core.times import to_millis
from memories.read.versions import LINK
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Filter, Patch, Record


def link_correction(
    store: Store,
    newer: Record,
    rivals: Sequence[Record],
    *,
    retired: Record | None = None,
    at: datetime | None = None,
) -> Record:
    """Link a memory that is about to become current to the newest one that it corrects.

    Args:
        store: The store of the older memory, which is marked.
        newer: The memory.
        rivals: Current memories that it corrects, as they were before `retired` ended.
        retired: The memory that it replaces: it may correct what that one corrected.
        at: When it becomes current; by default, when it was written.

    Returns:
        The memory with its link.
    """
    is_retired_linked = retired is not None and "corrected_by" in retired.fields
    former = None if retired is None or is_retired_linked else retired.ref.group
    free = [
        rival
        for rival in rivals
        if rival.fields.get("corrected_by") in (None, former)
        and rival.created_at <= newer.created_at
    ]
    if not free:
        return newer
    older = max(free, key=lambda rival: rival.created_at)
    store.patch([_corrected_patch(older, newer, at)])
    return newer._replace(fields={**newer.fields, "corrects": older.ref.group})


def unlink(store: Store, records: Iterable[Record]) -> None:
    """Take memories that are about to end out of their chains, linking the neighbours of each.

    Args:
        store: Their store, in a transaction.
        records: Any version of each.
    """
    seen: set[str] = set()
    for record in records:
        is_current = record.ended_at is None
        if record.ref.group in seen or (is_current and not _has_link(record)):
            continue
        seen.add(record.ref.group)
        # Read it again, since the previous memory may have been its neighbour.
        live = _find_live(store, record, record.ref.group)
        if live is None:
            continue
        older, newer = _neighbours(store, live)
        if older is not None and newer is not None:
            store.patch([_corrected_patch(older, newer)])
        elif older is not None:
            store.patch([_clear(older, "corrected_by", "corrected_at")])
        if newer is not None:
            store.patch([_patch(newer, corrects=None if older is None else older.ref.group)])


def without_links(record: Record) -> Record:
    """Return a record without its links."""
    return _without(record, LINK) if _has_link(record) else record


def relink(store: Store, record: Record, former: Mapping[str, Any]) -> Record:
    """Restore the earlier links of a memory that was added without links, where they still hold.

    Args:
        store: Its store, in a transaction.
        record: The memory.
        former: The fields of a version with links.

    Returns:
        The memory with its links.
    """
    older = _find_live(store, record, former.get("corrects"))
    newer = _find_live(store, record, former.get("corrected_by"))
    if older is not None and not _still_corrects(record, older):
        older = None
    if newer is not None and not _still_corrects(newer, record):
        newer = None
    is_between = (
        older is not None
        and newer is not None
        and older.fields.get("corrected_by") == newer.ref.group
    )
    if older is not None and (is_between or "corrected_by" not in older.fields):
        store.patch([_corrected_patch(older, record), _patch(record, corrects=older.ref.group)])
        record = record._replace(fields={**record.fields, "corrects": older.ref.group})
    if newer is not None and (is_between or "corrects" not in newer.fields):
        patch = _corrected_patch(record, newer)
        store.patch([patch, _patch(newer, corrects=record.ref.group)])
        record = record._replace(fields={**record.fields, **patch.fields})
    return record


def remove_link(store: Store, record: Record, older_id: str) -> Record | None:
    """Remove a memory's link to one that it corrects; return it without the link, or None if there
    is no such link.
    """
    if record.fields.get("corrects") != older_id:
        return None
    older, _ = _neighbours(store, record)
    if older is not None:
        store.patch([_clear(older, "corrected_by", "corrected_at")])
    store.patch([_clear(record, "corrects")])
    return _without(record, {"corrects"})


def remove_ended_links(store: Store, record: Record) -> Record:
    """Return the next version of a memory without the links that no longer hold for its new text or
    project.
    """
    if not _has_link(record):
        return record
    older, newer = _neighbours(store, record)
    ended: set[str] = set()
    if older is not None and not _still_corrects(record, older):
        store.patch([_clear(older, "corrected_by", "corrected_at")])
        ended |= {"corrects"}
    if newer is not None and not _still_corrects(newer, record):
        store.patch([_clear(newer, "corrects")])
        ended |= {"corrected_by", "corrected_at"}
    return _without(record, ended)


def find_last_correction(store: Store, record: Record) -> Record | None:
    """Return the last memory in the chain of corrections of a memory; None if nothing corrects it
    now.
    """
    last, seen = _find_live(store, record, record.ref.group), {record.ref.group}
    while last is not None:
        _, newer = _neighbours(store, last)
        if newer is None or newer.ref.group in seen:
            break
        seen.add(newer.ref.group)
        last = newer
    if last is None or last.ref.group == record.ref.group:
        return None
    return last


def link_restated(store: Store, latest: Record, new: Record, correction: Record) -> Record:
    """Return the next version of a repeated memory, such that it corrects the memory that corrected
    it.

    Args:
        store: Their store, in a transaction.
        latest: The latest version of the memory.
        new: Its next version.
        correction: The last memory of the chain that corrects it.
    """
    unlink(store, [latest])
    store.patch([_corrected_patch(correction, new)])
    new = _without(new, LINK)
    return new._replace(fields={**new.fields, "corrects": correction.ref.group})


def _neighbours(store: Store, record: Record) -> tuple[Record | None, Record | None]:
    """Return the memory that a memory corrects and the one that corrects it, if they have the same
    link.
    """
    older = _find_live(store, record, record.fields.get("corrects"))
    newer = _find_live(store, record, record.fields.get("corrected_by"))
    if older is not None and older.fields.get("corrected_by") != record.ref.group:
        older = None
    if newer is not None and newer.fields.get("corrects") != record.ref.group:
        newer = None
    return older, newer


def _still_corrects(newer: Record, older: Record) -> bool:
    from memories.write.compare.corrections import corrects  # reads word lists; few changes need it

    is_same_project = newer.labels.get("project") == older.labels.get("project")
    return is_same_project and corrects(newer.text, older.text, None, threshold=1.0)


def _find_live(store: Store, beside: Record, group: str | None) -> Record | None:
    if group is None:
        return None
    where = Filter(Collection.MEMORY, (beside.ref.namespace,), group=group)
    return find_first(store, where)


def _has_link(record: Record) -> bool:
    return any(name in record.fields for name in LINK)


def _without(record: Record, names: Iterable[str]) -> Record:
    names = set(names)
    fields = {name: value for name, value in record.fields.items() if name not in names}
    return record._replace(fields=fields)


def _corrected_patch(older: Record, newer: Record, at: datetime | None = None) -> Patch:
    corrected_at = to_millis(at or newer.created_at)
    return _patch(older, corrected_by=newer.ref.group, corrected_at=corrected_at)


def _clear(record: Record, *names: str) -> Patch:
    return _patch(record, **dict.fromkeys(names))


def _patch(record: Record, **fields: str | int | None) -> Patch:
    return Patch(record.ref, record.ended_at, record.ended_by, fields)
