"""The evidence on three scales equals values computed by hand."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memories.search import surroundings
from memories.search.candidates import Query
from memories.search.ranking import Evidence
from memories.search.surroundings import AFTER, ASIDE_WORDS, BEFORE, measure
from memories.stores.records import BESIDE, Matches


class Row(NamedTuple):
    """A matching turn; `has` lists its terms."""

    position: int
    has: str = ""
    words: float = 0.0
    similarity: float = 0.0
    session: int = 0
    place: tuple[str, str] = ("shared", "chat")
    labels: Mapping[str, str] = {}


def matches(
    rows: Sequence[Row], terms: Sequence[str] = ("red", "bike"), searched: int = 0
) -> Matches:
    """Return the matches that a store would report for these rows."""
    groups = list(dict.fromkeys(row.place for row in rows))
    labels = [dict(pairs) for pairs in dict.fromkeys(tuple(row.labels.items()) for row in rows)]
    holds = [[term in row.has.split(",") for row in rows] for term in terms]
    return Matches(
        groups=groups,
        group=np.array([groups.index(row.place) for row in rows], dtype=np.int64),
        position=np.array([row.position for row in rows], dtype=np.int64),
        session=np.array([row.session for row in rows], dtype=np.int64),
        created_at=np.zeros(len(rows), dtype=np.int64),
        labels=labels,
        label=np.array([labels.index(dict(row.labels)) for row in rows], dtype=np.int64),
        word_score=np.array([row.words for row in rows], dtype=np.float64),
        similarity=np.array([row.similarity for row in rows], dtype=np.float64),
        terms=terms,
        holds=np.array(holds, dtype=np.bool_).reshape(len(terms), len(rows)),
        searched=max(searched, len(rows)),
    )


def measured(*rows: Row, terms: Sequence[str] = ("red", "bike"), searched: int = 0) -> Evidence:
    """Measure the surroundings of these rows."""
    return measure(matches(rows, terms, searched))


def close_to(*values: float) -> object:
    """Return values that equal others except for rounding."""
    return pytest.approx(values)


def rarity(having: int, searched: int) -> float:
    """Return the rarity of a word that this many of the searched turns contain."""
    return math.log(1 + (searched - having + 0.5) / (having + 0.5))


ASSISTANT = {"role": "assistant"}


# --- the window


def test_words_of_two_turns_before_and_one_after_count_as_words_of_the_turn() -> None:
    assert (BEFORE, AFTER) == (2, 1)
    around = measured(*(Row(at, "red" if at == 3 else "") for at in range(7)), terms=["red"])
    assert around.window_coverage.tolist() == [0, 0, 1, 1, 1, 1, 0]
    assert around.session_coverage.tolist() == [1] * 7


def test_similarity_extends_two_turns_to_each_side() -> None:
    assert BESIDE == 2
    around = measured(*(Row(at, similarity=0.8 if at == 3 else 0) for at in range(7)))
    assert around.window_similarity.tolist() == [0, 0.8, 0.8, 0, 0.8, 0.8, 0]
    assert around.session_similarity.tolist() == [0.8] * 7


def test_the_similarity_of_a_window_excludes_the_turn_itself() -> None:
    around = measured(
        *(Row(at, similarity=near) for at, near in enumerate((0.1, 0.2, 0.9, 0.3, 0.4, 0.5)))
    )
    assert around.similarity.tolist() == [0.1, 0.2, 0.9, 0.3, 0.4, 0.5]
    assert around.window_similarity.tolist() == [0.9, 0.9, 0.4, 0.9, 0.9, 0.4]
    assert around.session_similarity.tolist() == [0.9] * 6


def test_words_of_a_window_add_up() -> None:
    around = measured(Row(0, "red"), Row(1), Row(2, "bike"), Row(3), Row(4))
    assert around.window_coverage.tolist() == close_to(0.5, 1, 1, 0.5, 0.5)


def test_rows_come_in_any_order() -> None:
    rows = [Row(at, "red" if at == 3 else "", at, at / 10) for at in range(7)]
    shuffled = [5, 3, 0, 6, 2, 4, 1]
    straight, mixed = measured(*rows), measured(*(rows[at] for at in shuffled))
    for expected, found in zip(straight, mixed, strict=True):
        assert found.tolist() == expected[shuffled].tolist()


def test_missing_positions_still_count_as_distance() -> None:
    around = measured(Row(0, "red", similarity=0.9), Row(2), Row(3), Row(1_000_000), terms=["red"])
    assert around.window_coverage.tolist() == [1, 1, 0, 0]
    assert around.window_similarity.tolist() == [0, 0.9, 0, 0]


# --- borders

BEYOND = {
    "session": Row(1, session=1),
    "conversation": Row(1, place=("shared", "other")),
    "namespace": Row(1, place=("own", "chat")),
    "no session": Row(1, session=-1),
}


@pytest.mark.parametrize("beyond", BEYOND.values(), ids=BEYOND.keys())
def test_evidence_never_crosses_sessions(beyond: Row) -> None:
    around = measured(Row(0, "red", 5.0, 0.9), beyond, Row(2, words=1.0), terms=["red"])
    assert around.session_best.tolist() == [5, 0, 5]
    assert around.window_coverage.tolist() == [1, 0, 1]
    assert around.session_coverage.tolist() == [1, 0, 1]
    assert around.window_similarity.tolist() == [0, 0, 0.9]
    assert around.session_similarity.tolist() == [0.9, 0, 0.9]


def test_consecutive_sessions_are_separate() -> None:
    around = measured(
        Row(9, "red", session=0),
        Row(10, session=10),
        Row(11, "bike", session=10),
        Row(12, session=12),
    )
    assert around.window_coverage.tolist() == close_to(0.5, 0.5, 0.5, 0)
    assert around.session_coverage.tolist() == close_to(0.5, 0.5, 0.5, 0)


def test_a_row_without_a_session_is_its_own_session() -> None:
    around = measured(
        *(Row(at, "red" * (at == 1), at, 0.5, session=-1) for at in range(4)), terms=["red"]
    )
    assert around.window_coverage.tolist() == around.session_coverage.tolist() == [0, 1, 0, 0]
    assert around.session_best.tolist() == around.word_score.tolist() == [0, 1, 2, 3]
    assert around.window_similarity.tolist() == [0] * 4


def _by_hand(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the evidence by comparing all pairs of rows, for a single term."""
    sees: dict[str, list[float]] = {
        name: []
        for name in (
            "window_coverage",
            "session_coverage",
            "window_similarity",
            "session_similarity",
            "session_best",
        )
    }
    for at, row in enumerate(rows):
        mates = [
            other
            for there, other in enumerate(rows)
            if there == at or (other.place == row.place and other.session == row.session >= 0)
        ]
        beside = [mate for mate in mates if 0 < abs(mate.position - row.position) <= BESIDE]
        window = [mate for mate in mates if -BEFORE <= mate.position - row.position <= AFTER]
        sees["window_coverage"].append(float(any(mate.has for mate in window)))
        sees["session_coverage"].append(float(any(mate.has for mate in mates)))
        sees["window_similarity"].append(max([0.0, *(mate.similarity for mate in beside)]))
        sees["session_similarity"].append(max([0.0, *(mate.similarity for mate in mates)]))
        sees["session_best"].append(max(mate.words for mate in mates))
    return sees


