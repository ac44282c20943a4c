"""What is in the hot tier as its files tell it: where they are up to date, no store is asked and
little imported.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories.core.urls import local_path, without_password
from memories.errors import InvalidInput
from memories.scratchpad import scratchpad
from memories.scratchpad.entries import Entry, Rules, current, has_age, moment, of_unknown_age
from memories.scratchpad.layout import Pad
from memories.scratchpad.scratchpad import Place

if TYPE_CHECKING:
    from memories.settings import Config

_FRESH = timedelta(
    days=1
)  # others may write to the store from elsewhere, and tell this file nothing


class Scratchpad(NamedTuple):
    """What is in the hot tier of a namespace.

    Attributes:
        entries: What it holds.
        waiting: How many memories wait for review.
        file: The file; None where the store was given by hand, which no file mirrors.
        notes: What a person wrote in the file and was not taken over, each a sentence; and what
            else is wrong with it.
        taken: What was taken over, each a part of a sentence.
    """

    entries: tuple[Entry, ...]
    waiting: int
    file: str | None
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    def current(self, rules: Rules, now: datetime) -> "Scratchpad":
        """Return it with the entries that are shown, in their order; a note counts those of unknown
        confidence.
        """
        notes = (*self.notes, note) if (note := of_unknown_age(self.entries)) else self.notes
        return self._replace(entries=tuple(current(self.entries, rules, now)), notes=notes)


def needs_store(place: Place, pad: Pad | None, now: datetime) -> bool:
    """Return whether a scratchpad must be brought up to date with its store before it is shown."""
    if (
        pad is None
        or pad.edited
        or (pad.store, pad.stamp, pad.size) != (place.store, place.stamp, place.rules.size)
    ):
        return True
    if not all(map(has_age, pad.entries)):
        return True
    age = now - moment(pad.written, now - 2 * _FRESH)
    return not timedelta() <= age <= _FRESH or scratchpad.is_stale(place)


def from_file(place: Place, pad: Pad) -> Scratchpad:
    """Return what a scratchpad's file holds."""
    return Scratchpad(
        tuple(scratchpad.memories_of(pad, place.namespace)), pad.waiting, str(place.file)
    )


def together(own: Scratchpad, shared: Scratchpad) -> Scratchpad:
    """Return what a namespace's scratchpad and the shared one hold."""
    return own._replace(entries=(*own.entries, *shared.entries), notes=(*own.notes, *shared.notes))


def place_of(config: "Config", namespace: str) -> Place:
    """Return where the scratchpad of a namespace is, which mirrors the store of the settings."""
    stamp = ""
    file = local_path(config.store) if config.store.startswith("sqlite:") else None
    if file is not None:
        with contextlib.suppress(OSError):
            stamp = str(file.stat().st_ino)
    store = without_password(config.store)
    return Place(config.home, namespace, store, stamp, Rules.of(config))


def at_hand(config: "Config", namespaces: Sequence[str], now: datetime) -> Scratchpad | None:
    """Return what the scratchpads of these namespaces hold if none needs a look at the store; else
    None.
    """
    found: Scratchpad | None = None
    for namespace in namespaces:
        place = place_of(config, namespace)
        try:
            pad = scratchpad.load(place.home, namespace)
        except InvalidInput:
            return None
        if pad is None or needs_store(place, pad, now):
            return None
        one = from_file(place, pad)
        found = one if found is None else together(found, one)
    return None if found is None else found.current(Rules.of(config), now)
