"""Compares drafts with the stored memories of one namespace: who writes there, and what is there
already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.guard.origin import Origin, origin_of, tags_of
from memories.languages.text import query_terms
from memories.models import SHARED, Draft, Memory, is_session_note
from memories.read import versions
from memories.read.lookup import Lookup
from memories.stores.protocol import Store
from memories.stores.records import Candidate, Collection, Filter, Record
from memories.write.compare.corrections import corrects
from memories.write.compare.duplicates import Judgement, Verdict, judge, same_lines
from memories.write.links import unlink

if TYPE_CHECKING:
    from memories.embedders import Embedder
    from memories.guard.redactor import Redactor
    from memories.read.selector import Selector
    from memories.write.repetitions import Repetition

MAX_SIMILAR = 5
MAX_JUDGED = 2_000  # characters
_COMPARED = 16
_COMPARED_LOOSE = 64  # without a project, more: those of other projects are found too and dropped
_PAGE = 250


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


class Repeat(NamedTuple):
    """A memory that says what older ones say.

    Attributes:
        memory: The newer one.
        of: The older ones, most similar first.
    """

    memory: Memory
    of: tuple[Similar, ...]


class Compared(NamedTuple):
    """Stored memories that resemble a draft.

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


class Writer(NamedTuple):
    """Where and how drafts are written: one namespace, and the settings that decide what repeats
    what.

    Attributes:
        lookup: Finds what the caller may read and write.
        embedder: Makes the vectors; None to go by words alone.
        now: The time of drafts without one.
        half_life_hours: See `read.versions.compute_confidence`.
        min_confidence: A search does not find what is less current, so repeating that is no
            repetition.
        force: Store drafts without comparing them.
        redactor: Takes secrets out; None to keep drafts as they are.
        within: Keys of tags that tell statements apart, as `project` does: with another value it is
            no repetition.
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

    def memory(self, record: Record) -> Memory:
        """Return a record as a memory, with its confidence now."""
        return versions.to_memory(record, self.now, self.half_life_hours)

    def retire(self, superseded: Record | None, successor: str, at: datetime) -> None:
        """End the memory that another one replaces, if there is one."""
        if superseded is not None:
            unlink(self.store, [superseded])
            self.store.patch(
                [versions.end_version(superseded, at, "supersede", superseded_by=successor)]
            )

    def repetition(
        self, known: Record, draft: Draft, vectors: Any, redacted: tuple[str, ...] = ()
    ) -> "Repetition":
        """Return a draft as a repetition of the memory with the same text."""
        from memories.write.repetitions import Repetition  # most drafts repeat nothing

        return Repetition(self.store, known, draft, vectors, redacted, draft.created_at or self.now)

    def compare(self, draft: Draft, vectors: Any, where: Filter | None = None) -> Compared:
        """Compare a draft with stored memories.

        Args:
            draft: The draft.
            vectors: Its vectors.
            where: The memories to compare it with; by default all current ones.
        """
        same: list[Record] = []
        duplicates: list[Similar] = []
        similar: list[Similar] = []
        corrected: list[Record] = []
        threshold = 1.0 if self.embedder is None else self.embedder.space.duplicate
        for candidate in self._rivals(
            draft, vectors, where or Filter(Collection.MEMORY, (self.lookup.namespace,))
        ):
            record = candidate.record
            explain = len(similar) < MAX_SIMILAR
            judgement = _judge(
                draft.content, record.text, candidate.similarity, threshold, explain=explain
            )
            repeats = judgement.verdict in (Verdict.SAME, Verdict.DUPLICATE)
            if repeats and self._is_apart(draft, record):
                continue
            if judgement.verdict is Verdict.SAME:
                same.append(record)
            elif judgement.verdict is Verdict.DUPLICATE:
                duplicates.append(self._similar(candidate, judgement.reason))
            else:
                is_corrected = len(corrected) < MAX_SIMILAR and self._corrects(
                    draft, candidate, threshold
                )
                if is_corrected:
                    corrected.append(record)
                if is_corrected or judgement.verdict is Verdict.CORRECTION:
                    similar.append(self._similar(candidate, judgement.reason))
        repeated = self._choose_repeated(same, draft, vectors)
        return Compared(
            repeated,
            tuple(duplicates[:MAX_SIMILAR]),
            tuple(similar[:MAX_SIMILAR]),
            tuple(corrected),
        )

    def _similar(self, candidate: Candidate, difference: str) -> Similar:
        record = candidate.record
        return Similar(
            record.ref.group,
            record.text,
            round(max(0.0, candidate.similarity or 0.0), 4),
            record.created_at,
            record.labels.get("agent"),
            difference,
            record.ref.namespace,
            origin_of(record.labels),
            record.names("suspicious"),
            versions.corrected_by(record, self.now),
        )

    def _choose_repeated(self, same: Sequence[Record], draft: Draft, vectors: Any) -> Record | None:
        """Return the memory that a draft repeats: of several the first that it contradicts
        least.
        """
        if len(same) < 2 and not any("corrected_by" in known.fields for known in same):
            return same[0] if same else None
        repetitions = [self.repetition(known, draft, vectors) for known in same]
        # What a more trusted writer said is not turned back; so that it holds again is a memory of
        # its own.
        free = [
            repetition
            for repetition in repetitions
            if not (repetition.is_restated() and repetition.is_barred())
        ]
        return min(free, key=lambda repetition: repetition.conflicts()).known if free else None

    def _is_apart(self, draft: Draft, record: Record) -> bool:
        return any(draft.tags.get(key) != record.labels.get(key) for key in self.within)

    def _corrects(self, draft: Draft, candidate: Candidate, threshold: float) -> bool:
        """Return whether a draft corrects a memory that none corrects yet; of two keys none
        corrects the other.
        """
        record = candidate.record
        addressed = draft.key is not None and record.key is not None
        if addressed or record.fields.get("corrected_by") not in (None, draft.supersedes):
            return False
        return corrects(draft.content, record.text, candidate.similarity, threshold=threshold)

    def _is_current(self, record: Record, draft: Draft) -> bool:
        """Return whether a search would show a record, or at least no less than it would show the
        draft.
        """
        declared = 1.0 if draft.confidence is None else draft.confidence
        return versions.confidence(record, self.now, self.half_life_hours) >= min(
            self.min_confidence, declared
        )

    def _rivals(self, draft: Draft, vectors: Any, where: Filter) -> list[Candidate]:
        """Return what may say the same, most similar first: not faded, and of the same project."""
        project = draft.tags.get("project")
        if project is not None:
            where = where._replace(labels={**where.labels, "project": project})
        whole = vectors is None or len(vectors) == 1
        candidates = self.store.candidates(
            where,
            vector=None if vectors is None else vectors[0],
            terms=query_terms(draft.content),
            k=_COMPARED if project is not None else _COMPARED_LOOSE,
        )
        rivals = [
            # A text of several windows was compared by its first one only, which says little about
            # the whole.
            candidate if whole else candidate._replace(similarity=None)
            for candidate in candidates
            if candidate.record.labels.get("project") == project
            and candidate.record.ref.group != draft.supersedes
            and not _is_note(candidate.record)
            and self._is_current(candidate.record, draft)
        ]
        return sorted(rivals, key=lambda rival: -(rival.similarity or 0.0))


def find_repeats(writer: Writer, selector: "Selector", limit: int) -> Iterator[Repeat]:
    """Yield memories of the writer's namespace that are selected and repeat older ones, newest
    first.
    """
    return islice(_repeats(writer, selector), limit)


def _repeats(writer: Writer, selector: "Selector") -> Iterator[Repeat]:
    where, after = selector.narrow(Filter(Collection.MEMORY, (writer.lookup.namespace,))), None
    while page := writer.store.scan(where, limit=_PAGE, after=after, newest_first=True):
        after = (page[-1].ref.group, page[-1].ref.position)
        vectors = writer.store.vectors([record.ref for record in page]) if writer.embedder else {}
        for record in filter(selector.selects, page):
            older = _older(writer, record, vectors.get(record.ref))
            if older:
                yield Repeat(writer.memory(record), older)


def _older(writer: Writer, record: Record, vectors: object) -> tuple[Similar, ...]:
    """Return the older memories that a new memory with this text would repeat."""
    itself = Draft(
        record.text, tags_of(record.labels), supersedes=record.ref.group
    )  # which is left out
    compared = writer.compare(itself, vectors)
    similar = compared.duplicates
    if compared.same is not None:
        same = compared.same
        similar = (
            Similar(same.ref.group, same.text, 1.0, same.created_at, same.labels.get("agent")),
            *similar,
        )
    return tuple(memory for memory in similar if memory.id < record.ref.group)


def _is_note(record: Record) -> bool:
    """Return whether a record is a session's note: it quotes what was said, which nobody repeats by
    storing it.
    """
    return is_session_note(record.labels, versions.plain_key(record.key))


def _judge(
    new: str, old: str, similarity: float | None, threshold: float, *, explain: bool
) -> Judgement:
    """Judge two texts; of long ones only whether they are the same, since comparing their words
    takes seconds.
    """
    if max(len(new), len(old)) <= MAX_JUDGED:
        return judge(new, old, similarity, threshold=threshold, explain=explain)
    return Judgement(Verdict.SAME if same_lines(new, old) else Verdict.DIFFERENT)
