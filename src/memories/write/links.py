"""Links memories to those that they correct, and updates the links when either memory changes.

Links form chains, from the oldest statement to the one that is true now. "Newer" and "older" refer
to when a memory was last stated (`stated_at`), not to when it was created. A memory's newer
neighbour corrects it; there is at most one. Its older neighbours are the memories that it corrects;
there are several if they gave the same value. A new memory without a time of its own is newer than
all stored ones, even if another writer came first and has a later time.

A link is made when

- a new memory (`write.create`) or an accepted one (`write.review`) corrects others, or a person
  accepts a proposal of `memory tidy` to link two memories (`link_correction`);
- a memory supersedes a correction (`take_over_links`);
- a corrected memory is restated, by storing its text again, by confirming it
  (`update_links_after_restating`), or by an update to another value (`update_links_after_change`);
  it moves to the end of its chain (`move_to_end_of_chain`);
- a memory leaves the middle of a chain: its neighbours are linked to each other, unless they say
  the same thing (`leave_correction_chains`);
- a memory is restored, rolled back, moved to another namespace, or tagged by a bulk command: its
  former links that still hold are made again (`restore_links`). A memory that is moved away from
  its neighbours keeps the ids of its links until it returns (`_set_former_links_aside`).

Exported records contain their links. After an import, links to memories that the store lacks are
set aside, as after a move (`settle_links`).

A link ends when

- a person removes it (`remove_link`);
- an update gives either memory a value that no longer contradicts the other, or moves it to another
  project (`update_links_after_change`);
- the corrected memory is restated: it is then the newer one (`move_to_end_of_chain`);
- either memory ends (`leave_correction_chains`), unless another supersedes the correction
  (`take_over_links`).

A link doesn't end when the correction expires. From then on, the older memory counts as current
(`read.versions.is_corrected`), but the link stays, because the correction may be renewed.

Both sides store the link: the newer memory in `corrects`, each older one in `corrected_by`,
`corrected_at` and, if it is corrected only for a time, `corrected_until`. Only live memories are
linked. A memory that ends keeps its own side, so that it can be linked again if it is restored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from memories.core.times import to_millis
from memories.read.versions import (
    CURRENT_AGAIN,
    FORMER_CORRECTED_BY,
    FORMER_CORRECTS,
    FORMER_LINK,
    LINK,
    NOT_CORRECTS,
    compute_correction_end,
    has_expired,
    has_link,
    is_corrected,
    read_corrects,
    stated_at,
)
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Filter, Patch, Record

_BY_WORDS = 1.0  # this threshold has no effect, since texts are compared without a similarity


def link_correction(
    store: Store,
    newer: Record,
    corrected: Sequence[Record],
    *,
    now: datetime,
    at: datetime | None = None,
    is_newest: bool = False,
) -> Record:
    """Link a memory to the newest memory that it corrects, and to older ones that don't contradict
    the newest. Its former links are removed.

    For example, "port 9090" corrects two memories that both say "port 8080".

    Args:
        store: The store in which the older memories are marked as corrected.
        newer: The memory that corrects others.
        corrected: Memories that `newer` contradicts. If the correction of one has expired, the end
            of its chain is linked instead.
        now: The current time.
        at: When the correction takes effect; by default, when `newer` was written.
        is_newest: Whether `newer` corrects even memories with a later time, which other writers
            stored while it waited.

    Returns:
        The memory with its links, which the caller stores.
    """
    newer = without_links(newer)
    ends_of_chains: dict[str, Record] = {}
    for record in corrected:
        live = _find_live_version(store, record.ref.namespace, record.ref.group)
        if live is None or is_corrected(live, now):
            continue
        # A memory whose correction has expired is still linked, so its chain continues.
        end = [live, *_find_rest_of_chain(store, live)][-1]
        # Leave out memories that were updated later.
        if is_newest or stated_at(end) <= stated_at(newer):
            ends_of_chains[end.ref.group] = end
    if not ends_of_chains:
        return newer
    newest, *others = sorted(ends_of_chains.values(), key=stated_at, reverse=True)
    agreeing = [record for record in others if not _contradicts(newest, record)]
    for record in (newest, *agreeing):
        _mark_corrected(store, record, newer, at)
    return _with_fields(newer, corrects=_join_ids([newest, *agreeing]))


def leave_correction_chains(store: Store, records: Iterable[Record]) -> None:
    """Take memories out of their chains of corrections, and link the neighbours that stay to each
    other. These memories are about to end, or to get versions without the links. Their own sides of
    the links are kept.

    Args:
        store: The store of the memories, in a transaction.
        records: One version of each memory; it doesn't matter which.
    """
    leaving: dict[str, Record] = {}
    for record in records:
        # An earlier version doesn't say whether the live one has links.
        if record.ended_at is not None or has_link(record):
            live = _find_live_version(store, record.ref.namespace, record.ref.group)
            if live is not None:
                leaving[record.ref.group] = live
    links = [
        (_find_older_neighbours(store, record), _find_newer_except(store, record, leaving))
        for record in leaving.values()
    ]
    for older_neighbours, newer in links:
        _close_chain(store, older_neighbours, newer, leaving)


def _find_newer_except(
    store: Store, record: Record, leaving: Mapping[str, Record]
) -> Record | None:
    """Return the next newer memory in a memory's chain, skipping those that are leaving the
    chain.
    """
    seen: set[str] = set()  # a chain that another program wrote may be circular
    while record.ref.group not in seen:
        seen.add(record.ref.group)
        newer = leaving.get(record.fields.get("corrected_by", ""))
        if newer is None:
            return _find_newer_neighbour(store, record)
        record = newer
    return None


def _close_chain(
    store: Store,
    older_neighbours: Sequence[Record],
    newer: Record | None,
    leaving: Mapping[str, Record],
) -> None:
    """Link the neighbours of a memory that is leaving its chain. Neighbours are not linked if they
    are leaving too, or if they say the same thing.
    """
    staying = [older for older in older_neighbours if older.ref.group not in leaving]
    linked: list[Record] = []
    if newer is not None:
        # Read the memory again, since its links may have just changed.
        newer = _find_live_version(store, newer.ref.namespace, newer.ref.group) or newer
        linked = [older for older in staying if not _repeats(newer, older)]
        ids = [name for name in newer.read_list("corrects") if name not in leaving]
        corrects = " ".join([*ids, *(older.ref.group for older in linked)])
        newer = _patch_fields(store, newer, corrects=corrects or None)
        for older in linked:
            _mark_corrected(store, older, newer)
    for older in staying:
        if older not in linked:
            _unmark_corrected(store, older)


def take_over_links(
    store: Store, record: Record, corrected_ids: Iterable[str], at: datetime
) -> Record:
    """Make a correction's successor correct the same memories, so that they stay corrected.

    Memories of another project, and those that say the same thing, are left out.

    Args:
        store: The store of the memories, in a transaction.
        record: The successor.
        corrected_ids: The memories that the superseded one corrected.
        at: The time of the replacement.

    Returns:
        The memory with its links.
    """
    following = {newer.ref.group for newer in (record, *_find_rest_of_chain(store, record))}
    added: list[Record] = []
    for memory_id in corrected_ids:
        older = _find_live_version(store, record.ref.namespace, memory_id)
        if older is None or memory_id in following or "corrected_by" in older.fields:
            continue
        if _still_corrects(record, older, record, older) and not _repeats(record, older):
            added.append(_mark_corrected(store, older, record, at))
    if not added:
        return record
    corrects = " ".join((*record.read_list("corrects"), _join_ids(added)))
    return _patch_fields(store, record, corrects=corrects)


def find_current_again(store: Store, before: Iterable[Record], now: datetime) -> tuple[str, ...]:
    """Return the ids of the memories that are current again because a change ended links.

    Args:
        store: The store of the memories.
        before: The latest versions of the changed memories, as they were before the change.
        now: The time of the change.
    """
    current_again: set[str] = set()
    seen: set[tuple[str, str]] = set()
    # The ids of memories that were corrected before the change.
    corrected: list[tuple[str, str]] = []
    for record in before:
        if record.ended_at is None:
            ids = [record.ref.group] if is_corrected(record, now) else []
            ids += read_corrects(record, now)
            corrected += [(record.ref.namespace, memory_id) for memory_id in ids]
    while corrected:
        namespace, memory_id = corrected.pop()
        if (namespace, memory_id) in seen:
            continue
        seen.add((namespace, memory_id))
        live = _find_live_version(store, namespace, memory_id)
        if live is None or is_corrected(live, now):
            continue
        if has_expired(live, now):  # it no longer corrects other memories
            corrected += [(namespace, older_id) for older_id in live.read_list("corrects")]
        else:
            current_again.add(memory_id)
    return tuple(sorted(current_again))


def add_current_again(
    store: Store, record: Record, before: Iterable[Record], now: datetime
) -> Record:
    """Return a changed memory with the ids of the memories that are current again; store nothing.

    See `find_current_again`.
    """
    ids = find_current_again(store, before, now)
    return _with_fields(record, **{CURRENT_AGAIN: " ".join(ids) or None})


def without_links(record: Record) -> Record:
    """Return a record without its links; store nothing."""
    return _with_fields(record, **dict.fromkeys(LINK)) if has_link(record) else record


def keep_links(record: Record, is_kept: Callable[[str], bool]) -> Record:
    """Return a record with only its links to the memories that `is_kept` accepts; store nothing."""
    corrects = " ".join(filter(is_kept, record.read_list("corrects"))) or None
    newer = next(filter(is_kept, record.read_list("corrected_by")), None)
    return _with_fields(record, corrects=corrects, corrected_by=newer)


def settle_links(store: Store, namespace: str, memory_ids: Iterable[str]) -> None:
    """Restore the links of memories that were moved or imported, except links to memories outside
    this namespace.

    Args:
        store: The store of the memories, in a transaction.
        namespace: Their namespace.
        memory_ids: Their ids.
    """
    versions = (_find_live_version(store, namespace, memory_id) for memory_id in memory_ids)
    moved = [record for record in versions if record is not None and not _is_settled(store, record)]
    restore_links_of(store, namespace, map(_with_former_links, moved))
    for record in moved:
        _set_former_links_aside(store, namespace, record.ref.group)


def _is_settled(store: Store, record: Record) -> bool:
    """Return whether all links of a memory are mutual."""
    if any(name in record.fields for name in FORMER_LINK):
        return False
    is_whole = len(_find_older_neighbours(store, record)) == len(record.read_list("corrects"))
    has_newer = _find_newer_neighbour(store, record) is not None
    return is_whole and has_newer is ("corrected_by" in record.fields)


def _with_former_links(record: Record) -> Record:
    """Return a memory with the links that it had before it was moved away from its neighbours;
    store nothing.
    """
    corrects = " ".join(
        dict.fromkeys((*record.read_list("corrects"), *record.read_list(FORMER_CORRECTS)))
    )
    newer = record.fields.get("corrected_by", record.fields.get(FORMER_CORRECTED_BY))
    return _with_fields(record, corrects=corrects or None, corrected_by=newer)


def _set_former_links_aside(store: Store, namespace: str, memory_id: str) -> None:
    """Rename a moved memory's links to memories outside its namespace, so that they have no effect.
    Do the same for its neighbours' links.
    """
    moved = _find_live_version(store, namespace, memory_id)
    if moved is None:
        return
    newer = _find_newer_neighbour(store, moved)
    for record in filter(None, (moved, newer, *_find_older_neighbours(store, moved))):
        former = _with_former_links(record)
        linked = [older.ref.group for older in _find_older_neighbours(store, record)]
        left = [name for name in former.read_list("corrects") if name not in linked]
        fields: dict[str, str | int | None] = {"corrects": " ".join(linked) or None}
        fields |= {FORMER_CORRECTS: " ".join(left) or None, FORMER_CORRECTED_BY: None}
        if _find_newer_neighbour(store, record) is None:
            fields |= dict.fromkeys(("corrected_by", "corrected_at", "corrected_until"))
            fields[FORMER_CORRECTED_BY] = former.fields.get("corrected_by")
        if any(record.fields.get(name) != value for name, value in fields.items()):
            _patch_fields(store, record, **fields)


def restore_links(store: Store, record: Record, former: Record) -> Record:
    """Restore the links of a memory that was added without them.

    Links that no longer hold, or that were replaced by other links, are left out. Both memories
    of a link record it. If a former neighbour has ended, only the neighbour's record of the link is
    restored; restoring the neighbour later restores the other one.

    Args:
        store: The memory's store, in a transaction.
        record: The memory as it is now.
        former: An earlier version of the memory, which has the links.

    Returns:
        The memory with the restored links.
    """
    if not has_link(former):
        return record
    linked_older = _find_older_neighbours(store, record)
    linked_newer = _find_newer_neighbour(store, record)
    added = _find_former_older_neighbours(
        store, record, former, {older.ref.group for older in linked_older}
    )
    newer = linked_newer or _find_former_newer_neighbour(store, record, former)
    if newer is not None:
        newer_ids = {last.ref.group for last in (newer, *_find_rest_of_chain(store, newer))}
        if any(older.ref.group in newer_ids for older in (*linked_older, *added)):
            added, newer = [], linked_newer  # an older memory now comes after `newer`
    newer_id = None if newer is None else newer.ref.group
    added = [older for older in added if older.fields.get("corrected_by") in (None, newer_id)]

    if newer is not None:
        # `record` corrects these memories again, so `newer` corrects only `record`.
        added_ids = {older.ref.group for older in added}
        ids = [name for name in newer.read_list("corrects") if name not in added_ids]
        corrects = " ".join(dict.fromkeys((*ids, record.ref.group)))
        newer = _patch_fields(store, newer, corrects=corrects)
        if newer.ended_at is None and linked_newer is None:
            record = _mark_corrected(store, record, newer)
    for older in added:
        _mark_corrected(store, older, record)
    linked_older += [older for older in added if older.ended_at is None]
    if not linked_older:
        return record
    return _patch_fields(store, record, corrects=_join_ids(linked_older))


def restore_links_of(store: Store, namespace: str, former: Iterable[Record]) -> list[Record]:
    """Restore the links of memories that were added without them; see `restore_links`.

    If a memory and its neighbour are in different batches, their link can be restored only after
    both were added.

    Args:
        store: The store of the memories, in a transaction.
        namespace: Their namespace.
        former: The versions with the links, from this batch and earlier ones.

    Returns:
        The versions whose links could not all be restored yet.
    """
    missing: list[Record] = []
    for record in former:
        # Read each memory only now, since its links to the previous ones may have just been
        # restored.
        live = _find_live_version(store, namespace, record.ref.group)
        if live is None:
            continue
        restored = restore_links(store, live, record)
        names = ("corrects", "corrected_by")
        if any(not {*record.read_list(name)} <= {*restored.read_list(name)} for name in names):
            missing.append(record)
    return missing


def _find_former_older_neighbours(
    store: Store, record: Record, former: Record, linked_ids: set[str]
) -> list[Record]:
    """Return the memories that `former` corrected and `record` still contradicts.

    They may be live or ended. Memories that are already linked are left out.
    """
    older_neighbours: list[Record] = []
    for memory_id in former.read_list("corrects"):
        if memory_id in linked_ids:
            continue
        older = _find_latest_version(store, record.ref.namespace, memory_id)
        if older is None:
            continue
        older_before = _find_version_at_end_of(store, older, former)
        if _still_corrects(record, older, former, older_before):
            older_neighbours.append(older)
    return older_neighbours


def _find_former_newer_neighbour(store: Store, record: Record, former: Record) -> Record | None:
    """Return the memory that corrected `former` and still contradicts `record`, if there is one.

    It may be live or ended.
    """
    newer = _find_latest_version(store, record.ref.namespace, former.fields.get("corrected_by"))
    if newer is None:
        return None
    newer_before = _find_version_at_end_of(store, newer, former)
    if _still_corrects(newer, record, newer_before, former):
        return newer
    return None


def _find_version_at_end_of(store: Store, neighbour: Record, former: Record) -> Record:
    """Return the version of a neighbour that was its latest when `former` ended.

    If `former` has not ended, return the neighbour's live version.
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
    ids = record.read_list("corrects")
    if older_id not in ids:
        return None
    for older in _find_older_neighbours(store, record):
        if older.ref.group == older_id:
            _unmark_corrected(store, older)
    corrected = " ".join(name for name in ids if name != older_id) or None
    not_corrected = " ".join((*record.read_list(NOT_CORRECTS), older_id))
    return _patch_fields(store, record, corrects=corrected, **{NOT_CORRECTS: not_corrected})


