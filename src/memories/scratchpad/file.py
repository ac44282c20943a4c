"""A scratchpad's file: read carefully, changed under a lock, replaced atomically.

The user may save the file at any moment. Before a program replaces the file, it checks that the
file hasn't changed since it was read. If it has, the program reads the file again. The user's edits
are never lost: `refresh` either applies them or keeps them in a separate file next to the
scratchpad.

The same folder contains `metadata.json`, where people and other programs find the namespace's name,
creation time, counts and last use. Memories itself reads only the creation time from it.
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from memories.core.disk import CREATING, locked, make_folder, replacing, try_lock, write_all
from memories.core.urls import absolute_url, local_path, without_password
from memories.errors import InvalidInput, StoreBusy, StoreDamaged
from memories.scratchpad.entries import Entry, EntryRules, choose
from memories.scratchpad.layout import Pad, parse, render, without_entries
from memories.scratchpad.text import path_of, read_text

if TYPE_CHECKING:
    from memories.settings import Config
    from memories.stores.protocol import Store

METADATA = "metadata.json"
METADATA_SCRATCH = f".{METADATA}.new"
# Maximum number of characters that a program writes. The user may add the same number.
_MAX_WRITTEN = 131_072
_MAX_GONE = 64
_NO_TIMES: Mapping[str, str] = {}
_WAIT_SECONDS = 30.0
_ATTEMPTS = 20  # maximum number of attempts to replace a file that someone keeps saving
_LOCK = ".scratchpad.lock"
_STALE, _REFRESHING = ".scratchpad.stale", ".scratchpad.taken"
_COPIES = "scratchpad.edited*.yaml"
Result = TypeVar("Result")
Fingerprint = tuple[int, int, int] | None  # identifies a version of the file; None if there is none


class Overtaken(Exception):
    """The user has saved the file since it was read, so replacing it would lose their edits."""


class PadFile(NamedTuple):
    """The file of a namespace's scratchpad: where it is, and the store that it mirrors.

    Attributes:
        home: The folder of the default store and of the settings.
        namespace: The namespace.
        store: The name of the store; see `store_name`.
        stamp: Distinguishes a local store's file or folder from a different one that is later put
            at the same path; empty for a store on a server.
        rules: The settings that decide which memories get an entry.
    """

    home: Path
    namespace: str
    store: str
    stamp: str = ""
    rules: EntryRules = EntryRules()

    @property
    def folder(self) -> Path:
        """The namespace's folder."""
        return self.home / self.namespace

    @property
    def path(self) -> Path:
        """The path of the file."""
        return path_of(self.home, self.namespace)

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.folder / _LOCK


def pad_file_of(config: "Config", namespace: str) -> PadFile:
    """Return the file of a namespace's scratchpad, which mirrors the configured store."""
    stamp = ""
    path = local_path(config.store)
    if path is not None:
        with contextlib.suppress(OSError):
            stamp = str(path.stat().st_ino)
    store = store_name(config.store, config)
    return PadFile(config.home, namespace, store, stamp, EntryRules.of(config))


def store_name(url: str, config: "Config") -> str:
    """Return the name of a store in scratchpads: its absolute URL without a password.

    The collection or database is added if a setting, rather than the URL, names it.
    """
    scheme, _, location = url.partition("://")
    names_part = "/" in location.partition("?")[0].rstrip("/") or "dbname=" in location
    part = ""
    if scheme in ("chroma", "qdrant") and (local_path(url) is not None or not names_part):
        part = config.collection_name
    elif scheme in ("postgresql", "postgres") and not names_part:
        part = os.environ.get("PGDATABASE", "")
    name = without_password(absolute_url(url))
    return name if part in ("", "memories") else f"{name} ({part})"


# --- reading


def memories_of(pad: Pad, namespace: str) -> list[Entry]:
    """Return the entries that are stored memories; an entry without an id isn't stored yet."""
    return [entry._replace(namespace=namespace) for entry in pad.entries if entry.id]


def load(home: Path, namespace: str) -> Pad | None:
    """Return the content of a scratchpad's file, or None if there is no file.

    The most recently read or written texts are cached, so they are not parsed again.

    Raises:
        InvalidInput: The file can't be read or trusted; the message says why.
    """
    file = path_of(home, namespace)
    text = read_text(file)
    if text is None:
        return None
    try:
        return parse_file(text, file, namespace)
    except InvalidInput as exc:
        remedy = f"run memory scratchpad rebuild -n {namespace}, which keeps a copy, or remove it"
        raise InvalidInput(f"{exc}; {remedy}") from None


