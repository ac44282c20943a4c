"""Erasing memories, conversations and turns, queued turns included."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memories.core.ids import storable
from memories.errors import NotFound
from memories.guard import validate
from memories.guard.origin import CONTINUED
from memories.models import Forgotten
from memories.read.conversations import find_namespace, keep_about, not_own
from memories.stores.chain import reinforcements_of
from memories.stores.protocol import Store, once_erased
from memories.stores.records import SEARCHED, Collection, Filter, Ref
from memories.write.links import unlink
from memories.write.queue import RetryQueue


def memory(store: Store, where: Filter) -> Forgotten:
    """Erase a memory with all its versions; `where` has its namespace and its group."""
    assert where.group is not None
    with store.transaction():  # no other memory keeps its id
        unlink(store, store.scan(where, limit=1, newest_first=True))
    times = reinforcements_of(where.namespaces, where.group)

    def find() -> list[Ref]:
        return [*store.refs(where), *store.refs(times)]

    return _remove(
        store, where.group, find, lambda refs: sum(ref.collection in SEARCHED for ref in refs)
    )


class Turns(NamedTuple):
    """Turns to be erased: those of a conversation, or one of them.

    Attributes:
        store: Where they are.
        namespaces: The namespaces that are read; the first one is the caller's own, and only its
            turns are erased.
        conversation: Its id.
        place: The index of the only turn that is meant; the others keep their indexes. None for all
            of them.
    """

    store: Store
    namespaces: tuple[str, ...]
    conversation: str
    place: int | None

    @property
    def name(self) -> str:
        """The conversation, or the conversation and the index of its turn."""
        name = self._stored_name()
        return name if self.place is None else f"{name}#{validate.index(self.place)}"

    def forget(self, queue: RetryQueue, *, dry_run: bool = False) -> Forgotten:
        """Erase them, and if all are meant, those that are queued too.

        Raises:
            NotFound: There are none.
            RequestError: The conversation is only in a namespace that is read.
        """
        name = self._stored_name()
        waiting = 0
        if self.place is None:
            waiting = len(queue.entries(name)) if dry_run else queue.discard(name)
        else:
            validate.index(self.place)
        refs = functools.partial(self._refs, name)
        if self.place is not None and not dry_run:
            with self.store.transaction():
                keep_about(self.store, refs())
        if dry_run:  # noqa: SIM108
            forgotten = Forgotten(name, self._turns_of(refs()), ())
        else:
            forgotten = _remove(self.store, name, refs, self._turns_of)
        if forgotten.versions or waiting:
            return forgotten._replace(versions=forgotten.versions + waiting)
        where = Filter(Collection.HISTORY, self.namespaces[:1], group=name, state="any")
        finished = None if dry_run else finish(self.store, name, where)
        if finished is None:
            place = find_namespace(self.store, self.namespaces, name)
            if place not in (None, self.namespaces[0]):
                raise not_own(name, place, self.namespaces[0])
            raise NotFound("Conversation not found" if self.place is None else "Turn not found")
        return finished

    def _stored_name(self) -> str:
        """Return the name of the conversation; one of another program as it stands, so that it can
        be removed.
        """
        name = self.conversation
        if isinstance(name, str) and name and storable(name):
            where = Filter(Collection.HISTORY, self.namespaces[:1], group=name, state="any")
            if self.store.count(where, at_most=1):
                return name
        return validate.one_line(name, "conversation id")

    def _turns_of(self, refs: Sequence[Ref]) -> int:
        """Return how many turns these are: the parts of a long message are one."""
        return len(set(refs) - set(self._continued(refs[0].group))) if refs else 0

    def _continued(self, name: str) -> list[Ref]:
        where = Filter(
            Collection.HISTORY,
            self.namespaces[:1],
            group=name,
            state="any",
            labels={CONTINUED: "1"},
        )
        return self.store.refs(where)

    def _refs(self, name: str) -> list[Ref]:
        found = self.store.refs(
            Filter(Collection.HISTORY, self.namespaces[:1], group=name, state="any")
        )
        if self.place is None:
            return found
        continued = {ref.position for ref in self._continued(name)}
        first = last = self.place
        while first in continued:  # a part is not erased by itself
            first -= 1
        while last + 1 in continued:
            last += 1
        return [ref for ref in found if first <= ref.position <= last]


def finish(store: Store, name: str, where: Filter) -> Forgotten | None:
    """Finish an erasure that was cut short, or return None if there is none."""
    return Forgotten(name, 0, store.remove([])) if store.info(where).erasing else None


def _remove(
    store: Store,
    name: str,
    find: Callable[[], Sequence[Ref]],
    count: Callable[[Sequence[Ref]], int],
) -> Forgotten:
    """Erase what `find` returns, without reading it; again if something was added meanwhile."""
    forgotten = Forgotten(name, 0, ())
    with contextlib.ExitStack() as erased:
        while refs := find():
            versions = count(refs)
            also_in = store.remove(refs)
            erased.enter_context(once_erased())
            forgotten = Forgotten(name, forgotten.versions + versions, also_in)
    return forgotten
