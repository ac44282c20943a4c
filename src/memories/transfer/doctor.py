"""Doctor: examines and repairs a store, salvages a damaged one, and finds stored secrets.

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
from memories.core.disk import is_read_only, put_in_place
from memories.core.urls import local_path, without_password
from memories.embedders import StoreEmbedder
from memories.errors import ConfigError, InvalidInput, MemoriesError, StoreDamaged
from memories.guard.redactor import Redactor
from memories.guard.validate import amount
from memories.read import versions
from memories.settings import Config
from memories.stores import open_store
from memories.stores.protocol import Store, name_spaces, other_embedder
from memories.stores.records import SEARCHED, Collection, Filter, Finding, Record, Ref
from memories.transfer.backup import back_up, scratch_beside, sqlite_file, write_error
from memories.transfer.export import Lines
from memories.transfer.pages import Part, Progress, count_records, pages, parts_of

SMALL = 2_000  # a store with up to this many records is always examined completely (0.5 s)
_MIN_FREE_BYTES = 67_108_864
_LEFTOVER_SECONDS = 3_600  # a newer scratch file may be in use
_RESTORE = (
    "put a backup in its place with memory restore FILE --replace, or save what can be read with "
    "memory doctor --salvage FILE"
)


class Examined(NamedTuple):
    """The result of an examination.

    Attributes:
        facts: Facts about the store, keyed by name.
        findings: The problems found.
    """

    facts: dict[str, Any]
    findings: list[Finding]


class Fixed(NamedTuple):
    """The repairs, and the backup made before them; None if nothing was repaired."""

    repaired: list[str]
    backup: Path | None


class Salvaged(NamedTuple):
    """The result of `salvage`.

    Attributes:
        saved: The number of records that were written.
        lost: A sentence about each lost record, with the record's address if known.
    """

    saved: int
    lost: list[tuple[str, Ref | None]]


# --- examining


def examine(config: Config, *, deep: bool) -> Examined:
    """Check the configured store and its surroundings.

    Args:
        config: The settings.
        deep: Check everything in the store, however long it takes.
    """
    examined = Examined({"store": without_password(config.store)}, [])
    findings = examined.findings
    path = sqlite_file(config.store)
    if path is not None:
        _examine_engine(examined)
    store = local_path(config.store)
    if store is not None:
        _examine_folder(store, examined)
        findings += _examine_files(store)
        _examine_leftovers(store, examined)
    if config.events != events.OFF:
        problem = events.problem(config.home)
        if problem:
            remedy = _write_remedy(config.home) or "move whatever is in its place out of the way"
            remedy += ", or set MEMORY_EVENTS=off"
            findings.append(Finding(f"operations can't be recorded: {problem}", remedy))
    has_file = path is not None and os.path.lexists(path)
    try:
        if path is None or not has_file or not _examine_outdated(path, examined):
            _examine_store(config, examined, deep=deep)
    except StoreDamaged as exc:
        problem, _, remedy = str(exc).partition("; ")
        findings.append(Finding(problem, remedy or (_RESTORE if path is not None else "")))
    except MemoriesError as exc:
        findings.append(Finding(f"the store can't be used: {exc}", ""))
    return examined


def _write_remedy(path: Path) -> str:
    """Return how to make a file or folder writable; empty if it already is."""
    if os.access(path, os.W_OK):
        return ""
    if is_read_only(path):
        return "mount its file system for writing, or set MEMORY_HOME to a folder on another one"
    return "check its owner and permissions"


def _examine_store(config: Config, examined: Examined, *, deep: bool) -> None:
    facts, findings = examined
    with contextlib.closing(open_store(config.store, None, config)) as store:
        is_limited = False
        try:
            all_parts = parts_of(store)
        except ConfigError:  # a token for a server may cover only some namespaces
            is_limited = True
            all_parts = [Part(kind, config.namespace) for kind in sorted(SEARCHED)]
            facts["limited"] = f"only namespace {config.namespace}; others need another token"
        if all_parts:
            _examine_info(store, all_parts[0], examined)
        findings += _examine_embedder(store, config)
        facts["records"] = count_records(store, all_parts)
        names = {part.namespace for part in all_parts}
        facts["namespaces"] = len(names)
        for name in sorted(names):
            if is_own_name(name, config):
                problem = f'namespace "{name}" has the name of one of this program\'s files'
                remedy = f"run: memory namespaces rename {name} NEW"
                findings.append(Finding(f"{problem}, so it has no scratchpad", remedy))
        if facts.get("model") and config.embedder != "none":
            findings += _find_missing_vectors(store, tuple(names))
        is_deep = deep or facts["records"] <= SMALL
        findings += store.check(deep=is_deep and not is_limited)


def _examine_info(store: Store, part: Part, examined: Examined) -> None:
    info = store.info(part.filter())
    examined.facts["schema_version"] = info.schema_version
    examined.facts["model"] = info.model
    examined.facts["size_bytes"] = info.size_bytes
    if info.missing_commits:
        commits = amount(info.missing_commits, "acknowledged commit is", "acknowledged commits are")
        problem = (
            f"{commits} missing: the store's log was truncated or removed, or the store was "
            "replaced with an older copy"
        )
        remedy = f"{_RESTORE}; to continue without them, run: memory doctor --fix"
        examined.findings.append(Finding(problem, remedy, commits_missing=True))
    if info.erasing:
        problem = "a forgotten memory still has bytes on the disk"
        remedy = "forget it again while no other program is reading the store"
        examined.findings.append(Finding(problem, remedy))


def _examine_embedder(store: Store, config: Config) -> Iterator[Finding]:
    """Check that the embedder exists, has a key, and made the store's vectors."""
    problem = ""
    try:
        embedder = StoreEmbedder(None, config, may_change=True).of(store)
    except ConfigError as exc:
        problem = str(exc)
    else:
        info = store.info(Filter(Collection.MEMORY, (config.namespace,)))
        if embedder is not None and info.model is not None:
            stored, used = name_spaces(info, embedder.space)
            problem = "" if stored == used else str(other_embedder(stored or "", used))
        problem = problem or getattr(embedder, "key_missing", "")
    if problem:
        what, _, remedy = problem.partition("; ")
        yield Finding(f"the embedder can't be used: {what}", remedy)