def parse_file(text: str, file: Path, namespace: str) -> Pad:
    """Parse the text of a namespace's scratchpad.

    Raises:
        InvalidInput: See `load`.
    """
    last_text, pad = _PARSED.get(file, (None, None))
    if pad is None or text != last_text:
        pad = parse(text, str(file))
        if pad.namespace != namespace:
            raise InvalidInput(f"{file} is not the scratchpad of {namespace}")
        _remember(file, text, pad)
    return pad


_PARSED: dict[Path, tuple[str, Pad]] = {}
_MAX_PARSED = 16


def _remember(file: Path, text: str, pad: Pad) -> None:
    if len(_PARSED) >= _MAX_PARSED:
        _PARSED.clear()
    _PARSED[file] = text, pad


def refuse_lost(config: "Config", url: str, is_missing: Callable[[], bool]) -> None:
    """Raise an error if a store's data is missing but scratchpads still mirror the store.

    Raises:
        StoreDamaged: Scratchpads in this home have memories of the store.
    """
    mirrors: list[str] = []
    store = store_name(url, config)
    for pad_file in pad_files_in(config.home, lambda name: PadFile(config.home, name, store)):
        with contextlib.suppress(InvalidInput):
            pad = load(config.home, pad_file.namespace)
            if pad is not None and pad.entries and pad.store == store:
                mirrors.append(str(pad_file.path))
    # Another process may have created the store and its scratchpad in the meantime.
    if mirrors and is_missing():
        files, path = ", ".join(sorted(mirrors)), local_path(url)
        state, lost = "has no records, but is", "the records"
        if path is not None and not path.exists():
            state, lost = "is missing, but", "it"
        raise StoreDamaged(
            f"{path or store} {state} still mirrored by {files}; put {lost} back, restore a "
            "backup (memory restore FILE), or move each scratchpad away to start a new store"
        )


# --- writing


def exists(pad_file: PadFile) -> bool:
    """Return whether the scratchpad's file exists."""
    return os.path.lexists(pad_file.path)


@contextlib.contextmanager
def exclusive(pad_file: PadFile) -> Iterator[None]:
    """Keep other threads and processes from changing the scratchpad.

    Raises:
        StoreBusy: Another process has held the lock for too long.
    """
    with try_lock(pad_file.lock, _WAIT_SECONDS) as is_locked:
        if not is_locked:
            raise StoreBusy(
                f"another process has held {pad_file.lock} for {_WAIT_SECONDS:g} seconds; try again"
            )
        yield


