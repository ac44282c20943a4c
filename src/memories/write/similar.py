"""Finds the stored memories that a draft may repeat, correct or replace; `write.compare` judges
each pair of texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.guard.origin import Origin, origin_of, tags_of
from memories.languages.text import query_terms
from memories.models import SHARED, Draft, Memory, is_session_note
from memories.read import versions
from memories.read.replacements import REPLACES, score_replacement
from memories.stores.protocol import scan_pages
from memories.stores.records import Candidate, Collection, Filter, Record, Ref
from memories.write.compare.quick_checks import may_be_related
from memories.write.write_context import WriteContext

if TYPE_CHECKING:
    from memories.read.selector import Selector
    from memories.write.repetitions import Repetition

MAX_SIMILAR = 3
# maximum number of corrected memories found, most similar first; see `link_correction`
_MAX_CORRECTED = 3
_NEAR_BEST = 0.15  # a memory is shown if its score is at most this far below the best one
_MAX_SCORED = 12  # maximum number of rivals that are scored, the most similar first
_SEEN_BONUS = 0.18  # added to the score of a memory that the writer has just read
_MAX_CANDIDATES = 16  # maximum number of candidates that are compared with a draft
# A store can't filter for memories without a project. For a draft without one, all candidates may
# therefore belong to projects; if so, this many candidates are read.
_MAX_CANDIDATES_AGAIN = 64


@dataclass(frozen=True, slots=True)
class Similar:
    """An existing memory that resembles a draft.

    Attributes:
        created_at: When its latest version was written.
        agent: The agent in its tags, if any.
        difference: How its text differs, if at all.
        namespace: The namespace that contains it.
        origin: Who wrote it; None if it was stored before origins were recorded.
        suspicious: Why it may contain instructions to a model; see `Memory`.
        corrected_by: The memory that corrects it, if any.
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


class RepeatedMemory(NamedTuple):
    """A memory that repeats older memories, in the same or in other words.

    Attributes:
        memory: The newer memory.
        of: The older memories, most similar first.
    """

    memory: Memory
    of: tuple[Similar, ...]


class Comparison(NamedTuple):
    """Stored memories that resemble a draft.

    Attributes:
        same: The memory with the same text.
        duplicates: Memories that say the same thing.
        differing: Memories with a similar text that says something else.
        to_correct: Memories that give a different value for the same subject. `link_correction`
            links the draft to the newest of them and to those that agree with it.
        rivals: The memories that the draft may repeat, correct or replace, most similar first.
    """

    same: Record | None = None
    duplicates: tuple[Similar, ...] = ()
    differing: tuple[Similar, ...] = ()
    to_correct: tuple[Record, ...] = ()
    rivals: Sequence[Candidate] = ()


def compare_draft(
    ctx: WriteContext,
    draft: Draft,
    vectors: Any,
    where: Filter | None = None,
    older_than: str | None = None,
) -> Comparison:
    """Compare a draft with stored memories: those of its project whose confidence is high enough.

    Args:
        draft: The draft.
        vectors: The draft's vectors.
        where: The memories to compare it with; by default, all live ones in the namespace.
        older_than: The draft may repeat only memories whose ids precede this one.
    """
    threshold = 1.0
    if ctx.embedder is not None:
        threshold = ctx.embedder.space.duplicate
    where = where or Filter(Collection.MEMORY, (ctx.lookup.namespace,))
    rivals = _find_rivals(ctx, draft, vectors, where)
    related: list[Candidate] = []
    for rival in rivals:
        text = rival.record.text
        if may_be_related(draft.content, text, rival.similarity, threshold=threshold):
            related.append(rival)
    if not related:
        return Comparison(rivals=rivals)
    comparison = _compare_words(ctx, draft, vectors, related, threshold, older_than)
    return comparison._replace(rivals=rivals)


def _compare_words(
    ctx: WriteContext,
    draft: Draft,
    vectors: Any,
    related: Sequence[Candidate],
    threshold: float,
    older_than: str | None,
) -> Comparison:
    """Compare a draft, word by word, with memories that it may repeat or correct."""
    # These modules read word lists, which most drafts don't need.
    from memories.write.compare.corrections import is_correction
    from memories.write.compare.duplicates import Relation, compare_texts

    same: list[Record] = []
    duplicates: list[Similar] = []
    differing: list[Similar] = []
    corrected: list[Record] = []
    for candidate in related:
        record, similarity = candidate.record, candidate.similarity
        relation, difference = compare_texts(
            draft.content,
            record.text,
            similarity,
            threshold=threshold,
            explain=len(differing) < MAX_SIMILAR,
        )
        if relation in (Relation.SAME, Relation.DUPLICATE):
            if any(draft.tags.get(key) != record.labels.get(key) for key in ctx.within):
                continue
            if older_than is not None and record.ref.group >= older_than:
                continue
            if relation is Relation.SAME:
                same.append(record)
            else:
                duplicates.append(_to_similar(ctx, candidate, difference))
            continue
        new, old = draft.content, record.text
        is_open = len(corrected) < _MAX_CORRECTED and _is_open_to_correction(ctx, record, draft)
        if is_open and is_correction(new, old, similarity, threshold=threshold):
            corrected.append(record)
            relation = Relation.DIFFERS
            if not difference:  # the texts are too dissimilar; describe their difference anyway
                difference = compare_texts(new, old, 1.0, threshold=1.0).difference
        if relation is Relation.DIFFERS:
            differing.append(_to_similar(ctx, candidate, difference))
    if older_than is not None:
        same.reverse()  # so that all copies of a text repeat the first one
    return Comparison(
        same=_choose_repeated(ctx, same, draft, vectors),
        duplicates=tuple(duplicates[:MAX_SIMILAR]),
        differing=tuple(differing[:MAX_SIMILAR]),
        to_correct=tuple(corrected),
    )


