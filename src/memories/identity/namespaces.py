"""Describes, renames, merges and deletes whole namespaces.

A move copies the records and the log in one transaction, and then empties the old namespace. If the
move is interrupted, some or all of the contents may be in both namespaces; running the move again
finishes it.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from memories.config import is_own_name
from memories.core import events
from memories.core.disk import locked
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard import validate
from memories.guard.origin import origin_of, tags_of
from memories.models import SHARED
from memories.read.lookup import check_namespace
from memories.read.versions import is_unaccepted
from memories.scratchpad import file
from memories.settings import Config
from memories.stores.audit_log import (
    CHAIN,
    ChainEntry,
    chain_entry,
    chain_of,
    conversation_digest,
    parse_entry,
    record_of,
)
from memories.stores.protocol import PARTLY_GONE, Store, once_erased
from memories.stores.records import SEARCHED, Collection, Record, Ref
from memories.transfer.backup import backups_of
from memories.transfer.moves import (
    append_copies,
    describe_taken_keys,
    explain_unfinished_move,
    find_copies,
)
from memories.transfer.pages import Part, pages
from memories.write import captured
from memories.write.turn_queue import RetryQueue, files_of

_ALL = (*SEARCHED, Collection.LOG)
_MAX_GROUPS = 10_000_000
_MAX_ENTRIES = 1_000  # at most this many log entries from one millisecond are compared
_MAX_SHOWN = 20  # maximum numbers of tags, writers and conflicts shown
_QUEUE_SUFFIXES = ("", ".refused", ".new", ".refused.new", ".lock", ".drain.lock")


class Contents(NamedTuple):
    """Statistics on a namespace's contents.

    Attributes:
        name: The namespace.
        memory_count: The number of current memories.
        pending_count: The number of memories that await review.
        deleted_count: The number of deleted memories, which can be restored.
        version_count: The number of versions of all memories.
        turn_count: The number of conversation turns. Each part of a long message is counted.
        conversation_count: The number of conversations.
        key_count: The number of current memories with a key.
        queued_count: The number of turns waiting to be stored.
        text_bytes: The size of all texts.
        first_at: When its first record was written; None if it is empty.
        last_at: When its last record was written.
        tags: The most frequent tags of current memories as `key=value`, each with its count.
        writers: The most frequent writers, each with the number of versions and turns written.
    """

    name: str
    memory_count: int
    pending_count: int
    deleted_count: int
    version_count: int
    turn_count: int
    conversation_count: int
    key_count: int
    queued_count: int
    text_bytes: int
    first_at: datetime | None
    last_at: datetime | None
    tags: Mapping[str, int]
    writers: Mapping[str, int]


class Moved(NamedTuple):
    """The result of a move.

    Attributes:
        name: The old name.
        into: The new name.
        versions: The number of versions of memories that were moved.
        turns: The number of turns that were moved.
        queued: The number of moved turns that were waiting to be stored.
        left: The number of records written under the old name in the meantime; a later merge moves
            them.
    """

    name: str
    into: str
    versions: int
    turns: int
    queued: int
    left: int = 0


class Deleted(NamedTuple):
    """The result of deleting a namespace, or of a dry run.

    Attributes:
        name: The namespace.
        memories: The number of memories, in any state.
        versions: The number of versions of these memories.
        turns: The number of turns.
        queued: The number of turns that were waiting to be stored, and of events in the inbox.
        entries: The number of entries in the audit log.
        files: The namespace's own files and folders next to the store.
        also_in: Files that may still contain its data: backups, and snapshots taken before an
            upgrade.
    """

    name: str
    memories: int
    versions: int
    turns: int
    queued: int
    entries: int
    files: tuple[str, ...]
    also_in: tuple[str, ...] = ()


def show(store: Store, config: Config, name: str) -> Contents:
    """Return statistics on a namespace's contents, without any text.

    Raises:
        NotFound: There is no such namespace.
    """
    name = find(store, config, name)
    counts: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    writers: Counter[str] = Counter()
    conversations: set[str] = set()
    first_at: datetime | None = None
    last_at: datetime | None = None
    for record in _read_records(store, name, SEARCHED):
        counts["bytes"] += len(record.text.encode(errors="surrogatepass"))
        if first_at is None or record.created_at < first_at:
            first_at = record.created_at
        if last_at is None or record.created_at > last_at:
            last_at = record.created_at
        origin = origin_of(record.labels)
        writers[origin.by if origin else "unknown"] += 1
        if record.ref.collection is Collection.HISTORY:
            conversations.add(record.ref.group)
            counts["turns"] += 1
        else:
            _count_version(record, counts, tags)
    return Contents(
        name=name,
        memory_count=counts["current"],
        pending_count=counts["pending"],
        deleted_count=counts["deleted"],
        version_count=counts["versions"],
        turn_count=counts["turns"],
        conversation_count=len(conversations),
        key_count=counts["keys"],
        queued_count=len(_queue(config, name).entries()),
        text_bytes=counts["bytes"],
        first_at=first_at,
        last_at=last_at,
        tags=dict(tags.most_common(_MAX_SHOWN)),
        writers=dict(writers.most_common(_MAX_SHOWN)),
    )


def _count_version(record: Record, counts: Counter[str], tags: Counter[str]) -> None:
    """Count a version of a memory and, if it is current, its tags."""
    counts["versions"] += 1
    counts["pending"] += is_unaccepted(record)
    counts["deleted"] += record.ended_by == "delete"
    if record.ended_at is None:
        counts["current"] += 1
        counts["keys"] += record.key is not None
        tags.update(f"{key}={value}" for key, value in tags_of(record.labels).items())


def find(store: Store, config: Config, name: str) -> str:
    """Return an existing namespace's canonical name.

    Raises:
        NotFound: There is no such namespace.
    """
    name = validate.canonical_namespace(name)
    if any(name in store.namespaces(collection) for collection in _ALL) or _queue(config, name):
        return name
    if _own_files(config, name):
        return name
    raise NotFound(f'there is no namespace "{name}"; run memory namespaces to list them')


def move(
    store: Store, config: Config, name: str, into: str, *, merge: bool, dry_run: bool = False
) -> Moved:
    """Move everything in a namespace: all versions of memories, stored and queued turns, captured
    events, and the audit log.

    Args:
        store: The store, opened with its vector space.
        config: The settings that name the store.
        name: The namespace. It no longer exists after the move.
        into: The new name.
        merge: Whether a namespace with the new name may already exist.
        dry_run: Change nothing; only check whether the move is possible, and count.

    Raises:
        NotFound: There is no such namespace.
        RequestError: A namespace with the new name exists or, with `merge`, has a conflicting key,
            conversation or memory id; nothing was changed.
        StoreBusy: Captured events are being stored; nothing was changed.
        StoreDamaged: A record can't be read; nothing was changed.
    """
    name = find(store, config, name)
    into = check_namespace(validate.canonical_namespace(into), store, config)
    if name == into:
        raise InvalidInput(f'the namespace is already called "{name}"; give a different name')
    if name == SHARED and not merge:
        raise InvalidInput(
            f"every agent reads {SHARED}, so it keeps its name; to move its memories: memory "
            f"namespaces merge {SHARED} {into}"
        )
    with captured.at_rest(config):
        with store.transaction():
            source = _Source.read(store, name)
            copied = _find_copied(store, source, into, merge=merge)
            moved = Moved(
                name,
                into,
                versions=len(source.records[Collection.MEMORY]),
                turns=len(source.records[Collection.HISTORY]),
                queued=len(_queue(config, name).entries()),
            )
            if dry_run:
                return moved
            for collection in SEARCHED:
                append_copies(store, source.without(collection, copied), into)
            _append_log(store, source, into)
        _move_files(store, config, name, into)
        refs: list[Ref] = []
        for records in source.records.values():
            refs += [record.ref for record in records]
        with explain_unfinished_move(name, into, "repeat the move"):
            store.remove(refs)
        left = sum(store.count(Part(collection, name).filter()) for collection in SEARCHED)
        if not left:
            _empty(store, name)  # erases the log entry that records the removal
    return moved._replace(left=left)


def delete(store: Store, config: Config, name: str, *, dry_run: bool = False) -> Deleted:
    """Erase a namespace; none of its bytes stay in the store or in files next to the store.

    This can't be undone.

    Args:
        store: The store.
        config: The settings that name the store.
        name: The namespace.
        dry_run: Erase nothing; only return what would be erased.

    Raises:
        NotFound: There is no such namespace.
        StoreBusy: Captured events are being stored; nothing was erased.
        ErasureUnfinished: Only a part was erased, or some bytes may remain in the files. Deleting
            the namespace again, or forgetting anything, finishes the erasure.
    """
    name = find(store, config, name)
    refs = {collection: store.refs(Part(collection, name).filter()) for collection in _ALL}
    files = _own_files(config, name)
    events_waiting = captured.change(config, name, None, dry_run=True)
    deleted = Deleted(
        name,
        memories=len({ref.group for ref in refs[Collection.MEMORY]}),
        versions=len(refs[Collection.MEMORY]),
        turns=len(refs[Collection.HISTORY]),
        queued=len(_queue(config, name).entries()) + events_waiting,
        entries=sum(ref.group == CHAIN for ref in refs[Collection.LOG]),
        files=tuple(map(str, files)),
    )
    if dry_run:
        return deleted

    def is_own(event: Mapping[str, Any]) -> bool:
        return event.get("namespace") == name

    backups = backups_of(config)
    with captured.at_rest(config):
        captured.change(config, name, None)
        events.forget(config.home, is_own)
        _remove_files(config, name)
        events.forget(config.home, is_own)
        with contextlib.ExitStack() as stack:
            if deleted.files or deleted.queued:  # from here on, a failure leaves a partial erasure
                stack.enter_context(once_erased(PARTLY_GONE))
            also_in = dict.fromkeys((*_empty(store, name), *backups))
            return deleted._replace(also_in=tuple(also_in))


class _Source(NamedTuple):
    """All records of the namespace to be moved, without their vectors."""

    name: str
    records: Mapping[Collection, Sequence[Record]]

    @classmethod
    def read(cls, store: Store, name: str) -> Self:
        """Read the records.

        Raises:
            StoreDamaged: A record can't be read.
        """
        records = {}
        for collection in _ALL:
            records[collection] = list(_read_records(store, name, [collection]))
            count = len(store.refs(Part(collection, name).filter()))
            if len(records[collection]) != count:
                raise StoreDamaged(
                    f"{name} contains damaged records, which a move would lose; repair or remove "
                    "them first: memory doctor"
                )
        return cls(name, records)

    def without(self, collection: Collection, refs: set[Ref]) -> list[Record]:
        """Return a collection's records, except those with the given references."""
        return [record for record in self.records[collection] if record.ref not in refs]