def update_links_after_restating(store: Store, latest: Record, new: Record) -> Record:
    """Return the next version of a memory whose text was restated, with its links. If newer
    memories corrected the memory, it moves to the end of their chain, unless it has expired.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version, with the same text.
    """
    end_of_chain = find_end_of_chain(store, latest, new.created_at)
    if end_of_chain is None or has_expired(new, new.created_at):
        return update_links_after_change(store, latest, new)
    return move_to_end_of_chain(store, latest, new, end_of_chain)


def update_links_after_change(store: Store, latest: Record, new: Record) -> Record:
    """Return the next version of a memory with the links that hold for its new text or project.

    A new text is a new statement. If the old text was corrected, and the new one contradicts it or
    the end of its chain, the memory moves to the end of the chain, as a new memory would. Otherwise
    it keeps its links if all of them still hold, as after a mere rewording. If one of them doesn't,
    the memory leaves its chain.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version.
    """
    if not has_link(new):
        return new
    older_neighbours = _find_older_neighbours(store, new)
    newer = _find_newer_neighbour(store, new)
    holds_older = all(_still_corrects(new, older, latest, older) for older in older_neighbours)
    holds_newer = newer is None or _still_corrects(newer, new, newer, latest)
    end_of_chain = find_end_of_chain(store, latest, new.created_at)
    if end_of_chain is not None and not _repeats(new, latest):
        is_elsewhere = new.labels.get("project") != end_of_chain.labels.get("project")
        if is_elsewhere or _repeats(new, end_of_chain):
            holds_newer = False
        elif _contradicts(new, end_of_chain) or _contradicts(new, latest):
            return move_to_end_of_chain(store, latest, new, end_of_chain)
    if holds_older and holds_newer:
        _pass_on_correction_end(store, new)  # its validity period may have changed
        return new
    leave_correction_chains(store, [latest])
    return without_links(new)


