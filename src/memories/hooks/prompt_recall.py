"""Recall for a prompt: finds memories and turns that pass the `gate` and are new to the session.

The session's own project comes first: its memories, those for every project, and those without a
project. A memory from another project is recalled if the prompt names that project, or if that
memory clearly has the highest rating. First, the gate selects candidates by rating. Then the
candidates that are already in the session's context are left out; memories with lower ratings never
take their place. Three kinds of texts need not pass the gate: the correction of a memory that
passes, a newer memory that may replace it, and the turns next to a recalled turn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.context import rendering
from memories.context.admission import Admission, is_admitted
from memories.context.context import ContextBuilder, estimate_tokens
from memories.context.gateway import MemoryGateway, WithScratchpad
from memories.context.memories_backend import (
    MemoriesBackend,
    latest_correction,
    memory_document,
    translate_errors,
)
from memories.context.protocol import MCPError
from memories.core.deadline import Deadline, MemoryTimeout, run_once
from memories.core.events import OFF
from memories.embedders import scores
from memories.errors import InvalidInput, StoreError, StoreUnreachable
from memories.guard.validate import MAX_QUERY_CHARACTERS
from memories.hooks import gate, runs, session
from memories.hooks.recall_strategy import NOT_ASKED, HookContext, RecallRequest
from memories.hooks.sentences import hash_sentences
from memories.languages.text import query_terms
from memories.memories import Memories
from memories.models import (
    EXPIRED,
    Memory,
    is_expired,
    is_global,
    is_recall_off,
    is_valid_in,
)
from memories.read.replacements import REPLACES, score_replacement
from memories.read.versions import has_expired
from memories.search.ranking import Features, Ranked
from memories.search.results import Hit, SearchResult, with_verdicts
from memories.search.search import MIN_CANDIDATES
from memories.settings import Config
from memories.stores.records import Collection, Record, Ref

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.context.protocol import HistoryTurn
    from memories.stores.records import Space

_NO_ID = "ffffffff-ffff-7"  # the prefix of ids from the year 10889, so no memory's id has it
_MIN_BUDGET = 100  # the smallest budget to try, in tokens


class TextLimits(NamedTuple):
    """The maximum numbers of characters and of tokens in a text."""

    characters: int
    tokens: int


class Rated(NamedTuple):
    """A memory or turn that a search considered, with its rating for the prompt.

    Attributes:
        hit: The memory or turn.
        rating: Its rating; see `gate`.
        meaning: The log-odds of the calibrated similarity; None if it is unknown.
        vectors: The vectors of the text's windows, shape (windows, dimension); None if it has none.
    """

    hit: Hit
    rating: float
    meaning: float | None = None
    vectors: "NDArray[np.float32] | None" = None

    @property
    def memory(self) -> Memory:
        """The memory."""
        return self.hit.memory


class RecallTrace:
    """Records why a prompt recalls some memories and not others. Only previews use it.

    Attributes:
        start: The context that the session began with.
        projects: All names of the session's project.
        rated: The memories that the searches considered, keyed by id.
        selected: The ids of the memories that passed the gate.
        current: The ids of the selected memories, or of their corrections, in order of rating. The
            newer memories that `_add_newer` adds are not included.
        left_out: Why a memory or turn that passed the gate may not be shown; keyed by id.
        turns: The recalled turns, with their neighbours.
        turn_ratings: The ratings of the turns that passed the gate, keyed by id.
    """

    def __init__(self, start: HookContext | None = None) -> None:
        """Create an empty trace."""
        self.start = start or HookContext("", "")
        self.projects: Sequence[str] = ()
        self.rated: dict[str, Rated] = {}
        self.selected: list[str] = []
        self.current: list[str] = []
        self.left_out: dict[str, str] = {}
        self.turns: list[HistoryTurn] = []
        self.turn_ratings: dict[str, float] = {}

    def add_memories(
        self,
        rated: Mapping[str, Rated],
        selected: Iterable[Rated],
        current: Iterable[Rated],
    ) -> None:
        """Record a search for memories: what it considered, selected and returned."""
        self.selected = [entry.memory.id for entry in selected]
        self.current = [entry.memory.id for entry in current]
        self.rated = {**rated, **{entry.memory.id: entry for entry in current}}

    def finish(self, built: Mapping[str, Any]) -> None:
        """Record the parts of a context that `ContextBuilder.build_recall` returned."""
        for reason, documents in built["metadata"]["left_out"].items():
            self.left_out.update(dict.fromkeys(documents["ids"], reason))
        self.turns = list(built["recalled"])


def recall_for_prompt(
    memories: Memories,
    request: RecallRequest,
    config: Config,
    *,
    projects: Sequence[str],
    limits: TextLimits,
    trace: RecallTrace | None = None,
) -> HookContext:
    """Return the memories and turns that a prompt recalls, fenced as data.

    Args:
        memories: The open `Memories`.
        request: The session and its prompt.
        config: The settings.
        projects: All names of the session's project. If there are none, all memories are treated
            as the session's own.
        limits: The limits of the text.
        trace: Records the reasons, for the preview.
    """
    state = session.read(request.home, request.session)
    if trace is not None:
        start = trace.start
        state.update({session.SHOWN: start.shown, session.SENTENCES: start.sentences})
        trace.projects = projects
    if not request.asks_store:
        why_offline, seconds = NOT_ASKED, config.memory_timeout_seconds
    else:
        why_offline, seconds = _check_store(memories, request.seconds() / 2), request.seconds()
    backend = _GatedBackend(memories, projects, why_offline, trace)
    with _GatedGateway(backend, seconds) as gateway:
        built, text = _build(gateway, config, str(request.prompt), state, limits)
    if trace is not None:
        trace.finish(built)
    errors = built["metadata"]["errors"]
    items = [memory for memory, _ in built["memories"]]
    if errors:
        memories.abandon()  # a call that timed out may still be using the store
    elif request.marks_read:
        _count_reads(backend, request, [str(memory.id) for memory in items])
    context = HookContext(text, config.namespace)
    context.error = errors[0]["error"] if errors else ""
    sentences: set[str] = set()
    for memory in items:
        sentences |= hash_sentences(memory.text)
        if memory.id:
            context.shown.append(memory.id)
    for turn in built["recalled"]:
        sentences |= hash_sentences(turn.text)
        context.shown.append(id_of_turn(turn))
    context.sentences = sorted(sentences)
    return context


def _count_reads(
    backend: "_GatedBackend", request: RecallRequest, memory_ids: Sequence[str]
) -> None:
    """Record that the recalled memories were read. If that fails, the model gets them anyway."""
    try:
        run_once(request.seconds(), lambda: backend.count_reads(memory_ids))
    except (ConnectionError, MCPError) as exc:
        backend.memories.abandon()  # as above
        runs.log(request.home, f"the memories that were recalled are not counted as read: {exc}")


def _check_store(memories: Memories, seconds: float) -> str:
    """Return the reason the store does not respond to a cheap call; empty if it does.

    The check needs no model, so no time is spent loading one if the store is down.
    """
    try:
        Deadline(seconds).run(lambda: memories.ids(_NO_ID, limit=1))
    except MemoryTimeout:
        return f"the store did not answer within {seconds:.2g} s"
    except StoreError as exc:
        return str(exc)
    return ""


def _build(
    gateway: MemoryGateway,
    config: Config,
    prompt: str,
    state: session.Session,
    limits: TextLimits,
) -> tuple[dict[str, Any], str]:
    """Return the parts and the text of a context that fits the limits; no text if nothing is new.

    The builder counts the tokens of a different format, which is longer, so the first attempt
    usually fits. Each further attempt searches again with a smaller budget.
    """
    characters, tokens = limits
    budget = min(tokens, config.context_token_budget or tokens)
    top_k = min(gate.MAX_MEMORIES, config.memory_top_k)
    # The hook records one usage event for all attempts.
    config = config._replace(events=OFF, memory_top_k=top_k)
    while True:
        builder = ContextBuilder.from_config(gateway, config, budget)
        # The builder reads through `context.gathering` and `context.gateway`, which call
        # `_GatedBackend.recall` and `_GatedBackend.recall_turns`. Without a store, `recall` raises
        # `StoreUnreachable`, and `context.gathering` then calls the gateway's `recall_offline`.
        # `recall` and `recall_offline` are asked for at least twice `top_k` memories; the admission
        # keeps `top_k`. Only the budget limits the number of turns.
        built = _leave_out(builder.build_recall(prompt), state)
        text = ""
        if built["memories"] or built["recalled"]:
            text = rendering.recall_text(
                [memory for memory, _ in built["memories"]],
                built["recalled"],
                built["metadata"]["boundary"],
            )
        if len(text) <= characters and estimate_tokens(text) <= tokens:
            return built, text
        budget = budget * 3 // 4
        if budget < _MIN_BUDGET:
            return {**built, "memories": [], "recalled": []}, ""


def _leave_out(built: Mapping[str, Any], state: session.Session) -> dict[str, Any]:
    """Return the parts without the memories and turns that are in the session's context already.

    A memory whose text has changed since it was shown is not left out.
    """
    memories = [
        (memory, similarity)
        for memory, similarity in built["memories"]
        if not state.has(str(memory.id), hash_sentences(memory.text))
    ]
    turns = [turn for turn in built["recalled"] if not state.has(id_of_turn(turn))]
    return {**built, "memories": memories, "recalled": turns}


def id_of_turn(turn: "HistoryTurn") -> str:
    """Return a turn's id: its conversation and its index."""
    return f"{turn.conversation_id}#{turn.turn_index}"