def compare_stored(ctx: WriteContext, record: Record, vectors: Any) -> Comparison:
    """Compare a stored memory with the others, as if it were new. It may repeat only older ones."""
    return compare_draft(ctx, _make_draft(record), vectors, older_than=record.ref.group)


def _make_draft(record: Record) -> Draft:
    """Return a stored memory as a draft for a comparison with the other memories."""
    # With `supersedes`, the record is not compared with itself.
    return Draft(record.text, tags_of(record.labels), supersedes=record.ref.group)


def to_memory_with_twin(ctx: WriteContext, record: Record) -> Memory:
    """Return a restored memory with the id of another current memory with the same text, if any.

    A memory that awaits review is compared when it is accepted.
    """
    memory = ctx.to_memory(record)
    if memory.pending:
        return memory
    vectors = read_vectors(ctx, [record]).get(record.ref)
    same = compare_draft(ctx, _make_draft(record), vectors).same
    return memory if same is None else replace(memory, same_as=same.ref.group)


def read_vectors(ctx: WriteContext, records: Sequence[Record]) -> Mapping[Ref, Any]:
    """Return the vectors of stored memories, for comparing them; empty without an embedder."""
    if ctx.embedder is None:
        return {}
    return ctx.store.vectors([record.ref for record in records])


def choose_similar_to(
    ctx: WriteContext, draft: Draft, comparison: Comparison, vectors: Any
) -> tuple[Similar, ...]:
    """Return the memories for `Created.similar_to`: those closest to the draft's subject. The draft
    may replace one of them.

    Memories that differ in a value come first, followed by those that `read.replacements` rates
    highest. After a correction, the second group includes only memories that contain the old value.
    """
    if draft.supersedes is not None:
        return comparison.differing
    chosen = {similar.id: similar for similar in comparison.differing}
    others = [rival for rival in comparison.rivals if rival.record.ref.group not in chosen]
    scored = score_rivals(ctx, draft, others, vectors)
    best_score = max((score for score, _ in scored), default=0.0)
    closest = [candidate for score, candidate in scored if score >= best_score - _NEAR_BEST]
    if comparison.to_correct:
        old_text = comparison.to_correct[0].text
        old_value = {*query_terms(old_text)} - {*query_terms(draft.content)}
        closest = [rival for rival in closest if old_value <= {*query_terms(rival.record.text)}]
    for candidate in closest:
        chosen.setdefault(candidate.record.ref.group, _to_similar(ctx, candidate, ""))
    return tuple(chosen.values())[:MAX_SIMILAR]


def score_rivals(
    ctx: WriteContext, draft: Draft, rivals: Sequence[Candidate], vectors: Any
) -> list[tuple[float, Candidate]]:
    """Return the memories that a draft may replace, each with its score, highest first.

    Args:
        draft: The draft.
        rivals: Memories that resemble it, most similar first.
        vectors: The draft's vectors.
    """
    space = None if ctx.embedder is None else ctx.embedder.space
    current = [
        candidate
        for candidate in rivals[:_MAX_SCORED]
        if not versions.is_corrected(candidate.record, ctx.now)
    ]
    closest = current[0].similarity if current else None
    scored: list[tuple[float, Candidate]] = []
    for candidate in current:
        record = candidate.record
        score = score_replacement(
            draft.content, record.text, candidate.similarity, space, vectors, closest
        )
        if record.ref.group in draft.seen:
            score += _SEEN_BONUS
        if score >= REPLACES:
            scored.append((score, candidate))
    scored.sort(key=lambda pair: -pair[0])
    return scored


