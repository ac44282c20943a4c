"""Doctor: what is wrong with a store and around it, which secrets it holds, and saving what can
still be read.

Nothing is changed unless `fix` is called.
"""

import contextlib
import itertools
import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from memories.config import is_own_name
from memories.core import events
from memories.core.disk import put_in_place
from memories.core.urls import without_password
from memories.errors import InvalidInput, MemoriesError, StoreDamaged
from memories.guard.redactor import Redactor
from memories.read import versions
from memories.settings import Config
from memories.stores import local_path, open_store
from memories.stores.protocol import Store
from memories.stores.records import SEARCHED, Collection, Filter, Finding, Record, Ref
from memories.transfer.backup import back_up, not_written, scratch_beside, sqlite_file
from memories.transfer.export import Lines
from memories.transfer.pages import Place, Progress, pages, places

SMALL = 2_000  # records: in so many everything is looked at, in half a second at most
_LEAST_FREE_BYTES = 67_108_864
_LEFT_SECONDS = 3_600  # a scratch file that is younger may be in use
_RESTORE = "put a backup in its place with memory restore FILE --replace, or save what can be read with memory doctor "
_RESTORE += "--salvage FILE"

_MISSING = "commits that were acknowledged are missing"


class Examined(NamedTuple):
    """What an examination found.

    Attributes:
        facts: What was looked at and how it is, by name.
        findings: What is wrong.
    """

    facts: dict[str, Any]
    findings: list[Finding]


class Fixed(NamedTuple):
    """What was repaired, and the backup from before; None where there was nothing to repair."""

    repaired: list[str]
    backup: Path | None


class Salvaged(NamedTuple):
    """What was saved.

    Attributes:
        saved: How many records were written.
        lost: The others, each in a sentence, with its address if that is known.
    """

    saved: int
    lost: list[tuple[str, Ref | None]]


# --- examining
# -------------------------------------------------------------------------------------------------------


def examine(config: Config, *, deep: bool) -> Examined:
    """Look at the store of the settings and at what it lies on.

    Args:
        config: The settings.
        deep: Look at everything in the store, however long it takes.
    """
    done = Examined({"store": without_password(config.store)}, [])
    path = sqlite_file(config.store)
    if path is not None:
        _look_at_engine(done)
    place = local_path(config.store)
    if place is not None:
        _look_at_place(place, done)
        _look_at_owners(place, done)
        _look_for_leftovers(place, done)
    if config.events != events.OFF and (problem := events.problem(config.home)):
        done.findings.append(
            Finding(
                f"operations can't be noted: {problem}", "free the place, or set MEMORY_EVENTS=off"
            )
        )
    if path is not None and not os.path.lexists(path):
        done.facts["records"] = 0
        return done
    try:
        if path is None or not _is_outdated(path, done):
            _look_into(config, done, deep=deep)
    except StoreDamaged as exc:
        done.findings.append(Finding(str(exc), _RESTORE if path is not None else ""))
    except MemoriesError as exc:
        done.findings.append(Finding(f"the store can't be used: {exc}", ""))
    return done


def _look_into(config: Config, done: Examined, *, deep: bool) -> None:
    with contextlib.closing(open_store(config.store, None, config)) as store:
        among = places(store)
        for place in among[:1]:
            info = store.info(place.everything())
            done.facts.update(
                schema_version=info.schema_version, model=info.model, size_bytes=info.size_bytes
            )
            if info.missing_commits:
                done.findings.append(
                    Finding(
                        f"{info.missing_commits} {_MISSING}: the log of the store was cut or removed, or an older copy "
                        "was put in its place",
                        f"{_RESTORE}; to go on without them, run: memory doctor --fix",
                    )
                )
            if info.erasing:
                done.findings.append(
                    Finding(
                        "a forgotten memory still has bytes on the disk",
                        "forget it again when nobody is reading",
                    )
                )
        done.facts["records"] = sum(store.count(place.everything()) for place in among)
        names = {place.namespace for place in among}
        done.facts["namespaces"] = len(names)
        done.findings.extend(
            Finding(
                f'namespace "{name}" has the name of a file of this program, so it has no scratchpad',
                f"run: memory namespaces rename {name} NEW",
            )
            for name in sorted(names)
            if is_own_name(name, config)
        )
        if done.facts.get("model") and config.embedder != "none":
            _look_for_vectors(store, among, done)
        done.findings.extend(store.check(deep=deep or done.facts["records"] <= SMALL))


