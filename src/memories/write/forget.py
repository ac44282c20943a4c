"""Permanently erases memories, conversations and turns, including queued and captured turns."""

import contextlib
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from memories.core.ids import storable
from memories.errors import NotFound, RequestError
from memories.guard import validate
from memories.guard.origin import CONTINUED, HELD
from memories.models import Forgotten
from memories.read.conversations import find_namespace, keep_about, not_own
from memories.read.lookup import Lookup
from memories.read.names import conversation_in, conversation_of
from memories.read.selector import Selector
from memories.read.turns import refs_of
from memories.read.versions import PROPOSED, has_link
from memories.stores.audit_log import reinforcements_of
from memories.stores.protocol import PARTLY_GONE, Store, once_erased, scan_pages
from memories.stores.records import SEARCHED, Collection, Filter, Record, Ref
from memories.write.bulk import Affected, BulkTally, in_batches, select
from memories.write.links import find_current_again, leave_correction_chains

if TYPE_CHECKING:
    from memories.write.captured import UnstoredTexts

_UNLINKED = "links to other memories were removed, but not the content"
_BATCH = 2_000  # maximum number of memories or turns per removal


def forget_memory(lookup: Lookup, group: str, now: datetime) -> Forgotten:
    """Erase a memory with all its versions."""
    store, where = lookup.store, lookup.own.where(state="any", group=group)
    with store.transaction():  # so that no other memory keeps a link to this one
        latest = store.scan(where, limit=1, newest_first=True)
        leave_correction_chains(store, latest)
        current_again = find_current_again(store, latest, now)
    reinforcements = reinforcements_of(where.namespaces, group)

    def find() -> list[Ref]:
        repeating = find_repeating(store, lookup.namespace, {group})
        return [*store.refs(where), *store.refs(reinforcements), *repeating]

    def count_versions(refs: Sequence[Ref]) -> int:
        return sum(ref.collection in SEARCHED and ref.group == group for ref in refs)

    with once_erased(_UNLINKED) if any(map(has_link, latest)) else contextlib.nullcontext():
        forgotten = _remove(store, group, find, count_versions)
    return forgotten._replace(current_again=current_again)


def find_repeating(store: Store, namespace: str, groups: set[str]) -> list[Ref]:
    """Return the records with other ids that repeat the text of these memories.

    These are proposals of `memory tidy` that quote them, and memories that a review merged into
    them.
    """
    repeating: list[Ref] = []
    held = Filter(Collection.MEMORY, (namespace,), state="ended", labels={HELD: "1"})
    for page in scan_pages(store, held):
        for record in page:
            action = json.loads(record.fields.get(PROPOSED, "{}"))
            related = {action.get(name) for name in ("id", "corrects", "same_as")}
            if record.ended_at == record.created_at:  # it was held for review
                related.add(record.fields.get("superseded_by"))
            if not groups.isdisjoint(related):
                repeating.append(record.ref)
    return repeating


def finish_erasure(store: Store, name: str, where: Filter) -> Forgotten | None:
    """Finish an interrupted erasure and return its result; return None if no erasure was
    interrupted.
    """
    if store.info(where).erasing:
        return Forgotten(name, 0, store.remove([]))
    return None


