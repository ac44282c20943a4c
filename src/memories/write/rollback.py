"""Putting a namespace back as it was at a time: by new versions and deletions, so that nothing is
lost.

What a memory was at a time is read from its versions: which of them was there, and whether it was
current. The audit log tells apart what was written later with an earlier date, as imports are.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count, by_weight
from memories.core.times import to_iso, to_millis, to_moment, to_stored_time
from memories.errors import InvalidInput
from memories.guard.origin import HELD
from memories.models import Moment
from memories.read import versions
from memories.read.lookup import Lookup, with_past_reinforcement
from memories.read.selector import Selector
from memories.stores import chain
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Finding, Patch, Record
from memories.write.links import relink, unlink
from memories.write.many import BATCH, CLOCKS, PAGE, Affected, Tally, moment_after, vectors_of

if TYPE_CHECKING:
    from memories.embedders import Embedder

_HEAVIEST = 64 * 1_048_576  # characters of the texts of a batch
_MOST_VERSIONS = 1_000_000  # more than one memory has
_RESTORED = " (restored)"
_WRITING = (
    "create",
    "update",
    "restore",
    "import",
)  # which may have an earlier date; a rollback never has
_ENDING = ("delete", "pend", "update")
_ACCEPTED = ("accepted_at", "accepted_by")
_OF_A_VERSION = (
    "superseded_by",
    "replaced_by",
    "operation",
    "rolled_back_to",
    "reinforced_at",
    *versions.LINK,
)


class Change(NamedTuple):
    """What puts one memory back.

    Attributes:
        action: `delete`, `restore`, `update`, `pend` (it waits to be accepted, as it did), or
            `left`.
        latest: Its latest version.
        then: The version that says what it said then; None if it was not there, or not current.
        reason: Why it is left as it is.
    """

    action: str
    latest: Record
    then: Record | None = None
    reason: str = ""


class Rollback(NamedTuple):
    """A rollback of one namespace.

    Attributes:
        lookup: The namespace, and a store that keeps the origin of what is added: it says again
            what others said.
        to: The time that it goes back to.
        at: When it is done: after every change that it undoes.
        selector: Which memories; None for all.
        late: When versions were written that may have an earlier date, by their hashes; see
            `_written_after`.
    """

    lookup: Lookup
    to: datetime
    at: datetime
    selector: Selector | None
    late: Mapping[int, datetime]

    @classmethod
    def of(cls, lookup: Lookup, to: Moment, now: datetime, selector: Selector | None) -> "Rollback":
        """Prepare it: look into the audit log.

        Raises:
            InvalidInput: The time is none, or in the future.
        """
        to = to_stored_time(to_moment(to, now), "to")
        if to > now:
            raise InvalidInput(
                f"{to_iso(to)} is in the future; a rollback goes to a time before now"
            )
        late = dict(_written_after(lookup.store, lookup.namespace, to))
        return cls(lookup, to, moment_after(lookup.store, lookup.namespace, now), selector, late)

    def run(self, embedder: "Embedder | None", *, dry_run: bool) -> Affected:
        """Carry it out in batches, each a transaction; see `Memories.rollback`."""
        tally = Tally()
        changes = (
            change for group in self._groups() if (change := self._change(group)) is not None
        )
        for batch in by_weight(changes, _weight, most=BATCH, heaviest=_HEAVIEST):
            if dry_run:
                for change in batch:
                    tally.add(change.action, change.latest, change.reason)
                continue
            said = [change.then for change in batch if change.then is not None]
            vectors = vectors_of(self.lookup.store, embedder, said)
            with self.lookup.store.transaction():
                self._apply([change.latest.ref.group for change in batch], vectors, embedder, tally)
        return tally.result(dry_run=dry_run, at=self.at)

    # --- what there is to do
    # ---------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[list[Record]]:
        """Yield the versions of each memory."""
        where = Filter(Collection.MEMORY, (self.lookup.namespace,), state="any")
        after, group = None, list[Record]()
        while page := self.lookup.store.scan(where, limit=PAGE, after=after):
            for record in page:
                if group and group[0].ref.group != record.ref.group:
                    yield group
                    group = []
                group.append(record)
            after = (page[-1].ref.group, page[-1].ref.position)
        if group:
            yield group

    def _versions(self, group: str) -> list[Record]:
        """Return the versions of a memory as they are now; none if one of them is damaged."""
        where, mark = (
            Filter(Collection.MEMORY, (self.lookup.namespace,), state="any", group=group),
            self._mark(),
        )
        found = self.lookup.store.scan(where, limit=_MOST_VERSIONS)
        damaged = [
            each.ref for each in self.lookup.store.damaged.since(mark) if each.ref is not None
        ]
        return [] if any(ref.group == group for ref in damaged) else found

    def _mark(self) -> int:
        return self.lookup.store.damaged.mark()

    def _change(self, found: Sequence[Record]) -> Change | None:
        """Return what puts a memory back, given all of its versions; None if it is as it was, or is
        not selected.
        """
        latest = found[-1]
        known = list(
            takewhile(lambda each: each.created_at <= self.to and not self._is_late(each), found)
        )
        since = found[len(known) :]
        if self.selector is not None and not any(map(self.selector.fits, since or [latest])):
            return None
        change = self._needed(latest, known[-1] if known else None)
        if change is not None and any(record.created_at > self.at for record in found):
            return Change(
                "left", latest, reason="it was changed meanwhile, or is dated in the future"
            )
        return change

    def _needed(self, latest: Record, then: Record | None) -> Change | None:
        live = latest.ended_at is None
        state = None if then is None else self._state(then, latest)
        if then is None or state not in ("live", "pending"):
            return Change("delete", latest, then) if live else None
        if state == "pending":
            return Change("pend", latest, then) if live else None
        if not live:
            return Change("restore", latest, then)
        return None if self._says(latest) == self._says(then) else Change("update", latest, then)

    def _state(self, then: Record, latest: Record) -> str:
        """Return what the last version that there was then was: `live`, `pending`, `delete` or
        `supersede`.
        """
        by, fields = (then.ended_by or "").removesuffix(_RESTORED), then.fields
        accepted_at = fields.get("accepted_at")
        if by == "pending" or (
            HELD in then.labels and (accepted_at is None or accepted_at > to_millis(self.to))
        ):
            return "pending"
        if then.ended_at is None or (by not in ("delete", "supersede") and then.ref != latest.ref):
            return "live"
        replacer = fields.get("superseded_by") or fields.get("replaced_by")
        by_late = by == "supersede" and replacer is not None and _hash(replacer, 1) in self.late
        return "live" if then.ended_at > self.to or by_late else by

    def _is_late(self, record: Record) -> bool:
        """Return whether a version was written later than it says, and not just by the time that a
        write takes.
        """
        written_at = self.late.get(_hash(record.ref.group, record.ref.position))
        return written_at is not None and written_at - record.created_at > CLOCKS

    def _says(self, record: Record) -> tuple[Any, ...]:
        fields = {
            name: value for name, value in self._carried(record).items() if name not in _ACCEPTED
        }
        return record.text, dict(record.labels), record.key, fields

    def _carried(self, record: Record) -> dict[str, Any]:
        """Return what the next version takes from one: its policy, its source, how far it had aged,
        and so on.
        """
        fields = {name: value for name, value in record.fields.items() if name not in _OF_A_VERSION}
        fields.setdefault("aging_from", to_millis(record.created_at))
        fields.setdefault("first_at", to_millis(record.created_at))
        [known] = with_past_reinforcement(self.lookup.store, [record], self.to)
        if "reinforced_at" in known.fields:
            fields["reinforced_at"] = known.fields["reinforced_at"]
        return fields

    # --- doing it
    # --------------------------------------------------------------------------------------------------

    def _apply(
        self,
        groups: Sequence[str],
        vectors: dict[Any, Any],
        embedder: "Embedder | None",
        tally: Tally,
    ) -> None:
        """Put memories back in the running transaction, as they are found in it."""
        store = self.lookup.store
        changes = {
            group: change for group in groups if (change := self._change_now(group)) is not None
        }
        self._with_keys(changes)
        missing = [
            each.then
            for each in changes.values()
            if each.then is not None and each.then.ref not in vectors
        ]
        vectors = vectors | vectors_of(store, embedder, missing)
        new = {
            group: self._new(change)
            for group, change in changes.items()
            if change.action not in ("delete", "left")
        }
        patches = [
            self._end(change, new.get(group))
            for group, change in changes.items()
            if change.action != "left"
        ]
        unlink(store, (change.latest for change in changes.values() if change.action in _ENDING))
        for some in by_count(patches, PAGE):
            store.patch(some)
        for records in by_count(list(new.values()), PAGE):
            known = [changes[record.ref.group].then for record in records]
            pairs = zip(records, known, strict=True)
            store.append(
                [
                    each._replace(vectors=None if old is None else vectors.get(old.ref))
                    for each, old in pairs
                ]
            )
        for group, change in changes.items():
            if change.action in ("restore", "update"):
                relink(store, new[group], _links_of(change))
            tally.add(change.action, change.latest, change.reason)

    def _change_now(self, group: str) -> Change | None:
        found = self._versions(group)
        return self._change(found) if found else None

    def _with_keys(self, changes: dict[str, Change]) -> None:
        """Add what has a key that is needed, and leave what needs one that its memory keeps."""
        while blocked := [
            change for change in changes.values() if self._is_blocked(change, changes)
        ]:
            for change in blocked:
                other = self._holder(change)
                assert other is not None
                theirs = None if other.ref.group in changes else self._change_now(other.ref.group)
                if theirs is not None and theirs.action != "left":
                    changes[other.ref.group] = theirs
                    continue
                key = versions.plain_key(other.key)
                reason = f'another memory has the key "{key}" now: {other.ref.group}'
                changes[change.latest.ref.group] = Change("left", change.latest, reason=reason)

    def _is_blocked(self, change: Change, changes: dict[str, Change]) -> bool:
        other = self._holder(change)
        return other is not None and (
            other.ref.group not in changes or changes[other.ref.group].action == "left"
        )

    def _holder(self, change: Change) -> Record | None:
        """Return another memory that has the key which a change needs."""
        if (
            change.action not in ("restore", "update")
            or change.then is None
            or change.then.key is None
        ):
            return None
        if change.latest.ended_at is None and change.latest.key == change.then.key:
            return None
        other = self.lookup.find_by_key(change.then.key)
        return None if other is None or other.ref.group == change.latest.ref.group else other

    def _new(self, change: Change) -> Record:
        """Return the version that says again what another one said."""
        then, latest = change.then, change.latest
        assert then is not None
        written_at = max(self.at, latest.created_at, latest.ended_at or latest.created_at)
        pending = change.action == "pend"
        fields = self._carried(then) | {
            "operation": "rollback",
            "rolled_back_to": to_millis(self.to),
        }
        return then._replace(
            ref=latest.ref._replace(position=latest.ref.position + 1),
            created_at=written_at,
            ended_at=written_at if pending else None,
            ended_by="pending" if pending else None,
            fields={
                name: value
                for name, value in fields.items()
                if not pending or name not in _ACCEPTED
            },
            vectors=None,
            accesses=0,
        )

    def _end(self, change: Change, new: Record | None) -> Patch:
        """Return the change of the latest version: it is followed by a new one, or ends as it had
        ended then.
        """
        latest, then = change.latest, change.then
        if new is not None:
            live = latest.ended_at is None
            return (
                versions.end_version(latest, new.created_at, "update")
                if live
                else versions.undo_end(latest)
            )
        by, told = "delete", dict[str, Any](rolled_back_to=to_millis(self.to))
        if then is not None:
            by = "supersede" if self._state(then, latest) == "supersede" else "delete"
            told["superseded_by"] = then.fields.get("superseded_by") or then.fields.get(
                "replaced_by"
            )
        return versions.end_version(latest, self.at, by, **told)


def _links_of(change: Change) -> dict[str, Any]:
    """Return how a memory is linked, or else how it was then."""
    known = (change.latest, change.then)
    return {
        name: value
        for each in known[::-1]
        if each is not None
        for name, value in each.fields.items()
    }


def _weight(change: Change) -> int:
    return len(change.latest.text) + len(change.then.text if change.then is not None else "")


def _written_after(store: Store, namespace: str, to: datetime) -> Iterator[tuple[int, datetime]]:
    """Yield the versions that the audit log says were written after a time, as hashes, and when.

    What is in no log, since it was written before there was one, is taken by the times of its
    records. Left out are first versions whose id tells about that time, for their record does so
    too: else a million would be remembered.
    """
    where, after = chain.chain_of(namespace)._replace(since=to), None
    while page := store.scan(where, limit=PAGE, after=after):
        for record in page:
            if record.created_at > to:
                yield from _items(store, record)
        after = (page[-1].ref.group, page[-1].ref.position)


def _items(store: Store, record: Record) -> Iterator[tuple[int, datetime]]:
    try:
        changes = [
            (action, chain.parse_item(item))
            for action, *items in chain.link_of(record).changes
            for item in items
        ]
    except ValueError as exc:
        what = (
            f"entry {record.ref.position} of the log of {record.ref.namespace} can't be read: {exc}"
        )
        store.damaged.note(
            Finding(what, "memory log --verify tells more; what it says was not considered")
        )
        return
    for action, item in changes:
        if action not in _WRITING or item.memory is None:
            continue
        for position in range(item.first, min(item.last, item.first + _MOST_VERSIONS) + 1):
            if position > 1 or not _tells(item.memory, record.created_at):
                yield _hash(item.memory, position), record.created_at


def _tells(memory_id: str, written_at: datetime) -> bool:
    """Return whether an id is a UUIDv7 of about that time, or of a later one."""
    digits = memory_id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return False
    try:
        return int(digits[:12], 16) >= to_millis(written_at - CLOCKS)
    except ValueError:
        return False


def _hash(group: str, position: int) -> int:
    return hash((group, position))