class _GatedBackend(MemoriesBackend):
    """A backend that recalls only memories and turns that pass the gate.

    For memories, the gate's thresholds apply (see `_select`), not those of the search. So a
    candidate that the search would drop can still pass, if its confidence is high enough. A turn
    must pass both the search and the gate, whose threshold is the same for all turns. Neighbours of
    turns need not pass the gate.
    """

    def __init__(
        self,
        memories: Memories,
        projects: Sequence[str],
        why_offline: str,
        trace: RecallTrace | None,
    ) -> None:
        """Wrap the memories.

        Args:
            memories: The memories.
            projects: All names of the session's project.
            why_offline: Why the store must not be queried; empty if it may be queried.
            trace: Records the reasons.
        """
        super().__init__(memories)
        self.projects, self._why_offline, self._trace = projects, why_offline, trace
        self._records: dict[str, Record] = {}  # the considered memories, keyed by id

    def recall(
        self,
        query_text: str,
        k: int,
        min_confidence: float,
        conversation_id: str | None,  # noqa: ARG002 - recall covers all conversations
    ) -> list[Any]:
        """Return the documents of the memories that pass the gate, highest rated first.

        A memory that was corrected is replaced with its correction, and a newer memory may precede
        an older one. Doubtful memories come last. An expired memory is left out. For `k`, see
        `_build`.
        """
        if self._why_offline:
            raise StoreUnreachable(self._why_offline)
        query = query_text[:MAX_QUERY_CHARACTERS]
        with translate_errors():
            try:
                results = self._search(query, k, min_confidence)
            except InvalidInput:  # not a valid query, for example a prompt without visible text
                return []
            # The first search covers all projects, so it gathers all memories of a small store.
            is_small = len(results[0].candidates) < MIN_CANDIDATES
            for result in results:
                records = [candidate.record for candidate in result.candidates]
                self._records.update((record.ref.group, record) for record in records)
            rater = _Rater(results)
            # The project's search comes last, so its ratings replace those of the other search.
            rated = {
                entry.memory.id: entry
                for result in results
                for entry in rater.rate_memories(result, min_confidence, is_small=is_small)
            }
            selected = _select(query, rated.values(), self.projects)
            current = _replace_corrected(selected, rated, self._read)
            embedder = results[0].query.embedder
            space = None if embedder is None else embedder.space
            now = results[0].query.judged_at
            # An expired memory must not be inserted before an older one. Selected memories that
            # have expired are left out later because of their verdicts, and the trace says why.
            valid = [
                entry for name, entry in rated.items() if not has_expired(self._records[name], now)
            ]
            current = _add_newer(current, valid, space)
            allowed = [entry for entry in current if not is_recall_off(entry.memory.tags)][:k]
            if self._trace is not None:
                self._trace.add_memories(rated, selected, current)
            judged = with_verdicts([entry.hit for entry in allowed], self.memories.judge)
            expired = [hit.id for hit in judged if is_expired(hit.memory.verdict)]
            if self._trace is not None:
                self._trace.left_out.update(dict.fromkeys(expired, EXPIRED))
            hits = [hit for hit in judged if hit.id not in expired]
            return list(map(self._memory_with_owner, hits))

    def _search(self, query: str, k: int, min_confidence: float) -> list[SearchResult]:
        """Search all memories, and the memories of the session's project separately.

        Without the second search, other projects could crowd out this project's memories.
        """
        of_all_projects = self.memories.find_candidates(
            query, limit=k, min_confidence=min_confidence
        )
        if not self.projects:
            return [of_all_projects]
        in_project = self.memories.find_candidates(
            query, limit=k, min_confidence=min_confidence, project=self.projects
        )
        return [of_all_projects, in_project]

    def _read(self, memory_id: str) -> Memory:
        """Return a memory as it is now; unlike `Memories.get`, this doesn't count as a read."""
        return self.memories.get(memory_id, as_of=datetime.now(UTC))

    def count_reads(self, memory_ids: Sequence[str]) -> None:
        """Record that the memories given to the model were read."""
        with translate_errors():
            found = [self._records[name] for name in memory_ids if name in self._records]
            self.memories.count_reads(found)
            for memory_id in memory_ids:
                if memory_id not in self._records:  # a correction that no search found
                    self.memories.get(memory_id)

    def recall_turns(
        self, query_text: str, k: int, conversation_id: str | None, *, own: bool = False
    ) -> list[Any]:
        """Return the documents of the turns that pass the gate, in the order of the search.

        If `recall` could not reach the store, `context.gathering` does not call this.
        """
        memories = self.memories.without_shared() if own else self.memories
        query = query_text[:MAX_QUERY_CHARACTERS]
        with translate_errors():
            try:
                result = memories.find_candidates(
                    query, scope="history", limit=k, conversation=conversation_id
                )
            except InvalidInput:
                return []
            rater = _Rater([result])
            hits: list[Hit] = []
            for ranked in result.ranking:
                entry = rater.rate(result, ranked, ranked.features.evidence.word_score)
                if ranked.dropped or entry.rating < gate.THRESHOLD:
                    continue
                hits.append(entry.hit)
                if self._trace is not None:
                    self._trace.turn_ratings[entry.hit.id] = entry.rating
            return list(map(self._recalled_turn, hits))


