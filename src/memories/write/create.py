"""How a draft becomes a memory, a version of one that has its key, or neither because it is a duplicate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core.batches import by_count
from memories.core.ids import new_id, whole_id
from memories.core.times import kept
from memories.embedders.protocol import Embedded, embed_to_store
from memories.errors import InvalidInput, NotFound
from memories.guard import validate
from memories.guard.origin import Origin, origin_of, tags_of
from memories.languages.text import query_terms
from memories.models import PENDING, SHARED, DecayPolicy, Draft, Memory, is_session_note
from memories.read import versions
from memories.read.lookup import Lookup
from memories.stores.logged import adding_together, append_kept, as_added
from memories.stores.protocol import Store, refuse_other_model
from memories.stores.records import Candidate, Collection, Filter, Record
from memories.write.compare.corrections import corrects
from memories.write.compare.duplicates import Judgement, Verdict, judge, same_lines
from memories.write.links import linked, recheck, unlink
from memories.write.suspicion import marked

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor
    from memories.write.repetitions import Repeated, Repetition

BATCH = 500  # drafts in one transaction: one disk flush for all of them
BATCH_COMPARED = 25  # comparing takes time, and other writers should wait only briefly
MAX_SIMILAR = 5
MAX_JUDGED = 2_000  # characters
_COMPARED = 16
_COMPARED_LOOSE = 64  # without a project, more: those of other projects are found too and dropped


@dataclass(frozen=True, slots=True)
class Similar:
    """An existing memory that says nearly the same.

    Attributes:
        created_at: When its latest version was written.
        agent: The agent that it is tagged with, if any.
        difference: What it says differently, if anything.
        namespace: The namespace it belongs to.
        origin: Who wrote it; None if that was before origins were kept.
        suspicious: Why it may give orders to a model; see `Memory`.
        corrected_by: The memory that corrects it, if there is one.
    """

    id: str
    content: str
    similarity: float
    created_at: datetime
    agent: str | None = None
    difference: str = ""
    namespace: str = SHARED
    origin: Origin | None = None
    suspicious: tuple[str, ...] = ()
    corrected_by: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What a `create` did.

    Attributes:
        stored: Whether anything was stored.
        memory: The memory that now holds the statement; None if it was refused.
        duplicates: The memories that say the same, if it was refused as a duplicate.
        similar_to: Similar memories that differ in a number, a date, a name, …: this one may correct one of them.
        corrects: The id of the one that it corrects, which a search shows after it; see `write.corrections`.
        redacted: The kinds of the secrets that were replaced in it before anything else, in order.
        note: Why it was stored without a vector although there is an embedder, why what it adds was not merged, or why
            it was refused although nothing is like it: its id is taken. Usually empty.
        merged: If the same text was stored before, the names of what this one added to it, by a version of that
            memory: `tags`, `decay`, `confidence`, `source`; `supersedes` for the memory that it replaced; `trust` if a
            more trusted writer said it now; `corrects` if that memory was corrected meanwhile and holds again.
        not_merged: What this one said otherwise, or may not add, by the same names: that memory keeps what it has.
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
        """The id of the memory that now holds the statement; None if it was refused."""
        return None if self.memory is None else self.memory.id


class _Ready(NamedTuple):
    """A draft that was checked, and the kinds of the secrets that were taken out of it."""

    draft: Draft
    redacted: tuple[str, ...]


class Compared(NamedTuple):
    """What is there already.

    Attributes:
        same: The memory with the same text.
        duplicates: Those that say the same.
        similar: Those that are alike but differ.
        corrected: Those of the same subject with another value.
    """

    same: Record | None = None
    duplicates: tuple[Similar, ...] = ()
    similar: tuple[Similar, ...] = ()
    corrected: tuple[Record, ...] = ()


_NOTHING = Compared()


class Writer(NamedTuple):
    """Writes drafts into one namespace.

    Attributes:
        lookup: Finds what the caller may read and write.
        embedder: Makes the vectors; None to go by words alone.
        now: When drafts are written that name no time.
        half_life_hours: See `read.versions.compute_confidence`.
        min_confidence: What is less current is not found by a search, and so repeating it is no repetition.
        force: Store whatever is there already.
        redactor: Takes secrets out; None to keep what is given as it is.
        within: Keys of tags that tell statements apart, as the project does: with another value it is no repetition.
    """

    lookup: Lookup
    embedder: "Embedder | None"
    now: datetime
    half_life_hours: float
    min_confidence: float
    force: bool
    redactor: "Redactor | None"
    within: tuple[str, ...] = ()

    @property
    def store(self) -> Store:
        """Where memories are written."""
        return self.lookup.store

    def write(self, drafts: Sequence[Draft]) -> list[Created]:
        """Write drafts in order; all are redacted and checked before the first is written."""
        return [done for batch in self.prepared(drafts) for done in batch.write()]

    def prepared(self, drafts: Sequence[Draft]) -> "Iterator[Prepared]":
        """Yield drafts in batches that are ready to be written.

        Vectors are made before the transaction, so that no other writer waits for the model.
        """
        ready = [_ready(draft, self.redactor) for draft in drafts]
        for batch in by_count(ready, BATCH if self.force else BATCH_COMPARED):
            yield Prepared(self, batch, embed_to_store(self.embedder, [each.draft.content for each in batch]))

    def add(self, ready: _Ready, vectors: Any) -> Created:
        """Write a draft that was checked, within a transaction."""
        draft = ready.draft
        if draft.id is not None and not draft.fresh and (written := self._written_before(draft)) is not None:
            return written
        superseded = None if draft.supersedes is None else self._find_replaced(draft.supersedes)
        if superseded is not None:
            draft = replace(draft, supersedes=superseded.ref.group)
            ready = ready._replace(draft=draft)
        if draft.pending:
            return self._write_pending(ready, vectors)
        if draft.key is not None:
            latest = self.lookup.by_key(versions.scoped_key(draft.key, draft.tags))
            if latest is not None:
                return self._write_next(ready, latest, superseded, vectors)
        found = _NOTHING if self.force else self.compare(draft, vectors)
        # A draft with a key is never refused: the key says which memory is meant, whatever resembles it.
        if draft.key is None and found.same is not None:
            self.retire(superseded, found.same.ref.group, self.now)
            # Read again, since it may have been linked with what was retired.
            known = found.same if superseded is None else self.lookup.own.find(found.same.ref.group)
            return self._repeated(self.repetition(known, draft, vectors, ready.redacted).write())
        if draft.key is None and found.duplicates:
            return Created(stored=False, memory=None, duplicates=found.duplicates)
        return self._append(ready, vectors, superseded, found)

    def _written_before(self, draft: Draft) -> Created | None:
        """Return the memory that a retried draft became, or a refusal if its id is that of a memory with other text."""
        where = Filter(Collection.MEMORY, (self.lookup.namespace,), state="any", group=draft.id)
        for first in self.store.scan(where, limit=1):
            if first.text != draft.content:
                taken = f"the id {draft.id} is that of a memory that says something else; give this text another one"
                return Created(stored=False, memory=None, note=taken)
            [latest] = self.store.scan(where, limit=1, newest_first=True)
            return self.created(latest)
        return None

    def _append(
        self, ready: _Ready, vectors: Any, superseded: Record | None = None, found: Compared = _NOTHING
    ) -> Created:
        draft = ready.draft
        created_at = draft.created_at or self.now
        new = versions.first_version(
            draft, draft.id or new_id(created_at), self.lookup.namespace, created_at, ready.redacted
        )
        record = as_added(self.store, marked(new))
        self.retire(superseded, record.ref.group, created_at)
        record = linked(self.store, record, found.corrected, retired=superseded)
        append_kept(self.store, [record._replace(vectors=vectors)])
        return self.created(record, similar_to=found.similar)

    def repetition(self, known: Record, draft: Draft, vectors: Any, redacted: tuple[str, ...] = ()) -> "Repetition":
        """Return a draft as a repetition of a memory with the same text."""
        from memories.write.repetitions import Repetition  # most drafts repeat nothing

        return Repetition(self.store, known, draft, vectors, redacted, draft.created_at or self.now)

    def _repeated(self, done: "Repeated") -> Created:
        told = self.created(done.record, stored=False)
        corrects = told.memory.corrects if told.memory and "corrects" in done.merged else None
        changes: dict[str, Any] = {
            "merged": done.merged,
            "not_merged": done.left,
            "reinforced": done.reinforced,
            "note": done.note,
        }
        return replace(told, corrects=corrects, **changes)

    def _write_pending(self, ready: _Ready, vectors: Any) -> Created:
        """Write a draft that waits to be accepted, unless it is known, waits already, or was rejected."""
        draft = ready.draft
        if self.force:
            return self._append(ready, vectors)
        for where in (None, self.lookup.waiting(), self.lookup.waiting()._replace(ended_by="delete")):
            same, duplicates, *_ = self.compare(draft, vectors, where)
            if same is not None and (draft.key is None or draft.key == versions.plain_key(same.key)):
                repetition = self.repetition(same, draft, vectors)
                if versions.is_unaccepted(same) if where is not None else not repetition.is_restated():
                    return self._repeated(repetition.left_out())
            elif draft.key is None and duplicates and (where is None or where.ended_by == PENDING):
                return Created(stored=False, memory=None, duplicates=duplicates)
        return self._append(ready, vectors)

    def _write_next(self, ready: _Ready, latest: Record, superseded: Record | None, vectors: Any) -> Created:
        """Write a new version of the memory that has the draft's key; what the draft leaves open stays."""
        if superseded is not None and superseded.ref.group == latest.ref.group:
            superseded = None  # it replaces itself
        draft = ready.draft
        changes: dict[str, Any] = {"redacted": " ".join(ready.redacted) or None}
        changes |= versions.declared(draft) | ({"supersedes": draft.supersedes} if superseded else {})
        tags = tags_of(latest.labels)
        labels = validate.tags({**tags, **draft.tags})
        written_at = draft.created_at or self.now
        self.retire(superseded, latest.ref.group, written_at)
        same = draft.content == latest.text and labels == tags
        unchanged = same and all(latest.fields.get(name) == value for name, value in changes.items())
        # Repeating what decays is news: it still holds.
        if unchanged and versions.decay_policy(latest) is DecayPolicy.STABLE:
            return self._repeated(self.repetition(latest, replace(draft, supersedes=None), vectors).write())
        new = versions.next_version(
            latest, "update", written_at, fresh=True, text=draft.content, labels=labels, fields=changes
        )
        record = recheck(self.store, as_added(self.store, marked(new)))
        self.store.patch([versions.ended(latest, record.created_at, "update")])
        append_kept(self.store, [record._replace(vectors=vectors)])
        return self.created(record)

    def created(self, record: Record, *, stored: bool = True, similar_to: tuple[Similar, ...] = ()) -> Created:
        """Return that a record holds a statement now."""
        memory = versions.to_memory(record, self.now, self.half_life_hours)
        return Created(stored, memory, similar_to=similar_to, corrects=memory.corrects if stored else None)

    def _find_replaced(self, memory_id: str) -> Record:
        """Return a memory that may be replaced: what others read must not vanish behind what they can't."""
        try:
            return self.lookup.own.find_current(memory_id)
        except (NotFound, InvalidInput):
            found = self.lookup.find(memory_id)
            raise InvalidInput(
                f"the memory to replace is in namespace {found.ref.namespace}, and the new one would be in "
                f"{self.lookup.namespace}; write the new one there"
            ) from None

    def retire(self, superseded: Record | None, successor: str, at: datetime) -> None:
        """End a memory that another one replaces, if there is one."""
        if superseded is not None:
            unlink(self.store, [superseded])
            self.store.patch([versions.ended(superseded, at, "supersede", superseded_by=successor)])

    def compare(self, draft: Draft, vectors: Any, where: Filter | None = None) -> Compared:
        """Compare a draft with what is there.

        Args:
            draft: What is compared.
            vectors: Its vectors.
            where: What it is compared with; by default what is current.
        """
        same: list[Record] = []
        duplicates: list[Similar] = []
        similar: list[Similar] = []
        corrected: list[Record] = []
        threshold = 1.0 if self.embedder is None else self.embedder.space.duplicate
        for candidate in self._rivals(draft, vectors, where or Filter(Collection.MEMORY, (self.lookup.namespace,))):
            record = candidate.record
            told = len(similar) < MAX_SIMILAR
            judgement = _judge(draft.content, record.text, candidate.similarity, threshold, told=told)
            found = Similar(
                record.ref.group,
                record.text,
                _rounded(candidate.similarity),
                record.created_at,
                record.labels.get("agent"),
                judgement.reason,
                record.ref.namespace,
                origin_of(record.labels),
                record.names("suspicious"),
                versions.corrected_by(record, self.now),
            )
            if judgement.verdict in (Verdict.SAME, Verdict.DUPLICATE) and self._is_apart(draft, record):
                continue
            if judgement.verdict is Verdict.SAME:
                same.append(record)
            elif judgement.verdict is Verdict.DUPLICATE:
                duplicates.append(found)
            else:
                corrected += [record] * (len(corrected) < MAX_SIMILAR and self._corrects(draft, candidate, threshold))
                if judgement.verdict is Verdict.CORRECTION or record in corrected[-1:]:
                    similar.append(found)
        repeated = self._repeated_one(same, draft, vectors)
        return Compared(repeated, tuple(duplicates[:MAX_SIMILAR]), tuple(similar[:MAX_SIMILAR]), tuple(corrected))

    def _repeated_one(self, same: Sequence[Record], draft: Draft, vectors: Any) -> Record | None:
        """Return the memory that a draft repeats: of several the first that it contradicts least."""
        if len(same) < 2 and not any("corrected_by" in known.fields for known in same):
            return same[0] if same else None
        repetitions = [self.repetition(known, draft, vectors) for known in same]
        # What a more trusted writer said is not turned back; so that it holds again is a memory of its own.
        free = [each for each in repetitions if not (each.is_restated() and each.is_barred())]
        return min(free, key=lambda each: each.conflicts()).known if free else None

    def _is_apart(self, draft: Draft, record: Record) -> bool:
        return any(draft.tags.get(key) != record.labels.get(key) for key in self.within)

    def _corrects(self, draft: Draft, candidate: Candidate, threshold: float) -> bool:
        """Return whether a draft corrects a memory that none corrects yet; of two keys none corrects the other."""
        record = candidate.record
        addressed = draft.key is not None and record.key is not None
        if addressed or record.fields.get("corrected_by") not in (None, draft.supersedes):
            return False
        return corrects(draft.content, record.text, candidate.similarity, threshold=threshold)

    def _is_current(self, record: Record, draft: Draft) -> bool:
        """Return whether a search would show a record, or at least no less than it would show the draft."""
        declared = 1.0 if draft.confidence is None else draft.confidence
        return versions.confidence(record, self.now, self.half_life_hours) >= min(self.min_confidence, declared)

    def _rivals(self, draft: Draft, vectors: Any, where: Filter) -> list[Candidate]:
        """Return what may say the same, most similar first: not faded, and of the same project."""
        project = draft.tags.get("project")
        if project is not None:
            where = where._replace(labels={**where.labels, "project": project})
        whole = vectors is None or len(vectors) == 1
        found = self.store.candidates(
            where,
            vector=None if vectors is None else vectors[0],
            terms=query_terms(draft.content),
            k=_COMPARED if project is not None else _COMPARED_LOOSE,
        )
        rivals = [
            # A text of several windows was compared by its first one only, which says little about the whole.
            candidate if whole else candidate._replace(similarity=None)
            for candidate in found
            if candidate.record.labels.get("project") == project
            and candidate.record.ref.group != draft.supersedes
            and not _is_note(candidate.record)
            and self._is_current(candidate.record, draft)
        ]
        return sorted(rivals, key=lambda rival: -(rival.similarity or 0.0))


