"""Tells scratchpads at once what is written through this process: what is new, and above all what
is gone.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from memories.core.times import from_millis, to_iso
from memories.errors import InvalidInput, StoreBusy, StoreError
from memories.models import PENDING
from memories.scratchpad import scratchpad
from memories.scratchpad.choice import entry_of, is_shown, newest
from memories.scratchpad.entries import OFTEN, chosen
from memories.scratchpad.scratchpad import Place
from memories.stores.records import SEARCHED, Collection, Patch, Record, Ref

Change = Record | Patch | Ref  # added, changed, or about to be removed
_REST_SECONDS = 0.25  # between two writes of one file because of something new
_MOST_WAITING = 200  # new memories of a namespace; then those that have no place are dropped


class Mirror:
    """Tells the scratchpads of a home what changes in the namespaces that they belong to.

    What is gone leaves its file at once. What is new is written at most a few times a second; until
    then the file is marked as stale, and `flush` writes the rest.
    """

    def __init__(
        self,
        like: Callable[[str], Place],
        clock: Callable[[], datetime],
        *,
        make: Callable[[str], bool],
        describe: Callable[[Place], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            like: Returns the place of the scratchpad of a namespace.
            clock: Returns the current time, aware.
            make: Returns whether the file of a namespace is made if it is not there.
            describe: Writes `metadata.json` of a namespace.
        """
        self._like, self._clock, self._make = like, clock, make
        self._describe = describe
        self._undescribed: set[str] = set()
        self._described: dict[str, float] = {}
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._written: dict[str, float] = {}

    def __call__(self, changes: Sequence[Change]) -> None:
        """Tell what was changed, or is about to be removed.

        Raises:
            StoreError: What is gone, or is to go, could not be taken out of a scratchpad.
        """
        told: dict[str, _Told] = {}
        now = self._clock()
        for change in changes:
            ref = change if isinstance(change, Ref) else change.ref
            if ref.collection is Collection.MEMORY:
                one = told.get(ref.namespace) or told.setdefault(
                    ref.namespace, _Told({}, {}, set(), [], {})
                )
                one.take(change, now)
        for namespace, one in told.items():
            self._tell(self._like(namespace), one)
        self._describe_changed(changes)

    def _describe_changed(self, changes: Sequence[Change]) -> None:
        """Describe the namespaces that were written to, as seldom as files are written; `flush`
        does the rest.
        """
        refs = [change if isinstance(change, Ref) else change.ref for change in changes]
        written = {
            ref.namespace
            for ref in refs
            if ref.collection in SEARCHED and self._make(ref.namespace)
        }
        now = time.monotonic()
        rested = {
            each
            for each in written
            if now - self._described.get(each, -_REST_SECONDS) >= _REST_SECONDS
        }
        due = (
            set() if any(isinstance(change, Ref) for change in changes) else rested
        )  # those are still to be removed
        with self._lock:
            self._undescribed = (self._undescribed | written) - due
            self._described |= dict.fromkeys(due, now)
        for namespace in sorted(due):
            self._describe(self._like(namespace))

    def promote(self, found: Sequence[Record]) -> None:
        """Give memories that are often found a place, unless they have one, or others have more
        right to it.
        """
        for namespace in {record.ref.namespace for record in found if record.accesses + 1 >= OFTEN}:
            place, now = self._like(namespace), self._clock()
            try:
                pad = scratchpad.last_read(place)
            except InvalidInput:
                continue  # `memory scratchpad` tells
            if pad is None or not pad.entries:
                continue
            known = {entry.id for entry in pad.entries}
            often = [
                each
                for each in found
                if each.ref.namespace == namespace and each.accesses + 1 >= OFTEN
            ]
            fresh = {each.ref.group: each for each in often if each.ref.group not in known}
            entries = (entry_of(each, now) for each in fresh.values())
            every = [*pad.entries, *(entry for entry in entries if entry is not None)]
            chose = chosen(every, place.rules, now, pad.left_out) if fresh else ()
            if placed := {entry.id: fresh[entry.id] for entry in chose if entry.id in fresh}:
                self._tell(place, _Told(placed, {}, set(), [], {}))

    def flush(self) -> None:
        """Write what is new and was not written yet."""
        with self._lock:
            rest, self._waiting = self._waiting, {}
        for namespace, waiting in rest.items():
            if any(waiting):
                self._change(self._like(namespace), waiting, {})
        with self._lock:
            undescribed, self._undescribed = self._undescribed, set()
        for namespace in sorted(undescribed):
            self._describe(self._like(namespace))

    def _tell(self, place: Place, told: "_Told") -> None:
        with self._lock:
            waiting = self._waiting.setdefault(place.namespace, _Waiting({}, {}))
            for name in told.dropped:
                waiting.added.pop(name, None)
            for name in (*told.added, *told.dropped):
                waiting.reinforced.pop(name, None)
            waiting.added.update(told.added)
            waiting.reinforced.update(told.reinforced)
            if len(waiting.added) > _MOST_WAITING:
                kept = newest(waiting.added.values(), place.rules.size)
                waiting = waiting._replace(added={record.ref.group: record for record in kept})
                self._waiting[place.namespace] = waiting
            rested = (
                time.monotonic() - self._written.get(place.namespace, -_REST_SECONDS)
                >= _REST_SECONDS
            )
            now = bool(told.ended) or (any(waiting) and rested)
            if now:
                del self._waiting[place.namespace]
                self._written[place.namespace] = time.monotonic()
        if now:
            self._change(place, waiting, told.dropped)
        if (told.unclear or not now) and scratchpad.exists(place):
            with contextlib.suppress(
                OSError
            ):  # the folder can't be written, so the file isn't either
                scratchpad.mark_stale(place)

    def _change(self, place: Place, waiting: "_Waiting", dropped: dict[str, int]) -> None:
        found = (
            entry_of(record, self._clock())
            for record in newest(waiting.added.values(), place.rules.size)
        )
        entries = [entry for entry in found if entry is not None]
        try:
            make = self._make(place.namespace)
            scratchpad.change(place, entries, list(dropped.items()), waiting.reinforced, make=make)
        except (OSError, StoreBusy) as exc:
            if not dropped:
                # a file that shows too little; the next refresh, or `memory scratchpad`, says why
                return
            reason = getattr(exc, "strerror", None) or exc
            raise StoreError(
                f"{place.file} still shows a memory that is deleted, changed or to be forgotten, and can't be written "
                f"({reason}); remove that file"
            ) from exc


