"""Links between memories and the memories that they correct, kept up to date when either changes.

A link is made in four ways: `create` links a new memory to one that `compare.corrections` says it
corrects; an accepted memory is linked in the same way (`write.review`); a person accepts a proposal
of `memory tidy`; or a memory that had been corrected is stated again (`link_restated`), by storing
its text again, by confirming it, or by an update with another value (`update_links`).
`restore_links` makes former links again.

Both sides store the link: the newer memory in `corrects`, the older one in `corrected_by` and
`corrected_at`. Only current memories are linked. A memory that ends keeps its own side, so that it
can be linked again if it is restored.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from memories.core.times import to_millis
from memories.read.versions import LINK, NOT_CORRECTS, corrected_by, stated_at
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Filter, Patch, Record

_BY_WORDS = 1.0  # a threshold without effect: texts are compared without their similarity


def link_correction(
    store: Store,
    newer: Record,
    corrected: Sequence[Record],
    *,
    superseded: Record | None = None,
    at: datetime | None = None,
) -> Record:
    """Link a memory that is about to become current to the newest memory that it corrects.

    For example, "port 9090" corrects "port 8080", and "port 7070" supersedes "port 9090". Then
    "port 7070" corrects "port 8080", unless another memory had already corrected "port 9090".

    Args:
        store: The store in which the older memory is marked as corrected.
        newer: The memory that is about to become current.
        corrected: Current memories that `newer` corrects, as they were before `superseded` ended.
        superseded: The memory that `newer` replaces.
        at: When `newer` becomes current; by default, when it was written.

    Returns:
        The memory with its link, which the caller stores.
    """
    predecessor = None
    if superseded is not None and "corrected_by" not in superseded.fields:
        predecessor = superseded.ref.group
    free = [
        record
        for record in corrected
        if record.fields.get("corrected_by") in (None, predecessor)
        and stated_at(record) <= stated_at(newer)  # leaves out memories that were updated later
    ]
    if not free:
        return newer
    older = max(free, key=stated_at)
    store.patch([_corrected_patch(older, newer, at)])
    return newer._replace(fields={**newer.fields, "corrects": older.ref.group})


def leave_chains(store: Store, records: Iterable[Record]) -> set[str]:
    """Take memories that are about to end out of their chains of corrections, and link the
    neighbours of each memory to each other.

    Args:
        store: The store of the memories, in a transaction.
        records: Any one version of each memory.

    Returns:
        The ids of memories that nothing corrects any more.
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
        older, newer = _neighbours(store, live)
        if older is not None and newer is not None:
            store.patch([_corrected_patch(older, newer)])
        elif older is not None:
            store.patch([_clear(older, "corrected_by", "corrected_at")])
            uncorrected.add(older.ref.group)
        if newer is not None:
            store.patch([_patch(newer, corrects=None if older is None else older.ref.group)])
    return uncorrected


def without_links(record: Record) -> Record:
    """Return a record without its links; nothing is stored."""
    return _without(record, LINK) if _has_link(record) else record


def restore_links(store: Store, record: Record, former: Record) -> Record:
    """Restore the links of a memory that was added without them, except those that no longer hold
    or that other links have replaced.

    Args:
        store: The memory's store, in a transaction.
        record: The memory.
        former: An earlier version of the memory, which has the links.

    Returns:
        The memory with the restored links.
    """
    if not _has_link(former):
        return record
    # Another memory of the same change may have restored its links to this one.
    record = _find_live(store, record, record.ref.group) or record
    linked_older, linked_newer = _neighbours(store, record)
    older = linked_older or _find_former(store, record, former, "corrects")
    newer = linked_newer or _find_former(store, record, former, "corrected_by")
    if older is not None and newer is not None:
        later = [newer, *_corrections_of(store, newer)]
        if older.ref.group in {correction.ref.group for correction in later}:
            older, newer = linked_older, linked_newer  # `older` now comes after `newer`
    is_between = (
        older is not None
        and newer is not None
        and older.fields.get("corrected_by") == newer.ref.group
    )
    if older not in (None, linked_older) and (is_between or "corrected_by" not in older.fields):
        store.patch([_corrected_patch(older, record), _patch(record, corrects=older.ref.group)])
        record = record._replace(fields={**record.fields, "corrects": older.ref.group})
    if newer not in (None, linked_newer) and (is_between or "corrects" not in newer.fields):
        patch = _corrected_patch(record, newer)
        store.patch([patch, _patch(newer, corrects=record.ref.group)])
        record = record._replace(fields={**record.fields, **patch.fields})
    return record


