"""The estimate of whether one text may replace another, on both sides of each limit."""

from typing import TYPE_CHECKING

import pytest

from memories.embedders.fake import FakeEmbedder
from memories.embedders.minilm import MiniLM
from memories.read.replacements import (
    MAX_CHARACTERS,
    REPLACES,
    UNRELATED,
    reports_change,
    score_replacement,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OLD = (
    "harbour kitchen violin meadow passport lantern gravel walnut copper saddle "
    "anchor basket candle dragon engine falcon garden hammer island jacket"
)


def score(shared: int, start: str = "We use") -> float:
    """Return the score of a text with some of the words of `OLD`, by words alone."""
    return score_replacement(f"{start} {' '.join(OLD.split()[:shared])}", OLD, None, None)


def test_a_text_that_repeats_most_words_may_replace_the_older_text() -> None:
    assert score(14) >= REPLACES > score(12)


def test_a_text_that_announces_a_change_needs_half_of_the_words() -> None:
    start = "We no longer use"
    assert score(10, start) >= REPLACES > score(8, start)


def test_texts_with_no_words_in_common_must_be_close() -> None:
    space = FakeEmbedder.space
    new = "We no longer go there on foot".ljust(len(OLD), ".")
    for closeness, may_replace in ((REPLACES, True), (REPLACES - 0.1, False)):
        similarity = space.noise_mean + closeness * (space.duplicate - space.noise_mean)
        assert (score_replacement(new, OLD, similarity, space) >= REPLACES) is may_replace


def test_a_longer_text_is_more_likely_to_replace_the_older_one() -> None:
    space = FakeEmbedder.space
    scores = [
        score_replacement("We no longer go there".ljust(length, "."), OLD, 0.5, space)
        for length in (len(OLD) // 8, len(OLD) // 4, len(OLD), 4 * len(OLD), 8 * len(OLD))
    ]
    assert scores[0] == scores[1] < scores[2] < scores[3] == scores[4]


def test_a_text_far_below_the_closest_one_is_not_replaced() -> None:
    space = FakeEmbedder.space
    new = "We no longer go there on foot".ljust(len(OLD), ".")
    similarity = space.duplicate - 0.1
    assert score_replacement(new, OLD, similarity, space, closest=similarity) >= REPLACES
    assert score_replacement(new, OLD, similarity, space, closest=similarity + 0.2) < REPLACES


def test_a_text_without_words_of_change_may_still_report_a_change() -> None:
    embedder = MiniLM()
    old = "Logs are shipped to Splunk."
    new = "The Splunk contract ran out, everything ends up in Loki."
    stays = "Splunk is expensive."
    [old_vectors, new_vectors, stays_vectors] = [embedder.embed(text) for text in (old, new, stays)]

    def rate(text: str, vectors: "NDArray[np.float32]") -> float:
        similarity = float((vectors @ old_vectors.T).max())
        return score_replacement(text, old, similarity, embedder.space, vectors)

    assert not reports_change(new)
    assert rate(new, new_vectors) >= REPLACES > rate(stays, stays_vectors)


def test_vectors_of_scripts_that_the_model_does_not_know_are_ignored() -> None:
    new, old = "パッケージの管理にはuvを使う。", "会議は月曜日の朝に開かれる。"
    assert score_replacement(new, old, 0.95, MiniLM.space) < REPLACES


def test_the_beginning_of_a_job_does_not_replace_an_unrelated_date() -> None:
    new = "Die neue Kollegin fängt am Montag an und sitzt bei uns im Büro."
    old = "Großmutters Geburtstag ist am dritten März."
    assert score_replacement(new, old, None, None) < REPLACES


@pytest.mark.parametrize("longer", ["new", "old"])
def test_texts_of_up_to_2000_characters_are_compared(longer: str) -> None:
    for length, is_compared in ((MAX_CHARACTERS, True), (MAX_CHARACTERS + 1, False)):
        texts = {"new": OLD, "old": OLD}
        texts[longer] = OLD.ljust(length, "s")
        assert (score_replacement(**texts, similarity=None, space=None) > 0) is is_compared


def test_texts_whose_vectors_are_far_apart_are_not_about_the_same_subject() -> None:
    space = FakeEmbedder.space
    limit = space.noise_mean + UNRELATED * (space.duplicate - space.noise_mean)
    new = f"We no longer have {OLD}"
    assert score_replacement(new, OLD, limit + 0.001, space) > 0
    assert score_replacement(new, OLD, limit - 0.001, space) == 0
