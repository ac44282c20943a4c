"""How well corrections are linked and ranked in `tests/data/correction_*.jsonl`, with MiniLM and
only by words.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from memories import Draft, Memories
from memories.embedders import Embedder, open_embedder

DATA = Path(__file__).parent.parent / "tests" / "data"
PAIRS, UNSEEN = DATA / "correction_pairs.jsonl", DATA / "correction_pairs_unseen.jsonl"
GAPS = (timedelta(minutes=1), timedelta(days=1), timedelta(days=60), timedelta(days=365))
_BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
_DISTRACTORS = 300


@dataclass(frozen=True, slots=True)
class Pair:
    """An older and a newer text: a correction with a question that both answer, or two facts."""

    kind: str
    language: str
    old: str
    new: str
    question: str = ""


class Clock:
    """A clock that changes only when it is set."""

    def __init__(self) -> None:
        """Begin at a fixed time."""
        self.now = _BEGIN

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now


def load_pairs(path: Path = PAIRS) -> list[Pair]:
    """Return the pairs in a file of JSON lines."""
    return [Pair(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def store_of(texts: Sequence[str], embedder: "Embedder | str") -> Iterator[Path]:
    """Yield a folder with a store that contains these texts."""
    with tempfile.TemporaryDirectory() as folder:
        with Memories(f"sqlite:///{folder}/m.db", embedder=embedder, clock=Clock()) as memories:
            memories.create_many(texts, force=True)
        yield Path(folder)


def is_newer_first(
    base: Path, pair: Pair, gap: timedelta, embedder: "Embedder | str"
) -> tuple[bool, bool]:
    """Store both texts among others and ask the question.

    Returns:
        Whether the newer text is linked, and whether it ranks first.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(base, folder, dirs_exist_ok=True)
        clock = Clock()
        with Memories(f"sqlite:///{folder}/m.db", embedder=embedder, clock=clock) as memories:
            clock.now += timedelta(hours=1)
            old = memories.create(pair.old).memory
            clock.now += gap
            created = memories.create(pair.new)
            clock.now += timedelta(minutes=1)
            hit_ids = [hit.id for hit in memories.search(pair.question)]
    assert old is not None
    if created.memory is None:
        return False, False
    new_place, old_place = (
        hit_ids.index(memory_id) if memory_id in hit_ids else len(hit_ids)
        for memory_id in (created.memory.id, old.id)
    )
    return created.corrects == old.id, new_place < old_place


def wrong_links(pairs: Sequence[Pair], embedder: "Embedder | str") -> int:
    """Store each pair of facts in its own project, and count the linked pairs."""
    drafts = [
        Draft(text, tags={"project": str(number)})
        for number, pair in enumerate(pairs)
        for text in (pair.old, pair.new)
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        Memories(f"sqlite:///{folder}/m.db", embedder=embedder) as memories,
    ):
        return sum(created.corrects is not None for created in memories.create_many(drafts))


def _print(pairs: Sequence[Pair], embedder: "Embedder | str") -> None:
    facts = [pair for pair in pairs if pair.kind != "correction"]
    counts: Counter[tuple[str, str]] = Counter()
    with store_of(list(dict.fromkeys(pair.old for pair in facts))[:_DISTRACTORS], embedder) as base:
        for number, pair in enumerate(pair for pair in pairs if pair.kind == "correction"):
            turned = Pair(pair.kind, pair.language, pair.new, pair.old, pair.question)
            for direction, directed in enumerate((pair, turned)):
                linked, first = is_newer_first(
                    base, directed, GAPS[(number + direction) % len(GAPS)], embedder
                )
                counts += Counter({(pair.language, "pairs"): 1, (pair.language, "linked"): linked})
                counts += Counter({(pair.language, "newer first"): first})
    for language in dict.fromkeys(pair.language for pair in pairs):
        pairs_, linked, first = (
            counts[language, what] for what in ("pairs", "linked", "newer first")
        )
        print(
            f"  {language}: {pairs_} corrections, linked {linked / pairs_:.1%}, "
            f"newer first {first / pairs_:.1%}"
        )
    print(f"  {len(facts)} pairs of unlike facts: {wrong_links(facts, embedder)} linked")


def main() -> None:
    """Print for each set of pairs how many are linked, how often the newer text ranks first, and
    how many links are wrong.
    """
    minilm = open_embedder("minilm")
    assert minilm is not None
    for path in (PAIRS, UNSEEN):
        for name, embedder in (("minilm", minilm), ("words alone", "none")):
            print(f"{path.name}, {name}")
            _print(load_pairs(path), embedder)


if __name__ == "__main__":
    main()
