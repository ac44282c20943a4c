"""Links memories to those that they correct, and updates the links when either memory changes.

A link is made in four ways: `create` links a new memory to one that `compare.corrections` says it
corrects; an accepted memory is linked in the same way (`write.review`); a person accepts a proposal
of `memory tidy`; or a memory that had been corrected is stated again (`link_restated`), by storing
its text again, by confirming it (`restate_links`), or by an update with another value
(`update_links`). `restore_links` restores former links.

A link ends when a person removes it (`remove_link`), when an update of either memory no longer
contradicts the other (`update_links`), or when either memory ends. Then the memories before and
after it in the chain are linked to each other (`leave_chains`).

Both sides store the link: the newer memory in `corrects`, each older one in `corrected_by`,
`corrected_at` and, if it is corrected only for a time, `corrected_until`. Only current memories are
linked. A memory that ends keeps its own side, so that it can be linked again if it is restored.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from memories.core.times import to_millis
from memories.read.versions import (
    LINK,
    NOT_CORRECTS,
    compute_correction_end,
    is_corrected,
    stated_at,
)
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Filter, Patch, Record

_BY_WORDS = 1.0  # a threshold without effect: texts are compared without their similarity


def link_correction(
    store: Store,
    newer: Record,
    corrected: Sequence[Record],
    *,
    now: datetime,
    at: datetime | None = None,
) -> Record:
    """Link a memory that is about to become current to the newest memory that it corrects, and to
    older memories that say the same thing as the newest.

    For example, "port 9090" corrects two memories that both say "port 8080".

    Args:
        store: The store in which the older memories are marked as corrected.
        newer: The memory that is about to become current.
        corrected: Memories that `newer` contradicts.
        now: The current time.
        at: When `newer` becomes current; by default, when it was written.

    Returns:
        The memory with its links, which the caller stores.
    """
    newer = without_links(newer)
    ends_of_chains: dict[str, Record] = {}
    for record in corrected:
        live = _find_live(store, record, record.ref.group)
        if live is None or is_corrected(live, now):
            continue
        # A memory whose correction has expired is still linked, so its chain continues.
        end = [live, *_corrections_of(store, live)][-1]
        if stated_at(end) <= stated_at(newer):  # leaves out memories that were updated later
            ends_of_chains[end.ref.group] = end
    if not ends_of_chains:
        return newer
    newest, *others = sorted(ends_of_chains.values(), key=stated_at, reverse=True)
    agreeing = [record for record in others if not _contradicts(newest, record)]
    for record in (newest, *agreeing):
        _mark_corrected(store, record, newer, at)
    return _with(newer, corrects=_join_ids([newest, *agreeing]))


def leave_chains(store: Store, records: Iterable[Record], now: datetime | None = None) -> set[str]:
    """Take memories that are about to end out of their chains of corrections, and link the
    neighbours of each memory to each other.

    Args:
        store: The store of the memories, in a transaction.
        records: Any one version of each memory.
        now: The current time; None to include expired corrections.

    Returns:
        The ids of memories that are no longer corrected.
    """
    seen: set[str] = set()
    uncorrected: set[str] = set()
    for record in records:
        is_current = record.ended_at is None
        if record.ref.group in seen or (is_current and not _has_link(record)):
            continue
        seen.add(record.ref.group)
        # Read the memory again: if its neighbour has just left the chain, its links have changed.
        live = _find_live(store, record, record.ref.group)
        if live is None:
            continue
        corrected, newer = _find_corrected(store, live), _find_correction(store, live)
        if newer is not None:
            ids = [name for name in newer.names("corrects") if name != live.ref.group]
            ids += [older.ref.group for older in corrected]
            newer = _change(store, newer, corrects=" ".join(ids) or None)
        for older in corrected:
            if newer is not None:
                _mark_corrected(store, older, newer)
                continue
            _unmark_corrected(store, older)
            if now is None or is_corrected(older, now):
                uncorrected.add(older.ref.group)
    return uncorrected


def without_links(record: Record) -> Record:
    """Return a record without its links; nothing is stored."""
    return _with(record, **dict.fromkeys(LINK)) if _has_link(record) else record


def restore_links(store: Store, record: Record, former: Record) -> Record:
    """Restore the links of a memory that was added without them, except those that no longer hold
    or that other links have replaced.

    A former neighbour that has ended gets only its own side of the link, so that its restoration
    restores the link.

    Args:
        store: The memory's store, in a transaction.
        record: The memory.
        former: An earlier version of the memory, which has the links.

    Returns:
        The memory with the restored links.
    """
    if not _has_link(former):
        return record
    # Another memory in the same change may have restored its links to this one.
    record = _find_live(store, record, record.ref.group) or record
    corrected, linked_newer = _find_corrected(store, record), _find_correction(store, record)
    added = _find_formerly_corrected(
        store, record, former, {older.ref.group for older in corrected}
    )
    newer = linked_newer or _find_former_correction(store, record, former)
    if newer is not None:
        later = {newer.ref.group, *(last.ref.group for last in _corrections_of(store, newer))}
        if any(older.ref.group in later for older in (*corrected, *added)):
            added, newer = [], linked_newer  # an older memory now comes after `newer`
    newer_id = None if newer is None else newer.ref.group
    added = [older for older in added if older.fields.get("corrected_by") in (None, newer_id)]

    if newer is not None:
        between = {older.ref.group for older in added}
        ids = [name for name in newer.names("corrects") if name not in between]
        newer = _change(store, newer, corrects=" ".join(dict.fromkeys((*ids, record.ref.group))))
        if newer.ended_at is None and linked_newer is None:
            record = _mark_corrected(store, record, newer)
    for older in added:
        _mark_corrected(store, older, record)
    corrected += [older for older in added if older.ended_at is None]
    return _change(store, record, corrects=_join_ids(corrected)) if corrected else record


def _find_formerly_corrected(
    store: Store, record: Record, former: Record, linked_ids: set[str]
) -> list[Record]:
    """Return the memories, current or ended, that `former` corrected and `record` still
    contradicts, except those that are already linked.
    """
    corrected: list[Record] = []
    for memory_id in former.names("corrects"):
        older = None if memory_id in linked_ids else _find_latest(store, record, memory_id)
        if older is None:
            continue
        if _still_corrects(record, older, former, _find_at_end(store, older, former)):
            corrected.append(older)
    return corrected


def _find_former_correction(store: Store, record: Record, former: Record) -> Record | None:
    """Return the memory, current or ended, that corrected `former` and still contradicts `record`;
    None if there is no such memory.
    """
    newer = _find_latest(store, record, former.fields.get("corrected_by"))
    if newer is None:
        return None
    if _still_corrects(newer, record, _find_at_end(store, newer, former), former):
        return newer
    return None


def _find_at_end(store: Store, neighbour: Record, former: Record) -> Record:
    """Return a neighbour's latest version at the time when `former` ended; its current version if
    `former` has not ended.
    """
    if former.ended_at is None:
        return neighbour
    where = Filter(
        Collection.MEMORY, (neighbour.ref.namespace,), state="any", group=neighbour.ref.group,
        until=former.ended_at,
    )  # fmt: skip
    return find_first(store, where, newest_first=True) or neighbour


def remove_link(store: Store, record: Record, older_id: str) -> Record | None:
    """Permanently remove a memory's link to an older memory that it corrects.

    Returns:
        The memory without the link; None if there is no such link.
    """
    ids = record.names("corrects")
    if older_id not in ids:
        return None
    for older in _find_corrected(store, record):
        if older.ref.group == older_id:
            _unmark_corrected(store, older)
    corrected = " ".join(name for name in ids if name != older_id) or None
    not_corrected = " ".join((*record.names(NOT_CORRECTS), older_id))
    return _change(store, record, corrects=corrected, **{NOT_CORRECTS: not_corrected})


def restate_links(store: Store, latest: Record, new: Record) -> Record:
    """Return the next version of a memory whose text was stated again, with its links. If newer
    memories corrected it, the new version corrects the last of them.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version, with the same text.
    """
    correction = find_last_correction(store, latest, new.created_at)
    if correction is None:
        return update_links(store, latest, new)
    return link_restated(store, latest, new, correction)


def update_links(store: Store, latest: Record, new: Record) -> Record:
    """Return the next version of a memory with the links that hold for its new text or project.

    A new text is a new statement. If it contradicts the correction of the old text, it corrects
    that correction, as if it had been stored as a new memory. A text that is only reworded keeps
    its links.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version.
    """
    if not _has_link(new):
        return new
    corrected, newer = _find_corrected(store, new), _find_correction(store, new)
    holds_older = all(_still_corrects(new, older, latest, older) for older in corrected)
    holds_newer = newer is None or _still_corrects(newer, new, newer, latest)
    correction = find_last_correction(store, latest, new.created_at)
    if correction is not None and not _repeats(new, latest):
        is_elsewhere = new.labels.get("project") != correction.labels.get("project")
        if is_elsewhere or _repeats(new, correction):
            holds_newer = False
        elif _contradicts(new, correction) or _contradicts(new, latest):
            return link_restated(store, latest, new, correction)
    if holds_older and holds_newer:
        _pass_on_end(store, new)  # its validity period may have changed
        return new
    leave_chains(store, [latest])
    return without_links(new)


def find_last_correction(store: Store, record: Record, at: datetime) -> Record | None:
    """Return the last memory in the chain of corrections that begins with `record`; None if
    `record` had not been corrected by the time `at`, or if its correction is no longer current.
    """
    if not is_corrected(record, at):
        return None
    corrections = _corrections_of(store, record)
    return corrections[-1] if corrections else None


def _corrections_of(store: Store, record: Record) -> list[Record]:
    """Return a memory's chain of corrections: its correction, the correction's own, and so on."""
    corrections: list[Record] = []
    last, seen = _find_live(store, record, record.ref.group), {record.ref.group}
    while last is not None:
        last = _find_correction(store, last)
        if last is None or last.ref.group in seen:
            break
        seen.add(last.ref.group)
        corrections.append(last)
    return corrections


def link_restated(store: Store, latest: Record, new: Record, correction: Record) -> Record:
    """Return the next version of a memory that was stated again, linked as a correction of
    `correction`.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version.
        correction: The last memory of the chain that corrects it.
    """
    leave_chains(store, [latest])
    new = without_links(new)
    if correction.ref.group in new.names(NOT_CORRECTS):
        return new
    # Read the correction again, since `latest` has left its chain.
    correction = _find_live(store, correction, correction.ref.group) or correction
    _mark_corrected(store, correction, new)
    return _with(new, corrects=correction.ref.group)


def _find_corrected(store: Store, record: Record) -> list[Record]:
    """Return the memories that a memory corrects, except those that don't link back."""
    corrected: list[Record] = []
    for memory_id in record.names("corrects"):
        older = _find_live(store, record, memory_id)
        if older is not None and older.fields.get("corrected_by") == record.ref.group:
            corrected.append(older)
    return corrected


