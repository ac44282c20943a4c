"""Bulk changes: deletes or tags the memories that an expression selects.

Records are found a page at a time, outside transactions, and changed in batches. Each batch is one
transaction, which reads the records again to avoid overwriting another writer's changes. An
interrupted run has changed only whole batches; run it again to change the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count, by_weight
from memories.core.times import to_iso
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.origin import tags_of
from memories.read import versions
from memories.read.lookup import Lookup
from memories.read.selector import Selector
from memories.read.turns import group_parts, join_parts, parts_of, start_of
from memories.stores.audit_log import chain_of
from memories.stores.protocol import Store, add_count_to_errors, find_first, scan_pages
from memories.stores.records import Collection, Filter, Patch, Record, Ref
from memories.write.links import (
    find_current_again,
    leave_correction_chains,
    restore_links_of,
    without_links,
)

if TYPE_CHECKING:
    from memories.embedders import Embedder

BATCH = 10_000  # maximum number of changes in one transaction
MAX_BATCH_CHARACTERS = 64 * 1_048_576  # maximum number of characters in a batch's texts
PAGE = 250
MAX_STEPS = 1_000  # maximum number of steps in a result
MAX_EXCERPT = 200  # a step shows at most this many characters of the content
CLOCKS = timedelta(minutes=1)  # maximum difference between the clocks of two machines


class Step(NamedTuple):
    """An action on one memory or turn, performed or only previewed.

    Attributes:
        id: The memory, or the conversation and the index of the turn.
        action: `delete`, `forget` or `tag`; in a rollback `delete`, `restore`, `update`, `pend` or
            `reject`. `left` means that nothing was done.
        content: The beginning of the content before the action; in a rollback, of the content that
            an `update`, a `restore` or a `pend` brings back.
        reason: Why the memory or turn was left unchanged. For a delete: which memory the deleted
            one had replaced, if that memory stays hidden.
    """

    id: str
    action: str
    content: str
    reason: str = ""


class Affected(NamedTuple):
    """The result of a bulk change to memories or turns, or a preview of it with `dry_run`.

    Attributes:
        counts: The number of memories or turns for each action; see `Step`.
        steps: The first 1,000 actions.
        dry_run: Whether nothing was changed.
        undo_to: The moment before the change, to pass to `Memories.rollback` to undo the change.
            None if the change can't be undone, or if there was nothing to do.
        undo_where: The expression that limits that rollback to this change.
        also_in: Files that may still contain forgotten content.
        current_again: The ids of the first 1,000 memories that are current again because the links
            to their corrections ended.
        current_again_count: The number of all such memories.
    """

    counts: Mapping[str, int]
    steps: tuple[Step, ...]
    dry_run: bool
    undo_to: datetime | None = None
    undo_where: str = ""
    also_in: tuple[str, ...] = ()
    current_again: tuple[str, ...] = ()
    current_again_count: int = 0


class BulkTally:
    """Counts a bulk change's actions, and keeps the first steps and the memories with links."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._steps: list[Step] = []
        self._linked: list[Record] = []
        self._current_again: tuple[str, ...] = ()

    def add(self, action: str, record: Record, reason: str = "") -> None:
        """Count an action on a record."""
        self.count(action)
        if len(self._steps) < MAX_STEPS:
            name = record.ref.group
            if record.ref.collection is Collection.HISTORY:
                name = f"{name}#{start_of(record)}"
            content = record.text
            if len(content) > MAX_EXCERPT:
                content = f"{content[: MAX_EXCERPT - 1]}…"
            self._steps.append(Step(name, action, content, reason))

    def add_all(self, action: str, records: Iterable[Record]) -> None:
        """Count an action on each of several records."""
        for record in records:
            self.add(action, record)

    def count(self, action: str, number: int = 1) -> None:
        """Count actions without keeping a step for each."""
        self._counts[action] = self._counts.get(action, 0) + number

    def note_links(self, before: Iterable[Record]) -> None:
        """Note the links of memories that are about to change, for `find_current_again`."""
        self._linked += [record._replace(text="") for record in before if versions.has_link(record)]

    def find_current_again(self, store: Store, now: datetime) -> None:
        """Find the memories that are current again after the change."""
        self._current_again = find_current_again(store, self._linked, now)

    def result(
        self, *, dry_run: bool, at: datetime | None = None, also_in: tuple[str, ...] = ()
    ) -> Affected:
        """Return the result of a bulk change. If it can be undone, `at` is the time of the
        change.
        """
        # A rollback can't undo a rejection, but `Memories.restore` can.
        without_undo = ("left", "reject")
        affected = Affected(
            self._counts,
            tuple(self._steps),
            dry_run,
            also_in=also_in,
            current_again=self._current_again[:MAX_STEPS],
            current_again_count=len(self._current_again),
        )
        has_changes = any(
            count for action, count in self._counts.items() if action not in without_undo
        )
        if dry_run or not has_changes or at is None:
            return affected
        undo_where = f'updated = "{to_iso(at)}" or ended = "{to_iso(at)}"'
        before = at - timedelta(milliseconds=1)
        return affected._replace(undo_to=before, undo_where=undo_where)


