"""Moves records to another namespace of the same store, with their versions, times and vectors."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.errors import InvalidInput, RequestError, StoreDamaged, StoreError
from memories.guard import validate
from memories.read.lookup import MAX_VERSIONS, Lookup, check_namespace
from memories.read.versions import FORMER_LINK, LINK, end_version, plain_key
from memories.settings import Config
from memories.stores.audit_log import reinforcements_of
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Record, Ref
from memories.transfer.lines import content_hash
from memories.write.forget import find_repeating
from memories.write.links import find_current_again, leave_correction_chains, settle_links

if TYPE_CHECKING:
    from memories.embedders import Embedder

_PAGE = 250  # number of records moved in one step


class MovedMemories(NamedTuple):
    """The result of moving memories.

    Attributes:
        ids: Their ids, which stay the same.
        namespace: Their old namespace.
        into: Their new namespace.
        versions: The number of their versions.
        current_again: The ids of the memories in the old namespace that are current again, because
            their corrections were moved.
    """

    ids: tuple[str, ...]
    namespace: str
    into: str
    versions: int
    current_again: tuple[str, ...] = ()


def move(
    lookup: Lookup,
    embedder: "Embedder | None",
    memory_ids: Sequence[str],
    to: str,
    config: Config,
    now: datetime,
) -> MovedMemories:
    """Move memories in any state; see `Memories.move`.

    The transaction that copies them also deletes them in their old namespace, so nothing can change
    them there before they are erased.

    Args:
        lookup: The namespace of the memories. Its store leaves the origins of records unchanged.
        embedder: The embedder with which the store was opened; without one, copies get no vectors.
        memory_ids: The ids of the memories.
        to: The other namespace.
        config: The settings; a namespace can't have the name of one of the program's own files.
        now: The time of the move.
    """
    store, namespace = lookup.store, lookup.namespace
    into = check_namespace(validate.canonical_namespace(to), store, config)
    if into == namespace:
        raise InvalidInput(f"the memories are in {into} already; give a different namespace")
    with store.transaction():
        groups = tuple(dict.fromkeys(map(lookup.resolve_own_id, memory_ids)))
        versions: list[Record] = []
        new: list[Record] = []
        for group in groups:
            records = _read(
                store, Filter(Collection.MEMORY, (namespace,), state="any", group=group)
            )
            copies = find_copies(store, records, into, _hash_of_copy)
            if copies is None:
                raise RequestError(
                    f"{into} has other versions of {group}, or another memory with that id; none "
                    f"was moved; if an earlier move was interrupted, forget {group} in {namespace}"
                )
            versions += records
            new += [record for record in records if record.ref not in copies]
        for description in describe_taken_keys(store, new, into):
            raise RequestError(f"{into} already has {description}; nothing was moved")
        append_copies(store, new, into, with_vectors=embedder is not None)
        reinforcements = _copy_reinforcements(store, namespace, groups, into)
        settle_links(store, into, groups)
        live = [record for record in versions if record.ended_at is None]
        leave_correction_chains(store, live)
        store.patch([end_version(record, now, "delete") for record in live])
        current_again = find_current_again(store, live, now)
    repeating = find_repeating(store, namespace, set(groups))
    with explain_unfinished_move(namespace, into, f"forget them in {namespace}"):
        store.remove([*(record.ref for record in versions), *reinforcements, *repeating])
    return MovedMemories(groups, namespace, into, len(versions), current_again)


@contextlib.contextmanager
def explain_unfinished_move(namespace: str, into: str, advice: str) -> Iterator[None]:
    """Make a store's errors say that the records are in the other namespace.

    Args:
        namespace: The namespace from which they are erased.
        into: The namespace to which they were copied.
        advice: How to finish the erasure.
    """
    try:
        yield
    except StoreError as exc:
        why = str(exc).partition(";")[0]
        raise type(exc)(
            f"the memories are now in {into}, but may not be erased completely from {namespace} "
            f"({why}); {advice}"
        ) from exc


def _copy_reinforcements(
    store: Store, namespace: str, groups: Sequence[str], into: str
) -> list[Ref]:
    """Copy the times at which memories were reinforced; return the records to erase."""
    refs: list[Ref] = []
    for group in groups:
        records = _read(store, reinforcements_of((namespace,), group))
        copied = {ref.position for ref in store.refs(reinforcements_of((into,), group))}
        new = [record for record in records if record.ref.position not in copied]
        append_copies(store, new, into, with_vectors=False)
        refs += [record.ref for record in records]
    return refs


def _read(store: Store, where: Filter) -> list[Record]:
    """Return all records that match a filter.

    Raises:
        StoreDamaged: One of them is damaged.
    """
    records = store.scan(where, limit=MAX_VERSIONS)
    if len(records) != len(store.refs(where)):
        raise StoreDamaged(
            f"{where.group} has damaged versions, which a move would lose; see memory doctor; "
            "nothing was moved"
        )
    return records


def _hash_of_copy(record: Record) -> int:
    """Return a hash that is the same for a record and an unchanged copy of it."""
    links = (*LINK, *FORMER_LINK)
    fields = {name: value for name, value in record.fields.items() if name not in links}
    return content_hash(record._replace(ended_at=None, ended_by=None, fields=fields))


def find_copies(
    store: Store,
    records: Sequence[Record],
    into: str,
    digest: Callable[[Record], int] = content_hash,
) -> set[Ref] | None:
    """Return the records of one group that an interrupted move has copied to another namespace.

    Returns:
        Their addresses; None if the other namespace has a different group with that name.
    """
    own = {record.ref.position: record for record in records}
    where = Filter(records[0].ref.collection, (into,), state="any", group=records[0].ref.group)
    refs = set()
    for other in store.scan(where, limit=len(own) + 1):
        record = own.get(other.ref.position)
        if record is None or digest(record) != digest(_renamed(other, record.ref.namespace)):
            return None
        refs.add(record.ref)
    return refs


def describe_taken_keys(store: Store, records: Sequence[Record], into: str) -> Iterator[str]:
    """Describe each key of a live memory that is already taken in the other namespace."""
    for record in records:
        if record.key is None or record.ended_at is not None:
            continue
        if store.count(Filter(Collection.MEMORY, (into,), key=record.key), at_most=1):
            description = f'the key "{validate.shown(plain_key(record.key) or "")}"'
            project = record.labels.get("project")
            if project:
                description += f' of the project "{validate.shown(project)}"'
            yield description


def append_copies(
    store: Store, records: Sequence[Record], into: str, *, with_vectors: bool = True
) -> None:
    """Add copies of records to another namespace."""
    for start in range(0, len(records), _PAGE):
        page = records[start : start + _PAGE]
        vectors = store.vectors([record.ref for record in page]) if with_vectors else {}
        store.append(
            [_renamed(record, into)._replace(vectors=vectors.get(record.ref)) for record in page]
        )


def _renamed(record: Record, namespace: str) -> Record:
    return record._replace(ref=record.ref._replace(namespace=namespace))
