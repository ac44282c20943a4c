"""The file of a scratchpad: read with care, changed under a lock, replaced in one step."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from memories.core.disk import locked, make_folder, replacing, tried
from memories.errors import InvalidInput, StoreBusy
from memories.scratchpad.entries import Entry, Rules, chosen, ordered
from memories.scratchpad.file import content, path
from memories.scratchpad.layout import Pad, parse, render, without, without_ids
from memories.search.relevance import Relevance

_MOST_WRITTEN = 131_072  # characters of one that is written; a person may add as much again
_MOST_GONE = 64
_NONE: Mapping[str, str] = {}
_WAIT_SECONDS = 30.0
_ATTEMPTS = 20  # at replacing a file that a person saves just then
_LOCK = ".scratchpad.lock"
Done = TypeVar("Done")
_STALE, _TAKEN = ".scratchpad.stale", ".scratchpad.taken"


class Overtaken(Exception):
    """A person has saved the file since it was read: what they wrote is not to be lost."""


class Place(NamedTuple):
    """Where the scratchpad of a namespace is, and which store it mirrors.

    Attributes:
        home: The folder of the default store and of the settings.
        namespace: The namespace.
        store: The URL of the store, without a password.
        stamp: Tells the file of the store from another one in its place; empty where there is none.
        rules: The settings that its entries depend on.
    """

    home: Path
    namespace: str
    store: str
    stamp: str = ""
    rules: Rules = Rules()

    @property
    def folder(self) -> Path:
        """The folder of the namespace."""
        return self.home / self.namespace

    @property
    def file(self) -> Path:
        """The file."""
        return path(self.home, self.namespace)

    @property
    def lock(self) -> Path:
        """The file by which processes wait for each other."""
        return self.folder / _LOCK


def read(home: Path, namespace: str) -> list[Entry]:
    """Return what the scratchpad of a namespace holds now, in the order in which it is shown; none
    if there is none.

    Nothing but this file is read, and nothing is written.

    Raises:
        InvalidInput: It can't be read, or is not to be relied on; the message says why.
    """
    pad = load(home, namespace)
    return (
        [] if pad is None else ordered(memories_of(pad, namespace), datetime.now(UTC), Relevance())
    )


def memories_of(pad: Pad, namespace: str) -> list[Entry]:
    """Return the entries of a scratchpad that are memories; those without an id are not yet."""
    return [each._replace(namespace=namespace) for each in pad.entries if each.id]


def load(home: Path, namespace: str) -> Pad | None:
    """Return what the file of a scratchpad says; None if there is none.

    Raises:
        InvalidInput: See `read`.
    """
    file = path(home, namespace)
    text = content(file)
    return None if text is None else _parsed(text, file, namespace)


def _parsed(text: str, file: Path, namespace: str) -> Pad:
    pad = parse(text, str(file))
    if pad.namespace != namespace:
        raise InvalidInput(
            f"{file} is not the scratchpad of {namespace}; remove it, and it is made anew"
        )
    return pad


_LAST: dict[
    Path, tuple[str, Pad]
] = {}  # the texts that were read or written last, and what they say
_MOST_LAST = 16


def last_read(place: Place) -> Pad | None:
    """Return what `load` does, which parses no text twice; of one that was not edited it has no
    spans.

    Raises:
        InvalidInput: See `read`.
    """
    text, known = content(place.file), _LAST.get(place.file)
    if text is None:
        return None
    if known is None or known[0] != text:
        known = text, _parsed(text, place.file, place.namespace)
        _remember(place, *known)
    return known[1]


def _remember(place: Place, text: str, pad: Pad) -> None:
    if len(_LAST) >= _MOST_LAST:
        _LAST.clear()
    _LAST[place.file] = text, pad


# --- writing
# ---------------------------------------------------------------------------------------------------------


def exists(place: Place) -> bool:
    """Return whether there is a scratchpad."""
    try:
        os.lstat(place.file)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """Keep other threads and processes from changing the scratchpad.

    Raises:
        StoreBusy: Another process has it for too long.
    """
    with tried(place.lock, _WAIT_SECONDS) as held:
        if not held:
            raise StoreBusy(f"another process kept {place.lock} for {_WAIT_SECONDS:g} s; try again")
        yield


def seen(place: Place) -> tuple[int, int, int] | None:
    """Return what tells the file from one that was saved since; None if there is none."""
    try:
        found = os.lstat(place.file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def attempted(done: Callable[[], Done], place: Place) -> Done:
    """Return what a call returns that reads the file and replaces it, done again as long as it is
    overtaken.

    Raises:
        StoreBusy: Another program saves the file again and again.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(Overtaken):
            return done()
    raise StoreBusy(f"another program saves {place.file} again and again; try again")


