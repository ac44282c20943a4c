"""The benchmark of reworded pairs: answers show the older memory, and no guess loses a memory."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.corrections import store_of

from bench import reworded
from memories.embedders import open_embedder


@pytest.mark.thorough
@pytest.mark.parametrize("half", reworded.HALVES)
def test_each_half_has_the_required_counts(half: str) -> None:
    minilm = open_embedder("minilm")
    assert minilm is not None
    pairs = [pair for pair in reworded.load_pairs() if pair.half == half]
    count = {"dev": 250, "test": 250}[half]
    assert Counter(pair.kind for pair in pairs) == {
        "correction": count,
        "related": count,
        "repetition": 60,
    }
    with store_of(reworded.base_texts(), minilm) as base:
        counts = reworded.count_answers(base, pairs, minilm)
    for kind in ("correction", "related"):
        assert counts[kind, "refused"] == 0
        assert counts[kind, "linked"] <= 1
    shown, newer_first = {"dev": (206, 190), "test": (225, 206)}[half]
    assert counts["correction", "shown"] >= shown
    assert counts["correction", "newer first"] >= newer_first
    assert counts["related", "shown"] <= 0.3 * count
    assert counts["repetition", "refused"] >= 22
    assert counts["repetition", "refused"] + counts["repetition", "shown"] >= 55
