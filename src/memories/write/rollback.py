"""Restores a namespace to its state at a given time. It only adds versions and soft-deletes
memories, so nothing is lost.

The state of a memory at a given time follows from its versions: which of them existed, and whether
the memory was live. The audit log shows which versions are backdated, as imported ones may be.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import takewhile
from operator import attrgetter, ne
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count, by_weight
from memories.core.times import from_millis, to_iso, to_millis, to_moment, to_stored_time
from memories.errors import InvalidInput
from memories.guard.origin import HELD
from memories.models import PENDING, Moment
from memories.read import versions
from memories.read.lookup import Lookup, with_past_reinforcement
from memories.read.selector import Selector
from memories.stores import audit_log
from memories.stores.protocol import Store, add_count_to_errors, scan_pages
from memories.stores.records import Collection, Filter, Finding, Patch, Record, Ref
from memories.write.bulk import (
    BATCH,
    CLOCKS,
    MAX_BATCH_CHARACTERS,
    PAGE,
    Affected,
    BulkTally,
    moment_after,
    vectors_of,
)
from memories.write.links import (
    keep_links,
    leave_correction_chains,
    restore_links_of,
)

if TYPE_CHECKING:
    from memories.embedders import Embedder

_MOST_VERSIONS = 1_000_000  # maximum number of versions read, more than any memory has
_RESTORED = " (restored)"
# Actions that may write versions dated before the action. A rollback is not one of them.
_WRITING = ("create", "update", "restore", "confirm", "import", "move")
_ENDING = ("delete", "pend", "update")
_ACCEPTED = ("accepted_at", "accepted_by")
_OF_A_VERSION = (
    "superseded_by",
    "replaced_by",
    "operation",
    "rolled_back_to",
    "reinforced_at",
    *versions.LINK,
    *versions.FORMER_LINK,
    versions.NOT_CORRECTS,
)


class Restoration(NamedTuple):
    """The change that restores one memory.

    Attributes:
        action: `delete`, `restore`, `update`, `pend` (the memory awaits review again), `reject` (it
            no longer awaits review), or `left`.
        latest: The latest version of the memory.
        then: The latest version at the time `Rollback.to`; None if the memory did not exist at that
            time, or is left unchanged.
        reason: Why the memory is left unchanged.
    """

    action: str
    latest: Record
    then: Record | None = None
    reason: str = ""

    @property
    def weight(self) -> int:
        """The total length of the versions' texts, in characters."""
        return sum(len(record.text) for record in (self.latest, self.then) if record is not None)


class _Links(NamedTuple):
    """The links that a rollback has to restore, collected from its batches.

    Attributes:
        then: The versions at the time to roll back to, whose links are restored first.
        latest: The latest versions before the rollback, whose links are restored next.
    """

    then: list[Record]
    latest: list[Record]