def find_end_of_chain(store: Store, record: Record, at: datetime) -> Record | None:
    """Return the newest memory in the chain of a corrected memory.

    Return None if `record` was not corrected at the time `at`, or if its correction is no longer
    live.
    """
    if not is_corrected(record, at):
        return None
    newer = _find_rest_of_chain(store, record)
    return newer[-1] if newer else None


def _find_rest_of_chain(store: Store, record: Record) -> list[Record]:
    """Return the newer memories in a memory's chain: its newer neighbour, the neighbour's newer
    neighbour, and so on.
    """
    newer: list[Record] = []
    seen = {record.ref.group}
    last = _find_live_version(store, record.ref.namespace, record.ref.group)
    while last is not None:
        last = _find_newer_neighbour(store, last)
        if last is None or last.ref.group in seen:
            break
        seen.add(last.ref.group)
        newer.append(last)
    return newer


def move_to_end_of_chain(store: Store, latest: Record, new: Record, end: Record) -> Record:
    """Return the next version of a restated memory, linked to the memory at the end of its chain.

    The version corrects that memory. If that link was removed for good, the version has no links.

    Args:
        store: The store of the memories, in a transaction.
        latest: The latest version of the memory.
        new: Its next version.
        end: The memory at the end of its chain.
    """
    leave_correction_chains(store, [latest])
    new = without_links(new)
    if end.ref.group in new.read_list(NOT_CORRECTS):
        return new
    # Read the memory again: if it corrected `latest`, its links have changed.
    end = _find_live_version(store, end.ref.namespace, end.ref.group) or end
    _mark_corrected(store, end, new)
    return _with_fields(new, corrects=end.ref.group)