def moment_after(store: Store, namespace: str, now: datetime) -> datetime:
    """Return the time of a change, which later identifies the change.

    This is `now` or, if the namespace's last change is dated up to a minute later, a moment after
    that change.
    """
    entry = find_first(store, chain_of(namespace), newest_first=True)
    if entry is None:
        return now
    last_change = entry.created_at
    if now <= last_change <= now + CLOCKS:
        return last_change + timedelta(milliseconds=1)
    return now


def refuse_states(selector: Selector, action: str) -> None:
    """Refuse an expression that selects memories by a state other than live.

    Args:
        selector: The expression.
        action: The participle for the message, such as "deleted".

    Raises:
        InvalidInput: The expression selects such memories.
    """
    if selector.states:
        names = " and ".join(sorted(selector.states))
        raise InvalidInput(
            f"only current memories can be {action}; remove {names} from the expression"
        )


# --- deleting


def delete(lookup: Lookup, selector: Selector, *, dry_run: bool) -> Affected:
    """Delete the selected live memories, giving all of them the same deletion time; see
    `Memories.delete_where`.

    Raises:
        InvalidInput: The expression selects memories that are not live.
    """
    refuse_states(selector, "deleted")
    tally, store = BulkTally(), lookup.store
    at = moment_after(store, lookup.namespace, selector.instant.now)
    deleted = 0
    with add_count_to_errors(lambda: deleted, "deleted"):
        for batch in in_batches(select(store, selector, lookup.namespace)):
            if dry_run:
                tally.add_all("delete", batch)
                continue
            with store.transaction():
                records = _read_again(store, selector, batch)
                tally.note_links(records)
                leave_correction_chains(store, records)
                for page in by_count(records, PAGE):
                    store.patch([versions.end_version(record, at, "delete") for record in page])
                    for record in page:
                        tally.add("delete", record, _describe_replaced(store, record))
            deleted += len(records)
        tally.find_current_again(store, at)
    return tally.result(dry_run=dry_run, at=at)


def _describe_replaced(store: Store, record: Record) -> str:
    """Return a clause about the memory that a record replaced and still hides; empty if there is
    none.
    """
    replaced = record.fields.get("supersedes")
    if replaced is None:
        return ""
    where = Filter(Collection.MEMORY, (record.ref.namespace,), state="any", group=replaced)
    latest = find_first(store, where, newest_first=True)
    if latest is None or latest.fields.get("superseded_by") != record.ref.group:
        return ""
    return f"memory {replaced}, which it replaced, stays hidden until it is restored"


# --- tagging


