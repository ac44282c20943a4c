"""Changing many memories at once: what an expression selects is deleted, erased or tagged anew.

Records are found a page at a time, without a transaction, and changed in batches. Each batch is one
transaction in which they are looked at again, so that none is changed that somebody else has
changed meanwhile. A run that was cut short has done whole batches; running it again does the rest.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count, by_weight
from memories.core.times import to_iso
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput, RequestError
from memories.guard import validate
from memories.guard.origin import tags_of
from memories.models import Forgotten
from memories.read import versions
from memories.read.conversations import keep_about
from memories.read.lookup import Lookup
from memories.read.selector import Selector, is_from, source_of
from memories.read.turns import group_parts, join_parts, parts_of, refs_of, start_of
from memories.stores.chain import chain_of, reinforcements_of
from memories.stores.protocol import PARTLY_GONE, Store, once_erased
from memories.stores.records import Collection, Filter, Record, Ref
from memories.write.links import relink, unlink, without_links

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.write.forget import Turns
    from memories.write.queue import RetryQueue

BATCH = 10_000  # changes in one transaction: up to here all of them are done or none
PAGE = 250
MAX_STEPS = 1_000  # that an answer tells
MAX_EXCERPT = 200  # characters of a content that a step tells
_HEAVIEST = 64 * 1_048_576  # characters of the texts of a batch
_ERASED = 2_000  # memories or turns that one removal takes
CLOCKS = timedelta(minutes=1)  # by which the clocks of two machines may differ


class Step(NamedTuple):
    """What was done, or would be done, to one memory or turn.

    Attributes:
        id: The memory, or the conversation and the index of the turn.
        action: `delete`, `forget`, `tag`; of a rollback `delete`, `restore`, `update` or `pend`; or
            `left`.
        content: The beginning of what it said before.
        reason: Why it was left as it is.
    """

    id: str
    action: str
    content: str
    reason: str = ""


class Affected(NamedTuple):
    """What a change of many did, or with `dry_run` would do.

    Attributes:
        counts: How many memories or turns by action; see `Step`.
        steps: The first 1,000 of them.
        dry_run: Whether nothing was changed.
        undo_to: The moment before; `Memories.rollback` to it undoes the change. None if that can't
            be undone, or if there was nothing to do.
        undo_where: The expression by which that rollback undoes this change and no later one.
        also_in: Files that may still hold what was forgotten.
    """

    counts: Mapping[str, int]
    steps: tuple[Step, ...]
    dry_run: bool
    undo_to: datetime | None = None
    undo_where: str = ""
    also_in: tuple[str, ...] = ()


class Tally:
    """Counts what is done, and remembers the first steps."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._steps: list[Step] = []

    def add(self, action: str, record: Record, reason: str = "") -> None:
        """Note what was done to a record."""
        self.count(action)
        if len(self._steps) < MAX_STEPS:
            ref = record.ref
            name = (
                ref.group
                if ref.collection is Collection.MEMORY
                else f"{ref.group}#{start_of(record)}"
            )
            cut = len(record.text) > MAX_EXCERPT
            content = record.text[: MAX_EXCERPT - 1] + "…" if cut else record.text
            self._steps.append(Step(name, action, content, reason))

    def count(self, action: str, number: int = 1) -> None:
        """Count what can't be told one by one."""
        self._counts[action] = self._counts.get(action, 0) + number

    def result(
        self, *, dry_run: bool, at: datetime | None = None, also_in: tuple[str, ...] = ()
    ) -> Affected:
        """Return what was done; `at` is when, if that can be undone."""
        done = any(count for action, count in self._counts.items() if action != "left")
        if dry_run or not done or at is None:
            return Affected(self._counts, tuple(self._steps), dry_run, also_in=also_in)
        undo = f'updated = "{to_iso(at)}" or ended = "{to_iso(at)}"'
        before = at - timedelta(milliseconds=1)
        return Affected(self._counts, tuple(self._steps), dry_run, before, undo, also_in)


def moment_after(store: Store, namespace: str, now: datetime) -> datetime:
    """Return a moment that is not before `now` and after every change of a namespace, so that it
    tells them apart.
    """
    last = store.scan(chain_of(namespace), limit=1, newest_first=True)
    behind = bool(last) and now <= last[0].created_at <= now + CLOCKS
    return last[0].created_at + timedelta(milliseconds=1) if behind else now


