"""Real conversations: how often a search brings up the turn that answers a question, beside its plain parts."""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from bench import corpus as corpora
from bench import report
from memories import Draft, Memories, load_config
from memories.embedders.minilm import MiniLM

DATA = Path("../shared/data/locomo-dev.json")
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
COUNTED = (1, 2, 3, 4)
_HITS = 10
_ONE = "locomo"  # the namespace of all conversations

Target = tuple[str, str]  # conversation and turn
Finder = Callable[[str, str], list[Target]]  # conversation and question → turns, best first


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    target: Target
    text: str
    said_at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the turns that answer it."""

    conversation: str
    text: str
    category: int
    evidence: frozenset[Target]


def run(file: Path) -> None:
    """Load the conversations, ask their questions, and print a table for each way to store them."""
    items = json.loads(file.read_text(encoding="utf-8"))
    turns = [turn for item in items for turn in _turns(item)]
    known = {turn.target for turn in turns}
    questions = [question for item in items for question in _questions(item, known)]
    table = dict(zip((turn.text for turn in turns), corpora.embed([turn.text for turn in turns]), strict=True))
    for apart in (True, False):
        corpora.CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=corpora.CACHE) as folder:
            finders: dict[str, Finder] = {
                "Memories": _memories(turns, Path(folder), apart=apart),
                "FTS5, question as it is": _words(turns, apart=apart),
                "dense MiniLM": _dense(turns, table, apart=apart),
            }
            scores = {name: _ask(questions, find) for name, find in finders.items()}
        _print(scores, questions, apart=apart)


# --- data ------------------------------------------------------------------------------------------------------------


def _turns(item: dict[str, Any]) -> Iterable[Turn]:
    talk = item["conversation"]
    for name in talk:
        if re.fullmatch(r"session_\d+", name):
            start = datetime.strptime(talk[f"{name}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            for at, turn in enumerate(talk[name]):
                text = f"{turn['speaker']}: {turn['text']}"
                yield Turn((item["sample_id"], turn["dia_id"]), text, start + timedelta(seconds=at))


def _questions(item: dict[str, Any], known: set[Target]) -> Iterable[Question]:
    """Yield the questions with evidence; ids are cleaned (`D:3:07`, several in one text), unknown ones left out."""
    for asked in item["qa"]:
        ids = re.findall(r"D:?(\d+):0*(\d+)", " ".join(asked.get("evidence", [])))
        evidence = frozenset((item["sample_id"], f"D{session}:{turn}") for session, turn in ids) & known
        if evidence:
            yield Question(item["sample_id"], asked["question"], asked["category"], evidence)


# --- finders ---------------------------------------------------------------------------------------------------------


def _memories(turns: Sequence[Turn], folder: Path, *, apart: bool) -> Finder:
    """Store turns as memories, each conversation in its own namespace or all in one, and find them by `search`."""
    config = load_config({"home": str(folder.absolute()), "count_accesses": "false"}, environment={})
    pools = {turn.target[0] if apart else _ONE for turn in turns}
    opened = {pool: Memories(namespace=pool, shared=False, config=config) for pool in pools}
    for pool, memories in opened.items():
        drafts = [
            Draft(turn.text, {"conversation": turn.target[0], "turn": turn.target[1]}, created_at=turn.said_at)
            for turn in turns
            if not apart or turn.target[0] == pool
        ]
        memories.create_many(drafts, force=True)

    def find(conversation: str, question: str) -> list[Target]:
        hits = opened[conversation if apart else _ONE].search(question, limit=_HITS)
        return [(hit.memory.tags["conversation"], hit.memory.tags["turn"]) for hit in hits]

    return find


def _words(turns: Sequence[Turn], *, apart: bool) -> Finder:
    """Find turns by BM25 of any of the question's words, as FTS5 gives it."""
    db = apsw.Connection(":memory:")
    for pool in _pools(turns, apart):
        db.execute(f'CREATE VIRTUAL TABLE "{pool}" USING fts5 (text, tokenize = "porter unicode61")')
    for row, turn in enumerate(turns):
        pool = turn.target[0] if apart else _ONE
        db.execute(f'INSERT INTO "{pool}" (rowid, text) VALUES (?, ?)', (row, turn.text))

    def find(conversation: str, question: str) -> list[Target]:
        pool = conversation if apart else _ONE
        match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        sql = f'SELECT rowid FROM "{pool}" WHERE "{pool}" MATCH ? ORDER BY rank LIMIT ?'
        return [turns[row].target for (row,) in db.execute(sql, (match, _HITS))]

    return find


def _dense(turns: Sequence[Turn], table: dict[str, Any], *, apart: bool) -> Finder:
    """Find turns by the cosine of MiniLM's vectors alone."""
    model = MiniLM()
    rows = {pool: [turn for turn in turns if not apart or turn.target[0] == pool] for pool in _pools(turns, apart)}
    vectors = {pool: np.stack([table[turn.text] for turn in kept]) for pool, kept in rows.items()}

    def find(conversation: str, question: str) -> list[Target]:
        pool = conversation if apart else _ONE
        best = np.argsort(-(vectors[pool] @ model.embed(question)[0]), kind="stable")[:_HITS]
        return [rows[pool][row].target for row in best]

    return find


def _pools(turns: Sequence[Turn], apart: bool) -> list[str]:
    return list(dict.fromkeys(turn.target[0] for turn in turns)) if apart else [_ONE]


# --- scores ----------------------------------------------------------------------------------------------------------


def _ask(questions: Sequence[Question], find: Finder) -> list[int]:
    """Return for each question the rank of the first turn that answers it, from 1; more than ten for none."""
    ranks = []
    for question in questions:
        found = find(question.conversation, question.text)
        ranks.append(next((rank for rank, turn in enumerate(found, 1) if turn in question.evidence), _HITS + 1))
    return ranks


def _print(scores: dict[str, list[int]], questions: Sequence[Question], *, apart: bool) -> None:
    how = "a namespace for each conversation" if apart else "all conversations in one namespace"
    report.heading(f"LoCoMo development half, turn level, {how}: any@5 / any@10 in %")
    groups = [("all of 1 to 4", COUNTED), *((f"{number} {name}", (number,)) for number, name in CATEGORIES.items())]
    columns = ["finder", *(f"{name} ({sum(q.category in kept for q in questions)})" for name, kept in groups)]
    rows = [
        (
            finder,
            *(_share([r for r, q in zip(ranks, questions, strict=True) if q.category in kept]) for _, kept in groups),
        )
        for finder, ranks in scores.items()
    ]
    report.table(columns, rows)


def _share(ranks: Sequence[int]) -> str:
    within = [100 * sum(rank <= k for rank in ranks) / max(1, len(ranks)) for k in (5, 10)]
    return " / ".join(f"{share:.1f}" for share in within)