def _find_older_neighbours(store: Store, record: Record) -> list[Record]:
    """Return the memories that a memory corrects, except those without a link back to it."""
    older_neighbours: list[Record] = []
    for memory_id in record.read_list("corrects"):
        older = _find_live_version(store, record.ref.namespace, memory_id)
        if older is not None and older.fields.get("corrected_by") == record.ref.group:
            older_neighbours.append(older)
    return older_neighbours


def _find_newer_neighbour(store: Store, record: Record) -> Record | None:
    """Return the memory that corrects a memory; None if the link is not mutual."""
    newer = _find_live_version(store, record.ref.namespace, record.fields.get("corrected_by"))
    if newer is None or record.ref.group not in newer.read_list("corrects"):
        return None
    return newer


def _still_corrects(
    newer: Record, older: Record, newer_before: Record, older_before: Record
) -> bool:
    """Return whether a link between two memories still holds, given the versions that were linked.

    If the linked texts don't contradict each other according to `is_correction`, the link was
    accepted by a person or taken over from a superseded memory. A new text ends such a link only if
    it repeats the other text. Other links end when the texts no longer contradict each other.
    """
    if newer.labels.get("project") != older.labels.get("project"):
        return False
    if older.ref.group in newer.read_list(NOT_CORRECTS):
        return False
    if _repeats(newer, newer_before) and _repeats(older, older_before):
        return True
    if _repeats(newer, older):
        return False
    # A link between texts that never contradicted each other stays.
    return _contradicts(newer, older) or not _contradicts(newer_before, older_before)


