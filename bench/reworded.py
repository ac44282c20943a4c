"""The results of `create` for the pairs in `tests/data/reworded_pairs.jsonl`, in a store with other
facts.

The store has the facts of `bench/histories`, all in one namespace. For each pair, the older text is
stored in a copy of this store, and a day later the newer text. There are three kinds of pairs:

- correction: the newer text replaces the older one, in different words. Its writer should be shown
  the older text, and a search for the question should find the newer text first.
- related: both texts are true. Nothing should be refused or linked, and the older text should
  seldom be shown.
- repetition: both texts say the same thing. The newer text should not be stored.

Tune only on the half `dev`. The pairs whose half is `weights` are not counted: the weights of
`memories.read.replacements` were fitted to them too.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench import agents_memory
from bench.corrections import DATA, Clock, store_of
from memories import Memories
from memories.embedders import Embedder, open_embedder

PAIRS = DATA / "reworded_pairs.jsonl"
HALVES = ("dev", "test")
_COUNTS = ("refused", "linked", "shown", "others shown", "newer first")


@dataclass(frozen=True, slots=True)
class Pair:
    """An older and a newer text; a correction has a question that both answer."""

    kind: str
    half: str
    language: str
    old: str
    new: str
    question: str = ""


def load_pairs() -> list[Pair]:
    """Return the pairs."""
    rows = PAIRS.read_text(encoding="utf-8").splitlines()
    return [Pair(**json.loads(row)) for row in rows]


def count_answers(
    base: Path, pairs: Sequence[Pair], embedder: "Embedder | str"
) -> Counter[tuple[str, str]]:
    """Return how often each answer was given, by kind and answer."""
    counts: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        counts[pair.kind, "pairs"] += 1
        for answer in answer_pair(base, pair, embedder):
            counts[pair.kind, answer] += 1
    return counts


def answer_pair(base: Path, pair: Pair, embedder: "Embedder | str") -> list[str]:
    """Store a pair in a copy of a store, and return which of the counted answers it got."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        shutil.copytree(base, folder, dirs_exist_ok=True)
        clock = Clock()
        memories = stack.enter_context(
            Memories(f"sqlite:///{folder}/m.db", embedder=embedder, clock=clock)
        )
        clock.now += timedelta(hours=1)
        old = memories.create(pair.old, force=True)
        clock.now += timedelta(days=1)
        created = memories.create(pair.new)
        shown = {similar.id for similar in (*created.duplicates, *created.similar_to)}
        answers = {
            "refused": not created.stored,
            "linked": created.corrects is not None,
            "shown": old.id in shown,
            "others shown": bool(shown - {old.id}),
        }
        if pair.question and created.stored:
            hit_ids = [hit.id for hit in memories.search(pair.question, limit=5)]
            places = [*hit_ids, created.id, old.id]
            is_newer_hit = created.id in hit_ids
            answers["newer first"] = is_newer_hit and (
                places.index(created.id) < places.index(old.id)
            )
    return [name for name, is_given in answers.items() if is_given]


def base_texts() -> list[str]:
    """Return the facts that the store contains in addition to a pair."""
    return [fact.text for history in agents_memory.load() for fact in history.facts]


def main() -> None:
    """Print the counts for each half, with MiniLM and only by words."""
    minilm = open_embedder("minilm")
    assert minilm is not None
    pairs = load_pairs()
    for name, embedder in (("minilm", minilm), ("words alone", "none")):
        with store_of(base_texts(), embedder) as base:
            for half in HALVES:
                counts = count_answers(
                    base, [pair for pair in pairs if pair.half == half], embedder
                )
                print(f"{half}, {name}")
                for kind in dict.fromkeys(pair.kind for pair in pairs):
                    row = ", ".join(f"{answer} {counts[kind, answer]}" for answer in _COUNTS)
                    print(f"  {counts[kind, 'pairs']} {kind}: {row}")


if __name__ == "__main__":
    main()