def _look_for_vectors(store: Store, among: Sequence[Place], done: Examined) -> None:
    """Look for records without vectors in a store of records with them."""
    names = tuple({place.namespace for place in among})
    without = sum(
        store.info(Filter(collection, names)).without_vector_count
        for collection in sorted(SEARCHED)
    )
    if without:
        records = "1 record has" if without == 1 else f"{without} records have"
        done.findings.append(
            Finding(f"{records} no vectors, so searches go by words there", "run: memory reembed")
        )


def _look_at_engine(done: Examined) -> None:
    import apsw

    from memories.stores.sqlite.engine import engine_is_safe

    version = apsw.sqlite_lib_version()
    done.facts["engine"] = f"SQLite {version}"
    if not engine_is_safe(version):
        done.findings.append(
            Finding(
                f"SQLite {version} can lose acknowledged writes (the WAL-reset bug)",
                "install apsw 3.51.3 or newer",
            )
        )


def _look_at_place(place: Path, done: Examined) -> None:
    """Look at the file system that the store is on, and how much room it has."""
    from memories.stores.sqlite.engine import filesystem_of, is_network

    folder = next(folder for folder in (place, *place.parents) if folder.is_dir())
    mounts = Path("/proc/self/mounts")
    if mounts.exists():
        kind = filesystem_of(str(folder.resolve()), mounts.read_text("utf-8", "replace"))
        done.facts["file_system"] = kind
        if place.suffix and is_network(kind):
            done.findings.append(
                Finding(
                    f"{folder} is on a network file system ({kind})",
                    "set MEMORY_HOME to a folder on a local disk",
                )
            )
    for path in (folder, place):
        if path.exists() and not os.access(path, os.W_OK):
            done.findings.append(
                Finding(f"{path} can't be written", "check who owns it and its permissions")
            )
            break
    free = shutil.disk_usage(folder).free
    done.facts["free_bytes"] = free
    size = place.stat().st_size if place.is_file() else 0
    if free < max(_LEAST_FREE_BYTES, size + size // 4):
        done.findings.append(
            Finding(
                f"the disk of {folder} has only {free / 1e6:.0f} MB left, and a backup or an upgrade needs a copy",
                "make room on it",
            )
        )


def _look_at_owners(place: Path, done: Examined) -> None:
    """Look at who may read and write the files of the store."""
    if os.name != "posix":
        return
    own = [Path(f"{place}{suffix}") for suffix in ("", "-wal", "-shm", ".lock")]
    own += sorted(place.parent.glob(f"{place.name}.*.jsonl")) if place.parent.is_dir() else []
    for file in own:
        try:
            found = file.lstat()
        except OSError:
            continue
        if found.st_mode & 0o077 and not file.is_symlink():
            others = "read and write" if found.st_mode & 0o022 else "read"
            mode = "700" if file.is_dir() else "600"
            done.findings.append(
                Finding(f"others may {others} {file}", f"run: chmod {mode} {file}")
            )
        if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
            done.findings.append(
                Finding(
                    f"{file} has {found.st_nlink} names (hard links); processes that use different ones lose writes",
                    f"keep one of those that this lists: find {shlex.quote(str(file.parent))} -inum {found.st_ino}",
                )
            )
        if found.st_uid != os.geteuid():
            done.findings.append(
                Finding(
                    f"{file} belongs to user {found.st_uid}", f"run: chown {os.geteuid()} {file}"
                )
            )


def _look_for_leftovers(place: Path, done: Examined) -> None:
    """Look for what processes left that were killed, and for copies that hold what was forgotten
    since.
    """
    if not place.parent.is_dir():
        return
    from memories.stores.sqlite.connection import COPIES

    kept = [file for kind in COPIES for file in place.parent.glob(f"{place.name}.{kind}")]
    done.facts["older_copies"] = sorted(str(file) for file in kept)
    for file in sorted(place.parent.glob(f".{place.name}*.*")):
        try:
            old = time.time() - file.stat().st_mtime > _LEFT_SECONDS
        except FileNotFoundError:
            continue  # it was in use, and is done now
        if old and file.suffix in (".new", ".restore", ".db"):
            done.findings.append(
                Finding(
                    f"{file} was left by a process that was killed, and may hold memories",
                    f"run: rm {file}",
                )
            )


def _is_outdated(path: Path, done: Examined) -> bool:
    """Return whether a store has an older schema; opening it would upgrade it, so only SQLite's own
    check is run.
    """
    import apsw

    from memories.stores.sqlite import schema
    from memories.stores.sqlite.engine import opened_apart
    from memories.stores.sqlite.errors import translated

    with translated(path):
        try:
            with opened_apart(path) as db:
                version = int(db.pragma("user_version"))
                if db.pragma("application_id") != schema.APPLICATION_ID or version >= len(
                    schema.MIGRATIONS
                ):
                    return False
                messages = [str(row[0]) for row in db.execute("PRAGMA integrity_check(5)")]
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError):
            return False  # opening it properly says why
    done.facts.update(
        schema_version=version, upgrade=f"to {len(schema.MIGRATIONS)}, when it is next used"
    )
    done.findings.extend(
        Finding(f"the file is damaged: {each}", _RESTORE) for each in messages if each != "ok"
    )
    return True