def delete(lookup: Lookup, selector: Selector, *, dry_run: bool) -> Affected:
    """Delete the current memories that are selected, all at one moment; see
    `Memories.delete_where`.

    Raises:
        InvalidInput: The expression names memories that are not current.
    """
    refuse_states(selector, "deleted")
    tally, store = Tally(), lookup.store
    at = moment_after(store, lookup.namespace, selector.instant.now)
    for batch in _batches(_selected(store, selector, lookup.namespace)):
        if dry_run:
            _add(tally, "delete", batch)
            continue
        with store.transaction():
            for records in _still(store, selector, batch):
                unlink(store, records)
                store.patch([versions.end_version(record, at, "delete") for record in records])
                _add(tally, "delete", records)
    return tally.result(dry_run=dry_run, at=at)


def forget(
    lookup: Lookup, selectors: Sequence[Selector], discard: Callable[[str], int], *, dry_run: bool
) -> Affected:
    """Erase the memories and turns that are selected, for good; see `Memories.forget_where`.

    Args:
        lookup: Where.
        selectors: Which; memories in any state.
        discard: Removes the turns that are queued for a conversation, and returns how many there
            were.
        dry_run: Only tell what would be done.
    """
    tally = Tally()
    also_in: tuple[str, ...] = ()
    for selector in selectors:
        conversation = selector.whole_conversation()
        if conversation is not None and not dry_run:
            tally.count("forget", discard(conversation))
        selected = _selected(lookup.store, selector, lookup.namespace)
        also_in = _erase_all(lookup.store, selected, tally, dry_run=dry_run) or also_in
    return tally.result(dry_run=dry_run, also_in=also_in)


def forget_made_from(lookup: Lookup, source: str, *, dry_run: bool) -> Affected:
    """Erase the memories of which a version was made from a conversation, or from one of its
    turns.
    """
    tally = Tally()
    also_in = _erase_all(
        lookup.store, _made_from(lookup.store, lookup.namespace, source), tally, dry_run=dry_run
    )
    return tally.result(dry_run=dry_run, also_in=also_in)


def forget_with_turns(
    lookup: Lookup, turns: "Turns", queue: "RetryQueue", *, dry_run: bool
) -> Forgotten:
    """Erase turns and the memories that were made from them; see `Memories.forget_turns`.

    The memories come first: were it cut short, the turns would still say which ones.

    Raises:
        NotFound: There is neither.
    """
    gone = forget_made_from(lookup, turns.name, dry_run=dry_run)
    count = gone.counts.get("forget", 0)
    try:
        with once_erased(PARTLY_GONE) if count and not dry_run else contextlib.nullcontext():
            forgotten = turns.forget(queue, dry_run=dry_run)
    except RequestError:
        if not count:
            raise
        forgotten = Forgotten(turns.name, 0, gone.also_in)
    return forgotten._replace(
        memories=count, also_in=tuple(dict.fromkeys((*forgotten.also_in, *gone.also_in)))
    )


def _made_from(store: Store, namespace: str, source: str) -> Iterator[Record]:
    """Yield the last such version of each memory; versions of a memory follow each other."""
    met: Record | None = None
    for page in _pages(store, Filter(Collection.MEMORY, (namespace,), state="any")):
        for record in page:
            if met is not None and met.ref.group != record.ref.group:
                yield met
                met = None
            made_from = source_of(record)
            if made_from is not None and is_from(made_from, source):
                met = record
    if met is not None:
        yield met