class Rollback(NamedTuple):
    """A rollback of one namespace.

    Attributes:
        lookup: The namespace. Its store doesn't change the origin of records that are added, since
            they repeat versions by other writers.
        to: The time to roll back to.
        at: The time of the rollback, which is after every change that it undoes.
        selector: Selects the memories; None means all.
        late: Maps the hash of each version that may be backdated to the action that wrote it and
            the time; see `_find_written_after`.
    """

    lookup: Lookup
    to: datetime
    at: datetime
    selector: Selector | None
    late: Mapping[int, tuple[str, datetime]]

    @classmethod
    def of(cls, lookup: Lookup, to: Moment, now: datetime, selector: Selector | None) -> "Rollback":
        """Prepare a rollback by reading the audit log.

        Raises:
            InvalidInput: The time is invalid, or is in the future.
        """
        to = to_stored_time(to_moment(to, now), "to")
        if to > now:
            raise InvalidInput(
                f"{to_iso(to)} is in the future; a rollback needs a time in the past"
            )
        late = _find_written_after(lookup.store, lookup.namespace, to)
        return cls(lookup, to, moment_after(lookup.store, lookup.namespace, now), selector, late)

    def run(self, embedder: "Embedder | None", *, dry_run: bool) -> Affected:
        """Roll back in batches, each in a transaction of its own; see `Memories.rollback`."""
        tally, store = BulkTally(), self.lookup.store
        changes = filter(None, map(self._find_change, self._scan_memories()))
        links = _Links([], [])
        weigh = attrgetter("weight")
        changed = 0
        with add_count_to_errors(lambda: changed, "rolled back"):
            for batch in by_weight(changes, weigh, most=BATCH, heaviest=MAX_BATCH_CHARACTERS):
                done: Sequence[Restoration] = batch
                if not dry_run:
                    former = [change.then for change in batch if change.then]
                    vectors = vectors_of(store, embedder, former)
                    with store.transaction():
                        groups = [change.latest.ref.group for change in batch]
                        done = self._apply(groups, vectors, embedder, links)
                    written = [change for change in done if change.action != "left"]
                    changed += len(written)
                    tally.note_links(change.latest for change in written)
                for change in done:
                    brought_back = None if change.action == "delete" else change.then
                    tally.add(change.action, brought_back or change.latest, change.reason)
            tally.find_current_again(store, self.at)
        return tally.result(dry_run=dry_run, at=self.at)

    # --- finding the changes

    def _scan_memories(self) -> Iterator[list[Record]]:
        """Yield the versions of each memory."""
        where = Filter(Collection.MEMORY, (self.lookup.namespace,), state="any")
        records: list[Record] = []
        for page in scan_pages(self.lookup.store, where):
            for record in page:
                if records and records[0].ref.group != record.ref.group:
                    yield records
                    records = []
                records.append(record)
        if records:
            yield records

    def _read_versions(self, group: str) -> list[Record]:
        """Return all versions of a memory in their current state; an empty list if any of them is
        damaged.
        """
        store = self.lookup.store
        where = Filter(Collection.MEMORY, (self.lookup.namespace,), state="any", group=group)
        mark = store.damaged.mark()
        records = store.scan(where, limit=_MOST_VERSIONS)
        damaged = [finding.ref for finding in store.damaged.since(mark) if finding.ref is not None]
        if any(ref.group == group for ref in damaged):
            return []
        return records

    def _find_change(self, records: Sequence[Record]) -> Restoration | None:
        """Return the change that restores a memory.

        Args:
            records: All versions of the memory.

        Returns:
            The change; None if the memory is unchanged or not selected.
        """
        latest = records[-1]
        existing = list(takewhile(self._existed, records))
        then = existing[-1] if existing else None
        since = records[len(existing) :] or [latest]
        if self.selector is not None and not any(map(self.selector.fits, since)):
            return None
        change = self._compare(latest, then)
        if change is not None and any(record.created_at > self.at for record in records):
            reason = "it was changed in the meantime, or is dated in the future"
            return Restoration("left", latest, reason=reason)
        return change

    def _compare(self, latest: Record, then: Record | None) -> Restoration | None:
        is_live = latest.ended_at is None
        if then is None and latest.ended_by == PENDING:
            return Restoration("reject", latest)  # it did not await review at that time
        state = ""
        if then is not None:
            state = self._state(then, latest)
        if then is None or state not in ("live", "pending"):
            return Restoration("delete", latest, then) if is_live else None
        if state == "pending":
            return Restoration("pend", latest, then) if is_live else None
        if not is_live:
            return Restoration("restore", latest, then)
        # A memory that was restated, changed back or linked by a person may have other links.
        may_differ = then.ref != latest.ref or self._was_linked_later(latest)
        has_other_links = may_differ and _links(self._with_links(then)) != _links(latest)
        if self._content_of(latest) == self._content_of(then) and not has_other_links:
            return None
        return Restoration("update", latest, then)

    def _was_linked_later(self, older: Record) -> bool:
        """Return whether a memory got its link to a correction after the time to roll back to.

        The correction is older than that time. Accepting a proposal of `memory tidy` makes such
        links.
        """
        newer_id = older.fields.get("corrected_by")
        if newer_id is None or versions.read_correction_link(older, self.to) is not None:
            return False
        newer = self._read_versions(newer_id)
        return bool(newer) and newer[-1].ended_at is None and self._existed(newer[-1])

    def _state(self, then: Record, latest: Record) -> str:
        """Return the state that the latest version had at the time to roll back to: `live`,
        `pending`, `delete` or `supersede`.
        """
        ended_by, fields = (then.ended_by or "").removesuffix(_RESTORED), then.fields
        accepted_at = fields.get("accepted_at")
        is_unaccepted = accepted_at is None or accepted_at > to_millis(self.to)
        if ended_by == "pending" or (HELD in then.labels and is_unaccepted):
            return "pending"
        if then.ended_at is None:
            return "live"
        if ended_by not in ("delete", "supersede") and then.ref != latest.ref:
            return "live"
        if then.ended_at > self.to:
            return "live"
        successor = fields.get("superseded_by") or fields.get("replaced_by")
        if ended_by == "supersede" and successor is not None:
            action, _ = self.late.get(_hash(successor, 1), ("move", None))
            if action != "move":  # the successor was written later, with an earlier date
                return "live"
        return ended_by

    def _existed(self, record: Record) -> bool:
        """Return whether a version existed at the time to roll back to.

        A backdated version that was written later did not exist, unless the difference is so small
        that the clocks of two machines explain it.
        """
        if record.created_at > self.to:
            return False
        _, written_at = self.late.get(_hash(record.ref.group, record.ref.position), ("", None))
        if written_at is None and record.ref.position == 1:
            written_at = _time_of(record.ref.group)
        if written_at is None or written_at <= self.to:
            return True
        return written_at - record.created_at <= CLOCKS

    def _content_of(self, record: Record) -> tuple[Any, ...]:
        carried = self._carried_fields(record)
        fields = {name: value for name, value in carried.items() if name not in _ACCEPTED}
        return record.text, dict(record.labels), record.key, fields

    def _carried_fields(self, record: Record) -> dict[str, Any]:
        """Return the fields that a new version would inherit: policy, source, age and so on."""
        fields = {name: value for name, value in record.fields.items() if name not in _OF_A_VERSION}
        fields.setdefault("aging_from", to_millis(record.created_at))
        fields.setdefault("first_at", to_millis(record.created_at))
        [past] = with_past_reinforcement(self.lookup.store, [record], self.to)
        if "reinforced_at" in past.fields:
            fields["reinforced_at"] = past.fields["reinforced_at"]
        return fields

    # --- making the changes

    def _apply(
        self,
        groups: Sequence[str],
        vectors: Mapping[Ref, Any],
        embedder: "Embedder | None",
        links: "_Links",
    ) -> Sequence[Restoration]:
        """Restore memories in the current transaction, after reading their state again.

        Returns:
            The changes, including those that were left out.
        """
        store = self.lookup.store
        changes: dict[str, Restoration] = {}
        for group in groups:
            change = self._find_change_now(group)
            if change is not None:
                changes[group] = change
        self._resolve_keys(changes)

        then = [change.then for change in changes.values() if change.then is not None]
        missing = [record for record in then if record.ref not in vectors]
        vectors = {**vectors, **vectors_of(store, embedder, missing)}
        new: dict[str, Record] = {}
        patches: list[Patch] = []
        for group, change in changes.items():
            if self._needs_version(change):
                new[group] = self._new_version(change, vectors)
            if change.action != "left":
                patches.append(self._end_latest(change, new.get(group)))
        ending = [change.latest for change in changes.values() if change.action in _ENDING]
        leave_correction_chains(store, ending)
        for patches_of_page in by_count(patches, PAGE):
            store.patch(patches_of_page)
        for records in by_count(list(new.values()), PAGE):
            store.append(records)
        self._collect_links(changes.values(), links)
        for former in links:
            former[:] = restore_links_of(store, self.lookup.namespace, former)
        return tuple(changes.values())

    def _collect_links(self, changes: Iterable[Restoration], links: "_Links") -> None:
        """Add the links that changed memories had at the time to roll back to, and their newer
        links to memories that aren't rolled back.
        """
        for change in changes:
            then = change.then
            if then is None or change.action not in ("restore", "update"):
                continue
            then = self._with_links(then)
            if versions.has_link(then):
                links.then.append(then)
            latest = keep_links(change.latest, partial(self._keeps_link, change.latest.ref.group))
            if versions.has_link(latest):
                links.latest.append(latest)

    def _with_links(self, then: Record) -> Record:
        """Return a version with the links that it had at the time to roll back to."""
        newer_id = then.fields.get("corrected_by")
        if newer_id is None or versions.read_correction_link(then, self.to) is not None:
            return then
        # A link that was restored has a later date than the original.
        newer = self._find_version_then(newer_id)
        if newer is not None and then.ref.group in newer.read_list("corrects"):
            return then
        return keep_links(then, partial(ne, newer_id))

    def _keeps_link(self, memory_id: str, other_id: str) -> bool:
        """Return whether a memory keeps its present link to another one.

        It does if the two were linked at the time to roll back to, or if the other one wasn't live
        then.
        """
        other = self._find_version_then(other_id)
        if other is None:
            return True
        linked = (self._with_links(other).fields.get("corrected_by"), *other.read_list("corrects"))
        return memory_id in linked

    def _find_version_then(self, memory_id: str) -> Record | None:
        """Return the version of a memory that was live at the time to roll back to, if there was
        one.

        The latest version is returned without `corrects`, since links may have been added to it
        later.
        """
        records = self._read_versions(memory_id)
        existing = list(takewhile(self._existed, records))
        if not existing or self._state(existing[-1], records[-1]) != "live":
            return None
        then = existing[-1]
        if then is not records[-1]:
            return then
        return then._replace(fields={**then.fields, "corrects": ""})

    def _find_change_now(self, group: str) -> Restoration | None:
        records = self._read_versions(group)
        return self._find_change(records) if records else None

    def _resolve_keys(self, changes: dict[str, Restoration]) -> None:
        """If a change needs a key that another memory has, add that memory's change.

        If that memory keeps the key, the change that needs the key is left out, with the reason.
        """
        while True:
            blocked = [change for change in changes.values() if self._is_blocked(change, changes)]
            if not blocked:
                return
            for change in blocked:
                other = self._find_key_holder(change)
                assert other is not None
                group = other.ref.group
                other_change = None if group in changes else self._find_change_now(group)
                if other_change is not None and other_change.action != "left":
                    changes[group] = other_change
                    continue
                reason = (
                    f'another memory now has the key "{versions.plain_key(other.key)}": {group}'
                )
                changes[change.latest.ref.group] = Restoration("left", change.latest, reason=reason)

    def _is_blocked(self, change: Restoration, changes: Mapping[str, Restoration]) -> bool:
        other = self._find_key_holder(change)
        if other is None:
            return False
        other_change = changes.get(other.ref.group)
        return other_change is None or other_change.action == "left"

    def _find_key_holder(self, change: Restoration) -> Record | None:
        """Find another memory with the key that a change needs."""
        then, latest = change.then, change.latest
        if change.action not in ("restore", "update") or then is None or then.key is None:
            return None
        if latest.ended_at is None and latest.key == then.key:
            return None
        other = self.lookup.find_by_key(then.key)
        if other is None or other.ref.group == latest.ref.group:
            return None
        return other

    def _needs_version(self, change: Restoration) -> bool:
        """Return whether a change appends a version. A memory that is deleted again gets one if its
        content was different when it was first deleted, so that restoring the memory brings that
        content back.
        """
        if change.action != "delete":
            return change.action not in ("reject", "left")
        then = change.then
        return then is not None and self._content_of(then) != self._content_of(change.latest)

    def _new_version(self, change: Restoration, vectors: Mapping[Ref, Any]) -> Record:
        """Return the new version, which repeats an earlier one."""
        then, latest = change.then, change.latest
        assert then is not None
        written_at = max(self.at, latest.created_at, latest.ended_at or latest.created_at)
        fields = self._carried_fields(then)
        fields |= {"operation": "rollback", "rolled_back_to": to_millis(self.to)}
        if versions.NOT_CORRECTS in latest.fields:
            fields[versions.NOT_CORRECTS] = latest.fields[versions.NOT_CORRECTS]
        labels, ended_by = dict(then.labels), None
        if change.action == "pend":
            fields = {name: value for name, value in fields.items() if name not in _ACCEPTED}
            ended_by = PENDING
        if change.action == "delete":
            # With this label, the new record would look like a reviewed one that was merged into
            # its successor, and would be erased together with it (`forget.find_repeating`).
            labels.pop(HELD, None)
            ended_by, successor = self._end_of(then, latest)
            links = {name: then.fields.get(name) for name in versions.LINK}
            fields |= {name: value for name, value in links.items() if value is not None}
            if successor is not None:
                fields["superseded_by"] = successor
        return then._replace(
            ref=latest.ref._replace(position=latest.ref.position + 1),
            created_at=written_at,
            ended_at=None if ended_by is None else written_at,
            ended_by=ended_by,
            labels=labels,
            fields=fields,
            vectors=vectors.get(then.ref),
            accesses=0,
        )

    def _end_latest(self, change: Restoration, new: Record | None) -> Patch:
        """Return the patch for the latest version of a memory.

        A new version replaces or restores the latest one. Without one, a memory that awaits review
        is rejected; any other is superseded if it was superseded at the time `to`, else deleted.
        """
        latest, then = change.latest, change.then
        if new is not None and latest.ended_at is None:
            return versions.end_version(latest, new.created_at, "update")
        if new is not None:
            return versions.undo_end(latest)
        ended_by, fields = "delete", dict[str, Any](rolled_back_to=to_millis(self.to))
        if latest.ended_by == PENDING:  # the memory awaits review, so it is rejected
            return Patch(latest.ref, latest.ended_at, ended_by, fields)
        if then is not None:
            ended_by, fields["superseded_by"] = self._end_of(then, latest)
        return versions.end_version(latest, self.at, ended_by, **fields)

    def _end_of(self, then: Record, latest: Record) -> tuple[str, str | None]:
        """Return how a memory had ended at the time to roll back to, and its successor, if any."""
        is_superseded = self._state(then, latest) == "supersede"
        successor = then.fields.get("superseded_by") or then.fields.get("replaced_by")
        return "supersede" if is_superseded else "delete", successor