class _GatedGateway(WithScratchpad):
    """A gateway that falls back to the scratchpad, whose memories must also pass the gate."""

    def __init__(self, backend: _GatedBackend, seconds: float | None) -> None:
        super().__init__(backend.memories, backend=backend, timeout_seconds=seconds)
        self._projects = backend.projects

    def select_offline(self, query_text: str, hits: Sequence[Hit]) -> Sequence[Hit]:
        """Return the hits that pass the gate, rated by the words that they share with the query."""
        terms, prompt_gate = query_terms(query_text), gate.Gate(query_text)
        rated: list[Rated] = []
        for hit in hits:
            word_score = gate.estimate_word_score(hit.content, terms)
            is_global_memory = is_global(hit.memory.tags)
            rating = prompt_gate.rate(hit.content, None, word_score, is_global=is_global_memory)
            rated.append(Rated(hit, rating))
        selected = _add_newer(_select(query_text, rated, self._projects), rated, None)
        return [entry.hit for entry in selected if not is_recall_off(entry.memory.tags)]


class _Rater:
    """Rates the candidates of one prompt's searches with the `gate`."""

    def __init__(self, results: Sequence[SearchResult]) -> None:
        """Rate how much a prompt needs memories, and how closely each candidate relates to it.

        Args:
            results: The results of the prompt's searches. If there is a project, the last search is
                limited to it.
        """
        in_project = results[-1]  # without a project, the search of everything
        query = in_project.query
        # With an empty text, this asks only whether the model can read the prompt's script.
        vector = query.vector(query.text) if query.is_readable("") else None
        self._vectors: dict[Ref, NDArray[np.float32]] = {}
        for result in results:
            self._vectors.update(result.vectors())
        need, self._relate = 0.0, None
        if query.embedder is not None and vector is not None:
            model = query.embedder.space.model
            need = scores.rate_need(model, vector)
            self._relate = scores.relation_rater(model, vector)
        self._gate = gate.Gate(query.text, need)
        meanings = [_meaning(in_project, ranked.features) for ranked in in_project.ranking]
        self._best = max((meaning for meaning in meanings if meaning is not None), default=None)

    def rate(self, result: SearchResult, ranked: Ranked, word_score: float) -> Rated:
        """Return a candidate with its rating.

        For `word_score`, see `gate`.
        """
        hit, ref = result.to_hit(ranked), result.candidates[ranked.row].record.ref
        meaning = _meaning(result, ranked.features)
        vectors, relation = self._vectors.get(ref), 0.0
        if self._relate is not None and vectors is not None:
            relation = self._relate(vectors)
        is_global_memory = ref.collection is Collection.MEMORY and is_global(hit.memory.tags)
        rating = self._gate.rate(
            hit.content,
            meaning,
            word_score,
            best_meaning=self._best,
            relation=relation,
            is_global=is_global_memory,
        )
        return Rated(hit, rating, meaning, vectors)

    def rate_memories(
        self, result: SearchResult, min_confidence: float, *, is_small: bool
    ) -> Iterable[Rated]:
        """Yield a search's candidates whose confidence is high enough, with their rating.

        The gate replaces the search's own thresholds, which are meant for questions.
        """
        for ranked in result.ranking:
            features = ranked.features
            if features.confidence < min_confidence:
                continue
            word_score = features.evidence.word_score
            if is_small:
                text = result.candidates[ranked.row].record.text
                estimate = gate.estimate_word_score(text, result.query.terms)
                word_score = max(word_score, estimate)
            yield self.rate(result, ranked, word_score)