def _repeats(record: Record, other: Record) -> bool:
    """Return whether two texts say the same thing, according to `compare_texts`."""
    if record.text == other.text:
        return True
    # Imported here because it reads word lists, which few changes need.
    from memories.write.compare.duplicates import Relation, compare_texts

    relation = compare_texts(
        record.text, other.text, None, threshold=_BY_WORDS, explain=False
    ).relation
    return relation in (Relation.SAME, Relation.DUPLICATE)


def _contradicts(newer: Record, older: Record) -> bool:
    """Return whether a text contradicts an older one, according to `is_correction`."""
    from memories.write.compare.corrections import is_correction  # slow to import: reads word lists

    return is_correction(newer.text, older.text, None, threshold=_BY_WORDS)


def _find_live_version(store: Store, namespace: str, memory_id: str | None) -> Record | None:
    """Return the live version of a memory; None if the memory has ended or the id is None."""
    if memory_id is None:
        return None
    where = Filter(Collection.MEMORY, (namespace,), group=memory_id)
    return find_first(store, where)


def _find_latest_version(store: Store, namespace: str, memory_id: str | None) -> Record | None:
    """Return the latest version of a memory, even one that has ended; None if the id is None."""
    if memory_id is None:
        return None
    where = Filter(Collection.MEMORY, (namespace,), state="any", group=memory_id)
    return find_first(store, where, newest_first=True)