_PLACES = list(product(("shared", "own"), ("chat", "other")))
_ROWS = st.lists(
    st.builds(
        Row,
        position=st.integers(0, 12),
        has=st.sampled_from(["", "red"]),
        words=st.floats(0, 9),
        similarity=st.floats(-1, 1),
        session=st.sampled_from([-1, 0, 4, 5]),
        place=st.sampled_from(_PLACES),
    ),
    max_size=25,
    unique_by=lambda row: (row.place, row.position),
)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(_ROWS)
def test_any_layout_gives_the_same_result_as_comparing_all_pairs(rows: list[Row]) -> None:
    around = measured(*rows, terms=["red"])
    for scale, expected in _by_hand(rows).items():
        assert getattr(around, scale).tolist() == pytest.approx(expected)


# --- words


def test_rare_words_weigh_more() -> None:
    around = measured(Row(0, "red"), Row(10, "red"), Row(20, "bike"), searched=100)
    red, bike = rarity(2, 100), rarity(1, 100)
    assert bike > red
    assert around.window_coverage.tolist() == close_to(
        red / (red + bike), red / (red + bike), bike / (red + bike)
    )


def test_phrases_do_not_count_in_addition_to_their_words() -> None:
    around = measured(
        Row(0, "red"), Row(10, "red,bike,red bike"), terms=["red bike", "red", "bike"]
    )
    red, bike = rarity(2, 2), rarity(1, 2)
    assert around.window_coverage.tolist() == close_to(red / (red + bike), 1)


