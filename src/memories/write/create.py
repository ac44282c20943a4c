"""Turns drafts into memories: stores a draft as a new memory or as a version of the memory with its
key, merges it into the memory with the same text, or refuses it as a duplicate.

A draft passes through these steps:

1. `prepare_batches` redacts and checks all drafts, then embeds them in batches. Embedding is slow,
   so it happens outside transactions. The result is batches of `Prepared`.
2. `Batch.write` opens one transaction for a batch and takes each draft through the next steps. In a
   server, `server.group_commit` opens one for the batches of several commands.
3. `_find_retry` recognizes a retried draft. `_look_up_superseded` finds the memory that the draft
   supersedes.
4. `similar.compare_draft` finds the stored memories that resemble the draft. The result is a
   `Comparison`. A forced draft is not compared, nor is a draft with the key of a stored memory,
   unless it is pending. A pending draft is also compared with other pending drafts and with
   rejected ones (`_store_pending`).
5. One of `_store_new`, `_store_version`, `_store_pending` and `_merge` writes the draft with its
   origin, or the draft is refused. `_store_new` also links the memory to one that it corrects
   (`link_correction`). A memory that supersedes another takes over its links
   (`WriteContext.take_links_of`). The result is a `Created`.
6. The buffered versions are added to the store together, before the next read or patch, when the
   buffer is full, or at the end (`stores.logged.buffered_transaction`). The audit log entry
   follows, and the store commits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.ids import new_id
from memories.embedders.protocol import embed_to_store
from memories.errors import InvalidInput, NotFound
from memories.guard import validate
from memories.guard.origin import tags_of
from memories.models import DecayPolicy, Draft, Memory, describe_current_again
from memories.read import versions
from memories.stores.logged import append_as_stamped, buffered_transaction, stamp_record
from memories.stores.protocol import Store, add_count_to_errors, refuse_other_model
from memories.stores.records import Collection, Filter, Record
from memories.write.similar import (
    Comparison,
    Similar,
    choose_similar_to,
    compare_draft,
    with_correction,
)
from memories.write.suspicion import mark_suspicious
from memories.write.write_context import WriteContext

if TYPE_CHECKING:
    from memories.write.repetitions import MergeResult

BATCH = 500  # maximum number of drafts in one transaction, which needs one disk flush
BATCH_COMPARED = 25  # maximum if drafts are compared, since other writers have to wait


@dataclass(frozen=True, slots=True)
class Created:
    """The result of `Memories.create`.

    Attributes:
        stored: Whether the draft became a new memory, or a new version of the memory with its key.
        memory: The stored or updated memory; None if the draft was refused.
        duplicates: The memories that say the same thing, if the draft was refused as a duplicate.
        similar_to: Up to three memories on the closest subjects, including any that the new memory
            corrects. If the new memory should supersede one of the others, create it again with
            `supersedes`.
        corrects: The id of the memory that the new one corrects. A search that finds both shows the
            corrected one after the new one. See `write.compare.corrections`.
        redacted: The kinds of secrets that were replaced in the draft, in order.
        note: A remark, usually empty. It says why the draft has no vector although there is an
            embedder, why it was not merged, that it has already expired, that its id is taken, that
            it replaced a memory in another project, or which memories are current again.
        merged: If a memory with the same text existed, the names of the fields that a new version
            took from this draft: `tags`, `decay`, `confidence`, `source`, `anchors`, `valid_until`
            or `recheck`; `supersedes` if the draft supersedes another memory; `trust` if this
            writer is more trusted than the memory's writer; `corrects` if the memory had been
            corrected and is now true again.
        not_merged: The draft's fields, under the same names, that were not merged because they
            contradict that memory or because this writer may not change it.
        reinforced: Whether the decay of that memory was reset.
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

    @property
    def current_again(self) -> tuple[str, ...]:
        """The ids of the memories that are current again; see `Memory`."""
        return () if self.memory is None else self.memory.current_again

    @property
    def replaceable(self) -> "list[Similar]":
        """The memories in `similar_to` that are current and that the new memory doesn't correct."""
        return [similar for similar in self.similar_to if similar.corrected_by is None]


class Prepared(NamedTuple):
    """A draft on its way into the store.

    Attributes:
        draft: The draft: redacted, checked, and in its stored form.
        redacted: The kinds of secrets that were removed.
        vectors: The vectors of its content; None without a model.
        superseded: The memory that the draft supersedes, looked up in the transaction.
        anchors: The anchors found in the draft's text.
    """

    draft: Draft
    redacted: tuple[str, ...]
    vectors: Any = None
    superseded: Record | None = None
    anchors: tuple[str, ...] = ()