def _find_former(store: Store, record: Record, former: Record, side: str) -> Record | None:
    """Return the memory to which one side of a former version linked, if that link still holds."""
    other = _find_live(store, record, former.fields.get(side))
    if other is None:
        return None
    earlier = _find_at_end(store, other, former)
    if side == "corrects":
        still_holds = _still_corrects(record, other, former, earlier)
    else:
        still_holds = _still_corrects(other, record, earlier, former)
    return other if still_holds else None


def _find_at_end(store: Store, neighbour: Record, former: Record) -> Record:
    """Return the version that a neighbour had when `former` ended; the current version if `former`
    has not ended.
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
    if record.fields.get("corrects") != older_id:
        return None
    older, _ = _neighbours(store, record)
    if older is not None:
        store.patch([_clear(older, "corrected_by", "corrected_at")])
    not_corrected = " ".join((*record.names(NOT_CORRECTS), older_id))
    store.patch([_patch(record, corrects=None, **{NOT_CORRECTS: not_corrected})])
    record = _without(record, {"corrects"})
    return record._replace(fields={**record.fields, NOT_CORRECTS: not_corrected})


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
    older, newer = _neighbours(store, new)
    holds_older = older is None or _still_corrects(new, older, latest, older)
    holds_newer = newer is None or _still_corrects(newer, new, newer, latest)
    correction = find_last_correction(store, latest, new.created_at)
    if correction is not None and not _repeats(new, latest):
        is_elsewhere = new.labels.get("project") != correction.labels.get("project")
        if is_elsewhere or _repeats(new, correction):
            holds_newer = False
        elif _contradicts(new, correction) or _contradicts(new, latest):
            return link_restated(store, latest, new, correction)
    if holds_older and holds_newer:
        return new
    leave_chains(store, [latest])
    return without_links(new)


def find_last_correction(store: Store, record: Record, at: datetime) -> Record | None:
    """Return the last memory in the chain of corrections that begins with `record`; None if
    `record` had not been corrected by the time `at`, or if its correction is no longer current.
    """
    if corrected_by(record, at) is None:
        return None
    corrections = _corrections_of(store, record)
    return corrections[-1] if corrections else None


def _corrections_of(store: Store, record: Record) -> list[Record]:
    """Return a memory's chain of corrections: its correction, the correction's own, and so on."""
    corrections: list[Record] = []
    last, seen = _find_live(store, record, record.ref.group), {record.ref.group}
    while last is not None:
        _, last = _neighbours(store, last)
        if last is None or last.ref.group in seen:
            break
        seen.add(last.ref.group)
        corrections.append(last)
    return corrections


def link_restated(store: Store, latest: Record, new: Record, correction: Record) -> Record:
    """Return the next version of a memory that was stated again, linked as a correction of the
    memory that had corrected it.

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
    store.patch([_corrected_patch(correction, new)])
    return new._replace(fields={**new.fields, "corrects": correction.ref.group})


def _neighbours(store: Store, record: Record) -> tuple[Record | None, Record | None]:
    """Return the memory that a memory corrects, and the memory that corrects it; None in place of
    one that doesn't link back.
    """
    older = _find_live(store, record, record.fields.get("corrects"))
    newer = _find_live(store, record, record.fields.get("corrected_by"))
    if older is not None and older.fields.get("corrected_by") != record.ref.group:
        older = None
    if newer is not None and newer.fields.get("corrects") != record.ref.group:
        newer = None
    return older, newer


def _still_corrects(
    newer: Record, older: Record, newer_before: Record, older_before: Record
) -> bool:
    """Return whether a link between two memories still holds, given the versions for which it was
    made.

    Changing a text ends only a link that can be derived from the words. A link between texts in
    different words was accepted by a person, and remains.
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
    from memories.write.compare.corrections import corrects  # slow: it reads word lists

    return corrects(newer.text, older.text, None, threshold=_BY_WORDS)


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
