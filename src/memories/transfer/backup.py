"""Backs up a whole store to one verified file, and restores a store from such a file.

A SQLite store is copied as a SQLite file, any other store as an export of all its namespaces with
their vectors.
"""

import contextlib
import glob
import hashlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memories.core.disk import FULL, make_folder, open_file, put_in_place, try_lock
from memories.core.events import files_with_content
from memories.core.ids import digest
from memories.core.times import to_iso
from memories.core.urls import local_path, without_password
from memories.embedders.protocol import Embedder
from memories.errors import InvalidInput, RequestError, StoreDamaged, StoreError
from memories.guard.validate import KEEP_RULE, amount, require_storable
from memories.settings import Config
from memories.stores import Store, claims, open_store
from memories.transfer.export import export
from memories.transfer.importing import check, import_, log_import
from memories.transfer.intake import Intake
from memories.transfer.lines import SQLITE, read_header
from memories.transfer.pages import Progress, count_records, parts_of
from memories.write.accesses import Accesses

if TYPE_CHECKING:
    from memories.stores.sqlite.backup import CopyOrigin

_ENDINGS = {"sqlite": ".db", "export": ".jsonl"}
_SIDE_FILES = ("", "-wal", "-shm", "-journal", ".db", ".db-wal", ".db-shm", ".db.lock")
# What may follow a store's name in the name of a file that belongs to it. One such file contains
# the requests of a server.
_PART = re.compile(rf"(?:(?:{claims.FILE_SUFFIX})?(?:-wal|-shm|-journal)?|\.lock)$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_HEADER = 65_536
_PIECE = 1_048_576


class BackedUp(NamedTuple):
    """A verified backup.

    Attributes:
        file: The file.
        kind: `sqlite` or `export`.
        records: The number of versions and turns.
        size_bytes: The size of the file.
        sha256: The hash of the file, which identifies copies of it.
        removed: Older backups of this store that were removed.
    """

    file: Path
    kind: str
    records: int
    size_bytes: int
    sha256: str
    removed: tuple[Path, ...]


class Restored(NamedTuple):
    """The result of a restore.

    Attributes:
        records: The number of versions and turns now in the store.
        made_at: When the backup was made, in ISO 8601, if recorded.
        kept: The new location of the replaced store, if any.
        without_vector: The number of records without a vector, which only a word search can find.
        unchecked: Whether the file may be incomplete: an export in the first version of the format
            has no last line that would prove otherwise.
    """

    records: int
    made_at: str | None
    kept: Path | None
    without_vector: int = 0
    unchecked: bool = False


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores."""
    return local_path(url) if url.startswith("sqlite:") else None


# --- backup


def back_up(
    config: Config,
    target: str | None,
    *,
    keep: int | None = None,
    now: datetime,
    progress: Progress,
) -> BackedUp:
    """Copy the configured store to one file and verify the copy; other processes may keep writing.

    Args:
        config: The settings.
        target: A file, or a folder in which the file is named after the store and the time. The
            default is the folder `backups` in the home.
        keep: In a folder, remove the oldest backups of this store until this many are left.
        now: The current time.
        progress: Called while an export is written.

    Raises:
        InvalidInput: `keep` is out of range, or the target is not a folder or not valid Unicode.
        RequestError: There is no store yet, or the target is a file, but not a backup of this
            store.
        StoreDamaged: The store or the copy is damaged.
        StoreError: The file could not be written.
    """
    if keep is not None and not 1 <= keep <= 10_000:
        raise InvalidInput(f'{KEEP_RULE}, not "{keep}"')
    path = sqlite_file(config.store)
    if path is not None and not path.exists():
        raise RequestError(f"there is no store at {path} yet, so there is nothing to back up")
    mark = _mark(config.store, now)
    kind = "export" if path is None else "sqlite"
    file, folder = _choose_file(config, target, kind, now)
    if folder is None and keep is not None:
        raise InvalidInput(
            f"--keep counts the backups in a folder, but there is no folder {file}; "
            "create it first, or omit --keep"
        )
    require_storable(str(file), "the path of the backup")
    _refuse_other_file(file, mark.store)
    _clear_leftovers(file.parent, file.name if folder is None else f"{_name(config.store)}-")
    try:
        with scratch_beside(file) as scratch:
            records = _write(config, scratch, mark, progress)
            size, sha256 = _measure(scratch)
            put_in_place(scratch, file)
    except OSError as exc:
        raise write_error(file, exc) from exc
    removed = _remove_oldest(folder, file, mark.store, keep) if folder and keep else ()
    return BackedUp(file, kind, records, size, sha256, removed)


def _write(config: Config, scratch: Path, mark: "CopyOrigin", progress: Progress) -> int:
    """Write a copy of the store, read it back, and return the number of records."""
    path = sqlite_file(config.store)
    with contextlib.closing(open_store(config.store, None, config)) as store:
        Accesses(config.home, config.store).flush(store)
        if path is None:
            return _write_export(store, scratch, mark, progress)
    from memories.stores.sqlite.backup import copy_out

    return copy_out(path, scratch, mark)


def _write_export(store: Store, scratch: Path, mark: "CopyOrigin", progress: Progress) -> int:
    with scratch.open("wb") as stream:
        written = export(
            store,
            lambda line: stream.write(line.encode()),
            namespaces=None,
            with_vectors=True,
            backup=mark._asdict(),
            progress=progress,
        )
        for finding in store.damaged.since():
            raise StoreDamaged(f"no backup was made: {finding.what}; run memory doctor")
        stream.flush()
        os.fsync(stream.fileno())
    with scratch.open("rb") as stream:
        if check(stream, namespaces=None, own=True).records != written:
            raise StoreError(f"the copy in {scratch.parent} could not be read back; it was removed")
    return written


def _mark(url: str, now: datetime) -> "CopyOrigin":
    from memories.stores.sqlite.backup import CopyOrigin, identity_of

    path = sqlite_file(url)
    without_user = re.sub(r"//[^/@]*@", "//", url)
    return CopyOrigin(digest(without_user) if path is None else identity_of(path), to_iso(now))


def _choose_file(
    config: Config, target: str | None, kind: str, now: datetime
) -> tuple[Path, Path | None]:
    """Return the file to write, and its folder if the file's name was generated."""
    path = config.home / "backups" if target is None else Path(target).expanduser().absolute()
    if target is not None and not path.is_dir() and not target.endswith(("/", os.sep)):
        if not path.parent.is_dir():
            raise InvalidInput(f"there is no folder {path.parent}; create it, or name another file")
        return path, None
    try:
        make_folder(path)
    except OSError as exc:
        raise write_error(path, exc) from exc
    stem = f"{_name(config.store)}-{now:%Y%m%dT%H%M%SZ}"
    file = path / f"{stem}{_ENDINGS[kind]}"
    number = 1
    while os.path.lexists(file):
        number += 1
        file = path / f"{stem}-{number}{_ENDINGS[kind]}"
    return file, path


def _name(url: str) -> str:
    """Return the prefix of a store's backup file names."""
    path = sqlite_file(url)
    if path is not None:
        return _UNSAFE.sub("-", path.stem).strip("-.") or "memories"
    kind, _, address = without_password(url).partition("://")
    location = address.partition("?")[0].rstrip("/")
    last_part = location.rpartition("/")[2]
    without_user = last_part.rpartition("@")[2]
    return _UNSAFE.sub("-", f"{kind}-{without_user}").strip("-.")


def _refuse_other_file(file: Path, store: str) -> None:
    """Refuse to replace a file that isn't a backup of the same store.

    Raises:
        RequestError: The file is something else.
    """
    if not os.path.lexists(file):
        return
    mark = None
    if not _is_store_part(file) and file.is_file() and not file.is_symlink():
        mark = read_mark(file)
    if mark is None:
        raise RequestError(
            f"{file} exists and is not a backup; nothing was written; name another file"
        )
    if mark.store != store:
        raise RequestError(
            f"{file} is a backup of another store; nothing was written; name another file"
        )


def _is_store_part(file: Path) -> bool:
    """Return whether a file is a part of a store, or a server's table of requests (see
    `server.api.idempotency.file_of`). Closing such a file would drop this process's locks on it.
    """
    if re.fullmatch(r"requests-[0-9a-f]{8}(?:-wal|-shm|-journal)?", file.name):
        return True
    store = _PART.sub("", str(file), count=1)
    return os.path.lexists(f"{store}.lock") or os.path.lexists(f"{file}.lock")


def read_mark(file: Path) -> "CopyOrigin | None":
    """Return the description in a SQLite backup or an export; None if the file isn't a backup."""
    from memories.stores.sqlite.backup import CopyOrigin, mark_of

    try:
        with open_file(file) as stream:
            first_line = stream.readline(_MAX_HEADER)
        if first_line.startswith(SQLITE):
            return mark_of(file)
        header = read_header(first_line.decode())
        return None if header.backup is None else CopyOrigin(**header.backup)
    except (OSError, StoreError, ValueError, TypeError):
        return None


def copies_of(config: Config, *, owns_home: bool) -> tuple[str, ...]:
    """Return the files that may contain forgotten memories and turns.

    These are event files with content and, if the store's files are in the home, its backups and
    the captured events that were refused.
    """
    copies = files_with_content(config.home)
    if owns_home:
        copies += map(str, (config.home / "inbox" / "refused").glob("*"))
        copies += backups_of(config)
    return tuple(sorted(copies))


def backups_of(config: Config) -> tuple[str, ...]:
    """Return this store's backups, under any name, next to it and in `backups` folders. They
    may contain forgotten memories.
    """
    store, path = _mark(config.store, datetime.now(UTC)).store, local_path(config.store)
    folders = [config.home / "backups"]
    if path is not None:
        folders += [path.parent, path.parent / "backups"]
    backups: dict[str, None] = {}
    for folder in folders:
        for file in sorted(folder.glob("*")):
            mark = read_mark(file) if file.is_file() and not _is_store_part(file) else None
            if mark is not None and mark.store == store:
                backups[str(file)] = None
    return tuple(backups)


def _remove_oldest(folder: Path, newest: Path, store: str, keep: int) -> tuple[Path, ...]:
    """Remove the oldest of a store's automatically named backups; always keep the newest."""
    stem = re.escape(re.sub(r"-[0-9]{8}T.*", "", newest.name))
    named_here = re.compile(rf"{stem}-\d{{8}}T\d{{6}}Z(-\d+)?\.(db|jsonl)")
    backups: list[tuple[str, Path]] = []
    for file in folder.iterdir():
        if file == newest or not named_here.fullmatch(file.name):
            continue
        mark = read_mark(file) if file.is_file() and not file.is_symlink() else None
        if mark is not None and mark.store == store:
            backups.append((mark.at, file))
    backups.sort(reverse=True)
    oldest = [file for _, file in backups[max(0, keep - 1) :]]
    for file in oldest:
        file.unlink()
    return tuple(sorted(oldest))


@contextlib.contextmanager
def scratch_beside(file: Path, ending: str = "new") -> Iterator[Path]:
    """Provide an empty private file next to another one, and remove it afterwards.

    The file is locked while in use, which distinguishes it from one that a killed process left
    behind.
    """
    scratch = file.with_name(f".{file.name}.{os.urandom(4).hex()}.{ending}")
    with try_lock(scratch, 0):
        try:
            yield scratch
        finally:
            _remove(scratch)


def _clear_leftovers(folder: Path, name: str, ending: str = "new") -> None:
    """Remove the files left behind by backups or restores that were killed."""
    for leftover in folder.glob(f".{glob.escape(name)}*.{ending}"):
        with try_lock(leftover, 0) as is_unused:
            if is_unused:
                _remove(leftover)


def _remove(file: Path) -> None:
    for suffix in _SIDE_FILES:
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _measure(file: Path) -> tuple[int, str]:
    sha256 = hashlib.sha256()
    with open_file(file) as stream:
        while piece := stream.read(_PIECE):
            sha256.update(piece)
    return file.stat().st_size, sha256.hexdigest()


def write_error(file: Path, exc: OSError) -> StoreError:
    """Return the error for a file that can't be written."""
    advice = "name another place"
    if exc.errno in FULL:
        advice = f"free some space there or {advice}"
    return StoreError(f"cannot write {file}: {exc.strerror or exc}; {advice}")


# --- restore


def restore(
    config: Config,
    source: Path,
    embedder: Embedder | None,
    *,
    replace: bool = False,
    now: datetime,
    progress: Progress,
) -> Restored:
    """Restore the configured store from a backup, a snapshot made by an upgrade, or an export.

    A SQLite store is replaced in one step, after everything has been read and checked, so at any
    moment either the old store or the new one exists. Any other store must be empty.

    Args:
        config: The settings.
        source: The file; it is not changed.
        embedder: Makes the vectors missing from an export.
        replace: Rename an existing SQLite store, and put the restored one in its place.
        now: The current time, which becomes part of the old store's new name.
        progress: Called while an export is read.

    Raises:
        RequestError: A store already exists, or the file can't be restored into this kind of store.
        StoreDamaged: The file is incomplete or damaged; nothing was changed.
    """
    if not source.is_file():
        raise InvalidInput(f"{source} is not a file; name a backup or an export")
    path = sqlite_file(config.store)
    mark = read_mark(source)
    made_at = mark.at if mark else None
    if path is None:
        restored = _import_whole(config, source, embedder, replace=replace, progress=progress)
        return restored._replace(made_at=made_at)
    if path.exists() and source.samefile(path):
        raise InvalidInput(f"{source} is the store itself; name a backup of it")
    from memories.stores.sqlite.backup import occupied_error, put_back, refuse_logs

    # The write-ahead log may remain even if the store's file was lost.
    if not replace and any(os.path.lexists(f"{path}{suffix}") for suffix in ("", "-wal")):
        raise occupied_error(path)
    refuse_logs(source, path)
    old_store = None
    if replace:
        unique = f"{now:%Y%m%dT%H%M%S}Z-{os.urandom(2).hex()}"
        old_store = path.with_name(f"{path.name}.replaced-{unique}")
    try:
        make_folder(path.parent)
        _clear_leftovers(path.parent, f"{path.name}.", "restore")
        with scratch_beside(path, "restore") as scratch:
            restored = _build(config, source, scratch, embedder, progress)
            new_mark = mark or _mark(config.store, now)
            put_back(scratch, path, old_store, records=restored.records, mark=new_mark)
    except OSError as exc:
        raise write_error(path, exc) from exc
    kept = None
    if old_store is not None:
        files = (old_store, Path(f"{old_store}-wal"))
        kept = next((file for file in files if os.path.lexists(file)), None)
    return restored._replace(made_at=made_at, kept=kept)


def _build(
    config: Config, source: Path, scratch: Path, embedder: Embedder | None, progress: Progress
) -> Restored:
    """Write a store file to `scratch` from a backup, and check it."""
    from memories.stores.sqlite.backup import copy_in, is_database, records_in

    if is_database(source):
        try:
            return Restored(copy_in(source, scratch), None, None)
        except StoreDamaged as exc:
            reason = exc.__cause__ or exc
            raise StoreDamaged(
                f"{source} is damaged ({reason}); nothing was changed; use another backup"
            ) from exc
    database = Path(f"{scratch}.db")
    new_store = config._replace(store=f"sqlite:///{database}")
    restored = _import_whole(new_store, source, embedder, replace=False, progress=progress)
    if not database.exists():
        raise RequestError(f"{source} has no records; there is nothing to restore")
    database.replace(scratch)
    if records_in(scratch) != restored.records:
        raise StoreError(
            f"{source} could not be read completely into {scratch.parent}; nothing was changed"
        )
    return restored


def _import_whole(
    config: Config, source: Path, embedder: Embedder | None, *, replace: bool, progress: Progress
) -> Restored:
    """Import an export into an empty store."""
    from memories.stores.sqlite.backup import is_database

    url = without_password(config.store)
    if is_database(source):
        raise InvalidInput(
            f"{source} is a SQLite file, but the store is {url}; restore it with --store "
            "sqlite:///NEW, then run memory migrate"
        )
    if replace:
        raise InvalidInput(
            f"only a SQLite store can be replaced as a whole; empty {url} or name another store"
        )
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_file(source))
        size = source.stat().st_size
        try:
            records = check(stream, namespaces=None, own=True).records
        except InvalidInput as exc:
            raise InvalidInput(
                f"{source} is neither a SQLite backup nor an export that can be restored: {exc}"
            ) from exc
        space = embedder.space if embedder else None
        store = open_store(config.store, space, config, is_new=True)
        stack.enter_context(contextlib.closing(store))
        advice = f"to add what it lacks, run: memory import {source} --all-namespaces --trusted"
        if parts_of(store):
            raise RequestError(f"{url} is not empty; {advice}")
        stream.seek(0)

        def lines() -> Iterator[bytes]:
            read = 0
            for line in stream:
                read += len(line)
                progress("restoring", read, size)
                yield line

        logged = log_import(store, "cli", None, None)
        result = import_(logged, lines(), embedder, namespaces=None, intake=Intake(own=True))
        stored = count_records(store, parts_of(store))
        if result.imported != records or stored != records:
            contents = amount(records, "record", "records")
            added = amount(result.imported, "was", "were")
            raise StoreError(
                f"{source} has {contents}, {added} added, and {url} now has {stored}, "
                f"perhaps because another program wrote to it; {advice}"
            )
        return Restored(records, None, None, result.without_vector, result.unchecked)