def _find_missing_vectors(store: Store, namespaces: tuple[str, ...]) -> Iterator[Finding]:
    """Find records without vectors in a store with an embedder."""
    count = 0
    for collection in sorted(SEARCHED):
        count += store.info(Filter(collection, namespaces)).without_vector_count
    if count:
        records = amount(count, "record has", "records have")
        problem = f"{records} no vectors, so they are found by words only"
        yield Finding(problem, "run: memory reembed")


def _examine_engine(examined: Examined) -> None:
    import apsw

    from memories.stores.sqlite.engine import engine_is_safe

    version = apsw.sqlite_lib_version()
    examined.facts["engine"] = f"SQLite {version}"
    if not engine_is_safe(version):
        problem = f"SQLite {version} can lose acknowledged writes (the WAL-reset bug)"
        examined.findings.append(Finding(problem, "install apsw 3.51.3 or newer"))


def _examine_folder(store_path: Path, examined: Examined) -> None:
    """Check the store's file system and its free space."""
    from memories.stores.sqlite.engine import filesystem_of, is_network

    facts, findings = examined
    folder = next(folder for folder in (store_path, *store_path.parents) if folder.is_dir())
    mounts = Path("/proc/self/mounts")
    if mounts.exists():
        kind = filesystem_of(str(folder.resolve()), mounts.read_text("utf-8", "replace"))
        facts["file_system"] = kind
        if store_path.suffix and is_network(kind):
            problem = f"{folder} is on a network file system ({kind})"
            findings.append(Finding(problem, "set MEMORY_HOME to a folder on a local disk"))
    for path in (folder, store_path):
        remedy = _write_remedy(path) if path.exists() else ""
        if remedy:
            findings.append(Finding(f"{path} can't be written", remedy))
            break
    free = shutil.disk_usage(folder).free
    facts["free_bytes"] = free
    size = store_path.stat().st_size if store_path.is_file() else 0
    if free < max(_MIN_FREE_BYTES, size + size // 4):
        problem = f"the disk of {folder} has only {free / 1e6:.0f} MB left"
        needs = "a backup or an upgrade needs room for a copy"
        findings.append(Finding(f"{problem}, and {needs}", "free some space on it"))


def _examine_files(store_path: Path) -> Iterator[Finding]:
    """Check who may read and write the store's files."""
    if os.name != "posix":
        return
    files = [Path(f"{store_path}{suffix}") for suffix in ("", "-wal", "-shm", ".lock")]
    if store_path.parent.is_dir():
        files += sorted(store_path.parent.glob(f"{store_path.name}.*.jsonl"))
    for file in files:
        try:
            status = file.lstat()
        except OSError:
            continue
        if status.st_mode & 0o077 and not file.is_symlink():
            access = "read and write" if status.st_mode & 0o022 else "read"
            mode = "700" if file.is_dir() else "600"
            yield Finding(f"other users may {access} {file}", f"run: chmod {mode} {file}")
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            find_names = f"find {shlex.quote(str(file.parent))} -inum {status.st_ino}"
            yield Finding(
                f"{file} has {status.st_nlink} names (hard links); processes that use different "
                "names lose writes",
                f"keep only one of the names that this command lists: {find_names}",
            )
        if status.st_uid != os.geteuid():
            problem = f"{file} belongs to user {status.st_uid}"
            yield Finding(problem, f"run: chown {os.geteuid()} {file}")


def _examine_leftovers(store_path: Path, examined: Examined) -> None:
    """Find old copies, and files left by killed processes; both may contain forgotten memories."""
    if not store_path.parent.is_dir():
        return
    from memories.stores.sqlite.connection import COPIES

    copies: list[str] = []
    for kind in COPIES:
        copies += map(str, store_path.parent.glob(f"{store_path.name}.{kind}"))
    examined.facts["older_copies"] = sorted(copies)
    for file in sorted(store_path.parent.glob(f".{store_path.name}*.*")):
        try:
            age = time.time() - file.stat().st_mtime
        except FileNotFoundError:
            continue  # another process has just removed or renamed the file
        if age > _LEFTOVER_SECONDS and file.suffix in (".new", ".restore", ".db"):
            problem = f"{file} was left behind by a killed process, and may contain memories"
            examined.findings.append(Finding(problem, f"run: rm {file}"))


def _examine_outdated(path: Path, examined: Examined) -> bool:
    """Return whether a store has an earlier released schema; if so, run SQLite's own check on it.

    Other checks would open the store, which would upgrade it.
    """
    import apsw

    from memories.stores.sqlite.engine import (
        APPLICATION_ID,
        FIRST_RELEASED,
        SCHEMA_VERSION,
        open_apart,
        refuse_unsafe,
    )
    from memories.stores.sqlite.errors import sqlite_errors

    refuse_unsafe(path)
    with sqlite_errors(path):
        try:
            with open_apart(path) as db:
                version = int(db.pragma("user_version"))
                is_ours = db.pragma("application_id") == APPLICATION_ID
                if not is_ours or not FIRST_RELEASED <= version < SCHEMA_VERSION:
                    return False
                messages = [str(row[0]) for row in db.execute("PRAGMA integrity_check(5)")]
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError):
            return False  # the error is reported when the file is opened as a store
    examined.facts["schema_version"] = version
    examined.facts["upgrade"] = f"to {SCHEMA_VERSION}, when it is next used"
    for message in messages:
        if message != "ok":
            examined.findings.append(Finding(f"the file is damaged: {message}", _RESTORE))
    return True