def test_phrases_alone_add_no_coverage() -> None:
    around = measured(Row(0, "red bike", 3.0), terms=["red bike"])
    assert (
        around.window_coverage.tolist(),
        around.session_coverage.tolist(),
        around.word_score.tolist(),
    ) == (
        [0],
        [0],
        [3],
    )


def test_a_word_in_every_row_counts_a_little() -> None:
    around = measured(Row(0, "red"), Row(10, "red,bike"))
    assert 0 < around.window_coverage[0] < 0.25
    assert around.window_coverage[1] == pytest.approx(1)


# --- who speaks


@pytest.mark.parametrize(
    ("role", "aside"),
    [("assistant", 1), ("system", 1), ("tool", 1), ("user", 0), ("", 0), ("Assistant", 0)],
)
def test_only_assistant_and_tool_turns_are_aside(role: str, aside: int) -> None:
    assert measured(Row(0, labels={"role": role} if role else {})).aside.tolist() == [aside]


def test_words_of_assistants_and_tools_count_less() -> None:
    around = measured(
        Row(0, "red,bike", 10.0, 0.8, labels=ASSISTANT), Row(1, words=2.0), Row(10, words=1.0)
    )
    assert ASIDE_WORDS == 0.3
    assert around.word_score.tolist() == close_to(3, 2, 1)
    assert around.session_best.tolist() == close_to(3, 3, 3)
    assert around.window_coverage.tolist() == close_to(0.3, 0.3, 0)
    assert around.session_coverage.tolist() == close_to(0.3, 0.3, 0.3)
    assert around.similarity.tolist() == [0.8, 0, 0]  # its similarity stays
    assert around.aside.tolist() == [1, 0, 0]


def test_a_person_who_repeats_an_assistants_words_counts_in_full() -> None:
    around = measured(
        Row(0, "red", labels=ASSISTANT), Row(1, "red", labels={"role": "user"}), terms=["red"]
    )
    assert around.window_coverage.tolist() == close_to(1, 1)


def test_labels_are_matched_to_their_rows() -> None:
    ann = {"role": "user", "speaker": "Ann"}
    around = measured(Row(0, labels=ann), Row(1, labels=ASSISTANT), Row(2, labels=ann), Row(3))
    assert around.aside.tolist() == [0, 1, 0, 0]


# --- missing evidence


def test_missing_or_opposite_vectors_are_not_similar() -> None:
    around = measured(Row(0, similarity=math.nan), Row(1, similarity=-0.4), Row(2, similarity=0.3))
    assert around.similarity.tolist() == [0, 0, 0.3]
    assert around.window_similarity.tolist() == [0.3, 0.3, 0]
    assert around.session_similarity.tolist() == [0.3] * 3


def test_without_rows_there_is_no_evidence() -> None:
    for terms in (("red", "bike"), ()):
        around = measured(terms=terms)
        assert [values.shape for values in around] == [(0,)] * len(around)


def test_without_terms_nothing_is_covered() -> None:
    around = measured(Row(0, similarity=0.5), Row(1, similarity=0.7), terms=())
    assert around.window_coverage.tolist() == around.session_coverage.tolist() == [0, 0]
    assert around.window_similarity.tolist() == [0.7, 0.5]


def test_a_single_row_is_its_own_session() -> None:
    around = measured(Row(7, "red", 2.0, 0.6, session=5))
    assert [values.tolist() for values in around[:2]] == [[2], [2]]
    assert around.window_similarity.tolist() == [0]
    assert around.session_similarity.tolist() == [0.6]


def test_measuring_does_not_change_its_input() -> None:
    given_ = matches([Row(0, "red", 2.0, math.nan, labels=ASSISTANT), Row(1, "bike", 1.0, -0.5)])
    measure(given_)
    assert given_.word_score.tolist() == [2, 1]
    assert np.isnan(given_.similarity[0])
    assert given_.similarity[1] == -0.5
    assert given_.holds.dtype == np.bool_


def test_a_day_without_a_year_may_be_in_this_year_or_the_four_before() -> None:
    now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    query = Query("what happened on 3 May", (), now, now, 168.0, None, {})
    years = {start.year for start, _ in surroundings._search_periods(query)}
    assert years == {2022, 2023, 2024, 2025, 2026}