def _meaning(result: SearchResult, features: Features) -> float | None:
    """Return the log-odds of a candidate's calibrated similarity; None if it is unknown."""
    similarity, embedder = features.evidence.similarity, result.query.embedder
    if similarity is None or embedder is None or not features.readable:
        return None
    slope, middle = embedder.space.calibration
    return float(slope * (similarity - middle))


def _select(query: str, rated: Iterable[Rated], projects: Sequence[str]) -> list[Rated]:
    """Return the memories that pass the gate, highest rated first; see the module's docstring."""
    ordered = sorted(rated, key=lambda entry: -entry.rating)
    own: list[Rated] = []
    others: list[Rated] = []
    for entry in ordered:
        (own if is_valid_in(entry.memory.tags, projects) else others).append(entry)
    best = own[0].rating if own else gate.THRESHOLD
    clear = max(gate.CLEARLY_NEEDED, best + gate.CLEARLY_BETTER)
    threshold = gate.threshold(best)
    selected = [entry for entry in own if entry.rating >= threshold]
    for rank, entry in enumerate(others):
        is_named = gate.names_project(query, entry.memory.tags["project"])
        is_clearly_best = rank == 0 and entry.rating >= clear
        if is_named:
            best = max(best, entry.rating)
        if is_clearly_best or (is_named and entry.rating >= gate.threshold(best)):
            selected.append(entry)
    return sorted(selected, key=lambda entry: -entry.rating)