# --- mending and saving
# ----------------------------------------------------------------------------------------------


def fix(config: Config, findings: list[Finding], *, now: datetime, progress: Progress) -> Fixed:
    """Make again what is derived from the records, after a copy was made; records are left as they
    are.

    Where acknowledged commits are missing, the store goes on without them.

    Raises:
        StoreDamaged: No copy could be made; nothing was changed.
    """
    path = sqlite_file(config.store)
    missing = path is not None and any(_MISSING in finding.what for finding in findings)
    if not missing and not any(finding.derived for finding in findings):
        return Fixed([], None)
    if path is None:
        copy, repaired = back_up(config, None, now=now, progress=progress).file, []
    else:
        copy, repaired = _copy_before(path, now), _accepted(path) if missing else []
    with contextlib.closing(open_store(config.store, None, config)) as store:
        return Fixed([*repaired, *store.repair()], copy)


def _copy_before(path: Path, now: datetime) -> Path:
    """Keep a copy of a store as it is, be it damaged."""
    from memories.stores.sqlite.backup import copy_out

    copy = path.with_name(f"{path.name}.before-fix-{now:%Y%m%dT%H%M%S}Z-{os.urandom(2).hex()}")
    try:
        with scratch_beside(copy) as scratch:
            copy_out(path, scratch, None)
            put_in_place(scratch, copy)
    except OSError as exc:
        raise not_written(copy, exc) from exc
    return copy


def _accepted(path: Path) -> list[str]:
    from memories.stores.sqlite.connection import SQLiteFile

    with contextlib.closing(SQLiteFile(path)) as file:
        return [f"the store goes on without {file.accept_loss()} commits that are missing"]


def save(config: Config, target: Path, *, progress: Progress) -> Salvaged:
    """Write every sound record as an export, of a store in whatever state; name the others.

    Args:
        config: The settings.
        target: The file to write; there must be none of its name.
        progress: Is told how many were written.

    Raises:
        StoreDamaged: Nothing can be read.
    """
    if os.path.lexists(target):
        raise InvalidInput(f"{target} is there already; name a new file")
    if not target.absolute().parent.is_dir():
        raise InvalidInput(
            f"there is no folder {target.absolute().parent}; make it, or name another file"
        )
    path = sqlite_file(config.store)
    lost: list[tuple[str, Ref | None]] = []
    try:
        with scratch_beside(target.absolute()) as scratch:
            with scratch.open("wb") as stream:
                lines = Lines(lambda line: stream.write(line.encode()), None)
                found = (
                    _records_of_store(config, lost)
                    if path is None
                    else _records_of_file(path, lost)
                )
                for number, record in enumerate(found, 1):
                    lines.add(record)
                    progress("saving", number, number)
                saved = lines.end()
                stream.flush()
                os.fsync(stream.fileno())
            put_in_place(scratch, target.absolute())
    except OSError as exc:
        raise not_written(target, exc) from exc
    return Salvaged(saved, lost)


def _records_of_file(path: Path, lost: list[tuple[str, Ref | None]]) -> Iterator[Any]:
    from memories.stores.sqlite.salvage import Lost, salvage

    if not path.exists():
        raise InvalidInput(f"there is no store at {path}, so there is nothing to save")
    for found in salvage(path):
        if isinstance(found, Lost):
            number = f"record {found.seq}: " if found.seq else ""
            lost.append((f"{number}{found.why}", found.ref))
        else:
            yield found