class Prepared(NamedTuple):
    """Drafts that were checked and redacted, and their vectors: what has to be known before a transaction begins."""

    writer: Writer
    ready: Sequence[_Ready]
    made: Embedded

    def through(self, store: Store) -> "Prepared":
        """Return the same, to be written through another store that stands for theirs; see `stores.wrapper`."""
        return self._replace(writer=self.writer._replace(lookup=self.writer.lookup._replace(store=store)))

    def write(self) -> list[Created]:
        """Write them in a transaction, which may be a part of another one."""
        writer, note = self.writer, self.made.note
        if note and writer.embedder is not None:
            where = Filter(Collection.MEMORY, (writer.lookup.namespace,))
            refuse_other_model(writer.store, writer.embedder.space, where)
        with adding_together(writer.store) as store:
            adding = self.through(store).writer
            written = [adding.add(each, vectors) for each, vectors in zip(self.ready, self.made.vectors, strict=True)]
        return [
            replace(done, note=note if done.stored else done.note, redacted=each.redacted)
            if note or each.redacted
            else done
            for done, each in zip(written, self.ready, strict=True)
        ]


def _ready(draft: Draft, redactor: "Redactor | None") -> _Ready:
    """Return a draft without secrets, in the form in which it is kept: nothing else sees what was given."""
    if redactor is None:
        return _Ready(_checked(draft, draft.content, draft.tags, draft.key, draft.data), ())
    content, kinds = redactor.text(draft.content)
    tags, in_tags = redactor.pairs(draft.tags)
    key, in_key = (None, ()) if draft.key is None else redactor.name(draft.key, "key")
    data, in_data = (draft.data, ()) if not draft.data else redactor.data(draft.data)
    known = (*kinds, *in_tags, *in_key, *in_data)
    return _Ready(_checked(draft, content, tags, key, data), known)