class _Waiting(NamedTuple):
    """What a file has not been told yet.

    Attributes:
        added: What is new, or has a new version.
        reinforced: Ids of memories, and when they were reinforced.
    """

    added: dict[str, Record]
    reinforced: dict[str, str]


class _Told(NamedTuple):
    """What a transaction did to one namespace, in its order.

    Attributes:
        added: What is new, or has a new version.
        dropped: What is gone, with its last version.
        ended: What is gone, or has a new version: what is shown of it must not stay.
        unclear: What a file can't be told, such as a decision about what waited for review.
        reinforced: What was reinforced, and when.
    """

    added: dict[str, Record]
    dropped: dict[str, int]
    ended: set[str]
    unclear: list[Change]
    reinforced: dict[str, str]

    def take(self, change: Change, now: datetime) -> None:
        """Take in one change."""
        ref = change if isinstance(change, Ref) else change.ref
        if isinstance(change, Record):
            self.reinforced.pop(ref.group, None)
            if is_shown(change, now):
                self.added[ref.group] = change
                self.dropped.pop(ref.group, None)
            elif change.ended_by == PENDING:
                self.unclear.append(change)
        elif (
            isinstance(change, Ref)
            or change.ended_at is not None
            or change.fields.get("corrected_by")
        ):
            self.added.pop(ref.group, None)
            self.ended.add(ref.group)
            self.dropped[ref.group] = max(ref.position, self.dropped.get(ref.group, 0))
        else:
            self.unclear.append(change)
            if (millis := change.fields.get("reinforced_at")) is not None:
                self.reinforced[ref.group] = to_iso(from_millis(millis))
