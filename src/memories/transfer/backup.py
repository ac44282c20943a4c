"""Backup and restore: a verified copy of a whole store in one file, and a store from such a file.

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

from memories.core.disk import make_folder, open_file, put_in_place, tried
from memories.core.ids import digest
from memories.core.times import to_iso
from memories.core.urls import without_password
from memories.embedders.protocol import Embedder
from memories.errors import InvalidInput, RequestError, StoreDamaged, StoreError
from memories.settings import Config
from memories.stores import local_path, open_store
from memories.transfer.export import export
from memories.transfer.importing import Intake, check, import_
from memories.transfer.lines import read_header
from memories.transfer.pages import Progress, places, total

if TYPE_CHECKING:
    from memories.stores.sqlite.backup import Mark

_ENDINGS = {"sqlite": ".db", "export": ".jsonl"}
_SIDE_FILES = ("", "-wal", "-shm", "-journal", ".db", ".db-wal", ".db-shm", ".db.lock")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_HEADER = 65_536
_PIECE = 1_048_576


class BackedUp(NamedTuple):
    """A backup that was written and read back.

    Attributes:
        file: Where it is.
        kind: `sqlite` or `export`.
        records: How many versions and turns it has.
        size_bytes: Its size.
        sha256: Its hash, to recognize copies of it by.
        removed: Older backups of this store that were removed.
    """

    file: Path
    kind: str
    records: int
    size_bytes: int
    sha256: str
    removed: tuple[Path, ...]


class Restored(NamedTuple):
    """What a restore did.

    Attributes:
        records: How many versions and turns the store has now.
        made_at: When the backup was made, in ISO 8601, if it says so.
        kept: What the store that was there before is called now, if there was one.
        without_vector: How many records only words can find.
        unchecked: The export is of the version without a last line, so nothing tells whether it is
            complete.
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
# ----------------------------------------------------------------------------------------------------------


def back_up(
    config: Config,
    target: str | None,
    *,
    keep: int | None = None,
    now: datetime,
    progress: Progress,
) -> BackedUp:
    """Copy the whole store of the settings into one file, while others write, and read the copy
    back.

    Args:
        config: The settings.
        target: A file, or a folder, in which it gets a name with its store and time; by default the
            folder `backups` of the home.
        keep: In a folder, remove the oldest backups of this store until so many are left.
        now: The time.
        progress: Is told how much is done.

    Raises:
        RequestError: There is no store yet, or something else has the name of the target.
        StoreDamaged: The store, or the copy, is not sound.
        StoreError: It could not be written.
    """
    path = sqlite_file(config.store)
    if path is not None and not path.exists():
        raise RequestError(f"there is no store at {path} yet, so there is nothing to back up")
    mark = _mark(config.store, now)
    kind = "export" if path is None else "sqlite"
    file, folder = _place(config, target, kind, now)
    if folder is None and keep is not None:
        raise InvalidInput(
            "--keep counts the backups in a folder; name a folder, or leave --keep out"
        )
    _refuse_other_file(file, mark.store)
    _clear_leftovers(file.parent, file.name if folder is None else f"{_name(config.store)}-")
    try:
        with scratch_beside(file) as scratch:
            records = _write(config, scratch, mark, progress)
            size, sha256 = _measured(scratch)
            put_in_place(scratch, file)
    except OSError as exc:
        raise not_written(file, exc) from exc
    removed = _remove_oldest(folder, file, mark.store, keep) if folder and keep else ()
    return BackedUp(file, kind, records, size, sha256, removed)


def _write(config: Config, scratch: Path, mark: "Mark", progress: Progress) -> int:
    """Write a copy of the store and read it back; return how many records it has."""
    path = sqlite_file(config.store)
    if path is not None:
        from memories.stores.sqlite.backup import copy_out

        return copy_out(path, scratch, mark)
    with (
        contextlib.closing(open_store(config.store, None, config)) as store,
        scratch.open("wb") as stream,
    ):
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
            raise StoreError(
                f"what was written to {scratch.parent} could not be read back; nothing was kept"
            )
    return written


def _mark(url: str, now: datetime) -> "Mark":
    from memories.stores.sqlite.backup import Mark, identity_of

    path = sqlite_file(url)
    return Mark(
        digest(re.sub(r"//[^/@]*@", "//", url)) if path is None else identity_of(path), to_iso(now)
    )


def _place(
    config: Config, target: str | None, kind: str, now: datetime
) -> tuple[Path, Path | None]:
    """Return the file to write and, if it gets its name here, its folder."""
    given = config.home / "backups" if target is None else Path(target).expanduser().absolute()
    if target is not None and not given.is_dir() and not target.endswith(("/", os.sep)):
        if not given.parent.is_dir():
            raise InvalidInput(f"there is no folder {given.parent}; make it, or name another file")
        return given, None
    try:
        make_folder(given)
    except OSError as exc:
        raise not_written(given, exc) from exc
    stem = f"{_name(config.store)}-{now:%Y%m%dT%H%M%SZ}"
    taken = iter(["", *(f"-{number}" for number in range(2, 1000))])
    file = next(
        found
        for extra in taken
        if not os.path.lexists(found := given / f"{stem}{extra}{_ENDINGS[kind]}")
    )
    return file, given