def _find_rivals(ctx: WriteContext, draft: Draft, vectors: Any, where: Filter) -> list[Candidate]:
    """Return the candidates for a comparison, except memories with a low confidence or from other
    projects. The most similar come first and, of equally similar ones, the newest.
    """
    project = draft.tags.get("project")
    if project is not None:
        where = where._replace(labels={**where.labels, "project": project})
    rivals: list[Candidate] = []
    terms = query_terms(draft.content)
    for limit in (_MAX_CANDIDATES, _MAX_CANDIDATES_AGAIN):
        candidates = ctx.store.candidates(
            where,
            vector=None if vectors is None else vectors[0],
            terms=terms,
            k=limit,
        )
        rivals = [candidate for candidate in candidates if _is_rival(ctx, candidate.record, draft)]
        has_dropped = len(rivals) < len(candidates)
        if project is not None or not has_dropped:
            break
    if vectors is not None and len(vectors) > 1:
        # The vector of a long text's first window says little about the entire text.
        rivals = [rival._replace(similarity=None) for rival in rivals]

    def closeness(rival: Candidate) -> tuple[float, float, Ref]:
        return rival.similarity or 0.0, rival.word_score, rival.record.ref

    return sorted(rivals, key=closeness, reverse=True)


def _is_rival(ctx: WriteContext, record: Record, draft: Draft) -> bool:
    """Return whether a draft that resembles a record may repeat, correct or replace it."""
    if record.labels.get("project") != draft.tags.get("project"):
        return False
    if record.ref.group == draft.supersedes:
        return False
    if is_session_note(record.labels, versions.plain_key(record.key)):
        return False  # a note only quotes the conversation, so no draft repeats it
    # Keep a record if a search would show it, or if it is at least as confident as the draft.
    declared = 1.0 if draft.confidence is None else draft.confidence
    confidence = versions.confidence(record, ctx.now, ctx.config.decay_half_life_hours)
    return confidence >= min(ctx.config.min_confidence, declared)


def _is_open_to_correction(ctx: WriteContext, record: Record, draft: Draft) -> bool:
    """Return whether a draft may correct a record, regardless of their texts.

    It may not correct a record if both have keys, or if the record is already corrected. A
    correction that the draft supersedes doesn't count; it is retired later, when the draft is
    stored.
    """
    have_keys = draft.key is not None and record.key is not None
    correction_id = versions.read_corrected_by(record, ctx.now)
    return not have_keys and correction_id in (None, draft.supersedes)


def _choose_repeated(
    ctx: WriteContext, same: Sequence[Record], draft: Draft, vectors: Any
) -> Record | None:
    """Return the memory that a draft repeats. If there are several, return the one that it
    contradicts least.
    """
    if not same:
        return None
    if len(same) == 1 and "corrected_by" not in same[0].fields:
        return same[0]
    allowed: list[Repetition] = []
    for record in same:
        repetition = ctx.make_repetition(record, draft, vectors)
        # A correction by a more trusted writer stays in effect, so the old text is stored as a
        # new memory.
        if not (repetition.was_corrected() and repetition.is_less_trusted()):
            allowed.append(repetition)
    if not allowed:
        return None
    return min(allowed, key=lambda repetition: repetition.count_conflicts()).record


def with_correction(ctx: WriteContext, similar: Similar) -> Similar:
    """Return a similar memory with the id of the memory that corrects it now."""
    record = ctx.lookup.own.find(similar.id)
    return replace(similar, corrected_by=versions.read_corrected_by(record, ctx.now))


def _to_similar(ctx: WriteContext, candidate: Candidate, difference: str) -> Similar:
    record = candidate.record
    return Similar(
        id=record.ref.group,
        content=record.text,
        similarity=round(min(1.0, max(0.0, candidate.similarity or 0.0)), 4),
        created_at=record.created_at,
        agent=record.labels.get("agent"),
        difference=difference,
        namespace=record.ref.namespace,
        origin=origin_of(record.labels),
        suspicious=record.read_list("suspicious"),
        corrected_by=versions.read_corrected_by(record, ctx.now),
    )


def find_repeats(ctx: WriteContext, selector: "Selector") -> Iterator[RepeatedMemory]:
    """Yield selected memories in the writer's namespace that repeat older ones, newest first."""
    where = selector.narrow(Filter(Collection.MEMORY, (ctx.lookup.namespace,)))
    for page in scan_pages(ctx.store, where, newest_first=True):
        vectors = read_vectors(ctx, page)
        for record in filter(selector.selects, page):
            older = _find_older(ctx, record, vectors.get(record.ref))
            if older:
                yield RepeatedMemory(ctx.to_memory(record), older)


def _find_older(ctx: WriteContext, record: Record, vectors: object) -> tuple[Similar, ...]:
    """Return the older memories that a new memory with this text would repeat."""
    comparison = compare_stored(ctx, record, vectors)
    repeated = comparison.duplicates
    if comparison.same is not None:
        same = comparison.same
        similar = Similar(same.ref.group, same.text, 1.0, same.created_at, same.labels.get("agent"))
        repeated = (similar, *repeated)
    return repeated
