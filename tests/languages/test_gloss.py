"""Glosses: German, French and Spanish sentences in English words."""

import pytest

from memories.embedders import open_embedder
from memories.embedders.scores import worth_rater
from memories.hooks.phrases import candidates
from memories.languages.gloss import gloss


@pytest.mark.parametrize(
    ("code", "sentence", "english"),
    [
        ("de", "Commits gehören bei uns auf Englisch", "commit belong in our team english"),
        ("fr", "les dates sont stockées en UTC", "the dates are store in UTC"),
        ("es", "nada de exports en este repo.", "no exports in this repository."),
    ],
)
def test_known_words_phrases_and_stems_become_english_and_other_words_stay(
    code: str, sentence: str, english: str
) -> None:
    assert gloss(sentence, code) == english


@pytest.mark.parametrize(
    "sentence",
    [
        "Logs heben wir neunzig Tage auf",
        "Les logs sont gardés quatre-vingt-dix jours",
        "Los logs se conservan noventa días",
    ],
)
def test_a_sentence_without_a_phrase_is_proposed_if_its_gloss_is_worth_enough(
    sentence: str,
) -> None:
    rate = worth_rater(open_embedder("minilm"))
    [candidate] = candidates(sentence, "user", rate)
    assert candidate.phrase == "statement"
    assert candidates(sentence, "user") == []
    assert candidates(f"{sentence}?", "user", rate) == []
    assert candidates(sentence, "assistant", rate) == []
