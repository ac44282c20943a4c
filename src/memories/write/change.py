"""How a memory changes: a new version, a reset of its decay, a deletion that can be undone."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.embedders.protocol import embed_to_store
from memories.errors import Conflict, InvalidInput, NotFound, NotReinforceable, RequestError
from memories.guard import validate
from memories.guard.origin import PINNED, is_reserved, tags_of
from memories.models import PENDING, DecayPolicy, Draft
from memories.read import versions
from memories.read.lookup import Lookup, refuse_pending
from memories.stores.chain import reinforcements_of
from memories.stores.logged import append_stamped, stamp_origin
from memories.stores.protocol import Store
from memories.stores.records import Collection, Filter, Patch, Record
from memories.write.links import relink, remove_ended_links, remove_link, unlink, without_links
from memories.write.suspicion import mark_record

MOST_PINNED = 50

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor


class Update(NamedTuple):
    """What a new version says; see `Memories.update`."""

    content: str | None
    tags: Mapping[str, str]
    remove_tags: Sequence[str]
    redactor: "Redactor | None"
    not_corrects: str | None = None
    if_version: int | None = None
    decay: str | None = None
    confidence: float | None = None

    def declared(self) -> dict[str, Any]:
        """Return the fields for the policy and the confidence that it declares.

        Raises:
            InvalidInput: One is not acceptable.
        """
        if self.decay is not None and self.decay not in tuple(DecayPolicy):
            raise InvalidInput(
                f'decay must be {", ".join(DecayPolicy)}, not "{validate.shown(str(self.decay))}"'
            )
        if self.confidence is not None:
            validate.unit(self.confidence, "confidence")
        return versions.declared_fields(Draft("", decay=self.decay, confidence=self.confidence))


def update(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, given: Update, now: datetime
) -> Record:
    """Append a new version to a memory, if anything changes; return its latest version."""
    declared = given.declared()
    plain = given.content is None and not given.tags and not given.remove_tags and not declared
    if plain and given.not_corrects is None:
        raise InvalidInput(
            "nothing to update was given; give new content, a tag, decay or confidence"
        )
    if given.not_corrects is not None:
        released = _release(lookup, memory_id, given.not_corrects)
        if plain:
            return released
    said, kinds = _redacted(given)
    text = None if said.content is None else validate.content(said.content)
    added = validate.tags(said.tags)
    keys = [given.remove_tags] if isinstance(given.remove_tags, str) else given.remove_tags
    removed = {validate.tag_key(key) for key in keys}
    expected = text or lookup.find_own(memory_id).text
    vectors = _embed(
        embedder, expected
    )  # before the transaction, so that no other writer waits for the model
    with lookup.store.transaction():
        latest = lookup.find_current(memory_id)
        if given.if_version not in (None, latest.ref.position):
            raise Conflict(
                f"Memory has version {latest.ref.position} now, which somebody else wrote meanwhile"
            )
        before = tags_of(latest.labels)
        tags = {key: value for key, value in (before | added).items() if key not in removed}
        content = text or latest.text
        known = all(latest.fields.get(name) == value for name, value in declared.items())
        if content == latest.text and tags == before and known:
            return latest
        fresh = content != latest.text
        named = (*(() if fresh else latest.names("redacted")), *kinds)
        fields = {"redacted": " ".join(named) or None, **declared}
        changes = {"text": content, "labels": validate.tags(tags), "fields": fields}
        new = versions.next_version(latest, "update", now, fresh=fresh, **changes)
        _refuse_taken_key(lookup, latest, new)
        if fresh or new.labels.get("project") != latest.labels.get("project"):
            new = remove_ended_links(lookup.store, new)
        return _append(
            lookup.store, latest, new, vectors if content == expected else _embed(embedder, content)
        )


def _redacted(given: Update) -> tuple[Update, tuple[str, ...]]:
    """Return what a new version says without secrets, and the kinds of those."""
    if given.redactor is None:
        return given, ()
    content, kinds = (None, ()) if given.content is None else given.redactor.text(given.content)
    tags, in_tags = given.redactor.pairs(given.tags)
    return given._replace(content=content, tags=tags), (*kinds, *in_tags)


def _release(lookup: Lookup, memory_id: str, older_id: str) -> Record:
    """Take back that a memory corrects another one; return its latest version.

    Raises:
        RequestError: It does not correct that one.
    """
    with lookup.store.transaction():
        latest, older = lookup.find_current(memory_id), lookup.own.resolve_id(older_id)
        released = remove_link(lookup.store, latest, older)
    if released is None:
        known = latest.fields.get("corrects")
        raise RequestError(
            f"Memory does not correct {older}; {f'it corrects {known}' if known else 'it corrects none'}"
        )
    return released


def _refuse_taken_key(lookup: Lookup, latest: Record, new: Record) -> None:
    """Refuse a change of the project to one in which another memory has the key.

    Raises:
        Conflict: Another memory has it.
    """
    other = lookup.find_by_key(new.key) if new.key is not None and new.key != latest.key else None
    if other is None:
        return
    project = new.labels.get("project")
    place = "outside of projects" if project is None else f'in project "{project}"'
    raise Conflict(
        f'the key "{versions.plain_key(new.key)}" belongs to another memory {place}, {other.ref.group}; delete or '
        "update that one; nothing was changed"
    )


def reinforce(lookup: Lookup, memory_id: str, now: datetime) -> Record:
    """Reset the decay of a reinforceable memory; return its latest version."""
    with lookup.store.transaction():
        latest = lookup.find_current(memory_id)
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
    """Reset the decay of those records that can be reinforced and are still current."""
    reset = {"reinforced_at": to_millis(now)}
    with store.transaction():
        for record in records:
            if versions.decay_policy(record) is DecayPolicy.REINFORCEABLE:
                where = Filter(Collection.MEMORY, (record.ref.namespace,), group=record.ref.group)
                for live in store.scan(where, limit=1):
                    store.patch([Patch(live.ref, None, None, reset)])
                    store.append(_times(store, live, now))


def _times(store: Store, live: Record, now: datetime) -> list[Record]:
    """Return the records that say when a memory was reinforced: now, and before if that was not
    recorded yet.
    """
    times = store.scan(
        reinforcements_of((live.ref.namespace,), live.ref.group), limit=1, newest_first=True
    )
    before = live.fields.get("reinforced_at")
    position = times[0].ref.position if times else 0
    moments = [now] if times or before is None else [from_millis(before), now]
    ref = live.ref._replace(collection=Collection.LOG)
    return [
        Record(ref._replace(position=number), "", moment)
        for number, moment in enumerate(moments, position + 1)
    ]


def delete(lookup: Lookup, memory_id: str, now: datetime) -> Record:
    """Delete a memory softly; return its latest version, which is now ended. What waits for review
    is rejected so.
    """
    with lookup.store.transaction():
        latest = lookup.find_own(memory_id)
        unlink(lookup.store, [latest])
        patch = versions.end_version(latest, latest.ended_at or now, "delete")
        lookup.store.patch([patch])
    return latest._replace(ended_at=patch.ended_at, ended_by="delete")


def is_pinned(record: Record) -> bool:
    """Return whether a memory stays in the scratchpad of its namespace."""
    return PINNED in record.labels


def pin(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, now: datetime, *, pinned: bool
) -> Record:
    """Pin a memory, or take that back, by a new version that says the same; return its latest
    version.

    Raises:
        RequestError: As many as there may be are pinned already.
    """
    vectors = _embed(embedder, lookup.find_own(memory_id).text)
    with lookup.store.transaction():
        latest = lookup.find_current(memory_id)
        if is_pinned(latest) == pinned:
            return latest
        where = Filter(Collection.MEMORY, (latest.ref.namespace,), labels={PINNED: "1"})
        if pinned and lookup.store.count(where, at_most=MOST_PINNED) >= MOST_PINNED:
            raise RequestError(
                f"{MOST_PINNED} memories are pinned, the limit; unpin one first: memory scratchpad show"
            )
        new = versions.next_version(latest, "update", now, fresh=False, pinned=pinned)
        return _append_as_it_is(lookup.store, latest, new, vectors)


def _append_as_it_is(store: Store, latest: Record, new: Record, vectors: Any) -> Record:
    """Append a version that says the same as the one before, and so keeps its origin and who
    accepted it.
    """
    kept = {
        name: value for name, value in latest.labels.items() if is_reserved(name) and name != PINNED
    }
    names = [name for name in ("accepted_at", "accepted_by", "redacted") if name in latest.fields]
    fields = {**new.fields, **{name: latest.fields[name] for name in names}}
    new = mark_record(new._replace(labels={**kept, **new.labels}, fields=fields, vectors=vectors))
    store.patch([versions.end_version(latest, new.created_at, "update")])
    append_stamped(store, [new])
    return new


def restore(lookup: Lookup, embedder: "Embedder | None", memory_id: str, now: datetime) -> Record:
    """Bring a deleted or superseded memory back, as a new version that says the same; return that
    version.

    One that was rejected waits for review again.
    """
    known = lookup.find_own(memory_id, deleted=True)
    vectors = _embed(embedder, known.text)
    with lookup.store.transaction():
        latest = lookup.find_own(known.ref.group, deleted=True)
        if latest.ended_at is None:
            raise RequestError("Memory is not deleted, there is nothing to restore")
        refuse_pending(latest)
        if versions.is_unaccepted(latest):  # it was rejected; to bring it back is not to accept it
            lookup.store.patch(
                [Patch(latest.ref, latest.ended_at, PENDING, {"superseded_by": None})]
            )
            return latest._replace(ended_by=PENDING)
        if latest.key is not None and lookup.find_by_key(latest.key):
            key = versions.plain_key(latest.key)
            raise RequestError(
                f'another memory has the key "{key}" now; delete or update that one first'
            )
        new = without_links(versions.next_version(latest, "restore", now, fresh=False))
        vectors = vectors if latest.text == known.text else _embed(embedder, latest.text)
        return relink(lookup.store, _append(lookup.store, latest, new, vectors), latest.fields)


def restore_version(
    lookup: Lookup, embedder: "Embedder | None", memory_id: str, number: int, now: datetime
) -> Record:
    """Append a version that says what an earlier one said, with its tags, decay and confidence;
    return it.
    """
    known = lookup.own.versions(lookup.resolve_own_id(memory_id))
    old = next((each for each in known if each.ref.position == number), None)
    if old is None:
        raise NotFound(
            f"Memory has no version {number}; it has {known[0].ref.position} to {known[-1].ref.position}"
        )
    vectors = _embed(embedder, old.text)
    with lookup.store.transaction():
        latest = lookup.find_current(old.ref.group)
        names = ("decay", "confidence", "redacted")
        fields = {name: old.fields.get(name) for name in names}
        tags = tags_of(old.labels)
        same = all(latest.fields.get(name) == value for name, value in fields.items())
        if same and old.text == latest.text and tags == tags_of(latest.labels):
            return latest
        fresh = old.text != latest.text
        new = versions.next_version(
            latest, "restore", now, fresh=fresh, text=old.text, labels=tags, fields=fields
        )
        _refuse_taken_key(lookup, latest, new)
        return _append(lookup.store, latest, remove_ended_links(lookup.store, new), vectors)


def _append(store: Store, latest: Record, new: Record, vectors: Any) -> Record:
    live = latest.ended_at is None
    store.patch(
        [
            versions.end_version(latest, new.created_at, "update")
            if live
            else versions.undo_end(latest)
        ]
    )
    new = mark_record(new)
    store.append([new._replace(vectors=vectors)])
    return stamp_origin(store, new)


def _embed(embedder: "Embedder | None", text: str) -> Any:
    return embed_to_store(embedder, [text]).vectors[0]