def _read_records(store: Store, name: str, collections: Sequence[Collection]) -> Iterator[Record]:
    for collection in collections:
        for page in pages(store, Part(collection, name)):
            yield from page


def _find_copied(store: Store, source: _Source, into: str, *, merge: bool) -> set[Ref]:
    """Return the records that an interrupted move has already copied to the other namespace.

    Raises:
        RequestError: The other namespace has a different record at the same address, or it isn't
            empty and `merge` is False.
    """
    copied: set[Ref] = set()
    conflicts: list[str] = []
    for collection in SEARCHED:
        part = Part(collection, into)
        groups = {group for _, group in store.groups(part.filter(), limit=_MAX_GROUPS)}
        shared = {record.ref.group for record in source.records[collection]} & groups
        copied_groups: set[str] = set()
        for group in sorted(shared):
            own = [record for record in source.records[collection] if record.ref.group == group]
            refs = find_copies(store, own, into)
            if refs is not None:
                copied |= refs
                copied_groups.add(group)
        kind = "the conversation" if collection is Collection.HISTORY else "the memory"
        conflicts += [
            f'{kind} "{validate.shown(group)}"' for group in sorted(shared - copied_groups)
        ]
        if not merge and groups - copied_groups:
            raise RequestError(
                f'there is already a namespace "{into}"; to merge them: memory namespaces merge '
                f"{source.name} {into}"
            )
        if collection is Collection.MEMORY:
            conflicts += describe_taken_keys(store, source.without(collection, copied), into)
    if conflicts:
        names = ", ".join(conflicts[:_MAX_SHOWN])
        if len(conflicts) > _MAX_SHOWN:
            names += f" and {len(conflicts) - _MAX_SHOWN} more"
        raise RequestError(
            f"both namespaces have {names}; in one of the namespaces, delete, rename or retag them "
            "first; nothing was changed"
        )
    return copied


