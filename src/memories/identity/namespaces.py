"""Whole namespaces, whoever they belong to: what is in one, another name for it, two made one, and
its end.

The records are moved in one transaction, the log with them; only then is the old place emptied. So
a run that was cut short leaves all of it in both places at worst, and a second run finishes it.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from memories.config import is_own_name
from memories.core import events
from memories.core.disk import locked
from memories.errors import InvalidInput, NotFound, RequestError, StoreDamaged
from memories.guard import validate
from memories.guard.origin import origin_of, tags_of
from memories.identity import captured
from memories.models import SHARED
from memories.read.lookup import check_namespace
from memories.read.versions import is_unaccepted, plain_key
from memories.scratchpad import file, metadata
from memories.settings import Config
from memories.stores.chain import (
    CHAIN,
    Link,
    chain_of,
    conversation_digest,
    follow,
    link_of,
    record_of,
)
from memories.stores.protocol import PARTLY_GONE, Store, once_erased
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref
from memories.transfer.backup import backups_of
from memories.transfer.lines import content_hash
from memories.transfer.pages import Place, pages
from memories.write.queue import RetryQueue, files_of

_ALL = (*SEARCHED, Collection.LOG)
_MOST_GROUPS = 10_000_000
_MOST_ENTRIES = 1_000  # of the log, written in one millisecond
_MOST_SHOWN = 20  # tags, writers and conflicts


class Contents(NamedTuple):
    """What is in a namespace.

    Attributes:
        name: The namespace.
        memory_count: Current memories.
        pending_count: Memories that wait for review.
        deleted_count: Memories that can be restored.
        version_count: Versions of all memories.
        turn_count: Turns of conversations; a long message counts each of its parts.
        conversation_count: Conversations.
        key_count: Current memories with a key.
        queued_count: Turns that wait to be stored.
        text_bytes: Size of all texts.
        first_at: When the first of it was written; None if there is nothing.
        last_at: When the last of it was written.
        tags: The most frequent tags of current memories, as `key=value`.
        writers: Who wrote most, and how many versions and turns.
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
    """What a move did.

    Attributes:
        name: The namespace that was moved.
        into: Its name now.
        versions: Versions of memories that were moved.
        turns: Turns that were moved.
        queued: Turns that wait to be stored and were moved.
        left: Records that somebody wrote under the old name meanwhile; a merge moves them too.
    """

    name: str
    into: str
    versions: int
    turns: int
    queued: int
    left: int = 0