class Turns(NamedTuple):
    """Turns to erase: an entire conversation, or one of its turns.

    Attributes:
        store: The store that contains the turns.
        namespaces: The namespaces to read; the first one is the caller's own, and only its turns
            are erased.
        conversation: The id of the conversation.
        place: The index of a single turn; None for the entire conversation. Erasing one turn leaves
            the indexes of the others unchanged.
    """

    store: Store
    namespaces: tuple[str, ...]
    conversation: str
    place: int | None

    @property
    def name(self) -> str:
        """The conversation's name, followed by `#` and the index if only one turn is erased."""
        name = self._stored_name()
        if self.place is None:
            return name
        return f"{name}#{validate.whole_number(self.place, 'index')}"

    def forget(self, waiting: "UnstoredTexts", *, dry_run: bool = False) -> Forgotten:
        """Erase the turns. For an entire conversation, erase its waiting turns too.

        Raises:
            NotFound: There are no such turns.
            RequestError: The conversation is only in a read-only namespace.
        """
        name = self._stored_name()
        discarded = 0
        if self.place is None:
            discarded = waiting.discard(name, dry_run=dry_run)
        else:
            validate.whole_number(self.place, "index")
        find = functools.partial(self._find_refs, name)
        if self.place is not None and not dry_run:
            with self.store.transaction():
                keep_about(self.store, find())
        if dry_run:
            forgotten = Forgotten(name, self._count_turns(find()), ())
        else:
            forgotten = _remove(self.store, name, find, self._count_turns)
        if forgotten.versions or discarded:
            return forgotten._replace(versions=forgotten.versions + discarded)
        finished = None
        if not dry_run:
            finished = finish_erasure(self.store, name, self._where(name))
        if finished is not None:
            return finished
        own, namespace = self.namespaces[0], find_namespace(self.store, self.namespaces, name)
        if namespace not in (None, own):
            raise not_own(name, namespace, own)
        raise NotFound("Conversation not found" if self.place is None else "Turn not found")

    def _stored_name(self) -> str:
        """Return the conversation's name.

        The name of a stored conversation is not validated, so that conversations named by other
        programs can be removed too.
        """
        name = self.conversation
        can_be_stored = isinstance(name, str) and bool(name) and storable(name)
        if can_be_stored and self.store.count(self._where(name), at_most=1):
            return name
        return validate.one_line(name, "conversation id")

    def _where(self, name: str) -> Filter:
        return Filter(Collection.HISTORY, self.namespaces[:1], group=name, state="any")

    def _count_turns(self, refs: Sequence[Ref]) -> int:
        """Count turns; the parts of a long message are one turn."""
        if refs:
            return len({*refs} - {*self._find_continued(refs[0].group)})
        return 0

    def _find_continued(self, name: str) -> list[Ref]:
        return self.store.refs(self._where(name)._replace(labels={CONTINUED: "1"}))

    def _find_refs(self, name: str) -> list[Ref]:
        refs = self.store.refs(self._where(name))
        if self.place is None:
            return refs
        continued = {ref.position for ref in self._find_continued(name)}
        first = last = self.place
        while first in continued:  # a part of a message can't be erased on its own
            first -= 1
        while last + 1 in continued:
            last += 1
        return [ref for ref in refs if first <= ref.position <= last]


def forget_selected(
    lookup: Lookup, selectors: Sequence[Selector], waiting: "UnstoredTexts", *, dry_run: bool
) -> Affected:
    """Erase the selected memories and turns; see `Memories.forget_where`.

    Args:
        lookup: The namespace.
        selectors: Memories in any state, or turns.
        waiting: The waiting turns, which are erased with their whole conversation.
        dry_run: Only return what would be erased.
    """
    tally = BulkTally()
    also_in: tuple[str, ...] = ()
    for selector in selectors:
        conversation = selector.whole_conversation()
        if conversation is not None:
            tally.count("forget", waiting.discard(conversation, dry_run=dry_run))
        records = select(lookup.store, selector, lookup.namespace)
        now = selector.instant.now
        also_in = _erase_all(lookup.store, records, tally, now, dry_run=dry_run) or also_in
    return tally.result(dry_run=dry_run, also_in=also_in)


def forget_with_turns(
    turns: Turns, waiting: "UnstoredTexts", now: datetime, *, dry_run: bool
) -> Forgotten:
    """Erase turns and the memories that were made from them; see `Memories.forget_turns`.

    Memories are erased first, so that after an interruption the turns still identify the memories
    that are left.

    Raises:
        NotFound: There are no such turns or memories.
    """
    tally = BulkTally()
    also_in = _erase_all(turns.store, _find_made_from(turns), tally, now, dry_run=dry_run)
    affected = tally.result(dry_run=dry_run)
    count = affected.counts.get("forget", 0)
    has_erased = count > 0 and not dry_run
    try:
        with once_erased(PARTLY_GONE) if has_erased else contextlib.nullcontext():
            forgotten = turns.forget(waiting, dry_run=dry_run)
    except RequestError:
        if not count:
            raise
        forgotten = Forgotten(turns.name, 0, also_in)
    all_files = tuple(dict.fromkeys((*forgotten.also_in, *also_in)))
    return forgotten._replace(
        memories=count, also_in=all_files, current_again=affected.current_again
    )