def write(place: Place, pad: Pad, before: tuple[int, int, int] | None) -> Pad:
    """Replace the file; return what it holds now. What there is no room for is left out, the
    coldest first.

    Args:
        place: The scratchpad.
        pad: What it shall hold.
        before: See `replace`.

    Raises:
        Overtaken: See `replace`.
    """
    now = datetime.now(UTC)
    entries = chosen(pad.entries, place.rules, now, pad.left_out)
    while True:
        kept = pad._replace(
            namespace=place.namespace,
            store=place.store,
            stamp=place.stamp,
            size=place.rules.size,
            entries=tuple(entries),
            edited=False,
        )
        text = render(kept)
        if len(text) <= _MOST_WRITTEN or not entries:
            break
        entries = _lighter(entries)
    replace(place, text, before)
    kept = kept._replace(held=tuple(entry.id for entry in entries), spans=())
    _remember(place, text, kept)
    return kept


def _lighter(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries without an eighth of them: the last ones that are neither pinned nor left by a
    session.
    """
    dispensable = [
        at for at, entry in enumerate(entries) if not entry.pinned and not entry.is_session
    ]
    dispensable = dispensable or [at for at, entry in enumerate(entries)]
    gone = {*dispensable[-max(1, len(dispensable) // 8) :]}
    return [entry for at, entry in enumerate(entries) if at not in gone]


def replace(place: Place, text: str, before: tuple[int, int, int] | None) -> None:
    """Replace the file by a text, for this user alone.

    Args:
        place: The scratchpad.
        text: What the file shall hold.
        before: What `seen` returned before the file was read that the text was made from.

    Raises:
        Overtaken: It is another file now.
    """

    def agreed() -> None:
        if seen(place) != before:
            raise Overtaken

    make_folder(place.folder)
    with replacing(place.file, agreed=agreed) as stream:
        stream.write(text.encode())


def replace_by_person(file: Path, text: str) -> None:
    """Replace a scratchpad's file by what a person made of it.

    Raises:
        InvalidInput: It can't be read as a scratchpad; nothing was changed.
    """
    parse(text, "what was saved")
    with locked(file.parent / _LOCK), replacing(file) as stream:
        stream.write(f"{text.rstrip()}\n".encode())


def mark_stale(place: Place) -> None:
    """Note that the store has changed in a way that the file does not tell."""
    with contextlib.suppress(FileNotFoundError):
        os.close(
            os.open(
                place.folder / _STALE,
                os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0),
                0o600,
            )
        )


def mark_all_stale(home: Path) -> None:
    """Note in every scratchpad of a home that its store was changed by what tells none of them,
    such as an import.
    """
    for place in each_place(home, lambda name: Place(home, name, "")):
        mark_stale(place)


def is_stale(place: Place) -> bool:
    """Return whether the store has changed in a way that the file does not tell, also if a refresh
    was cut short.
    """
    return os.path.lexists(place.folder / _STALE) or os.path.lexists(place.folder / _TAKEN)


@contextlib.contextmanager
def freshening(place: Place) -> Iterator[None]:
    """Take the mark of what is stale, and drop it if nothing fails; a mark that is set meanwhile
    stays.
    """
    taken = place.folder / _TAKEN
    with contextlib.suppress(FileNotFoundError):
        (place.folder / _STALE).rename(taken)
    yield
    taken.unlink(missing_ok=True)


def change(
    place: Place,
    added: Sequence[Entry],
    dropped: Collection[tuple[str, int]],
    reinforced: Mapping[str, str] = _NONE,
    *,
    make: bool,
) -> None:
    """Tell a scratchpad what has been written.

    A file that a person has edited keeps what was written there: what is dropped is cut out of it,
    and what is added comes with the next refresh. So does it where the file mirrors another store.

    Args:
        place: The scratchpad.
        added: Memories as they are now.
        dropped: Ids of memories that are no longer shown, each with its last version.
        reinforced: Ids of memories, each with the time at which it was reinforced.
        make: Make the file if it is not there.

    Raises:
        OSError: It can't be written.
        StoreBusy: Another process has it for too long.
    """
    make = make and bool(added)
    if not (make or exists(place)):
        return
    with alone(place):
        attempted(lambda: _change(place, added, dict(dropped), reinforced, make=make), place)


def _change(
    place: Place,
    added: Sequence[Entry],
    dropped: dict[str, int],
    reinforced: Mapping[str, str],
    *,
    make: bool,
) -> None:
    before = seen(place)
    if before is None:
        if make:
            write(place, Pad(place.namespace, place.store, entries=tuple(added)), before)
        return
    try:
        pad = last_read(place)
        if pad is not None and pad.store != place.store:
            pad = load(place.home, place.namespace)  # with spans
    except InvalidInput:
        _cut_ids(place, list(dropped), before)
        mark_stale(place)
        return
    if pad is None:
        return
    if pad.edited or pad.store != place.store:
        spans = [
            span for entry, span in zip(pad.entries, pad.spans, strict=True) if entry.id in dropped
        ]
        if spans:
            replace(place, without(content(place.file) or "", spans), before)
        mark_stale(place)
        return
    changed = _changed(pad, added, dropped)
    entries = (
        each._replace(reinforced=reinforced.get(each.id, each.reinforced))
        for each in changed.entries
    )
    write(place, changed._replace(entries=tuple(entries)), before)
    if pad.stamp != place.stamp or not {entry.id for entry in pad.entries}.issuperset(dropped):
        mark_stale(
            place
        )  # it may have waited for review, or make room for another one; or the store is another one


def _changed(pad: Pad, added: Sequence[Entry], dropped: dict[str, int]) -> Pad:
    """Return what a file holds once it is told what was written."""
    there = {entry.id: entry for entry in pad.entries}
    gone = dict(_gone(name) for name in pad.gone)
    for name, version in dropped.items():
        there.pop(name, None)
        gone.pop(name, None)  # the newest stand last
        gone[name] = version
    for entry in added:
        if entry.version > gone.get(entry.id, 0) and entry.version >= getattr(
            there.get(entry.id), "version", 0
        ):
            there[entry.id] = entry
    left = tuple(name for name in pad.left_out if name not in dropped)
    names = tuple(f"{name}@{version}" for name, version in list(gone.items())[-_MOST_GONE:])
    return pad._replace(entries=tuple(there.values()), left_out=left, gone=names)


def _gone(name: str) -> tuple[str, int]:
    memory_id, _, version = name.rpartition("@")
    return memory_id, int(version) if version.isdigit() else 0


def _cut_ids(place: Place, ids: Sequence[str], before: tuple[int, int, int] | None) -> None:
    """Cut ids out of a file that can't be read, if it is one that may be written."""
    try:
        text = content(place.file)
    except InvalidInput:
        return
    if text is not None and any(name in text for name in ids):
        replace(place, without_ids(text, ids), before)


def each_place(home: Path, like: Callable[[str], Place]) -> Iterator[Place]:
    """Yield the places of all scratchpads in a home."""
    with contextlib.suppress(FileNotFoundError), os.scandir(home) as found:
        for folder in found:
            if folder.is_dir(follow_symlinks=False):
                place = like(folder.name)
                if exists(place):
                    yield place


def remove(place: Place) -> None:
    """Remove a scratchpad with all that belongs to it."""
    if not place.folder.is_dir():
        return
    with locked(place.lock):
        for name in (place.file.name, _STALE, _TAKEN):
            (place.folder / name).unlink(missing_ok=True)