# --- before the transaction


def prepare_batches(ctx: WriteContext, drafts: Sequence[Draft]) -> "Iterator[Batch]":
    """Redact, check and embed drafts; yield them in batches, one for each transaction."""
    checked = [_redact_and_check(ctx, draft) for draft in drafts]
    size = BATCH if ctx.force else BATCH_COMPARED
    for start in range(0, len(checked), size):
        batch = checked[start : start + size]
        texts = [prepared.draft.content for prepared in batch]
        embedded = embed_to_store(ctx.embedder, texts)
        with_vectors = [
            prepared._replace(vectors=vectors)
            for prepared, vectors in zip(batch, embedded.vectors, strict=True)
        ]
        yield Batch(ctx, with_vectors, embedded.note)


def _redact_and_check(ctx: WriteContext, draft: Draft) -> Prepared:
    """Return a draft in its stored form, without secrets, with the anchors found in its text.

    No later step sees the original.
    """
    kinds: list[str] = []
    if ctx.redactor is not None:
        draft, kinds = versions.redact(draft, ctx.redactor)
    draft = replace(draft, content=validate.content(draft.content))
    draft, secrets_in_anchors = ctx.anchoring.prepare(versions.check_fields(draft))
    anchors = ctx.anchoring.discover(draft)
    return Prepared(draft, (*kinds, *secrets_in_anchors), anchors=anchors)


# --- in the transaction


class Batch(NamedTuple):
    """Prepared drafts to store in one transaction.

    Attributes:
        ctx: The context for writing them; its namespace contains them.
        drafts: The drafts, in order.
        vectors_note: Why the drafts have no vectors although there is an embedder; usually empty.
    """

    ctx: WriteContext
    drafts: Sequence[Prepared]
    vectors_note: str

    def with_store(self, store: Store) -> "Batch":
        """Return this batch with another store, such as a wrapper; see `stores.wrapper`."""
        lookup = self.ctx.lookup._replace(store=store)
        return self._replace(ctx=self.ctx._replace(lookup=lookup))

    def write(self) -> list[Created]:
        """Store the drafts in a transaction, which may be part of another one."""
        ctx = self.ctx
        if self.vectors_note and ctx.embedder is not None:
            # The store checks the model of each vector, but here there are none.
            where = Filter(Collection.MEMORY, (ctx.lookup.namespace,))
            refuse_other_model(ctx.store, ctx.embedder.space, where)
        results: list[Created] = []
        with buffered_transaction(ctx.store) as store:
            buffered_ctx = self.with_store(store).ctx
            for prepared in self.drafts:
                created = _store_draft(buffered_ctx, prepared)
                note = self._make_note(created)
                results.append(replace(created, note=note, redacted=prepared.redacted))
        return results

    def _make_note(self, created: Created) -> str:
        """Return a result's note, with remarks about missing vectors, an expiry, and memories that
        are current again.
        """
        notes = [created.note]
        if created.stored:
            notes.append(self.vectors_note)
        is_new_expiry = created.stored or "valid_until" in created.merged
        if is_new_expiry and created.memory is not None:
            notes.append(_describe_expiry(created.memory, self.ctx.now))
        # `answers.shapes.hint_of` already says that this memory is current again.
        said = created.id if created.corrects else None
        notes += describe_current_again([name for name in created.current_again if name != said])
        return "; ".join(filter(None, notes))


def write_batches(
    batches: Iterable[Batch], write: Callable[[Batch], list[Created]] = Batch.write
) -> list[Created]:
    """Store batches, each in a transaction of its own."""
    results: list[Created] = []
    with add_count_to_errors(lambda: len(results), "processed"):
        for batch in batches:
            results += write(batch)
    return results


def _describe_expiry(memory: Memory, now: datetime) -> str:
    """Return a note if a memory has already expired; else an empty string."""
    if memory.valid_until is None or memory.valid_until >= now:
        return ""
    day = memory.valid_until.astimezone().date().isoformat()
    return f"the memory has already expired: it is valid only until {day}"


