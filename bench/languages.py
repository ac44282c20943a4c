"""Whether memories in many languages are found by questions in their own language and in others.

`bench/languages.jsonl` has the same thirty facts in each language, and a question about each fact
that avoids the fact's words where possible. Each language has a store with its thirty memories.
Each memory is searched for three times: in its own language, and in two others, which change from
memory to memory, so that every pair of languages occurs.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench import report
from memories import Memories, load_config

SYSTEMS = ("none", "minilm", "e5")
NAMES = {"none": "words alone", "minilm": "minilm", "e5": "e5"}
RANKS = (1, 5)
OTHERS = 2  # number of questions about each memory in other languages
_FILE = Path(__file__).with_name("languages.jsonl")


class Fact(NamedTuple):
    """A memory in one language, and a question about it."""

    memory: str
    question: str


class Found(NamedTuple):
    """The ranks of the memories that were searched for, starting at 1; 0 for a memory that was not
    found.
    """

    same: list[int]
    across: list[int]


def load(file: Path = _FILE) -> dict[str, list[Fact]]:
    """Return the facts of each language, in the same order."""
    facts: dict[str, list[Fact]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        facts.setdefault(row["language"], []).append(Fact(row["memory"], row["question"]))
    return facts


def asked(facts: Mapping[str, list[Fact]], language: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the questions of a language's memories: the place of the memory, the question, whether
    in its language.
    """
    others = [other for other in facts if other != language]
    for place, fact in enumerate(facts[language]):
        yield place, fact.question, True
        for step in range(OTHERS):
            other = others[(OTHERS * place + step) % len(others)]
            yield place, facts[other][place].question, False


def measure(facts: Mapping[str, list[Fact]], language: str, embedder: str) -> Found:
    """Store the memories of a language, and search for each."""
    found = Found([], [])
    with tempfile.TemporaryDirectory() as folder:
        config = load_config({"home": folder}, environment={})
        with Memories(config=config, embedder=embedder) as memories:
            ids = [memories.create(fact.memory, force=True).memory.id for fact in facts[language]]
            for place, question, same in asked(facts, language):
                hits = [hit.memory.id for hit in memories.search(question, limit=max(RANKS))]
                rank = hits.index(ids[place]) + 1 if ids[place] in hits else 0
                (found.same if same else found.across).append(rank)
    return found


def run(systems: tuple[str, ...] = SYSTEMS) -> None:
    """Measure all languages with each embedder, and print a table for each kind of question."""
    facts = load()
    results = {
        (language, name): measure(facts, language, name) for name in systems for language in facts
    }
    heads = ["language", *(f"{NAMES[name]} any@{rank}" for name in systems for rank in RANKS)]
    for kind in Found._fields:
        report.heading(
            f"Languages: {'asked in its own language' if kind == 'same' else 'asked in another'}, in %"
        )
        ranks = {
            language: [getattr(results[language, name], kind) for name in systems]
            for language in facts
        }
        together = [
            [rank for language in facts for rank in ranks[language][at]]
            for at in range(len(systems))
        ]
        rows = [*ranks.items(), ("**all**", together)]
        report.table(heads, [(language, *_shares(found)) for language, found in rows])


def _shares(found: list[list[int]]) -> Iterator[str]:
    for ranks in found:
        for most in RANKS:
            yield f"{100 * sum(0 < rank <= most for rank in ranks) / len(ranks):.0f}"