def _join_ids(records: Iterable[Record]) -> str:
    return " ".join(record.ref.group for record in records)


def _mark_corrected(
    store: Store, older: Record, newer: Record, at: datetime | None = None
) -> Record:
    """Mark a memory as corrected by another; return the changed memory."""
    marked = _patch_fields(
        store,
        older,
        corrected_by=newer.ref.group,
        corrected_at=to_millis(at or newer.created_at),
        corrected_until=compute_correction_end(newer),
    )
    _pass_on_correction_end(store, marked)
    return marked


def _unmark_corrected(store: Store, older: Record) -> None:
    """Mark a memory as no longer corrected."""
    unmarked = _patch_fields(
        store, older, corrected_by=None, corrected_at=None, corrected_until=None
    )
    _pass_on_correction_end(store, unmarked)


def _pass_on_correction_end(store: Store, newer: Record) -> None:
    """Update `corrected_until` in the memories that a memory corrects, directly or indirectly."""
    changed = [newer]
    while changed:
        newer = changed.pop()
        until = compute_correction_end(newer)
        changed += [
            _patch_fields(store, older, corrected_until=until)
            for older in _find_older_neighbours(store, newer)
            if older.fields.get("corrected_until") != until
        ]


def _patch_fields(store: Store, record: Record, **fields: str | int | None) -> Record:
    """Change fields of a stored record; return the changed record."""
    store.patch([Patch(record.ref, record.ended_at, record.ended_by, fields)])
    return _with_fields(record, **fields)


def _with_fields(record: Record, **fields: str | int | None) -> Record:
    """Return a record with changed fields; None removes a field."""
    merged = {**record.fields, **fields}
    present = {name: value for name, value in merged.items() if value is not None}
    return record._replace(fields=present)