def _name(url: str) -> str:
    """Return a name for a store that a file can have."""
    path = sqlite_file(url)
    if path is not None:
        return _UNSAFE.sub("-", path.stem).strip("-.") or "memories"
    kind, _, rest = without_password(url).partition("://")
    last = rest.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition("@")[2]
    return _UNSAFE.sub("-", f"{kind}-{last}").strip("-.")


def _refuse_other_file(file: Path, store: str) -> None:
    """Refuse to replace anything but a backup of the same store.

    Raises:
        RequestError: Something else is there.
    """
    if not os.path.lexists(file):
        return
    in_use = os.path.lexists(f"{file}.lock")  # a store, be it one that was made of a backup
    mark = None if in_use or file.is_symlink() or not file.is_file() else mark_in(file)
    if mark is None or mark.store != store:
        what = "is a backup of another store" if mark else "is there already and is no backup"
        raise RequestError(f"{file} {what}; nothing was written; name another file")


def mark_in(file: Path) -> "Mark | None":
    """Return what a backup of either kind says of itself; None if the file is none."""
    from memories.stores.sqlite.backup import Mark, is_database, mark_of

    try:
        if is_database(file):
            return mark_of(file)
        with open_file(file) as stream:
            header = read_header(stream.readline(_MAX_HEADER).decode())
        return None if header.backup is None else Mark(**header.backup)
    except (OSError, StoreError, ValueError, TypeError):
        return None


def backups_of(config: Config) -> tuple[str, ...]:
    """Return the backups of the store in the folder `backups` of the home; they keep what is
    forgotten in the store.
    """
    store, folder = _mark(config.store, datetime.now(UTC)).store, config.home / "backups"
    files = sorted(folder.glob(f"{glob.escape(_name(config.store))}-*"))
    return tuple(
        str(file) for file in files if (mark := mark_in(file)) is not None and mark.store == store
    )


def _remove_oldest(folder: Path, newest: Path, store: str, keep: int) -> tuple[Path, ...]:
    """Remove the oldest backups of a store that got their names here; the newest one stays."""
    named = re.compile(
        rf"{re.escape(re.sub(r'-[0-9]{8}T.*', '', newest.name))}-\d{{8}}T\d{{6}}Z(-\d+)?\.(db|jsonl)"
    )
    found: list[tuple[str, Path]] = []
    for file in folder.iterdir():
        if (
            file != newest
            and named.fullmatch(file.name)
            and not file.is_symlink()
            and file.is_file()
        ):
            mark = mark_in(file)
            if mark is not None and mark.store == store:
                found.append((mark.at, file))
    gone = [file for _, file in sorted(found, reverse=True)[max(0, keep - 1) :]]
    for file in gone:
        file.unlink()
    return tuple(sorted(gone))


@contextlib.contextmanager
def scratch_beside(file: Path, ending: str = "new") -> Iterator[Path]:
    """Give an empty file beside another one, for its owner only; nothing of it is left afterwards.

    It is locked while it is in use, so that what a process left that was killed can be told from
    it.
    """
    scratch = file.with_name(f".{file.name}.{os.urandom(4).hex()}.{ending}")
    with tried(scratch, 0):
        try:
            yield scratch
        finally:
            _remove(scratch)


def _clear_leftovers(folder: Path, name: str, ending: str = "new") -> None:
    """Remove what backups or restores left that were killed."""
    for left in folder.glob(f".{glob.escape(name)}*.{ending}"):
        with tried(left, 0) as unused:
            if unused:
                _remove(left)


def _remove(file: Path) -> None:
    for suffix in _SIDE_FILES:
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _measured(file: Path) -> tuple[int, str]:
    made = hashlib.sha256()
    with open_file(file) as stream:
        while piece := stream.read(_PIECE):
            made.update(piece)
    return file.stat().st_size, made.hexdigest()


def not_written(file: Path, exc: OSError) -> StoreError:
    """Return the error for a file that the system did not let us write."""
    return StoreError(
        f"cannot write {file}: {exc.strerror or exc}; make room there or name another place"
    )


# --- restore
# ---------------------------------------------------------------------------------------------------------