def _append_log(store: Store, source: _Source, into: str) -> None:
    """Append the log to the other namespace's log. Each copied entry gets a new hash."""
    log = source.records[Collection.LOG]
    last = store.scan(chain_of(into), limit=1, newest_first=True)
    first = store.scan(chain_of(into), limit=1) if last else []
    try:
        entries = [parse_entry(record) for record in log if record.ref.group == CHAIN]
        head: ChainEntry | None = parse_entry(last[0]) if last else None
        salt = parse_entry(first[0]).salt if first else None
    except ValueError as exc:
        raise StoreDamaged(
            f"cannot read the log of {source.name} or {into} ({exc}); repair it first: memory "
            "doctor"
        ) from exc
    digests: dict[str, str] = {}
    if salt is not None and entries:
        for group in {record.ref.group for record in source.records[Collection.HISTORY]}:
            digest = conversation_digest(entries[0].salt, group)
            digests[digest] = conversation_digest(salt, group)
    position = last[0].ref.position if last else 0
    added: list[Record] = []
    if _is_logged(store, entries, into):
        entries = []
    for entry in entries:
        changes = _translate(entry, digests)
        own_salt = entry.salt if salt is None else ""
        head = chain_entry(entry._replace(namespace=into, salt=own_salt, changes=changes), head)
        position += 1
        added.append(record_of(head, position))
    existing = set(store.refs(Part(Collection.LOG, into).filter()))
    for record in log:
        ref = record.ref._replace(namespace=into)
        if record.ref.group != CHAIN and ref not in existing:
            added.append(record._replace(ref=ref))
    store.append(added)