def _checked(draft: Draft, content: str, tags: Mapping[str, str], key: str | None, data: str | None) -> Draft:
    """Return a draft that says this, if its values are acceptable, in the form in which they are kept."""
    if draft.decay is not None and draft.decay not in tuple(DecayPolicy):
        raise InvalidInput(f'decay must be {", ".join(DecayPolicy)}, not "{validate.shown(str(draft.decay))}"')
    return replace(
        draft,
        content=validate.content(content),
        tags=validate.tags(tags),
        decay=None if draft.decay is None else DecayPolicy(draft.decay),
        key=None if key is None else validate.key(key),
        confidence=None if draft.confidence is None else validate.unit(draft.confidence, "confidence"),
        created_at=None if draft.created_at is None else kept(draft.created_at, "created_at"),
        source=None if draft.source is None else validate.one_line(draft.source, "source"),
        data=None if data is None else validate.data(data),
        id=None if draft.id is None else whole_id(draft.id),
    )


def _is_note(record: Record) -> bool:
    """Return whether a record is a session's note: it quotes what was said, which nobody repeats by storing it."""
    return is_session_note(record.labels, versions.plain_key(record.key))


def _judge(new: str, old: str, similarity: float | None, threshold: float, *, told: bool) -> Judgement:
    """Judge two texts; of long ones only whether they are the same, since comparing their words takes seconds."""
    if max(len(new), len(old)) <= MAX_JUDGED:
        return judge(new, old, similarity, threshold=threshold, told=told)
    return Judgement(Verdict.SAME if same_lines(new, old) else Verdict.DIFFERENT)


def _rounded(similarity: float | None) -> float:
    return round(max(0.0, similarity or 0.0), 4)
