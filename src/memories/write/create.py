"""The path of a draft into the store: prepare, embed, compare, store.

`prepare` redacts and checks all drafts and embeds them in batches. That takes time, so it comes
before any transaction. `Batch.write` is one transaction: it compares each draft with stored
memories, which makes it a new memory, a version of the memory with its key, an addition to the
memory with the same text, or a refusal as a duplicate.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count
from memories.core.ids import new_id, whole_id
from memories.core.times import kept
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput, NotFound
from memories.guard import validate
from memories.guard.origin import tags_of
from memories.models import PENDING, DecayPolicy, Draft, Memory
from memories.read import versions
from memories.stores.logged import append_stamped, batch_appends, stamp_origin
from memories.stores.protocol import Store, refuse_other_model
from memories.stores.records import Collection, Filter, Record
from memories.write.links import linked, recheck
from memories.write.suspicion import mark_record
from memories.write.writer import Compared, Similar, Writer

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor
    from memories.write.repetitions import Repeated

BATCH = 500  # drafts in one transaction: one disk flush for all of them
BATCH_COMPARED = 25  # comparing takes time, and other writers should wait only briefly


@dataclass(frozen=True, slots=True)
class Created:
    """Result of `create`.

    Attributes:
        stored: Whether anything was stored.
        memory: The stored or updated memory; None if the draft was refused.
        duplicates: The memories that say the same, if it was refused as a duplicate.
        similar_to: Similar memories that differ in a number, a date, a name, …: this one may
            correct one of them.
        corrects: The id of the one that it corrects, which a search shows after it; see
            `write.corrections`.
        redacted: The kinds of the secrets that were replaced in it before anything else, in order.
        note: Why it was stored without a vector although there is an embedder, why what it adds was
            not merged, or why it was refused although nothing is like it: its id is taken. Usually
            empty.
        merged: If the same text was stored before, the names of what this one added to it, by a
            version of that memory: `tags`, `decay`, `confidence`, `source`; `supersedes` for the
            memory that it replaced; `trust` if a more trusted writer said it now; `corrects` if
            that memory was corrected meanwhile and holds again.
        not_merged: What this one said otherwise, or may not add, by the same names: that memory
            keeps what it has.
        reinforced: Whether the decay of that memory started over.
    """

    stored: bool
    memory: Memory | None
    duplicates: tuple[Similar, ...] = ()
    similar_to: tuple[Similar, ...] = ()
    note: str = ""
    redacted: tuple[str, ...] = ()
    corrects: str | None = None
    merged: tuple[str, ...] = ()
    not_merged: Mapping[str, Any] = field(default_factory=dict)
    reinforced: bool = False

    @property
    def id(self) -> str | None:
        """The id of the stored or updated memory; None if the draft was refused."""
        return None if self.memory is None else self.memory.id


class Prepared(NamedTuple):
    """A draft on its way into the store.

    Attributes:
        draft: Its content: redacted, checked, in the form in which it is stored.
        redacted: The kinds of the secrets that were taken out.
        vectors: The vectors of its content; None without a model.
        superseded: The memory that it replaces, looked up in the transaction.
    """

    draft: Draft
    redacted: tuple[str, ...]
    vectors: Any = None
    superseded: Record | None = None


def create(writer: Writer, drafts: Sequence[Draft]) -> list[Created]:
    """Store drafts in order; all are redacted and checked before the first is stored."""
    return [created for batch in prepare(writer, drafts) for created in batch.write()]


def prepare(writer: Writer, drafts: Sequence[Draft]) -> "Iterator[Batch]":
    """Redact, check and embed drafts; yield the batches that are stored in one transaction each."""
    clean = [_redact(draft, writer.redactor) for draft in drafts]
    for batch in by_count(clean, BATCH if writer.force else BATCH_COMPARED):
        embedded = embed_to_store(writer.embedder, [prepared.draft.content for prepared in batch])
        with_vectors = zip(batch, embedded.vectors, strict=True)
        yield Batch(
            writer,
            [prepared._replace(vectors=vectors) for prepared, vectors in with_vectors],
            embedded.note,
        )


class Batch(NamedTuple):
    """Prepared drafts that are stored in one transaction.

    Attributes:
        writer: Where and how.
        drafts: The drafts, in order.
        note: Why they have no vectors although there is an embedder; usually empty.
    """

    writer: Writer
    drafts: Sequence[Prepared]
    note: str

    def through(self, store: Store) -> "Batch":
        """Return the same batch, to be written through another store; see `stores.wrapper`."""
        return self._replace(
            writer=self.writer._replace(lookup=self.writer.lookup._replace(store=store))
        )

    def write(self) -> list[Created]:
        """Store the drafts in a transaction, which may be a part of another one."""
        writer = self.writer
        if self.note and writer.embedder is not None:
            where = Filter(Collection.MEMORY, (writer.lookup.namespace,))
            refuse_other_model(writer.store, writer.embedder.space, where)
        with batch_appends(writer.store) as store:
            adding = self.through(store).writer
            results = [_store(adding, prepared) for prepared in self.drafts]
        return [
            self._noted(created, prepared)
            for created, prepared in zip(results, self.drafts, strict=True)
        ]

    def _noted(self, created: Created, prepared: Prepared) -> Created:
        if not self.note and not prepared.redacted:
            return created
        note = self.note if created.stored else created.note
        return replace(created, note=note, redacted=prepared.redacted)


# --- before the transaction
# ------------------------------------------------------------------------------------------


def _redact(draft: Draft, redactor: "Redactor | None") -> Prepared:
    """Return a draft without secrets, in the form in which it is stored: nothing else sees the
    original.
    """
    if redactor is None:
        return Prepared(_checked(draft, draft.content, draft.tags, draft.key, draft.data), ())
    content, kinds = redactor.text(draft.content)
    tags, in_tags = redactor.pairs(draft.tags)
    key, in_key = (None, ()) if draft.key is None else redactor.name(draft.key, "key")
    data, in_data = (draft.data, ()) if not draft.data else redactor.data(draft.data)
    return Prepared(
        _checked(draft, content, tags, key, data), (*kinds, *in_tags, *in_key, *in_data)
    )


def _checked(
    draft: Draft, content: str, tags: Mapping[str, str], key: str | None, data: str | None
) -> Draft:
    """Return a draft that says this, if its values are acceptable, in the form in which they are
    kept.
    """
    if draft.decay is not None and draft.decay not in tuple(DecayPolicy):
        raise InvalidInput(
            f'decay must be {", ".join(DecayPolicy)}, not "{validate.shown(str(draft.decay))}"'
        )
    return replace(
        draft,
        content=validate.content(content),
        tags=validate.tags(tags),
        decay=None if draft.decay is None else DecayPolicy(draft.decay),
        key=None if key is None else validate.key(key),
        confidence=None
        if draft.confidence is None
        else validate.unit(draft.confidence, "confidence"),
        created_at=None if draft.created_at is None else kept(draft.created_at, "created_at"),
        source=None if draft.source is None else validate.one_line(draft.source, "source"),
        data=None if data is None else validate.data(data),
        id=None if draft.id is None else whole_id(draft.id),
    )


# --- in the transaction
# ----------------------------------------------------------------------------------------------


def _store(writer: Writer, prepared: Prepared) -> Created:
    """Compare a draft with what is stored, and store it."""
    earlier = _find_retried(writer, prepared.draft)
    if earlier is not None:
        return earlier
    prepared = _with_superseded(writer, prepared)
    draft = prepared.draft
    if draft.pending:
        return _store_pending(writer, prepared)
    if draft.key is not None:
        latest = writer.lookup.find_by_key(versions.scoped_key(draft.key, draft.tags))
        if latest is not None:
            return _store_version(writer, prepared, latest)
    compared = Compared() if writer.force else writer.compare(draft, prepared.vectors)
    # A draft with a key is never refused: the key says which memory is meant, whatever resembles
    # it.
    if draft.key is None and compared.same is not None:
        return _merge(writer, prepared, compared.same)
    if draft.key is None and compared.duplicates:
        return Created(stored=False, memory=None, duplicates=compared.duplicates)
    return _store_new(writer, prepared, compared)


def _find_retried(writer: Writer, draft: Draft) -> Created | None:
    """Return the memory that a retried draft became, or a refusal if its id is that of a memory
    with other text.
    """
    if draft.id is None or draft.fresh:
        return None
    where = Filter(Collection.MEMORY, (writer.lookup.namespace,), state="any", group=draft.id)
    for first in writer.store.scan(where, limit=1):
        if first.text != draft.content:
            taken = f"the id {draft.id} is that of a memory that says something else; give this text another one"
            return Created(stored=False, memory=None, note=taken)
        [latest] = writer.store.scan(where, limit=1, newest_first=True)
        return _created(writer, latest)
    return None


def _with_superseded(writer: Writer, prepared: Prepared) -> Prepared:
    """Look up the memory that a draft replaces: what others read must not vanish behind what they
    can't read.
    """
    memory_id = prepared.draft.supersedes
    if memory_id is None:
        return prepared
    try:
        superseded = writer.lookup.own.find_current(memory_id)
    except (NotFound, InvalidInput):
        other = writer.lookup.find(memory_id)
        raise InvalidInput(
            f"the memory to replace is in namespace {other.ref.namespace}, and the new one would be in "
            f"{writer.lookup.namespace}; write the new one there"
        ) from None
    draft = replace(prepared.draft, supersedes=superseded.ref.group)
    # What waits for a review replaces nothing before it is accepted.
    return prepared._replace(draft=draft, superseded=None if draft.pending else superseded)


def _store_new(writer: Writer, prepared: Prepared, compared: Compared) -> Created:
    """Store a draft as a new memory."""
    draft, superseded = prepared.draft, prepared.superseded
    created_at = draft.created_at or writer.now
    memory_id = draft.id or new_id(created_at)
    first = versions.first_version(
        draft, memory_id, writer.lookup.namespace, created_at, prepared.redacted
    )
    record = stamp_origin(writer.store, mark_record(first))
    writer.retire(superseded, record.ref.group, created_at)
    record = linked(writer.store, record, compared.corrected, retired=superseded)
    append_stamped(writer.store, [record._replace(vectors=prepared.vectors)])
    return _created(writer, record, compared.similar)


def _store_version(writer: Writer, prepared: Prepared, latest: Record) -> Created:
    """Store a draft as the next version of the memory that has its key; what the draft leaves open
    stays.
    """
    draft, superseded = prepared.draft, prepared.superseded
    if superseded is not None and superseded.ref.group == latest.ref.group:
        superseded = None  # it replaces itself
    changes: dict[str, Any] = {
        "redacted": " ".join(prepared.redacted) or None,
        **versions.declared_fields(draft),
    }
    if superseded is not None:
        changes["supersedes"] = draft.supersedes
    tags = tags_of(latest.labels)
    labels = validate.tags({**tags, **draft.tags})
    written_at = draft.created_at or writer.now
    writer.retire(superseded, latest.ref.group, written_at)
    same = draft.content == latest.text and labels == tags
    unchanged = same and all(latest.fields.get(name) == value for name, value in changes.items())
    # Repeating what decays is news: it still holds.
    if unchanged and versions.decay_policy(latest) is DecayPolicy.STABLE:
        repetition = writer.repetition(latest, replace(draft, supersedes=None), prepared.vectors)
        return _repeated(writer, repetition.write())
    new = versions.next_version(
        latest, "update", written_at, fresh=True, text=draft.content, labels=labels, fields=changes
    )
    record = recheck(writer.store, stamp_origin(writer.store, mark_record(new)))
    writer.store.patch([versions.end_version(latest, record.created_at, "update")])
    append_stamped(writer.store, [record._replace(vectors=prepared.vectors)])
    return _created(writer, record)


def _merge(writer: Writer, prepared: Prepared, same: Record) -> Created:
    """Merge what a draft adds into the memory with the same text."""
    writer.retire(prepared.superseded, same.ref.group, writer.now)
    if (
        prepared.superseded is not None
    ):  # read again, since it may have been linked with what was retired
        same = writer.lookup.own.find(same.ref.group)
    repetition = writer.repetition(same, prepared.draft, prepared.vectors, prepared.redacted)
    return _repeated(writer, repetition.write())


def _store_pending(writer: Writer, prepared: Prepared) -> Created:
    """Store a draft that waits to be accepted, unless it is known, waits already, or was
    rejected.
    """
    draft = prepared.draft
    if writer.force:
        return _store_new(writer, prepared, Compared())
    waiting = writer.lookup.where_pending()
    for where in (None, waiting, waiting._replace(ended_by="delete")):
        same, duplicates, *_ = writer.compare(draft, prepared.vectors, where)
        if same is not None and (draft.key is None or draft.key == versions.plain_key(same.key)):
            repetition = writer.repetition(same, draft, prepared.vectors)
            is_known = (
                not repetition.is_restated() if where is None else versions.is_unaccepted(same)
            )
            if is_known:
                return _repeated(writer, repetition.left_out())
        elif draft.key is None and duplicates and (where is None or where.ended_by == PENDING):
            return Created(stored=False, memory=None, duplicates=duplicates)
    return _store_new(writer, prepared, Compared())


def _created(writer: Writer, record: Record, similar_to: tuple[Similar, ...] = ()) -> Created:
    memory = writer.memory(record)
    return Created(stored=True, memory=memory, similar_to=similar_to, corrects=memory.corrects)


def _repeated(writer: Writer, repeated: "Repeated") -> Created:
    memory = writer.memory(repeated.record)
    return Created(
        stored=False,
        memory=memory,
        note=repeated.note,
        corrects=memory.corrects if "corrects" in repeated.merged else None,
        merged=repeated.merged,
        not_merged=repeated.left,
        reinforced=repeated.reinforced,
    )