def _is_logged(store: Store, entries: Sequence[ChainEntry], into: str) -> bool:
    """Return whether an interrupted move has already appended the log, judging by its last
    entry.
    """
    if not entries:
        return True
    last = entries[-1]
    sizes = list(map(len, last.changes))
    same_time = chain_of(into)._replace(since=last.at, until=last.at)
    for record in store.scan(same_time, limit=_MAX_ENTRIES):
        other = parse_entry(record)
        other_sizes = list(map(len, other.changes))
        if (other.at, other.actor, other_sizes) == (last.at, last.actor, sizes):
            return True
    return False


def _translate(entry: ChainEntry, digests: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return an entry's changes, with each conversation's digest replaced by its digest in the new
    log, which has a different salt.
    """

    def translate(item: str) -> str:
        if not item.startswith("~"):
            return item
        digest, dot, positions = item[1:].partition(".")
        return f"~{digests.get(digest, digest)}{dot}{positions}"

    return tuple((action, *map(translate, items)) for action, *items in entry.changes)


def _empty(store: Store, name: str) -> tuple[str, ...]:
    """Erase records in a namespace until none are left."""
    also_in: tuple[str, ...] = store.remove([])  # finishes an interrupted erasure
    with contextlib.ExitStack() as erased:
        while True:
            refs: list[Ref] = []
            for collection in _ALL:
                refs += store.refs(Part(collection, name).filter())
            if not refs:
                return also_in
            also_in = store.remove(refs)
            erased.enter_context(once_erased())


def _queue(config: Config, name: str) -> RetryQueue:
    return RetryQueue.of_turns(*files_of(config, name))


def _own_files(config: Config, name: str) -> list[Path]:
    """Return a namespace's existing files next to the store.

    The namespace's folder may also serve a different purpose, as the folder `inbox` does. So only
    files that we write for a namespace are returned.
    """
    queue = _queue(config, name).path
    paths = [queue.with_name(queue.name + suffix) for suffix in _QUEUE_SUFFIXES]
    paths = [path for path in paths if os.path.lexists(path)]
    folder = config.home / name
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            is_scratchpad = path.name.lstrip(".").startswith("scratchpad")
            if is_scratchpad or path.name in (file.METADATA, file.METADATA_SCRATCH):
                paths.append(path)
    return paths


def _move_files(store: Store, config: Config, name: str, into: str) -> None:
    """Move queued turns, captured events, and the time when the namespace was created.

    The scratchpad is not moved, since it is rebuilt from the store.
    """
    _queue(config, name).move_to(_queue(config, into))
    captured.change(config, name, into)
    old, new = config.home / name, config.home / into
    created = [file.read_created(old), file.read_created(new)]
    times = [created_at for created_at in created if created_at is not None]
    for copy in file.copies_of(file.PadFile(config.home, name, "")):
        file.keep_copy(file.PadFile(config.home, into, ""), copy.read_text(encoding="utf-8"))
    _remove_files(config, name)
    if not times or is_own_name(into, config):
        return
    with contextlib.suppress(OSError), locked(new / ".scratchpad.lock"):
        (new / file.METADATA).unlink(missing_ok=True)
        file.write_metadata(new, into, store, datetime.now(UTC), min(times))


def _remove_files(config: Config, name: str) -> None:
    for path in _own_files(config, name):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder does not exist, or contains other files
        (config.home / name).rmdir()
