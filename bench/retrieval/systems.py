"""The systems that are measured: Memories by its public API, plain words, plain vectors, their
fusion, and Chroma.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import numpy as np

from bench import corpus, peers, report
from bench.retrieval import progress
from bench.retrieval.datasets import Conversation, Pool, Question, Turn
from bench.retrieval.metrics import DEPTH
from bench.retrieval.vectors import KeptVectors
from memories import Memories, TurnDraft, load_config
from memories.models import MAX_TURN_CHARACTERS
from memories.write.turns import split

NAMES = ("memories", "fts5", "dense", "rrf", "chroma")
_RRF_K = 60  # Cormack, Clarke and Büttcher, 2009
_FUSED = 2 * DEPTH  # number of entries of each ranking that are fused
_SCRIPT = Path(__file__).with_name("chroma_inside.py")
_SESSION_CHARACTERS = 2_500  # more than fits into one window

Finder = Callable[
    ..., list[str]
]  # pool, question and limit, by default DEPTH → ids of turns, best first
_Ranker = Callable[[str, str], list[int]]  # pool and text → places of turns in the pool, best first


@contextmanager
def opened(
    names: Sequence[str], pools: Sequence[Pool], embedder: KeptVectors, folder: Path
) -> Iterator[dict[str, Finder]]:
    """Store the pools in every system that ranks turns, and yield a search function for each.

    Args:
        names: Which of `NAMES`; `chroma` is not included, since it ranks only sessions.
        pools: What to store; each is searched by itself.
        embedder: Gives all systems the same vectors.
        folder: Empty; stores lie in it.
    """
    embedder.prepare(texts([name for name in names if name != "chroma"], pools))
    with ExitStack() as stack:
        finders: dict[str, Finder] = {}
        if "memories" in names:
            finders["memories"] = stack.enter_context(_memories(pools, embedder, folder))
        words = _words(pools) if {"fts5", "rrf"} & set(names) else None
        dense = _dense(pools, embedder) if {"dense", "rrf"} & set(names) else None
        turns = {pool.name: pool.turns for pool in pools}
        if words and "fts5" in names:
            finders["fts5"] = _finder(words, turns)
        if dense and "dense" in names:
            finders["dense"] = _finder(dense, turns)
        if words and dense and "rrf" in names:
            finders["rrf"] = _finder(_fused(words, dense), turns)
        yield finders


def texts(names: Sequence[str], pools: Sequence[Pool]) -> Iterator[str]:
    """Yield the texts whose vectors these systems need; questions are not among them."""
    for pool in pools:
        if "memories" in names:
            for turn in pool.turns:
                yield from (
                    split(turn.text) if len(turn.text) > MAX_TURN_CHARACTERS else (turn.text,)
                )
        if {"dense", "rrf"} & set(names):
            yield from (turn.said for turn in pool.turns)
        if "chroma" in names:
            yield from _session_texts(pool).values()


def _finder(rank: _Ranker, turns: Mapping[str, Sequence[Turn]]) -> Finder:
    def find(pool: str, question: Question, limit: int = DEPTH) -> list[str]:
        return [turns[pool][place].id for place in rank(pool, question.text)[:limit]]

    return find


# --- ours


@contextmanager
def _memories(pools: Sequence[Pool], embedder: KeptVectors, folder: Path) -> Iterator[Finder]:
    """Store conversations as a user's application would, in one namespace per pool, and yield the
    search.
    """
    config = load_config({"home": str(folder.absolute())}, environment={})
    ids: dict[tuple[str, str, int], str] = {}
    with ExitStack() as stack:
        homes: dict[str, Memories] = {}
        advance = stack.enter_context(
            progress.shown("storing", sum(len(pool.conversations) for pool in pools))
        )
        for pool in pools:
            home = Memories(
                namespace=_namespace(pool.name), shared=False, config=config, embedder=embedder
            )
            homes[pool.name] = stack.enter_context(home)
            for conversation in pool.conversations:
                stored = home.add_turns(conversation.id, drafts(conversation))
                for turn, kept in zip(conversation.turns, stored, strict=True):
                    ids[pool.name, kept.conversation_id, kept.index] = turn.id
                advance(1)

        def find(pool: str, question: Question, limit: int = DEPTH) -> list[str]:
            hits = homes[pool].search(
                question.text, scope="history", limit=limit, now=question.asked_at
            )
            return [ids[pool, hit.turn.conversation_id, hit.turn.index] for hit in hits]

        yield find


def drafts(conversation: Conversation) -> list[TurnDraft]:
    """Return messages in the form in which they are stored."""
    return [
        TurnDraft(content=turn.text, role=turn.role, created_at=turn.said_at)
        if turn.role
        else TurnDraft(content=turn.text, speaker=turn.speaker, created_at=turn.said_at)
        for turn in conversation.turns
    ]


def _namespace(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]", "-", f"of-{name}".casefold())


# --- plain ways


def _words(pools: Sequence[Pool]) -> _Ranker:
    """Rank by BM25 of any of the question's words, as FTS5 gives it."""
    db = apsw.Connection(":memory:")
    tables = {pool.name: f"pool_{number}" for number, pool in enumerate(pools)}
    for pool in pools:
        table = tables[pool.name]
        db.execute(f'CREATE VIRTUAL TABLE {table} USING fts5 (text, tokenize = "porter unicode61")')
        db.executemany(
            f"INSERT INTO {table} (rowid, text) VALUES (?, ?)",
            ((place, turn.said) for place, turn in enumerate(pool.turns)),
        )

    def rank(pool: str, text: str) -> list[int]:
        table, match = tables[pool], " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
        sql = f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [place for (place,) in db.execute(sql, (match, _FUSED))] if match else []

    return rank