def _links(record: Record) -> tuple[str | None, set[str]]:
    return record.fields.get("corrected_by"), {*record.read_list("corrects")}


def _find_written_after(
    store: Store, namespace: str, to: datetime
) -> dict[int, tuple[str, datetime]]:
    """Return the versions that were written after a given time, according to the audit log.

    The result is keyed by the version's hash, and contains the action and the time.

    Versions older than the log have no entry, so their dates are trusted. First versions whose ids
    show when they were created are left out, since there may be a million of them. A memory that
    was moved away and back is also left out: its first entry after that time is about the move
    away.
    """
    late: dict[int, tuple[str, datetime]] = {}
    where = audit_log.chain_of(namespace)._replace(since=to)
    for page in scan_pages(store, where):
        for record in page:
            if record.created_at <= to:
                continue
            for action, version in _read_entry(store, record):
                before, _ = late.get(version, ("", None))
                if action != "move" or not before:
                    late[version] = action, record.created_at
                elif before == "move":
                    del late[version]  # the memory was moved away, or came back
    return late


def _read_entry(store: Store, record: Record) -> Iterator[tuple[str, int]]:
    """Yield the versions that a log entry may have written, each as the action and the version's
    hash.
    """
    try:
        changes = [
            (action, audit_log.parse_item(item))
            for action, *items in audit_log.parse_entry(record).changes
            for item in items
        ]
    except ValueError as exc:
        problem = (
            f"entry {record.ref.position} of the log of {record.ref.namespace} can't be read: {exc}"
        )
        advice = "run memory log --verify for details; the rollback ignores the entry"
        store.damaged.note(Finding(problem, advice))
        return
    for action, item in changes:
        if action not in _WRITING or item.memory is None:
            continue
        for position in range(item.first, min(item.last, item.first + _MOST_VERSIONS) + 1):
            if action == "move" or position > 1 or not _has_time(item.memory, record.created_at):
                yield action, _hash(item.memory, position)


def _has_time(memory_id: str, written_at: datetime) -> bool:
    """Return whether an id is a UUIDv7 from about a given time or later."""
    made_at = _time_of(memory_id)
    return made_at is not None and made_at >= written_at - CLOCKS


def _time_of(memory_id: str) -> datetime | None:
    """Return the time in a UUIDv7; None for any other id."""
    digits = memory_id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return None
    try:
        return from_millis(int(digits[:12], 16))
    except (ValueError, OverflowError):
        return None


def _hash(group: str, position: int) -> int:
    return hash((group, position))