class Tagging(NamedTuple):
    """How tags change.

    Attributes:
        tags: Tags to set.
        remove: Keys of tags to remove.
        rename: Keys by their new keys to be, or tags as `key=value` by what they are to be. What
            has both keeps the value that it has under the new key.
    """

    tags: Mapping[str, str]
    remove: Sequence[str] = ()
    rename: Mapping[str, str] = {}

    def checked(self) -> "Tagging":
        """Return the same with acceptable keys and values.

        Raises:
            InvalidInput: One is not acceptable, or nothing is to be done.
        """
        if not self.tags and not self.remove and not self.rename:
            raise InvalidInput(
                "no change of tags was given; name tags to set, to remove or to rename"
            )
        for old, new in self.rename.items():
            if ("=" in old) is not ("=" in new):
                pair = f'"{validate.shown(old)}" and "{validate.shown(new)}"'
                raise InvalidInput(f"{pair} must both be keys, or both be tags such as type=fact")
            for each in (old, new):
                validate.parse_tag(each) if "=" in each else validate.tag_key(each)
        removed = [self.remove] if isinstance(self.remove, str) else self.remove
        return Tagging(
            validate.tags(self.tags), [validate.tag_key(key) for key in removed], self.rename
        )

    def of(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the new tags for present ones."""
        found = dict(tags)
        for old, new in self.rename.items():
            if "=" not in old and old in found:
                value = found.pop(old)
                found.setdefault(new, value)
            elif "=" in old and found.get((pair := validate.parse_tag(old))[0]) == pair[1]:
                del found[pair[0]]
                found.setdefault(*validate.parse_tag(new))
        return {
            key: value for key, value in {**found, **self.tags}.items() if key not in self.remove
        }


def retag(
    lookup: Lookup,
    embedder: "Embedder | None",
    selector: Selector,
    tagging: Tagging,
    *,
    dry_run: bool,
) -> Affected:
    """Give the memories that are selected other tags, as new versions; those that stay the same get
    none.

    Args:
        lookup: Where.
        embedder: Makes vectors that are missing.
        selector: Which memories.
        tagging: How their tags change.
        dry_run: Only tell what would be done.

    Raises:
        InvalidInput: A tag is not acceptable, or the expression names memories that are not
            current.
    """
    refuse_states(selector, "tagged")
    tagging, tally, store = tagging.checked(), Tally(), lookup.store
    at = moment_after(store, lookup.namespace, selector.instant.now)

    def differs(record: Record) -> bool:
        tags = tags_of(record.labels)
        return tagging.of(tags) != tags

    for batch in _batches(_selected(store, selector, lookup.namespace, differs)):
        if dry_run:
            _add(tally, "tag", batch)
            continue
        vectors = vectors_of(store, embedder, batch)
        with store.transaction():
            for records in _still(store, selector, batch):
                pairs = [
                    (record, _tagged(record, tagging, at)) for record in records if differs(record)
                ]
                _replace(lookup, pairs, vectors, tally)
    return tally.result(dry_run=dry_run, at=at)


def refuse_states(selector: Selector, done: str) -> None:
    """Refuse an expression that names memories that are not current.

    Raises:
        InvalidInput: It does.
    """
    if selector.states:
        names = " and ".join(sorted(selector.states))
        raise InvalidInput(f"only current memories can be {done}; leave {names} out of where")


def _tagged(record: Record, tagging: Tagging, at: datetime) -> Record:
    tags = validate.tags(tagging.of(tags_of(record.labels)))
    return versions.next_version(record, "update", at, fresh=False, labels=tags)


def _replace(
    lookup: Lookup, pairs: Sequence[tuple[Record, Record]], vectors: Mapping[Ref, Any], tally: Tally
) -> None:
    """Write the next versions of some memories, but for those whose key another memory has."""
    taken: set[str] = set()
    written: list[tuple[Record, Record]] = []
    for latest, new in pairs:
        if new.key is not None and new.key != latest.key:
            if new.key in taken or lookup.find_by_key(new.key) is not None:
                tally.add(
                    "left",
                    latest,
                    f'another memory has the key "{versions.plain_key(new.key)}" there',
                )
                continue
            taken.add(new.key)
        written.append((latest, new))
        tally.add("tag", latest)
    unlink(lookup.store, [latest for latest, _ in written])
    lookup.store.patch(
        [versions.end_version(latest, new.created_at, "update") for latest, new in written]
    )
    lookup.store.append(
        [without_links(new)._replace(vectors=vectors.get(latest.ref)) for latest, new in written]
    )
    for latest, new in written:
        relink(lookup.store, without_links(new), latest.fields)


def vectors_of(
    store: Store, embedder: "Embedder | None", records: Sequence[Record]
) -> dict[Ref, Any]:
    """Return the vectors of records: those that the store has, and made anew where it has none."""
    if embedder is None:
        return {}
    dimension = embedder.space.dimension
    found: dict[Ref, Any] = {}
    for part in by_count(records, PAGE):
        kept = store.vectors([record.ref for record in part])
        found |= {ref: rows for ref, rows in kept.items() if rows.shape[1] == dimension}
        bare = [record for record in part if record.ref not in found]
        made = (
            embed_to_store(
                embedder, [record.text for record in bare], [record.role for record in bare]
            ).vectors
            if bare
            else []
        )
        found |= {record.ref: rows for record, rows in zip(bare, made, strict=True)}
    return found


# --- finding
# ---------------------------------------------------------------------------------------------------------


def _selected(
    store: Store, selector: Selector, namespace: str, fits: Callable[[Record], bool] | None = None
) -> Iterator[Record]:
    """Yield what is selected in one namespace; a long message as one record with all of its
    text.
    """
    where = selector.narrow(selector.include_states(Filter(selector.collection, (namespace,))))
    if selector.collection is Collection.HISTORY:
        records = (record for page in _pages(store, where) for record in page)
        for parts in group_parts(records):
            turn = join_parts(
                parts_of(store, parts[0]) or parts
            )  # the store may have been asked for less than all of them
            if selector.selects(turn) and (fits is None or fits(turn)):
                yield turn
        return
    for page in _pages(store, where):
        for record in page:
            if selector.selects(record) and (fits is None or fits(record)):
                yield record


def _pages(store: Store, where: Filter) -> Iterator[list[Record]]:
    after = None
    while page := store.scan(where, limit=PAGE, after=after):
        yield page
        after = (page[-1].ref.group, page[-1].ref.position)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    return by_weight(records, lambda record: len(record.text), most=BATCH, heaviest=_HEAVIEST)


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    return by_weight(records, lambda record: len(record.text), most=size, heaviest=_HEAVIEST)


def _still(store: Store, selector: Selector, batch: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield the records of a batch that are still selected, as they are now."""
    for part in by_count(batch, PAGE):
        yield [
            record for record in store.read([each.ref for each in part]) if selector.selects(record)
        ]


def _add(tally: Tally, action: str, records: Sequence[Record]) -> None:
    for record in records:
        tally.add(action, record)


def _erase_all(
    store: Store, selected: Iterable[Record], tally: Tally, *, dry_run: bool
) -> tuple[str, ...]:
    also_in: tuple[str, ...] = ()
    with contextlib.ExitStack() as erased:
        for records in _chunks(selected, _ERASED):
            also_in = _erase(store, records, tally, dry_run=dry_run) or also_in
            if not dry_run:
                erased.enter_context(once_erased(PARTLY_GONE))
    return also_in


def _erase(
    store: Store, records: Sequence[Record], tally: Tally, *, dry_run: bool
) -> tuple[str, ...]:
    """Erase turns, and memories with all their versions, until none is left of them."""
    _add(tally, "forget", records)
    also_in: tuple[str, ...] = ()
    if not dry_run:
        with store.transaction():
            unlink(
                store, (record for record in records if record.ref.collection is Collection.MEMORY)
            )
            keep_about(
                store,
                _refs_of(
                    store, [each for each in records if each.ref.collection is Collection.HISTORY]
                ),
            )
    refs = [] if dry_run else _refs_of(store, records)
    with contextlib.ExitStack() as erased:
        while refs:
            also_in = store.remove(refs)
            erased.enter_context(once_erased())
            refs = _refs_of(
                store, [record for record in records if record.ref.collection is Collection.MEMORY]
            )
    return also_in


def _refs_of(store: Store, records: Sequence[Record]) -> list[Ref]:
    found: list[Ref] = []
    for record in records:
        ref = record.ref
        if ref.collection is Collection.HISTORY:
            found += refs_of(record)
        else:
            everything = Filter(ref.collection, (ref.namespace,), state="any", group=ref.group)
            found += [
                *store.refs(everything),
                *store.refs(reinforcements_of((ref.namespace,), ref.group)),
            ]
    return found