def _find_made_from(turns: Turns) -> Iterator[Record]:
    """For each memory, yield the last of its versions that were made from a conversation or a turn.

    A source such as `talk#0` means a turn of `talk` if that conversation exists, otherwise a
    conversation named `talk#0`.
    """
    store, namespaces, name = turns.store, turns.namespaces[:1], turns.name
    is_whole, other = turns.place is None, conversation_in(turns.name)
    is_of_other = is_whole and other != name and find_namespace(store, namespaces, other)
    last: Record | None = None
    for page in scan_pages(store, Filter(Collection.MEMORY, namespaces, state="any")):
        for record in page:  # versions of a memory are consecutive
            if last is not None and last.ref.group != record.ref.group:
                yield last
                last = None
            has_source = record.fields.get("source") == name and not is_of_other
            if has_source or (is_whole and conversation_of(record) == name):
                last = record
    if last is not None:
        yield last


def _erase_all(
    store: Store, records: Iterable[Record], tally: BulkTally, now: datetime, *, dry_run: bool
) -> tuple[str, ...]:
    also_in: tuple[str, ...] = ()
    with contextlib.ExitStack() as erased:
        for batch in in_batches(records, _BATCH):
            tally.add_all("forget", batch)
            if not dry_run:
                also_in = _erase(store, batch, tally) or also_in
                erased.enter_context(once_erased(PARTLY_GONE))
        tally.find_current_again(store, now)
    return also_in


def _erase(store: Store, records: Sequence[Record], tally: BulkTally) -> tuple[str, ...]:
    """Erase turns, and memories with all their versions."""
    memories = [record for record in records if record.ref.collection is Collection.MEMORY]
    turns = [record for record in records if record.ref.collection is Collection.HISTORY]
    with store.transaction():
        tally.note_links(memories)
        leave_correction_chains(store, memories)
        keep_about(store, _refs_of_all(store, turns))
    also_in: tuple[str, ...] = ()
    refs = _refs_of_all(store, records)
    with contextlib.ExitStack() as erased:
        if any(map(has_link, memories)):
            erased.enter_context(once_erased(_UNLINKED))
        while refs:
            also_in = store.remove(refs)
            erased.enter_context(once_erased())
            refs = _refs_of_all(store, memories)
    return also_in


def _refs_of_all(store: Store, records: Sequence[Record]) -> list[Ref]:
    refs: list[Ref] = []
    groups: dict[str, set[str]] = defaultdict(set)  # ids of memories, keyed by namespace
    for record in records:
        ref = record.ref
        if ref.collection is Collection.HISTORY:
            refs += refs_of(record)
        else:
            all_versions = Filter(ref.collection, (ref.namespace,), state="any", group=ref.group)
            refs += store.refs(all_versions)
            refs += store.refs(reinforcements_of((ref.namespace,), ref.group))
            groups[ref.namespace].add(ref.group)
    for namespace, memories in groups.items():
        refs += find_repeating(store, namespace, memories)
    return list(dict.fromkeys(refs))


def _remove(
    store: Store,
    name: str,
    find: Callable[[], Sequence[Ref]],
    count: Callable[[Sequence[Ref]], int],
) -> Forgotten:
    """Erase the records that `find` returns, without reading them. `find` is called until it
    returns none, since more records may be added in the meantime.
    """
    forgotten = Forgotten(name, 0, ())
    with contextlib.ExitStack() as erased:
        while refs := find():
            versions = count(refs)
            also_in = store.remove(refs)
            erased.enter_context(once_erased())
            forgotten = Forgotten(name, forgotten.versions + versions, also_in)
    return forgotten