# --- repairing and salvaging


def fix(config: Config, findings: list[Finding], *, now: datetime, progress: Progress) -> Fixed:
    """Copy the store, then rebuild its indexes and other derived data; no record is changed.

    If acknowledged commits are missing, accept their loss, so that the store can be used again.

    Raises:
        StoreDamaged: No copy could be made; nothing was changed.
    """
    path = sqlite_file(config.store)
    missing = path is not None and any(finding.commits_missing for finding in findings)
    if not missing and not any(finding.derived for finding in findings):
        return Fixed([], None)
    repaired: list[str] = []
    if path is None:
        copy = back_up(config, None, now=now, progress=progress).file
    else:
        copy = _copy(path, now)
        if missing:
            from memories.stores.sqlite.connection import SQLiteFile

            with contextlib.closing(SQLiteFile(path)) as file:
                lost = amount(file.accept_loss(), "missing commit", "missing commits")
            repaired.append(f"the store continues without {lost}")
    with contextlib.closing(open_store(config.store, None, config)) as store:
        return Fixed([*repaired, *store.repair()], copy)


def _copy(path: Path, now: datetime) -> Path:
    """Copy a store unchanged, even if it is damaged."""
    from memories.stores.sqlite.backup import copy_out

    copy = path.with_name(f"{path.name}.before-fix-{now:%Y%m%dT%H%M%S}Z-{os.urandom(2).hex()}")
    try:
        with scratch_beside(copy) as scratch:
            copy_out(path, scratch, None)
            put_in_place(scratch, copy)
    except OSError as exc:
        raise write_error(copy, exc) from exc
    return copy