def restore(
    config: Config,
    source: Path,
    embedder: Embedder | None,
    *,
    replace: bool = False,
    now: datetime,
    progress: Progress,
) -> Restored:
    """Make the store of the settings from a backup, a snapshot of an upgrade, or an export.

    A SQLite store is put in place in one step, once all of it was read and checked: whatever
    happens, there is the old store or the new one. Any other store has to be empty.

    Args:
        config: The settings.
        source: The file; it is not changed.
        embedder: Makes the vectors that an export does not have.
        replace: Keep a SQLite store that is there under another name, and restore in its place.
        now: The time, for that name.
        progress: Is told how much is done.

    Raises:
        RequestError: There is a store already, or the file can't be restored into this kind of
            store.
        StoreDamaged: The file is cut or damaged; nothing was changed.
    """
    if not source.is_file():
        raise InvalidInput(f"{source} is not a file; name a backup or an export")
    path = sqlite_file(config.store)
    if path is None:
        done = _import_whole(config, source, embedder, replace=replace, progress=progress)
        marked = mark_in(source)
        return done._replace(made_at=marked.at if marked else None)
    if path.exists() and source.samefile(path):
        raise InvalidInput(f"{source} is the store itself; name a backup of it")
    refuse_store(path, replace=replace)
    from memories.stores.sqlite.backup import put_back, refuse_logs

    refuse_logs(source, path)
    marked = mark_in(source)
    aside = (
        path.with_name(f"{path.name}.replaced-{now:%Y%m%dT%H%M%S}Z-{os.urandom(2).hex()}")
        if replace
        else None
    )
    try:
        make_folder(path.parent)
        _clear_leftovers(path.parent, f"{path.name}.", "restore")
        with scratch_beside(path, "restore") as scratch:
            done = _build(config, source, scratch, embedder, progress)
            put_back(
                scratch, path, aside, records=done.records, mark=marked or _mark(config.store, now)
            )
    except OSError as exc:
        raise not_written(path, exc) from exc
    kept = (
        () if aside is None else (aside, Path(f"{aside}-wal"))
    )  # of a lost store only the log may be there
    found = next((file for file in kept if os.path.lexists(file)), None)
    return done._replace(made_at=marked.at if marked else None, kept=found)


def refuse_store(path: Path, *, replace: bool) -> None:
    """Refuse to restore over a store, or over the log of a lost one.

    Raises:
        RequestError: One is there.
    """
    from memories.stores.sqlite.backup import occupied

    if not replace and any(os.path.lexists(f"{path}{suffix}") for suffix in ("", "-wal")):
        raise occupied(path)


def _build(
    config: Config, source: Path, scratch: Path, embedder: Embedder | None, progress: Progress
) -> Restored:
    """Make a checked store file of a backup, at `scratch`."""
    from memories.stores.sqlite.backup import copy_in, is_database, records_in

    if is_database(source):
        try:
            return Restored(copy_in(source, scratch), None, None)
        except StoreDamaged as exc:
            reason = exc.__cause__ or exc
            raise StoreDamaged(
                f"{source} is no sound backup ({reason}); nothing was changed; use another one"
            ) from exc
    built = Path(f"{scratch}.db")
    there = config._replace(store=f"sqlite:///{built}")
    done = _import_whole(there, source, embedder, replace=False, progress=progress)
    if not built.exists():
        raise RequestError(f"{source} has no records; there is nothing to restore")
    built.replace(scratch)
    if records_in(scratch) != done.records:
        raise StoreError(
            f"{source} could not be read into {scratch.parent} as a whole; nothing was changed"
        )
    return done


def _import_whole(
    config: Config, source: Path, embedder: Embedder | None, *, replace: bool, progress: Progress
) -> Restored:
    """Import an export into an empty store."""
    from memories.stores.sqlite.backup import is_database

    where = without_password(config.store)
    if is_database(source):
        raise InvalidInput(
            f"{source} is a SQLite file and the store is {where}; restore it with --store sqlite:///NEW, then run "
            "memory migrate"
        )
    if replace:
        raise InvalidInput(
            f"only a SQLite store can be replaced as a whole; empty {where} or name another store"
        )
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_file(source))
        size = source.stat().st_size
        try:
            records = check(stream, namespaces=None, own=True).records
        except InvalidInput as exc:
            raise InvalidInput(
                f"{source} is no SQLite backup and no export that can be restored: {exc}"
            ) from exc
        space = embedder.space if embedder else None
        store = stack.enter_context(contextlib.closing(open_store(config.store, space, config)))
        if places(store):
            raise RequestError(
                f"{where} is not empty; to add what it lacks, run: memory import {source} --all-namespaces --trusted"
            )
        stream.seek(0)

        def lines() -> Iterator[bytes]:
            done = 0
            for line in stream:
                done += len(line)
                progress("restoring", done, size)
                yield line

        done = import_(store, lines(), embedder, namespaces=None, intake=Intake(own=True))
        if done.imported != records or total(store, places(store)) != records:
            raise StoreError(
                f"{source} has {records} records and {done.imported} were stored in {where}; run it again"
            )
        return Restored(records, None, None, done.without_vector, done.unchecked)
