"""Erasing memories, conversations and turns, queued turns included."""

from collections.abc import Callable, Sequence

from memories import validate
from memories.errors import NotFound
from memories.models import Forgotten
from memories.stores.chain import reinforced
from memories.stores.protocol import Store
from memories.stores.records import SEARCHED, Collection, Filter, Ref
from memories.write.queue import RetryQueue


def memory(store: Store, where: Filter) -> Forgotten:
    """Erase a memory with all its versions; `where` has its group."""
    assert where.group is not None
    times = reinforced(where.namespaces, where.group)
    return _remove(store, where.group, lambda: [*store.refs(where), *store.refs(times)])


def conversation(store: Store, namespace: str, name: str, queue: RetryQueue) -> Forgotten:
    """Erase a conversation, and the turns that are queued for it.

    Raises:
        NotFound: There is no such conversation.
    """
    name = validate.one_line(name, "conversation id")
    waiting = queue.discard(name)
    where = Filter(Collection.HISTORY, (namespace,), group=name, state="any")
    forgotten = _remove(store, name, lambda: store.refs(where))
    return _found(store, forgotten._replace(versions=forgotten.versions + waiting), where, "Conversation")


def turn(store: Store, namespace: str, name: str, index: int) -> Forgotten:
    """Erase one turn of a conversation; the others keep their indexes.

    Raises:
        NotFound: There is no such turn.
    """
    ref = Ref(Collection.HISTORY, namespace, validate.one_line(name, "conversation id"), validate.index(index))
    where = Filter(Collection.HISTORY, (namespace,), group=ref.group, state="any")
    return _found(store, _remove(store, ref.group, lambda: [ref] if ref in store.refs(where) else []), where, "Turn")


def finish(store: Store, name: str, where: Filter) -> Forgotten | None:
    """Finish an erasure that was cut short, or return None if there is none."""
    return Forgotten(name, 0, store.remove([])) if store.info(where).erasing else None


def _found(store: Store, forgotten: Forgotten, where: Filter, what: str) -> Forgotten:
    if forgotten.versions:
        return forgotten
    finished = finish(store, forgotten.id, where)
    if finished is None:
        raise NotFound(f"{what} not found")
    return finished


def _remove(store: Store, name: str, find: Callable[[], Sequence[Ref]]) -> Forgotten:
    """Erase what `find` returns, without reading it; again if something was added meanwhile."""
    forgotten = Forgotten(name, 0, ())
    while refs := find():
        also_in = store.remove(refs)
        versions = sum(ref.collection in SEARCHED for ref in refs)
        forgotten = Forgotten(name, forgotten.versions + versions, also_in)
    return forgotten