def salvage(config: Config, target: Path, *, progress: Progress) -> Salvaged:
    """Write every intact record of a damaged store to an export, and report the others.

    Args:
        config: The settings.
        target: The file to write; it must not exist.
        progress: Called with the number of records written.

    Raises:
        StoreDamaged: Nothing can be read.
    """
    if os.path.lexists(target):
        raise InvalidInput(f"{target} already exists; name a new file")
    if not target.absolute().parent.is_dir():
        raise InvalidInput(
            f"there is no folder {target.absolute().parent}; create it, or name another file"
        )
    lost: list[tuple[str, Ref | None]] = []
    try:
        with scratch_beside(target.absolute()) as scratch:
            with scratch.open("wb") as stream:
                lines = Lines(lambda line: stream.write(line.encode()), None)
                path = sqlite_file(config.store)
                records = (
                    _salvage_store(config, lost) if path is None else _salvage_file(path, lost)
                )
                for number, record in enumerate(records, 1):
                    lines.add(record)
                    progress("saving", number, number)
                saved = lines.end()
                stream.flush()
                os.fsync(stream.fileno())
            put_in_place(scratch, target.absolute())
    except OSError as exc:
        raise write_error(target, exc) from exc
    return Salvaged(saved, lost)


def _salvage_file(path: Path, lost: list[tuple[str, Ref | None]]) -> Iterator[Any]:
    from memories.stores.sqlite.salvage import Lost
    from memories.stores.sqlite.salvage import salvage as salvage_sqlite

    if not path.is_file():
        raise InvalidInput(f"there is no store at {path}, so there is nothing to save")
    for result in salvage_sqlite(path):
        if isinstance(result, Lost):
            number = f"record {result.seq}: " if result.seq else ""
            lost.append((f"{number}{result.why}", result.ref))
        else:
            yield result


def _salvage_store(config: Config, lost: list[tuple[str, Ref | None]]) -> Iterator[Any]:
    with contextlib.closing(open_store(config.store, None, config)) as store:
        with store.transaction():  # outside a transaction, unreadable parts may look empty
            for part in parts_of(store):
                try:
                    for page in pages(store, part):
                        yield from page
                except StoreDamaged as exc:
                    rest = f"the rest of {part.collection} in namespace {part.namespace}"
                    lost.append((f"{rest}: {exc}", None))
        damaged = [finding for finding in store.check(deep=True) if not finding.derived]
        lost.extend((finding.what, finding.ref) for finding in damaged)


# --- secrets

MAX_FINDINGS = 1_000  # maximum number of findings listed; all are counted
_ERASE = "store it again without the secret if you need it, then erase the original: "


