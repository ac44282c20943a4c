"""Reads scratchpads from their files. While the files are up to date, no store is queried.

Hooks use this module, so it imports little. `matching` searches scratchpads.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import InvalidInput
from memories.scratchpad import file
from memories.scratchpad.entries import (
    Entry,
    EntryRules,
    parse_time,
    select_confident,
    with_verdicts,
)
from memories.scratchpad.file import PadFile, pad_file_of
from memories.scratchpad.layout import Pad

if TYPE_CHECKING:
    from memories.anchors.judge import Judge
    from memories.settings import Config

# A file older than this is always refreshed, since programs on other machines may have written to
# the same store without updating the file.
_UP_TO_DATE_FOR = timedelta(days=1)


class Scratchpad(NamedTuple):
    """The memories of one or more scratchpad files, ready to be shown.

    Attributes:
        entries: The memories.
        waiting: The number of memories that await review.
        file: The path of the file; None if no file mirrors the store.
        notes: Problems with the file and with the user's edits to it, one sentence each.
        taken: The edits that were applied, one sentence each.
    """

    entries: tuple[Entry, ...]
    waiting: int
    file: str | None
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes of the user's edits, and the problems with the file."""
        return (*self.taken, *self.notes)

    def with_verdicts(self, judge: "Judge | None", now: datetime) -> "Scratchpad":
        """Return this scratchpad with a verdict on each entry that can be checked."""
        return self._replace(entries=with_verdicts(self.entries, judge, now))

    def select_confident(self, rules: EntryRules, now: datetime) -> "Scratchpad":
        """Return this scratchpad with only the entries to show, sorted."""
        return self._replace(entries=tuple(select_confident(self.entries, rules, now)))

    def merged_with(self, shared: "Scratchpad") -> "Scratchpad":
        """Return this scratchpad together with the entries and notes of the shared one."""
        return self._replace(
            entries=(*self.entries, *shared.entries),
            notes=(*self.notes, *shared.notes),
            taken=(*self.taken, *shared.taken),
        )


def needs_refresh(pad_file: PadFile, pad: Pad | None, now: datetime) -> bool:
    """Return whether a scratchpad must be refreshed from its store before it is shown."""
    if pad is None or pad.edited:
        return True
    if (pad.store, pad.stamp, pad.size) != (pad_file.store, pad_file.stamp, pad_file.rules.size):
        return True
    if pad.until and now > parse_time(pad.until, now):
        return True
    age = now - parse_time(pad.written, now - 2 * _UP_TO_DATE_FOR)
    return not timedelta() <= age <= _UP_TO_DATE_FOR or file.is_stale(pad_file)


def from_pad(pad_file: PadFile, pad: Pad) -> Scratchpad:
    """Return the scratchpad that a file contains."""
    entries = tuple(file.memories_of(pad, pad_file.namespace))
    return Scratchpad(entries, pad.waiting, str(pad_file.path))


def read_up_to_date(
    config: "Config", namespaces: Sequence[str], now: datetime
) -> Scratchpad | None:
    """Return the scratchpads of these namespaces; None if one of them must be refreshed first."""
    scratchpad: Scratchpad | None = None
    for namespace in namespaces:
        pad_file = pad_file_of(config, namespace)
        try:
            pad = file.load(pad_file.home, namespace)
        except InvalidInput:
            return None
        if pad is None or needs_refresh(pad_file, pad, now):
            return None
        own = from_pad(pad_file, pad)
        scratchpad = own if scratchpad is None else scratchpad.merged_with(own)
    return None if scratchpad is None else scratchpad.select_confident(EntryRules.of(config), now)
