"""Changes one memory: adds a version, resets the decay, or deletes or restores the memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.embedders.protocol import embed_to_store
from memories.errors import Conflict, InvalidInput, NotFound, NotReinforceable, RequestError
from memories.guard import validate
from memories.guard.origin import PINNED, is_reserved, tags_of
from memories.models import CHANGEABLE, PENDING, DecayPolicy, Draft
from memories.read import versions
from memories.read.lookup import Lookup, refuse_pending
from memories.stores.audit_log import reinforcements_of
from memories.stores.logged import append_as_stamped, stamp_record
from memories.stores.protocol import Store, find_first
from memories.stores.records import Collection, Filter, Patch, Record
from memories.write.anchoring import Anchoring
from memories.write.links import (
    add_current_again,
    leave_correction_chains,
    remove_link,
    restore_links,
    update_links_after_change,
    update_links_after_restating,
    without_links,
)
from memories.write.suspicion import mark_suspicious

MOST_PINNED = 50

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor


class Update(NamedTuple):
    """Changes for a new version; see `Memories.update`.

    Attributes:
        content: The new text; None to keep the old one.
        draft: The other new values.
    """

    content: str | None
    draft: Draft
    remove_tags: Sequence[str]
    redactor: "Redactor | None"
    not_corrects: str | None = None
    if_version: int | None = None


def update(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, change: Update, now: datetime
) -> Record:
    """Append a new version to a memory, if anything changes; return the latest version.

    If only `not_corrects` is given, the link is removed and there is no new version.
    """
    anchoring = Anchoring(lookup.judge, change.redactor, now)
    draft, kinds = _check(lookup, memory_id, change, anchoring)
    declared = versions.declared_fields(draft)
    content, added = draft.content, draft.tags
    is_empty = not (content or added or change.remove_tags or declared)
    if is_empty and change.not_corrects is None:
        raise InvalidInput(
            "no changes were given; specify content, a tag, decay, confidence or an anchor"
        )
    removed = validate.tag_keys(change.remove_tags)
    if change.if_version is not None:
        validate.whole_number(change.if_version, "if_version")
    # Embedded before the transaction, so that no other writer waits for the model.
    expected = content or lookup.find_own(memory_id).text
    vectors = None if is_empty else _embed(embedder, expected)
    with lookup.store.transaction():
        latest = before = lookup.find_live(memory_id)
        if change.if_version not in (None, latest.ref.position):
            raise Conflict(
                f"Memory has changed: its latest version is {latest.ref.position}, not"
                f" {change.if_version}; read it again"
            )
        if change.not_corrects is not None:
            latest = _remove_link(lookup, latest, change.not_corrects)
        old_tags = tags_of(latest.labels)
        tags = {key: value for key, value in {**old_tags, **added}.items() if key not in removed}
        text = content or latest.text
        is_new_text = text != latest.text
        declared |= anchoring.make_fields(latest, text, tags, declared)
        if not is_new_text and tags == old_tags and _has_fields(latest, declared):
            return add_current_again(lookup.store, latest, [before], now)
        all_kinds = kinds if is_new_text else (*latest.read_list("redacted"), *kinds)
        new = versions.next_version(
            latest,
            "update",
            now,
            restarts_decay=is_new_text,
            text=text,
            labels=validate.tags(tags),
            fields={"redacted": " ".join(all_kinds) or None, **declared},
        )
        _refuse_taken_key(lookup, latest, new)
        new = update_links_after_change(lookup.store, latest, new)
        if text != expected:
            vectors = _embed(embedder, text)
        return _append(lookup.store, before, new, vectors)


def _check(
    lookup: Lookup, memory_id: str, change: Update, anchoring: Anchoring
) -> tuple[Draft, tuple[str, ...]]:
    """Return an update as a draft in its stored form, and the kinds of secrets removed from it.

    The content is empty if the text stays the same.
    """
    draft = replace(change.draft, content=change.content or "")
    kinds: list[str] = []
    if change.redactor is not None:
        draft, kinds = versions.redact(draft, change.redactor)
    if change.content is not None:
        draft = replace(draft, content=validate.content(draft.content))
    draft = versions.check_fields(draft)
    tags = draft.tags
    if draft.anchors:
        draft = replace(draft, tags={**tags_of(lookup.find_own(memory_id).labels), **tags})
    draft, secrets_in_anchors = anchoring.prepare(draft)
    return replace(draft, tags=tags), (*secrets_in_anchors, *kinds)


def append_confirmation(
    lookup: Lookup,
    embedder: "Embedder | None",
    memory_id: str,
    fields: Mapping[str, Any],
    now: datetime,
) -> Record:
    """Confirm that a memory is still true by appending a version with the same text and new fields;
    return that version. If newer memories corrected it, the new version corrects the last of them.
    """
    vectors = _embed(embedder, lookup.find_live(memory_id).text)
    with lookup.store.transaction():
        latest = lookup.find_live(memory_id)
        new = versions.next_version(
            latest, "confirm", now, restarts_decay=True, fields=dict(fields)
        )
        new = update_links_after_restating(lookup.store, latest, new)
        return _append(lookup.store, latest, new, vectors)


def _has_fields(record: Record, fields: Mapping[str, Any]) -> bool:
    return all(record.fields.get(name) == value for name, value in fields.items())


def _remove_link(lookup: Lookup, latest: Record, older_id: str) -> Record:
    """Remove a memory's link to an older one that it corrects; return the memory without it.

    Raises:
        RequestError: The memory does not correct the older one.
    """
    older = lookup.own.resolve_id(older_id)
    record = remove_link(lookup.store, latest, older)
    if record is None:
        corrected = " and ".join(latest.read_list("corrects")) or "none"
        raise RequestError(f"Memory does not correct {older}; it corrects {corrected}")
    return record


def _refuse_taken_key(lookup: Lookup, latest: Record, new: Record) -> None:
    """Refuse to move a memory to a project where another memory has its key.

    Raises:
        Conflict: Another memory has the key.
    """
    if new.key is None or new.key == latest.key:
        return
    other = lookup.find_by_key(new.key)
    if other is None:
        return
    project = new.labels.get("project")
    place = "without a project" if project is None else f'in project "{project}"'
    raise Conflict(
        f'the key "{versions.plain_key(new.key)}" belongs to another memory {place}, '
        f"{other.ref.group}; delete or update that one; nothing was changed"
    )


def reinforce(lookup: Lookup, memory_id: str, now: datetime) -> Record:
    """Reset a reinforceable memory's decay; return its latest version."""
    with lookup.store.transaction():
        latest = lookup.find_live(memory_id)
        policy = versions.decay_policy(latest)
        if policy is DecayPolicy.STABLE:
            raise NotReinforceable("Memory has stable decay policy, reinforcement has no effect")
        if policy is DecayPolicy.CONTEXTUAL:
            raise NotReinforceable(
                "Memory has contextual decay policy, reinforcement is not supported"
            )
        reset_decay(lookup.store, [latest], now)
        return lookup.own.find(latest.ref.group)