class Deleted(NamedTuple):
    """What a deletion erased, or would erase.

    Attributes:
        name: The namespace.
        memories: Memories in any state.
        versions: Their versions.
        turns: Turns.
        queued: Turns that waited to be stored, and events that waited in the inbox.
        entries: Entries of its audit log.
        files: Files and folders beside the store that were its own.
        also_in: Files that may still hold it: backups, and snapshots taken before an upgrade.
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
    """Return what is in a namespace; never what it says.

    Raises:
        NotFound: There is no such namespace.
    """
    name = known(store, config, name)
    tags: Counter[str] = Counter()
    writers: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    times: list[datetime] = []
    conversations: set[str] = set()
    for record in _records(store, name, SEARCHED):
        counts["bytes"] += len(record.text.encode(errors="surrogatepass"))
        times = [min([*times, record.created_at]), max([*times, record.created_at])]
        origin = origin_of(record.labels)
        writers[origin.by if origin else "unknown"] += 1
        if record.ref.collection is Collection.HISTORY:
            conversations.add(record.ref.group)
            counts["turns"] += 1
            continue
        counts["versions"] += 1
        counts["pending"] += is_unaccepted(record)
        counts["deleted"] += record.ended_by == "delete"
        if record.ended_at is None:
            counts["current"] += 1
            counts["keys"] += record.key is not None
            tags.update(f"{key}={value}" for key, value in tags_of(record.labels).items())
    return Contents(
        name, counts["current"], counts["pending"], counts["deleted"], counts["versions"], counts["turns"],
        len(conversations), counts["keys"], len(_queue(config, name).entries()), counts["bytes"],
        times[0] if times else None, times[1] if times else None,
        dict(tags.most_common(_MOST_SHOWN)), dict(writers.most_common(_MOST_SHOWN)),
    )  # fmt: skip


def known(store: Store, config: Config, name: str) -> str:
    """Return the name of a namespace that there is, in its one form.

    Raises:
        NotFound: There is none.
    """
    name = validate.canonical_namespace(name)
    if any(name in store.namespaces(collection) for collection in _ALL) or _queue(config, name):
        return name
    if _own_files(config, name):
        return name
    raise NotFound(f'there is no namespace "{name}"; memory namespaces lists them')


def move(
    store: Store, config: Config, name: str, into: str, *, merge: bool, dry_run: bool = False
) -> Moved:
    """Give all that is in a namespace to another one: memories with all versions, turns, what
    waits, and the log.

    Args:
        store: The store, opened with the space of its vectors.
        config: The settings that name it.
        name: The namespace; it is gone afterwards.
        into: Its new name.
        merge: The other one may be there already. Else it must not.
        dry_run: Change nothing, only find out whether it can be done and how much it is.

    Raises:
        NotFound: There is no such namespace.
        RequestError: The other one is there, or has a key, a conversation or a memory of the same
            name; nothing was changed.
        StoreBusy: What hooks captured is just being stored; nothing was changed.
        StoreDamaged: A record of it can't be read; nothing was changed.
    """
    name, into = (
        known(store, config, name),
        check_namespace(validate.canonical_namespace(into), store, config),
    )
    if name == into:
        raise InvalidInput(f'"{name}" is its name already; give another one')
    if name == SHARED and not merge:
        raise InvalidInput(f"every agent reads {SHARED}, so it keeps its name; to move what is in it: memory "
                           f"namespaces merge {SHARED} {into}")  # fmt: skip
    with captured.at_rest(config):
        with store.transaction():
            sources = {collection: _read(store, name, collection) for collection in _ALL}
            there = _copied(store, sources, (name, into), merge=merge)
            turns, versions = (
                len(sources[each]) for each in (Collection.HISTORY, Collection.MEMORY)
            )
            queued = len(_queue(config, name).entries())
            if dry_run:
                return Moved(name, into, versions, turns, queued)
            for collection in SEARCHED:
                _append(
                    store, [each for each in sources[collection] if each.ref not in there], into
                )
            _append_log(store, sources, name, into)
        _move_files(store, config, name, into)
        store.remove([record.ref for collection in _ALL for record in sources[collection]])
        left = sum(store.count(Place(collection, name).everything()) for collection in SEARCHED)
        if not left:
            _empty(store, name)  # the log of the removal itself
    return Moved(name, into, versions, turns, queued, left)


def delete(store: Store, config: Config, name: str, *, dry_run: bool = False) -> Deleted:
    """Erase a namespace: no byte of it stays in the store and beside it. This cannot be undone.

    Args:
        store: The store.
        config: The settings that name it.
        name: The namespace.
        dry_run: Erase nothing, only return what would go.

    Raises:
        NotFound: There is no such namespace.
        StoreBusy: What hooks captured is just being stored, and nothing was erased.
        ErasureUnfinished: Only a part was erased, or bytes of it may still be in the files;
            deleting it again, or forgetting anything, finishes the erasure.
    """
    name = known(store, config, name)
    refs = {collection: store.refs(Place(collection, name).everything()) for collection in _ALL}
    files = tuple(map(str, _own_files(config, name)))
    waiting = len(_queue(config, name).entries()) + captured.change(
        config, name, None, dry_run=True
    )
    told = Deleted(
        name,
        len({ref.group for ref in refs[Collection.MEMORY]}),
        len(refs[Collection.MEMORY]),
        len(refs[Collection.HISTORY]),
        waiting,
        sum(ref.group == CHAIN for ref in refs[Collection.LOG]),
        files,
    )
    if dry_run:
        return told
    backups = backups_of(config)
    with captured.at_rest(config):
        captured.change(config, name, None)
        events.forget(config.home, lambda event: event.get("namespace") == name)
        _remove_files(config, name)
        events.forget(config.home, lambda event: event.get("namespace") == name)
        with once_erased(PARTLY_GONE) if files or waiting else contextlib.nullcontext():
            return told._replace(also_in=tuple(dict.fromkeys((*_empty(store, name), *backups))))


# --- records
# ---------------------------------------------------------------------------------------------------------


def _records(store: Store, name: str, collections: Sequence[Collection]) -> Iterator[Record]:
    for collection in collections:
        for page in pages(store, Place(collection, name)):
            yield from page


def _read(store: Store, name: str, collection: Collection) -> list[Record]:
    """Return all records of a namespace, without their vectors.

    Raises:
        StoreDamaged: One can't be read.
    """
    found = list(_records(store, name, [collection]))
    if len(found) != len(store.refs(Place(collection, name).everything())):
        raise StoreDamaged(
            f"{name} has damaged records, which a move would lose; see to them first: memory doctor"
        )
    return found


def _copied(
    store: Store,
    sources: Mapping[Collection, Sequence[Record]],
    names: tuple[str, str],
    *,
    merge: bool,
) -> set[Ref]:
    """Return what the other namespace has already, of a move that was cut short.

    Raises:
        RequestError: It has something else under the same address, or anything at all if this is no
            merge.
    """
    there: set[Ref] = set()
    wrong: list[str] = []
    name, into = names
    for collection in SEARCHED:
        place = Place(collection, into)
        groups = {group for _, group in store.groups(place.everything(), limit=_MOST_GROUPS)}
        shared = {record.ref.group for record in sources[collection]} & groups
        same: set[str] = set()
        for group in sorted(shared):
            own = {
                record.ref.position: record
                for record in sources[collection]
                if record.ref.group == group
            }
            others = store.scan(place.everything()._replace(group=group), limit=len(own) + 1)
            copies = [each for each in others if _is_copy(own.get(each.ref.position), each)]
            if len(copies) == len(others):
                there |= {own[each.ref.position].ref for each in copies}
                same.add(group)
        what = "the conversation" if collection is Collection.HISTORY else "the memory"
        wrong += [f'{what} "{validate.shown(group)}"' for group in sorted(shared - same)]
        if not merge and groups - same:
            raise RequestError(
                f'there is a namespace "{into}" already; to make them one: memory namespaces merge {name} {into}'
            )
        if collection is Collection.MEMORY:
            wrong += _taken_keys(
                store, [each for each in sources[collection] if each.ref not in there], into
            )
    if wrong:
        more = f" and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise RequestError(
            f"both have {', '.join(islice(wrong, _MOST_SHOWN))}{more}; delete, rename or retag one of each first; "
            "nothing was changed"
        )
    return there


def _is_copy(own: Record | None, other: Record) -> bool:
    if own is None:
        return False
    return content_hash(own) == content_hash(
        other._replace(ref=other.ref._replace(namespace=own.ref.namespace))
    )


def _taken_keys(store: Store, records: Sequence[Record], into: str) -> Iterator[str]:
    for record in records:
        if record.key is not None and record.ended_at is None:
            where = Filter(Collection.MEMORY, (into,), key=record.key)
            if store.count(where, at_most=1):
                project = record.labels.get("project")
                yield f'the key "{validate.shown(plain_key(record.key) or "")}"' + (
                    f' of the project "{validate.shown(project)}"' if project else ""
                )


def _append(store: Store, records: Sequence[Record], into: str) -> None:
    for start in range(0, len(records), 250):
        page = records[start : start + 250]
        vectors = store.vectors([record.ref for record in page])
        store.append(
            [
                record._replace(
                    ref=record.ref._replace(namespace=into), vectors=vectors.get(record.ref)
                )
                for record in page
            ]
        )


def _append_log(
    store: Store, sources: Mapping[Collection, Sequence[Record]], name: str, into: str
) -> None:
    """Add the log of a namespace to the end of another one's: each entry gets the hash that it has
    there.
    """
    entries = [record for record in sources[Collection.LOG] if record.ref.group == CHAIN]
    times = [record for record in sources[Collection.LOG] if record.ref.group != CHAIN]
    last = store.scan(chain_of(into), limit=1, newest_first=True)
    try:
        head: Link | None = link_of(last[0]) if last else None
        links = [link_of(record) for record in entries]
        begun = link_of(store.scan(chain_of(into), limit=1)[0]) if last else None
    except ValueError as exc:
        raise StoreDamaged(
            f"the log of {name} or {into} can't be read ({exc}); see to it first: memory doctor"
        ) from exc
    digests: dict[str, str] = {}
    if begun is not None and links:
        names = {record.ref.group for record in sources[Collection.HISTORY]}
        digests = {
            conversation_digest(links[0].salt, each): conversation_digest(begun.salt, each)
            for each in names
        }
    position = last[0].ref.position if last else 0
    made: list[Record] = []
    for link in links if not _is_logged(store, links, into) else ():
        salt = "" if begun is not None else link.salt
        head = follow(
            link._replace(namespace=into, salt=salt, changes=_translated(link, digests)), head
        )
        position += 1
        made.append(record_of(head, position))
    known_refs = set(store.refs(Place(Collection.LOG, into).everything()))
    moved = (record._replace(ref=record.ref._replace(namespace=into)) for record in times)
    store.append(made + [record for record in moved if record.ref not in known_refs])


def _is_logged(store: Store, links: Sequence[Link], into: str) -> bool:
    """Return whether a move that was cut short has added these entries already: the last one
    tells.
    """
    if not links:
        return True
    where = chain_of(into)._replace(since=links[-1].at, until=links[-1].at)
    sizes = [len(items) for items in links[-1].changes]
    for record in store.scan(where, limit=_MOST_ENTRIES):
        other = link_of(record)
        if (other.at, other.actor, [len(items) for items in other.changes]) == (
            links[-1].at,
            links[-1].actor,
            sizes,
        ):
            return True
    return False


def _translated(link: Link, digests: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    def item(text: str) -> str:
        digest, dot, positions = text.removeprefix("~").partition(".")
        return f"~{digests.get(digest, digest)}{dot}{positions}" if text.startswith("~") else text

    return tuple((action, *map(item, items)) for action, *items in link.changes)


def _empty(store: Store, name: str) -> tuple[str, ...]:
    """Erase all records of a namespace, until there is none."""
    also_in: tuple[str, ...] = store.remove([])  # finishes what was cut short
    with contextlib.ExitStack() as erased:
        while refs := [
            ref for collection in _ALL for ref in store.refs(Place(collection, name).everything())
        ]:
            also_in = store.remove(refs)
            erased.enter_context(once_erased())
    return also_in


# --- files beside the store
# ------------------------------------------------------------------------------------------


def _queue(config: Config, name: str) -> RetryQueue:
    return RetryQueue.of_turns(*files_of(config, name))


def _own_files(config: Config, name: str) -> list[Path]:
    """Return the files that are kept for a namespace beside the store, those that are there.

    Its folder may have the name of another one, such as `inbox`: only what we write for a namespace
    is its own.
    """
    queue = _queue(config, name).path
    names = ("", ".refused", ".new", ".refused.new", ".lock", ".drain.lock")
    found = [path for each in names if os.path.lexists(path := queue.with_name(queue.name + each))]
    folder = config.home / name
    if folder.is_dir() and not folder.is_symlink():
        described = (metadata.FILE, metadata.SCRATCH)
        found += [
            path
            for path in sorted(folder.iterdir())
            if path.name.lstrip(".").startswith("scratchpad") or path.name in described
        ]
    return found


def _move_files(store: Store, config: Config, name: str, into: str) -> None:
    """Move what waits to be stored, and since when there is the identity; the scratchpad is made
    from the store.
    """
    _queue(config, name).move_to(_queue(config, into))
    captured.change(config, name, into)
    old, new = config.home / name, config.home / into
    begun = [
        at for at in (metadata.read_created(old), metadata.read_created(new)) if at is not None
    ]
    for copy in file.copies_of(file.Place(config.home, name, "")):
        file.keep_copy(file.Place(config.home, into, ""), copy.read_text(encoding="utf-8"))
    _remove_files(config, name)
    if begun and not is_own_name(into, config):
        with contextlib.suppress(OSError), locked(new / ".scratchpad.lock"):
            (new / metadata.FILE).unlink(missing_ok=True)
            where = Filter(Collection.MEMORY, (into,))
            metadata.write(
                new,
                into,
                lambda kind: store.count(where._replace(collection=kind)),
                datetime.now(UTC),
                min(begun),
            )


def _remove_files(config: Config, name: str) -> None:
    for path in _own_files(config, name):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or holds what is not ours
        (config.home / name).rmdir()