def find_secrets(
    config: Config, waiting: Iterable[tuple[Path, int, str]], progress: Progress
) -> list[Finding]:
    """Find secrets in all versions of memories, in stored turns, and in queued turns.

    Args:
        config: The settings. The setting `redact` determines what counts as a secret; if it is
            `off`, the search uses `secrets`.
        waiting: The lines of the queues, each with its file and its line number.
        progress: Called with the number of records searched.
    """
    if config.redact == "off":
        config = config._replace(redact="secrets")
    redactor = config.redactor()
    findings = itertools.chain(
        _search_store(config, redactor, progress), _search_queues(waiting, redactor)
    )
    named = list(itertools.islice(findings, MAX_FINDINGS))
    others = sum(1 for _ in findings)
    if others:
        problem = f"{others} more memories and turns contain a secret"
        named.append(Finding(problem, "erase the listed ones, then run this again"))
    return named


def _search_store(config: Config, redactor: Redactor, progress: Progress) -> Iterator[Finding]:
    searched = 0
    with contextlib.closing(open_store(config.store, None, config)) as store:
        for part in parts_of(store):
            records = itertools.chain.from_iterable(pages(store, part))
            for _, group in itertools.groupby(records, _erased_unit):
                kinds: set[str] = set()
                with_secrets: list[Record] = []
                for record in group:
                    searched += 1
                    record_kinds = kinds_in(record, redactor)
                    if record_kinds:
                        kinds.update(record_kinds)
                        with_secrets.append(record)
                progress("looking for secrets", searched, searched)
                if with_secrets:
                    yield _describe_secrets(with_secrets, kinds, redactor)


def _erased_unit(record: Record) -> tuple[str, int]:
    """Return a key shared by all versions of a memory, which are erased together."""
    if record.ref.collection is Collection.MEMORY:
        return record.ref.group, 0
    return record.ref.group, record.ref.position


def kinds_in(record: Record, redactor: Redactor) -> list[str]:
    """Return the kinds of secrets in a record: in its texts and its conversation's name."""
    texts = [record.text, record.ref.group, record.key or "", record.ended_by or ""]
    texts += [*record.labels, *record.labels.values()]
    texts += [value for value in record.fields.values() if isinstance(value, str)]
    kinds: list[str] = []
    for text in filter(None, texts):
        kinds += _removable_kinds(text, redactor)
    return kinds


def _removable_kinds(text: str, redactor: Redactor) -> tuple[str, ...]:
    """Return the kinds of secrets that redaction would remove from a text."""
    redacted = redactor.secrets(text)
    return redacted.kinds if redacted.text is not text else ()


def _describe_secrets(
    records: Sequence[Record], kinds: Iterable[str], redactor: Redactor
) -> Finding:
    ref = records[0].ref
    name = redactor.secrets(ref.group).text
    namespace = f"-n {ref.namespace} --yes"
    if ref.collection is Collection.MEMORY:
        versions_with = ", ".join(str(record.ref.position) for record in records[:20])
        key = records[-1].key
        shown_key = ""
        if key:
            shown_key = f" (key {redactor.secrets(versions.plain_key(key) or '').text})"
        subject = f"memory {name}{shown_key}, version {versions_with},"
        command = f"memory forget {shlex.quote(name)} {namespace}"
    else:
        subject = f"turn {ref.position} of conversation {name}"
        command = f"memory turns forget {shlex.quote(name)} --index {ref.position} {namespace}"
    problem = f"{subject} in namespace {ref.namespace} contains {', '.join(sorted(set(kinds)))}"
    return Finding(problem, f"{_ERASE}{command}", ref=ref if name is ref.group else None)


def _search_queues(
    waiting: Iterable[tuple[Path, int, str]], redactor: Redactor
) -> Iterator[Finding]:
    for file, number, line in waiting:
        kinds = _removable_kinds(line, redactor)
        if kinds:
            yield Finding(
                f"line {number} of {file} contains {', '.join(sorted(set(kinds)))}",
                "the line is removed when its agent runs again and stores the turn; if the turn "
                "was refused, read the line, then remove it",
            )