def reset_decay(store: Store, records: Sequence[Record], now: datetime) -> None:
    """Reset the decay of the records that are reinforceable and still live."""
    with store.transaction():
        for record in records:
            if versions.decay_policy(record) is DecayPolicy.REINFORCEABLE:
                where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group)
                for live in store.scan(where, limit=1):
                    fields = {"reinforced_at": to_millis(now)}
                    store.patch([Patch(live.ref, None, None, fields)])
                    store.append(_reinforcement_records(store, live, now))


def _reinforcement_records(store: Store, live: Record, now: datetime) -> list[Record]:
    """Return the log records to add when a memory is reinforced.

    There is one for this reinforcement and, if the log lacks it, one for the previous one.
    """
    where = reinforcements_of((live.ref.namespace,), live.ref.group)
    recorded = find_first(store, where, newest_first=True)
    last_position = 0 if recorded is None else recorded.ref.position
    last_time = live.fields.get("reinforced_at")
    times = [now]
    if recorded is None and last_time is not None:
        times = [from_millis(last_time), now]
    ref = live.ref._replace(collection=Collection.LOG)
    return [
        Record(ref._replace(position=position), "", time)
        for position, time in enumerate(times, last_position + 1)
    ]


def delete(lookup: Lookup, memory_id: str, now: datetime) -> Record:
    """Soft-delete a memory; return its latest version, without the time of the deletion.

    Deleting a memory that awaits review rejects the memory.
    """
    with lookup.store.transaction():
        latest = lookup.find_own(memory_id)
        leave_correction_chains(lookup.store, [latest])
        patch = versions.end_version(latest, latest.ended_at or now, "delete")
        lookup.store.patch([patch])
        deleted = add_current_again(lookup.store, latest, [latest], now)
    return deleted._replace(ended_by="delete")


def is_pinned(record: Record) -> bool:
    """Return whether a memory is pinned to its namespace's scratchpad."""
    return PINNED in record.labels