def _find_correction(store: Store, record: Record) -> Record | None:
    """Return the memory that corrects a memory; None if it doesn't link back."""
    newer = _find_live(store, record, record.fields.get("corrected_by"))
    if newer is None or record.ref.group not in newer.names("corrects"):
        return None
    return newer


def _still_corrects(
    newer: Record, older: Record, newer_before: Record, older_before: Record
) -> bool:
    """Return whether a link between two memories still holds, given the versions for which it was
    made.

    Changing a text ends only a link that can be derived from the words. A link between texts in
    different words was accepted by a person, and stays.
    """
    if newer.labels.get("project") != older.labels.get("project"):
        return False
    if older.ref.group in newer.names(NOT_CORRECTS):
        return False
    if _repeats(newer, newer_before) and _repeats(older, older_before):
        return True
    if _repeats(newer, older):
        return False
    return _contradicts(newer, older) or not _contradicts(newer_before, older_before)


def _repeats(record: Record, other: Record) -> bool:
    """Return whether two texts say the same thing, judged by their words."""
    if record.text == other.text:
        return True
    # Imported here because it reads word lists, which few changes need.
    from memories.write.compare.duplicates import Relation, compare_texts

    relation = compare_texts(
        record.text, other.text, None, threshold=_BY_WORDS, explain=False
    ).relation
    return relation in (Relation.SAME, Relation.DUPLICATE)