def _dense(pools: Sequence[Pool], embedder: KeptVectors) -> _Ranker:
    """Rank by the cosine of a text's best window and the question."""
    windows = {pool.name: [embedder.embed(turn.said) for turn in pool.turns] for pool in pools}
    tables = {name: np.concatenate(parts) for name, parts in windows.items()}
    starts = {name: np.cumsum([0, *map(len, parts[:-1])]) for name, parts in windows.items()}

    def rank(pool: str, text: str) -> list[int]:
        similar = np.maximum.reduceat(tables[pool] @ embedder.embed_query(text)[0], starts[pool])
        return [int(place) for place in np.argsort(-similar, kind="stable")[:_FUSED]]

    return rank


def _fused(words: _Ranker, dense: _Ranker) -> _Ranker:
    def rank(pool: str, text: str) -> list[int]:
        return reciprocal_ranks([words(pool, text), dense(pool, text)])

    return rank


def reciprocal_ranks(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Fuse rankings: in each ranking, a text counts 1 / (60 + rank); the first ranking goes first
    on a tie.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            scores[place] = scores.get(place, 0.0) + 1 / (_RRF_K + rank)
    return sorted(scores, key=lambda place: -scores[place])


# --- Chroma


def chroma(pools: Sequence[Pool], embedder: KeptVectors) -> dict[str, list[str]] | None:
    """Return for each question the sessions that Chroma's client finds, one vector for each
    session.

    A session is its messages in one text, of which a vector holds the first 256 tokens: so its
    default embedder cuts. None if Chroma cannot be installed, or fails; a note is printed then.
    """
    python = peers.environment()
    if python is None:
        return None
    corpus.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=corpus.CACHE) as name:
        folder = Path(name).absolute()
        sessions: dict[str, list[str]] = {}
        for number, pool in enumerate(pools):
            embedder.prepare(texts(("chroma",), [pool]))
            said = _session_texts(pool)
            sessions[str(number)] = list(said)
            np.savez(
                folder / f"{number}.npz",
                sessions=[embedder.embed(text)[0] for text in said.values()],
                questions=[embedder.embed_query(question.text)[0] for question in pool.questions],
            )
        done = subprocess.run(
            [python, _SCRIPT, folder, str(DEPTH)], stdout=subprocess.PIPE, text=True
        )
    if done.returncode:
        report.note("Chroma could not be measured; its error is on standard error.")
        return None
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        number, at, places = json.loads(line)
        question = pools[number].questions[at]
        found[question.id] = [sessions[str(number)][place] for place in places]
    return found


def _session_texts(pool: Pool) -> dict[str, str]:
    """Return the beginning of each session as one text; slightly more than fits into one window."""
    said: dict[str, list[str]] = {}
    for turn in pool.turns:
        said.setdefault(turn.session, []).append(turn.said)
    return {
        session: " ".join(" ".join(parts).split())[:_SESSION_CHARACTERS]
        for session, parts in said.items()
    }