def pin(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, now: datetime, *, pinned: bool
) -> Record:
    """Pin or unpin a memory by adding a version with the same text; return its latest version.

    Raises:
        RequestError: The maximum number of memories is already pinned.
    """
    vectors = _embed(embedder, lookup.find_own(memory_id).text)
    with lookup.store.transaction():
        latest = lookup.find_live(memory_id)
        if is_pinned(latest) == pinned:
            return latest
        where = Filter(Collection.MEMORY, (latest.ref.namespace,), labels={PINNED: "1"})
        if pinned and lookup.store.count(where, at_most=MOST_PINNED) >= MOST_PINNED:
            raise RequestError(
                f"{MOST_PINNED} memories are already pinned, which is the limit; unpin one first; "
                "to list them, run memory scratchpad show"
            )
        new = versions.next_version(latest, "update", now, restarts_decay=False, pinned=pinned)
        return append_same(lookup.store, latest, new, vectors)


def append_same(store: Store, latest: Record, new: Record, vectors: Any) -> Record:
    """Append a version with the same content, origin and acceptance as the previous one."""
    fields = dict(new.fields)
    for name in ("accepted_at", "accepted_by", "redacted"):
        if name in latest.fields:
            fields[name] = latest.fields[name]
    reserved = {name: value for name, value in latest.labels.items() if is_reserved(name)}
    reserved.pop(PINNED, None)
    labels = {**reserved, **new.labels}
    new = mark_suspicious(new._replace(labels=labels, fields=fields, vectors=vectors))
    store.patch([versions.end_version(latest, new.created_at, "update")])
    append_as_stamped(store, [new])
    return new


def restore(lookup: Lookup, embedder: "Embedder | None", memory_id: str, now: datetime) -> Record:
    """Restore a deleted or superseded memory by adding a version with the same text; return
    that version.

    A rejected memory awaits review again.
    """
    deleted = lookup.find_own(memory_id, deleted=True)
    vectors = _embed(embedder, deleted.text)
    with lookup.store.transaction():
        latest = lookup.find_own(deleted.ref.group, deleted=True)
        if latest.ended_at is None:
            raise RequestError("Memory is not deleted; there is nothing to restore")
        refuse_pending(latest)
        if versions.is_unaccepted(latest):  # restoring a rejected memory does not accept it
            patch = Patch(latest.ref, latest.ended_at, PENDING, {"superseded_by": None})
            lookup.store.patch([patch])
            return latest._replace(ended_by=PENDING)
        if latest.key is not None and lookup.find_by_key(latest.key):
            key = versions.plain_key(latest.key)
            raise RequestError(
                f'another memory now has the key "{key}"; delete or update that one first'
            )
        new = without_links(versions.next_version(latest, "restore", now, restarts_decay=False))
        if latest.text != deleted.text:
            vectors = _embed(embedder, latest.text)
        restored = _append(lookup.store, latest, new, vectors)
        return restore_links(lookup.store, restored, latest)


def restore_version(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, number: int, now: datetime
) -> Record:
    """Append and return a version with the text, tags, decay and confidence of an earlier one."""
    number = validate.whole_number(number, "version")
    records = lookup.own.versions(lookup.resolve_own_id(memory_id))
    old = next((record for record in records if record.ref.position == number), None)
    if old is None:
        first, last = records[0].ref.position, records[-1].ref.position
        raise NotFound(f"Memory has no version {number}; it has {first} to {last}")
    vectors = _embed(embedder, old.text)
    with lookup.store.transaction():
        latest = lookup.find_live(old.ref.group)
        names = (*CHANGEABLE, "redacted", *versions.ANCHORS)
        fields = {name: old.fields.get(name) for name in names}
        tags = tags_of(old.labels)
        is_same = old.text == latest.text and tags == tags_of(latest.labels)
        if is_same and _has_fields(latest, fields):
            return latest
        new = versions.next_version(
            latest,
            "restore",
            now,
            restarts_decay=old.text != latest.text,
            text=old.text,
            labels=tags,
            fields=fields,
        )
        _refuse_taken_key(lookup, latest, new)
        new = update_links_after_change(lookup.store, latest, new)
        return _append(lookup.store, latest, new, vectors)


def _append(store: Store, latest: Record, new: Record, vectors: Any) -> Record:
    if latest.ended_at is None:
        store.patch([versions.end_version(latest, new.created_at, "update")])
    else:
        store.patch([versions.undo_end(latest)])
    new = mark_suspicious(new)
    store.append([new._replace(vectors=vectors)])
    return add_current_again(store, stamp_record(store, new), [latest], new.created_at)


def _embed(embedder: "Embedder | None", text: str) -> Any:
    return embed_to_store(embedder, [text]).vectors[0]
