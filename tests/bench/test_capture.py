"""The benchmark of capture: its messages, and the figures that proposals must reach."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.capture import HALVES, Message, check

from bench import capture
from memories.embedders import open_embedder
from memories.embedders.scores import worth_rater

MESSAGES = list(capture.load())


def test_each_half_has_marked_and_unmarked_messages_of_each_language() -> None:
    counts = Counter((each.half, each.language, bool(each.marked)) for each in MESSAGES)
    assert len({each.language for each in MESSAGES}) == 21
    assert min(counts.values()) >= 5
    assert len(counts) == 21 * 2 * len(HALVES)


def test_a_proposal_is_correct_if_it_contains_most_words_of_a_marked_sentence() -> None:
    message = Message(
        "en", "dev", "user", "Never use var. Fix it. TODO: mend b", ("never use var",)
    )
    result = check(message, None)
    assert (result.proposed, result.missed, result.wrong) == (2, [], ["TODO: mend b"])


@pytest.mark.thorough
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("is_english", [True, False])
def test_most_marked_sentences_and_few_others_are_proposed(half: str, is_english: bool) -> None:
    rate = worth_rater(open_embedder("minilm"))
    results = [
        check(message, rate)
        for message in MESSAGES
        if message.half == half and (message.language == "en") is is_english
    ]
    marked = sum(len(result.message.marked) for result in results)
    proposed = sum(result.proposed for result in results)
    assert marked - sum(len(result.missed) for result in results) >= 0.75 * marked
    assert proposed - sum(len(result.wrong) for result in results) >= 0.85 * proposed