class Tagging(NamedTuple):
    """A change to tags.

    Attributes:
        tags: Tags to set.
        remove: Tag keys to remove.
        rename: Maps old keys to new keys, or old tags to new tags, such as `type=note` to
            `type=fact`. If a memory already has the new key, that key keeps its value.
    """

    tags: Mapping[str, str]
    remove: Sequence[str] = ()
    rename: Mapping[str, str] = {}

    def check(self) -> "Tagging":
        """Return the change with validated keys and values.

        Raises:
            InvalidInput: A tag is invalid, or nothing would change.
        """
        if not self.tags and not self.remove and not self.rename:
            raise InvalidInput("no tag changes were given; specify tags to set, remove or rename")
        if not isinstance(self.rename, Mapping):
            raise InvalidInput(
                f"rename_tags is of type {type(self.rename).__name__}; pass a mapping of old names "
                "to new ones"
            )
        for old, new in self.rename.items():
            for name in (old, new):
                validate.text_of(name, "tag key")
            if ("=" in old) is not ("=" in new):
                pair = f'"{validate.shown(old)}" and "{validate.shown(new)}"'
                raise InvalidInput(f"{pair} must both be keys, or both be tags such as type=fact")
            for name in (old, new):
                if "=" in name:
                    validate.parse_tag(name)
                else:
                    validate.tag_key(name)
        return Tagging(validate.tags(self.tags), validate.tag_keys(self.remove), self.rename)

    def apply(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return a memory's tags after the change."""
        new_tags = dict(tags)
        for old, new in self.rename.items():
            if "=" in old:
                old_key, old_value = validate.parse_tag(old)
                if new_tags.get(old_key) == old_value:
                    del new_tags[old_key]
                    new_tags.setdefault(*validate.parse_tag(new))
            elif old in new_tags:
                value = new_tags.pop(old)
                new_tags.setdefault(new, value)
        new_tags |= self.tags
        return {key: value for key, value in new_tags.items() if key not in self.remove}


def retag(
    lookup: Lookup,
    embedder: "Embedder | None",
    selector: Selector,
    tagging: Tagging,
    *,
    dry_run: bool,
) -> Affected:
    """Change the tags of the selected memories in new versions; unchanged memories get no version.

    Args:
        lookup: The namespace.
        embedder: Computes missing vectors.
        selector: The memories.
        tagging: The change.
        dry_run: Only return what would change.

    Raises:
        InvalidInput: A tag is invalid, or the expression selects memories that are not live.
    """
    refuse_states(selector, "tagged")
    tagging, tally, store = tagging.check(), BulkTally(), lookup.store
    at = moment_after(store, lookup.namespace, selector.instant.now)

    def changes(record: Record) -> bool:
        tags = tags_of(record.labels)
        return tagging.apply(tags) != tags

    missing: Sequence[Record] = ()
    changed = 0
    with add_count_to_errors(lambda: changed, "changed"):
        for batch in in_batches(select(store, selector, lookup.namespace, changes)):
            if dry_run:
                tally.add_all("tag", batch)
                continue
            vectors = vectors_of(store, embedder, batch)
            with store.transaction():
                pairs: list[tuple[Record, Record]] = []
                for record in filter(changes, _read_again(store, selector, batch)):
                    tags = validate.tags(tagging.apply(tags_of(record.labels)))
                    new = versions.next_version(
                        record, "update", at, restarts_decay=False, labels=tags
                    )
                    pairs.append((record, new))
                pairs = _without_taken_keys(lookup, pairs, tally)
                before = [latest for latest, _ in pairs]
                tally.note_links(before)
                leave_correction_chains(store, before)
                for page in by_count(pairs, PAGE):
                    _write_versions(store, page, vectors)
                linked = filter(versions.has_link, before)
                ended = [latest._replace(ended_at=at) for latest in linked]
                missing = restore_links_of(store, lookup.namespace, (*missing, *ended))
            changed += len(pairs)
        tally.find_current_again(store, at)
    return tally.result(dry_run=dry_run, at=at)


def _write_versions(
    store: Store, pairs: Sequence[tuple[Record, Record]], vectors: Mapping[Ref, Any]
) -> None:
    """Write the next versions of memories without links."""
    patches: list[Patch] = []
    records: list[Record] = []
    for latest, new in pairs:
        patches.append(versions.end_version(latest, new.created_at, "update"))
        records.append(without_links(new)._replace(vectors=vectors.get(latest.ref)))
    store.patch(patches)
    store.append(records)


def _without_taken_keys(
    lookup: Lookup, pairs: Sequence[tuple[Record, Record]], tally: BulkTally
) -> list[tuple[Record, Record]]:
    """Return the memories, each with its next version, except those whose new key belongs to
    another memory.
    """
    taken: set[str] = set()
    writable: list[tuple[Record, Record]] = []
    for latest, new in pairs:
        if new.key is not None and new.key != latest.key:
            if new.key in taken or lookup.find_by_key(new.key) is not None:
                key = versions.plain_key(new.key)
                tally.add(
                    "left", latest, f'its key "{key}" would clash with the key of another memory'
                )
                continue
            taken.add(new.key)
        writable.append((latest, new))
        tally.add("tag", latest)
    return writable


def vectors_of(
    store: Store, embedder: "Embedder | None", records: Sequence[Record]
) -> dict[Ref, Any]:
    """Return the stored vectors of records, and compute those that are missing."""
    if embedder is None:
        return {}
    dimension = embedder.space.dimension
    vectors: dict[Ref, Any] = {}
    for part in by_count(records, PAGE):
        stored = store.vectors([record.ref for record in part])
        missing: list[Record] = []
        for record in part:
            rows = stored.get(record.ref)
            if rows is not None and rows.shape[1] == dimension:
                vectors[record.ref] = rows
            else:
                missing.append(record)
        if missing:
            texts, roles = [record.text for record in missing], [record.role for record in missing]
            embedded = embed_to_store(embedder, texts, roles)
            for record, rows in zip(missing, embedded.vectors, strict=True):
                vectors[record.ref] = rows
    return vectors


# --- selecting


def select(
    store: Store, selector: Selector, namespace: str, fits: Callable[[Record], bool] | None = None
) -> Iterator[Record]:
    """Yield the selected records in one namespace. The parts of a long message are joined into one
    record.
    """
    where = selector.narrow(selector.include_states(Filter(selector.collection, (namespace,))))
    records = (record for page in scan_pages(store, where, size=PAGE) for record in page)
    if selector.collection is Collection.HISTORY:
        # The filter may have matched only some parts of a message.
        records = (join_parts(parts_of(store, parts[0]) or parts) for parts in group_parts(records))
    for record in records:
        if selector.selects(record) and (fits is None or fits(record)):
            yield record


def in_batches(records: Iterable[Record], size: int = BATCH) -> Iterator[list[Record]]:
    """Yield records in batches that fit into one transaction."""
    return by_weight(
        records, lambda record: len(record.text), most=size, heaviest=MAX_BATCH_CHARACTERS
    )


def _read_again(store: Store, selector: Selector, batch: Sequence[Record]) -> list[Record]:
    """Return the current state of the records in a batch that are still selected, in order."""
    records: list[Record] = []
    for page in by_count(batch, PAGE):
        current = sorted(store.read([record.ref for record in page]), key=attrgetter("ref"))
        records += filter(selector.selects, current)
    return records