def fingerprint(pad_file: PadFile) -> Fingerprint:
    """Return values that distinguish the file from later versions; None if there is no file."""
    try:
        status = os.lstat(pad_file.path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def retry_overtaken(replace_file: Callable[[], Result], pad_file: PadFile) -> Result:
    """Call a function that reads and replaces the file; retry if the user saves it in between.

    Raises:
        StoreBusy: Another program keeps saving the file.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(Overtaken):
            return replace_file()
    raise StoreBusy(f"another program keeps saving {pad_file.path}; try again")


def write(pad_file: PadFile, pad: Pad, before: Fingerprint) -> Pad:
    """Replace the file, and return its new content. If the text would be too long, the coldest
    entries are left out.

    Args:
        pad_file: The scratchpad.
        pad: The content, with all entries that may be written.
        before: See `replace`.

    Raises:
        Overtaken: See `replace`.
    """
    entries = choose(pad.entries, pad_file.rules, datetime.now(UTC), pad.left_out)
    while True:
        pad = pad._replace(
            namespace=pad_file.namespace,
            store=pad_file.store,
            stamp=pad_file.stamp,
            size=pad_file.rules.size,
            entries=tuple(entries),
            held=tuple(entry.id for entry in entries),
            edited=False,
        )
        text = render(pad)
        if len(text) <= _MAX_WRITTEN or not entries:
            break
        entries = _without_an_eighth(entries)
    replace(pad_file, text, before)
    _remember(pad_file.path, text, pad)
    return pad


def _without_an_eighth(entries: Sequence[Entry]) -> list[Entry]:
    """Drop an eighth of the entries, from the end. Pinned entries and session summaries stay."""
    indexes = range(len(entries))
    dispensable = [at for at in indexes if not (entries[at].pinned or entries[at].is_session)]
    candidates = dispensable or list(indexes)
    dropped = set(candidates[-max(1, len(candidates) // 8) :])
    return [entries[at] for at in indexes if at not in dropped]


def replace(pad_file: PadFile, text: str, before: Fingerprint) -> None:
    """Replace the file with a text that only this user may read.

    Args:
        pad_file: The scratchpad.
        text: The new text.
        before: The `fingerprint` of the file, taken before it was read to make the text.

    Raises:
        Overtaken: The file has changed in the meantime.
    """

    def check() -> None:
        if fingerprint(pad_file) != before:
            raise Overtaken

    make_folder(pad_file.folder)
    with replacing(pad_file.path, agreed=check) as stream:
        stream.write(text.encode())


def replace_by_person(file: Path, text: str) -> None:
    """Replace a scratchpad's file with the version edited by the user.

    Raises:
        InvalidInput: The text is not a valid scratchpad; nothing was changed.
    """
    parse(text, "the saved text")
    with locked(file.parent / _LOCK), replacing(file) as stream:
        stream.write(f"{text.rstrip()}\n".encode())


def copies_of(pad_file: PadFile) -> list[Path]:
    """Return the files that contain edits that could not be applied."""
    return sorted(pad_file.folder.glob(_COPIES))


def keep_copy(pad_file: PadFile, text: str) -> Path:
    """Keep a text whose edits can't be applied, in a file next to the scratchpad; return its path.

    A text that is already kept isn't saved again.
    """
    for copy in copies_of(pad_file):
        if _read_copy(copy) == text:
            return copy
    copy = pad_file.folder / "scratchpad.edited.yaml"
    number = 1
    while os.path.lexists(copy):
        number += 1
        copy = pad_file.folder / f"scratchpad.edited-{number}.yaml"
    make_folder(pad_file.folder)
    with replacing(copy) as stream:
        stream.write(text.encode())
    return copy


def mark_stale(pad_file: PadFile) -> None:
    """Mark the file as stale: it doesn't show the latest changes in the store."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(FileNotFoundError):
        os.close(os.open(pad_file.folder / _STALE, flags, 0o600))


def mark_all_stale(home: Path) -> None:
    """Mark every scratchpad in a home as stale, for example after an import."""
    for pad_file in pad_files_in(home, lambda name: PadFile(home, name, "")):
        mark_stale(pad_file)


def is_stale(pad_file: PadFile) -> bool:
    """Return whether the file is marked as stale, or a refresh of it was interrupted."""
    return any(os.path.lexists(pad_file.folder / name) for name in (_STALE, _REFRESHING))


@contextlib.contextmanager
def clearing_stale(pad_file: PadFile) -> Iterator[None]:
    """Remove the stale mark if the block succeeds; a mark set in the meantime stays."""
    refreshing = pad_file.folder / _REFRESHING
    with contextlib.suppress(FileNotFoundError):
        (pad_file.folder / _STALE).rename(refreshing)
    yield
    refreshing.unlink(missing_ok=True)


def change(
    pad_file: PadFile,
    added: Sequence[Entry],
    dropped: Collection[tuple[str, int]],
    reinforced: Mapping[str, str] = _NO_TIMES,
    *,
    make: bool,
) -> None:
    """Apply changes in the store to a scratchpad.

    Dropped memories are removed immediately, from the scratchpad and from kept edits. Other changes
    are left to the next refresh if the user has edited the file or it mirrors a different store.

    Args:
        pad_file: The scratchpad.
        added: New and changed memories, in their current state.
        dropped: The id of each memory that may no longer be shown, with its last version.
        reinforced: The id of each reinforced memory, with the time of the reinforcement.
        make: Whether to create a missing file.

    Raises:
        OSError: The file can't be written.
        StoreBusy: Another process has held the lock for too long.
    """
    versions = dict(dropped)
    copies = copies_of(pad_file) if versions else []
    make = make and bool(added)
    if not (make or copies or exists(pad_file)):
        return
    with exclusive(pad_file):
        for copy in copies:
            _drop_from_copy(copy, versions)
        retry_overtaken(lambda: _change(pad_file, added, versions, reinforced, make=make), pad_file)


def _change(
    pad_file: PadFile,
    added: Sequence[Entry],
    dropped: dict[str, int],
    reinforced: Mapping[str, str],
    *,
    make: bool,
) -> None:
    before = fingerprint(pad_file)
    if before is None:
        if make:
            write(pad_file, Pad(pad_file.namespace, pad_file.store, entries=tuple(added)), before)
        return
    try:
        pad = load(pad_file.home, pad_file.namespace)
    except InvalidInput:
        pad = None
    if pad is None or pad.edited or pad.store != pad_file.store:
        _drop_from_text(pad_file, dropped, before)
        mark_stale(pad_file)
        return
    updated = _update(pad, added, dropped, reinforced)
    write(pad_file, updated, before)
    waited_for_review = not {entry.id for entry in pad.entries}.issuperset(dropped)
    if waited_for_review or pad.stamp != pad_file.stamp:
        mark_stale(pad_file)


def _update(
    pad: Pad, added: Sequence[Entry], dropped: dict[str, int], reinforced: Mapping[str, str]
) -> Pad:
    entries = {entry.id: entry for entry in pad.entries}
    gone: dict[str, int] = {}
    for name in pad.gone:
        memory_id, _, version_text = name.rpartition("@")
        gone[memory_id] = int(version_text) if version_text.isdigit() else 0
    for memory_id, version in dropped.items():
        entries.pop(memory_id, None)
        gone.pop(memory_id, None)  # re-added at the end
        gone[memory_id] = version
    for entry in added:
        present = entries.get(entry.id)
        is_late = present is not None and entry.version < present.version
        if entry.version > gone.get(entry.id, 0) and not is_late:
            entries[entry.id] = entry
    for memory_id, time in reinforced.items():
        if memory_id in entries:
            entries[memory_id] = entries[memory_id]._replace(reinforced=time)
    last_gone = list(gone.items())[-_MAX_GONE:]
    return pad._replace(
        entries=tuple(entries.values()),
        left_out=tuple(memory_id for memory_id in pad.left_out if memory_id not in dropped),
        gone=tuple(f"{memory_id}@{version}" for memory_id, version in last_gone),
    )


def _drop_from_text(pad_file: PadFile, ids: Collection[str], before: Fingerprint) -> None:
    """Remove entries from a file without parsing it; an unreadable file stays unchanged."""
    try:
        text = read_text(pad_file.path) or ""
    except InvalidInput:
        return
    shortened = without_entries(text, ids)
    if shortened != text:
        replace(pad_file, shortened, before)


def _read_copy(copy: Path) -> str:
    try:
        return read_text(copy) or ""
    except InvalidInput:  # the file was not written by this program
        return ""


def _drop_from_copy(copy: Path, ids: Collection[str]) -> None:
    text = _read_copy(copy)
    shortened = without_entries(text, ids)
    if shortened != text:
        with replacing(copy) as stream:
            stream.write(shortened.encode())


def pad_files_in(home: Path, pad_file_of: Callable[[str], PadFile]) -> Iterator[PadFile]:
    """Yield the files of all scratchpads in a home; none if the home can't be read."""
    with contextlib.suppress(OSError), os.scandir(home) as folders:
        for folder in folders:
            if folder.is_dir(follow_symlinks=False):
                pad_file = pad_file_of(folder.name)
                if exists(pad_file):
                    yield pad_file


# --- metadata


def write_metadata(
    folder: Path, name: str, store: "Store", now: datetime, created_at: datetime | None = None
) -> None:
    """Write a namespace's metadata; the caller must hold the lock of the namespace's folder.

    The file is not flushed to disk, because that would take as long as storing a memory. If a power
    failure destroys it, the next write recreates it.

    Args:
        folder: The namespace's folder.
        name: The namespace.
        store: The store whose current memories and turns are counted.
        now: The time of the write.
        created_at: When the namespace was created, by default now. A time in the existing file
            takes precedence.
    """
    from memories.core.times import to_iso
    from memories.stores.records import Collection, Filter

    metadata = {
        "name": name,
        "created_at": to_iso(read_created(folder) or created_at or now),
        "last_used_at": to_iso(now),
        "memory_count": store.count(Filter(Collection.MEMORY, (name,))),
        "turn_count": store.count(Filter(Collection.HISTORY, (name,))),
    }
    make_folder(folder)
    scratch = folder / METADATA_SCRATCH
    fd = os.open(scratch, CREATING | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        write_all(fd, json.dumps(metadata, indent=1).encode() + b"\n")
    finally:
        os.close(fd)
    scratch.replace(folder / METADATA)


def read_created(folder: Path) -> datetime | None:
    """Return a namespace's creation time; None if its metadata is missing or damaged."""
    with contextlib.suppress(InvalidInput, ValueError, KeyError, TypeError, RecursionError):
        metadata = json.loads(read_text(folder / METADATA) or "{}")
        created_at = datetime.fromisoformat(metadata["created_at"])
        return created_at if created_at.tzinfo is not None else None
    return None
