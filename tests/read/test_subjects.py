"""The guess whether one text may replace another, on both sides of each limit."""

import pytest

from memories.embedders.fake import FakeEmbedder
from memories.read.subjects import MAX_CHARACTERS, UNRELATED, has_words_of, score_replacement

OLD = (
    "harbour kitchen violin meadow passport lantern gravel walnut copper saddle "
    "anchor basket candle dragon engine falcon garden hammer island jacket"
)


@pytest.mark.parametrize(("shared", "may_replace"), [(7, True), (6, False)])
def test_texts_that_share_35_percent_of_their_words_may_replace_each_other(
    shared: int, may_replace: bool
) -> None:
    assert has_words_of(" ".join(OLD.split()[:shared]), OLD) is may_replace


@pytest.mark.parametrize(("shared", "may_replace"), [(3, True), (2, False)])
def test_a_text_that_announces_a_change_needs_15_percent_of_the_words(
    shared: int, may_replace: bool
) -> None:
    words = " ".join(OLD.split()[:shared])
    assert has_words_of(f"We no longer use {words}", OLD) is may_replace
    assert not has_words_of(f"We use {words}", OLD)


def test_a_beginning_on_a_day_does_not_replace_an_unrelated_date() -> None:
    new = "Die neue Kollegin fängt am Montag an und sitzt bei uns im Büro."
    assert not has_words_of(new, "Großmutters Geburtstag ist am dritten März.")


@pytest.mark.parametrize("longer", ["new", "old"])
def test_texts_of_up_to_2000_characters_are_compared(longer: str) -> None:
    for length, is_compared in ((MAX_CHARACTERS, True), (MAX_CHARACTERS + 1, False)):
        texts = {"new": OLD, "old": OLD}
        texts[longer] = OLD.ljust(length, "s")
        assert has_words_of(**texts) is is_compared
        assert (score_replacement(**texts, similarity=None, space=None) > 0) is is_compared


def test_texts_whose_vectors_are_far_apart_are_not_about_the_same_subject() -> None:
    space = FakeEmbedder.space
    limit = space.noise_mean + UNRELATED * (space.duplicate - space.noise_mean)
    assert score_replacement(OLD, OLD, limit + 0.001, space) > 0
    assert score_replacement(OLD, OLD, limit - 0.001, space) == 0