def _store_draft(ctx: WriteContext, prepared: Prepared) -> Created:
    """Store a draft, unless it is a duplicate, a repetition or a retry.

    If this ends or changes memories, their links pass to the new memory or to their neighbours in
    the chain of corrections. The result names the memories that are current again.
    """
    retry = _find_retry(ctx, prepared.draft)
    if retry is not None:
        return retry
    prepared = _look_up_superseded(ctx, prepared)
    draft, former = prepared.draft, None
    if draft.pending:
        return _store_pending(ctx, prepared)
    if draft.key is not None:
        former = ctx.lookup.find_by_key(versions.scoped_key(draft.key, draft.tags))
    if former is not None:
        created = _store_version(ctx, prepared, former)
    else:
        created, former = _store_unless_known(ctx, prepared)
    memory = created.memory
    if memory is None:
        return created
    if prepared.superseded is not None:
        project = prepared.superseded.labels.get("project")
        if project != memory.tags.get("project"):
            where = "without a project" if project is None else f'in the project "{project}"'
            notes = filter(None, (created.note, f"it replaced a memory {where}"))
            created = replace(created, note="; ".join(notes))
    changed = filter(None, (prepared.superseded, former))
    before = [record for record in changed if versions.has_link(record)]
    if not before:
        return created
    from memories.write.links import add_current_again

    record = ctx.take_links_of(prepared.superseded, memory)
    record = add_current_again(ctx.store, record, before, ctx.now)
    memory = ctx.to_memory(record)
    corrects = memory.corrects if created.stored else created.corrects
    return replace(created, memory=memory, corrects=corrects)


def _store_unless_known(ctx: WriteContext, prepared: Prepared) -> tuple[Created, Record | None]:
    """Store a draft without a key, or with a new one, unless it repeats a memory. Return the
    result, and the former state of the memory with the same text, if any.
    """
    draft = prepared.draft
    comparison = Comparison()
    if not ctx.force:
        comparison = compare_draft(ctx, draft, prepared.vectors)
    # A key identifies the memory to write, so a draft with a key is never refused as a duplicate.
    if draft.key is None and comparison.same is not None:
        return _merge(ctx, prepared, comparison.same), comparison.same
    if draft.key is None and comparison.duplicates:
        return Created(stored=False, memory=None, duplicates=comparison.duplicates), None
    return _store_new(ctx, prepared, comparison), None


def _find_retry(ctx: WriteContext, draft: Draft) -> Created | None:
    """Return the earlier result for a retried draft, or a refusal if its id belongs to another
    text. Return None if the draft has no id or a new one; with `Draft.fresh`, the id is not looked
    up.
    """
    if draft.id is None or draft.fresh:
        return None
    where = Filter(Collection.MEMORY, (ctx.lookup.namespace,), state="any", group=draft.id)
    for first in ctx.store.scan(where, limit=1):
        if first.text != draft.content:
            note = (
                f"the id {draft.id} belongs to a memory with different content; give this text "
                "a different id"
            )
            return Created(stored=False, memory=None, note=note)
        [latest] = ctx.store.scan(where, limit=1, newest_first=True)
        return _report_created(ctx, latest)
    return None


def _look_up_superseded(ctx: WriteContext, prepared: Prepared) -> Prepared:
    """Look up the memory that a draft supersedes. It must be in the draft's namespace, since a
    memory that others can read must not be superseded by one that they can't.
    """
    memory_id = prepared.draft.supersedes
    if memory_id is None:
        return prepared
    try:
        superseded = ctx.lookup.own.find_live(memory_id)
    except (NotFound, InvalidInput):
        other = ctx.lookup.find(memory_id)
        raise InvalidInput(
            f"the memory to replace is in namespace {other.ref.namespace}, but the new one would "
            f"be in {ctx.lookup.namespace}; write it to {other.ref.namespace} instead"
        ) from None
    draft = replace(prepared.draft, supersedes=superseded.ref.group)
    # A draft that awaits review doesn't supersede anything until it is accepted.
    return prepared._replace(draft=draft, superseded=None if draft.pending else superseded)


def _store_new(ctx: WriteContext, prepared: Prepared, comparison: Comparison) -> Created:
    superseded = prepared.superseded
    draft = ctx.anchoring.set_for_new(prepared.draft, prepared.anchors)
    created_at = draft.created_at or ctx.now
    memory_id = draft.id or new_id(created_at)
    record = versions.first_version(
        draft, memory_id, ctx.lookup.namespace, created_at, prepared.redacted
    )
    # The record needs its origin now, since the result shows it.
    record = stamp_record(ctx.store, mark_suspicious(record))
    # This must precede `link_correction`, which skips memories that the superseded one still
    # corrects.
    ctx.retire(superseded, memory_id, created_at)
    if comparison.to_correct:
        from memories.write.links import (
            link_correction,
        )  # imported here, since few memories correct others

        is_newest = draft.created_at is None
        record = link_correction(
            ctx.store, record, comparison.to_correct, now=ctx.now, is_newest=is_newest
        )
    append_as_stamped(ctx.store, [record._replace(vectors=prepared.vectors)])
    similar_to = choose_similar_to(ctx, draft, comparison, prepared.vectors)
    if comparison.to_correct:
        # These memories were read before the link was made.
        similar_to = tuple(with_correction(ctx, similar) for similar in similar_to)
    return _report_created(ctx, record, similar_to)