def _replace_corrected(
    selected: Iterable[Rated], rated: Mapping[str, Rated], get: Callable[[str], Memory]
) -> list[Rated]:
    """Replace each memory with its latest correction.

    Args:
        selected: The memories, highest rated first.
        rated: All candidates, keyed by id.
        get: Reads a memory that is not a candidate.
    """

    def read(memory_id: str) -> Memory:
        return rated[memory_id].memory if memory_id in rated else get(memory_id)

    current: dict[str, Rated] = {}
    for entry in selected:
        memory = latest_correction(entry.memory, read)
        hit = Hit(memory, entry.hit.score, None, None)
        current.setdefault(memory.id, rated.get(memory.id, Rated(hit, entry.rating)))
    return list(current.values())


def _add_newer(
    current: Iterable[Rated], candidates: Sequence[Rated], space: "Space | None"
) -> list[Rated]:
    """Insert, before each memory, the newer one that may replace it.

    The newer memory need not have passed the gate.

    A correction in different words isn't linked to the memory that it corrects, and a prompt often
    resembles the older memory more; see `search.put_newer_first`. The older memory stays, because
    it may have details that the newer one lacks, such as a command.
    """
    ordered: dict[str, Rated] = {}
    for older in current:
        newer = _find_newer(older, candidates, space)
        if newer is not None:
            rating = max(older.rating, newer.rating)
            ordered.setdefault(newer.memory.id, newer._replace(rating=rating))
        ordered.setdefault(older.memory.id, older)
    return list(ordered.values())


def _find_newer(older: Rated, candidates: Sequence[Rated], space: "Space | None") -> Rated | None:
    """Return the memory that most likely replaces an older one; None if there is none.

    A memory replaces at most one other memory: the one for which its score is highest.
    """
    best, best_score = None, REPLACES
    for newer in candidates:
        score = _score_replacement(newer, older, space)
        if score < best_score or is_recall_off(newer.memory.tags):
            continue
        if not is_admitted(memory_document(newer.hit), Admission()):
            continue  # a memory that isn't shown can't replace another
        # `older` must be the memory that `newer` most likely replaces.
        if all(_score_replacement(newer, other, space) <= score for other in candidates):
            best, best_score = newer, score
    return best


def _score_replacement(newer: Rated, older: Rated, space: "Space | None") -> float:
    """Return how likely it is that a memory replaces an older one; see `read.replacements`."""
    new, old = newer.memory, older.memory
    is_beside = new.namespace == old.namespace
    is_beside = is_beside and new.tags.get("project") == old.tags.get("project")
    is_later = new.stated_at > old.stated_at and new.corrected_by is None
    if not is_beside or not is_later:
        return 0.0
    similarity = None
    if newer.vectors is not None and older.vectors is not None:
        similarity = float((newer.vectors @ older.vectors.T).max())
    return score_replacement(new.content, old.content, similarity, space, newer.vectors)