def _records_of_store(config: Config, lost: list[tuple[str, Ref | None]]) -> Iterator[Any]:
    with contextlib.closing(open_store(config.store, None, config)) as store:
        with store.transaction():  # outside of one, a store may read as empty what it can't read
            for place in places(store):
                try:
                    for page in pages(store, place):
                        yield from page
                except StoreDamaged as exc:
                    lost.append(
                        (
                            f"the rest of {place.collection} in namespace {place.namespace}: {exc}",
                            None,
                        )
                    )
        lost.extend(
            (finding.what, finding.ref) for finding in store.check(deep=True) if not finding.derived
        )


MAX_FINDINGS = 1_000  # that are named; all are counted
_ERASE = "store again what should stay, without it, and erase the rest: "


def find(
    config: Config, waiting: Iterable[tuple[Path, int, str]], progress: Progress
) -> list[Finding]:
    """Return what holds a secret: memories in all their versions, turns, and what waits to be
    stored.

    Args:
        config: The settings; what they take out is looked for, and secrets if they take out
            nothing.
        waiting: The lines of the queues: the file, the number, and the line.
        progress: Is told how many records were looked at.
    """
    redactor = (config._replace(redact="secrets") if config.redact == "off" else config).redactor()
    found = itertools.chain(_in_store(config, redactor, progress), _in_queues(waiting, redactor))
    named = list(itertools.islice(found, MAX_FINDINGS))
    more = sum(1 for _ in found)
    return named + (
        [Finding(f"{more} more memories and turns hold a secret", "see to these first")]
        if more
        else []
    )


def _in_store(config: Config, redactor: Redactor, progress: Progress) -> Iterator[Finding]:
    seen = 0
    with contextlib.closing(open_store(config.store, None, config)) as store:
        for place in places(store):
            records = itertools.chain.from_iterable(pages(store, place))
            for _, same in itertools.groupby(records, _owner):
                group = list(same)
                seen += len(group)
                progress("looking for secrets", seen, seen)
                held = [
                    (record, kinds) for record in group if (kinds := kinds_in(record, redactor))
                ]
                if held:
                    yield _named(
                        [record for record, _ in held],
                        [kind for _, kinds in held for kind in kinds],
                        redactor,
                    )


def _owner(record: Record) -> tuple[str, int]:
    """Return what is erased as a whole: a memory with its versions, or one turn."""
    return (
        record.ref.group,
        0 if record.ref.collection is Collection.MEMORY else record.ref.position,
    )


def kinds_in(record: Record, redactor: Redactor) -> tuple[str, ...]:
    """Return the kinds of the secrets in a record: its text, labels, key, fields, and the name of
    its conversation.
    """
    texts = [
        record.text,
        record.ref.group,
        record.key or "",
        record.ended_by or "",
        *record.labels,
        *record.labels.values(),
    ]
    texts += [value for value in record.fields.values() if isinstance(value, str)]
    return tuple(kind for text in texts if text for kind in _new(text, redactor))


def _new(text: str, redactor: Redactor) -> tuple[str, ...]:
    """Return the kinds of what is in a text and would be taken out of it now."""
    done = redactor.secrets(text)
    return done.kinds if done.text is not text else ()


def _named(records: Sequence[Record], kinds: Sequence[str], redactor: Redactor) -> Finding:
    ref = records[0].ref
    holds = f"in namespace {ref.namespace} holds {', '.join(sorted(set(kinds)))}"
    name = redactor.secrets(ref.group).text
    plain = name is ref.group
    if ref.collection is Collection.MEMORY:
        numbers = ", ".join(str(record.ref.position) for record in records[:20])
        key = records[-1].key
        said = f" (key {redactor.secrets(versions.plain_key(key) or '').text})" if key else ""
        command = f"memory forget {shlex.quote(name)} -n {ref.namespace} --yes"
        what = f"memory {name}{said}, version {numbers}, {holds}"
    else:
        what = f"turn {ref.position} of conversation {name} {holds}"
        command = f"memory turns forget {shlex.quote(name)} --index {ref.position} -n {ref.namespace} --yes"
    return Finding(what, f"{_ERASE}{command}", ref=ref if plain else None)


def _in_queues(waiting: Iterable[tuple[Path, int, str]], redactor: Redactor) -> Iterator[Finding]:
    for file, number, line in waiting:
        kinds = _new(line, redactor)
        if kinds:
            yield Finding(
                f"line {number} of {file} holds {', '.join(sorted(set(kinds)))}",
                "it is taken out when an agent goes on and the turn is stored; what was refused: read it, then r"
                "emove it",
            )