def _store_version(ctx: WriteContext, prepared: Prepared, latest: Record) -> Created:
    """Store a draft as the next version of the memory with its key. Fields that the draft doesn't
    set keep their values.
    """
    from memories.write.links import update_links_after_change, update_links_after_restating

    superseded = prepared.superseded
    draft = ctx.anchoring.set_for_next_version(latest, prepared.draft, prepared.anchors)
    if superseded is not None and superseded.ref.group == latest.ref.group:
        superseded = None  # a memory can't replace itself
    fields: dict[str, Any] = {"redacted": " ".join(prepared.redacted) or None}
    fields |= versions.declared_fields(draft)
    if superseded is not None:
        fields["supersedes"] = draft.supersedes
    tags = tags_of(latest.labels)
    labels = validate.tags({**tags, **draft.tags})
    written_at = draft.created_at or ctx.now
    latest = ctx.retire_for(superseded, latest, written_at)

    has_same_fields = all(latest.fields.get(name) == value for name, value in fields.items())
    is_unchanged = draft.content == latest.text and labels == tags and has_same_fields
    # Restating a memory that decays adds information, namely that it is still true.
    is_stable = versions.decay_policy(latest) is DecayPolicy.STABLE
    if is_unchanged and is_stable and superseded is None:
        draft = replace(draft, supersedes=None)
        repetition = ctx.make_repetition(latest, draft, prepared.vectors)
        return _report_merged(ctx, repetition.merge())
    record = versions.next_version(
        latest,
        "update",
        written_at,
        restarts_decay=True,
        text=draft.content,
        labels=labels,
        fields=fields,
    )
    record = stamp_record(ctx.store, mark_suspicious(record))
    if record.text == latest.text:
        record = update_links_after_restating(ctx.store, latest, record)
    else:
        record = update_links_after_change(ctx.store, latest, record)
    ctx.store.patch([versions.end_version(latest, record.created_at, "update")])
    append_as_stamped(ctx.store, [record._replace(vectors=prepared.vectors)])
    return _report_created(ctx, record)


def _merge(ctx: WriteContext, prepared: Prepared, same: Record) -> Created:
    same = ctx.retire_for(prepared.superseded, same, ctx.now)
    repetition = ctx.make_repetition(same, prepared.draft, prepared.vectors, prepared.redacted)
    return _report_merged(ctx, repetition.merge())


def _store_pending(ctx: WriteContext, prepared: Prepared) -> Created:
    """Store a draft for review, unless the same text is already known, awaits review, or was
    rejected.
    """
    draft = prepared.draft
    if ctx.force:
        return _store_new(ctx, prepared, Comparison())
    live, pending = ctx.lookup.own.where(), ctx.lookup.where_pending()
    rejected = pending._replace(ended_by="delete")
    for where in (live, pending, rejected):
        comparison = compare_draft(ctx, draft, prepared.vectors, where)
        same = comparison.same
        if same is not None and draft.key in (None, versions.plain_key(same.key)):
            repetition = ctx.make_repetition(same, draft, prepared.vectors)
            # Deleting a memory after it was accepted doesn't count as rejecting it.
            is_known = versions.is_unaccepted(same)
            if where is live:
                is_known = not repetition.was_corrected()
            if is_known:
                return _report_merged(ctx, repetition.merge_nothing())
        elif draft.key is None and comparison.duplicates and where is not rejected:
            return Created(stored=False, memory=None, duplicates=comparison.duplicates)
    return _store_new(ctx, prepared, Comparison())


def _report_created(
    ctx: WriteContext, record: Record, similar_to: tuple[Similar, ...] = ()
) -> Created:
    memory = ctx.to_memory(record)
    return Created(stored=True, memory=memory, similar_to=similar_to, corrects=memory.corrects)


def _report_merged(ctx: WriteContext, result: "MergeResult") -> Created:
    memory = ctx.to_memory(result.record)
    return Created(
        stored=False,
        memory=memory,
        note=result.note,
        corrects=memory.corrects if "corrects" in result.merged else None,
        merged=result.merged,
        not_merged=result.not_merged,
        reinforced=result.reinforced,
    )