def _contradicts(newer: Record, older: Record) -> bool:
    """Return whether a text gives a different value from an older one, judged by their words."""
    from memories.write.compare.corrections import is_correction  # slow: it reads word lists

    return is_correction(newer.text, older.text, None, threshold=_BY_WORDS)


def _find_live(store: Store, beside: Record, group: str | None) -> Record | None:
    """Return the current version of a memory in the namespace of another record."""
    if group is None:
        return None
    where = Filter(Collection.MEMORY, (beside.ref.namespace,), group=group)
    return find_first(store, where)


def _find_latest(store: Store, beside: Record, group: str | None) -> Record | None:
    """Return the latest version of a memory, which may have ended."""
    if group is None:
        return None
    where = Filter(Collection.MEMORY, (beside.ref.namespace,), state="any", group=group)
    return find_first(store, where, newest_first=True)


def _has_link(record: Record) -> bool:
    return any(name in record.fields for name in LINK)


def _join_ids(records: Iterable[Record]) -> str:
    return " ".join(record.ref.group for record in records)


def _mark_corrected(
    store: Store, older: Record, newer: Record, at: datetime | None = None
) -> Record:
    """Mark a memory as corrected by another; return the changed memory."""
    marked = _change(
        store,
        older,
        corrected_by=newer.ref.group,
        corrected_at=to_millis(at or newer.created_at),
        corrected_until=compute_correction_end(newer),
    )
    _pass_on_end(store, marked)
    return marked


def _unmark_corrected(store: Store, older: Record) -> None:
    """Mark a memory as no longer corrected."""
    unmarked = _change(store, older, corrected_by=None, corrected_at=None, corrected_until=None)
    _pass_on_end(store, unmarked)


def _pass_on_end(store: Store, newer: Record) -> None:
    """Update `corrected_until` in the memories that a memory corrects, directly or indirectly."""
    changed = [newer]
    while changed:
        newer = changed.pop()
        until = compute_correction_end(newer)
        changed += [
            _change(store, older, corrected_until=until)
            for older in _find_corrected(store, newer)
            if older.fields.get("corrected_until") != until
        ]


def _change(store: Store, record: Record, **fields: str | int | None) -> Record:
    """Change stored fields of a memory; return the changed memory."""
    store.patch([Patch(record.ref, record.ended_at, record.ended_by, fields)])
    return _with(record, **fields)


def _with(record: Record, **fields: str | int | None) -> Record:
    """Return a record with changed fields; None removes a field."""
    merged = {**record.fields, **fields}
    present = {name: value for name, value in merged.items() if value is not None}
    return record._replace(fields=present)
