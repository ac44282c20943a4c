"""Candidates are gathered with their evidence: surroundings, names and dates, over a real store."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memories import Draft, Hit, Memories, TurnDraft
from memories.embedders import Embedder
from memories.embedders.fake import FakeEmbedder
from memories.languages.text import query_terms
from memories.search import candidates
from memories.search.candidates import GatheredCandidates, Query, gather_standalone
from memories.search.ranking import FULL_LENGTH, Evidence
from memories.search.surroundings import MIN_READ, gather_surrounded
from memories.stores import Store, open_store
from memories.stores.records import Collection, Filter

NOW = datetime(2026, 2, 21, 10, tzinfo=UTC)  # a Saturday
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(params=["words", "both"])
def embedder(request: pytest.FixtureRequest) -> Embedder | None:
    """Words alone, or with vectors."""
    return FakeEmbedder() if request.param == "both" else None


@pytest.fixture
def store(tmp_path: Path, embedder: Embedder | None) -> Iterator[Store]:
    """An open store with each embedder."""
    opened = open_store(f"sqlite:///{tmp_path}/m.db", None if embedder is None else embedder.space)
    yield opened
    opened.close()


@pytest.fixture
def talk(store: Store, embedder: Embedder | None) -> Memories:
    """Memories over that store."""
    return Memories(store, embedder=embedder or "none", clock=lambda: NOW)


def at(moment: datetime, content: str, speaker: str | None = None, role: str = "user") -> TurnDraft:
    """Return a turn at a moment."""
    return TurnDraft(content, role=role, speaker=speaker, created_at=moment)


def by(speaker: str, content: str, role: str = "user") -> TurnDraft:
    """Return a turn of a speaker, a day ago."""
    return at(NOW - DAY, content, speaker, role)


def contents(hits: tuple[Hit, ...]) -> list[str]:
    """Return the contents of hits."""
    return [hit.content for hit in hits]


def gathered(
    store: Store, embedder: Embedder | None, text: str, count: int = 20, **where: object
) -> GatheredCandidates:
    """Gather the candidates of a query."""
    history = Filter(Collection.HISTORY, ("shared",), **where)  # type: ignore[arg-type]
    return gather_surrounded(
        store, history, Query(text, query_terms(text), NOW, NOW, 720.0, embedder, {}), count
    )


def evidence(found: GatheredCandidates) -> dict[str, Evidence]:
    """Return the evidence of each candidate by its text."""
    pairs = zip(found.candidates, found.features, strict=True)
    return {candidate.record.text: features.evidence for candidate, features in pairs}


class CountingEmbedder(FakeEmbedder):
    """An embedder that records the texts it embeds."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, text: str) -> NDArray[np.float32]:
        """Record a text and embed it."""
        self.texts.append(text)
        return super().embed(text)


def test_a_question_about_memories_and_turns_is_embedded_once(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=embedder) as memories:
        memories.create("The bike is red", tags={"project": "shop"})
        memories.create("Everybody has a bike", tags={"global": "true"})
        memories.add_turns("a", ["I have a red bike"])
        embedder.texts.clear()
        assert len(memories.search("red bike", project="shop", scope="all")) == 2
    assert embedder.texts == ["red bike"]


@pytest.mark.parametrize("scope", ["memories", "history", "all"])
def test_an_expression_finds_a_match_that_a_question_ranks_last(talk: Memories, scope: str) -> None:
    texts = [f"Deploy {number} went well" for number in range(200)]
    rare = "A rare deploy took long, and nobody knows why it needed the whole of that afternoon"
    if scope == "history":
        talk.add_turns("log", [*texts, rare])
    else:
        talk.create_many([Draft(text) for text in (*texts, rare)], force=True)
    hits = talk.search("deploy went well", where="content ~ rare", scope=scope)
    assert contents(hits) == [rare]


# --- surroundings


def test_a_short_answer_is_found_by_the_words_of_its_question(talk: Memories) -> None:
    weather = [f"Small talk number {number} on the weather" for number in range(9)]
    talk.add_turns(
        "a", [*weather[:4], "Which instrument do you practise?", "The cello!", *weather[4:]]
    )
    found = talk.explain("which instrument is practised", scope="history", limit=5)
    assert found.hits[0].content == "Which instrument do you practise?"
    assert set(contents(found.hits)) == {
        "Which instrument do you practise?",
        "The cello!",
        weather[3],
        weather[4],
    }
    [answer] = (each for each in found.considered if each.content == "The cello!")
    assert (answer.features["words"], answer.features["window_words"], answer.dropped) == (0, 1, "")


def test_an_answer_in_the_next_session_is_not_found_by_that_question(talk: Memories) -> None:
    talk.add_turns(
        "a", [at(NOW - 3 * HOUR, "Which instrument do you practise?", "Ann"), at(NOW, "The cello!", "Bob")]
    )  # fmt: skip
    assert contents(talk.search("which instrument is practised", scope="history")) == [
        "Which instrument do you practise?"
    ]


def test_a_turn_gets_evidence_from_its_surroundings(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", ["I have a red bike", "Really?", "Yes", "Good night", "bye"])
    around = evidence(gathered(store, embedder, "red bike"))
    assert [
        around[text].window_coverage
        for text in ("I have a red bike", "Really?", "Yes", "Good night")
    ] == [1, 1, 1, 0]
    assert {each.session_coverage for each in around.values()} == {1.0}
    assert len({each.session_best for each in around.values()}) == 1
    assert (
        around["bye"].word_score
        == 0
        < around["bye"].session_best
        == around["I have a red bike"].word_score
    )


def test_the_same_words_in_another_conversation_are_not_surroundings(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", ["I have a red bike"])
    talk.add_turns("b", ["Really?"])
    assert evidence(gathered(store, embedder, "red bike"))["Really?"].window_coverage == 0


def test_brevity_questions_and_the_assistant_role_are_signs_of_a_turn(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    full = " ".join(["word"] * FULL_LENGTH)
    talk.add_turns(
        "a",
        [
            full,
            "Bike",
            "A red bike?",
            "赤い自転車？ ",
            TurnDraft("Your bike is red", role="assistant"),
        ],
    )
    found = evidence(gathered(store, embedder, "bike"))
    assert (found[full].brevity, found["Bike"].brevity) == (0, 1)
    assert 0 < found["A red bike?"].brevity < 1
    assert [each.question for each in found.values()].count(1.0) == 2
    assert {text for text, each in found.items() if each.aside} == {"Your bike is red"}


def test_long_words_without_spaces_are_not_brief(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", ["自転車を" * 60])
    [found] = evidence(gathered(store, embedder, "自転車")).values()
    assert found.brevity == 0


def test_only_a_question_about_a_time_prefers_turns_that_mention_one(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", ["I bought the bike last summer", "I ride the bike to work"])
    asked = evidence(gathered(store, embedder, "When was the bike bought?"))
    assert [asked[text].tells_when for text in sorted(asked)] == [1, 0]
    other = evidence(gathered(store, embedder, "Who bought the bike?"))
    assert [other[text].tells_when for text in sorted(other)] == [0, 0]


def test_a_repetition_by_an_assistant_ranks_after_the_original(talk: Memories) -> None:
    talk.add_turns("a", [TurnDraft("The port of the server is 8080", role="assistant")])
    talk.add_turns("b", ["The port of the server is 8080"])
    assert [hit.speaker for hit in talk.search("port of the server", scope="history")] == [
        "user",
        "assistant",
    ]


# --- speakers


def test_a_turn_of_the_named_speaker_ranks_first(talk: Memories) -> None:
    for number, speaker in enumerate(("Bob", "Ann", "Eve")):
        talk.add_turns(f"c{number}", [by(speaker, "I bought a red bike")])
    for name in ("Ann", "Bob", "Eve"):
        hits = talk.search(f"What did {name} buy, a bike?", scope="history")
        assert hits[0].speaker == name
        assert len(hits) == 3
    assert talk.search("what did EVE's bike look like?", scope="history")[0].speaker == "Eve"


def test_named_speakers_count_within_one_conversation(talk: Memories) -> None:
    talk.add_turns("a", [by("Bob", "I bought a red bike"), by("Ann", "I bought a red bike")])
    assert [hit.speaker for hit in talk.search("the bike that Ann bought", scope="history")] == [
        "Ann",
        "Bob",
    ]


def test_all_named_speakers_count(store: Store, embedder: Embedder | None, talk: Memories) -> None:
    talk.add_turns(
        "a", [by("Bob", "I bought a bike"), by("Ann", "I sold a bike"), by("Eve", "I like my bike")]
    )
    asked = evidence(gathered(store, embedder, "Did Ann sell her bike to Bob?"))
    assert [text for text, each in asked.items() if each.named] in (
        ["I sold a bike", "I bought a bike"], ["I bought a bike", "I sold a bike"],
    )  # fmt: skip
    asked = evidence(gathered(store, embedder, "Did Ann sell her bike?"))
    assert [text for text, each in asked.items() if each.named] == ["I sold a bike"]


@pytest.mark.parametrize("embedder", ["both"], indirect=True)
def test_the_query_vector_excludes_the_name(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", [by("Ann", "red bike"), by("Bob", "Ann")])
    found = {
        each.record.text: each.similarity
        for each in gathered(store, embedder, "Ann red bike").candidates
    }
    assert found["red bike"] == pytest.approx(1.0, abs=0.02)


def test_speakers_of_other_namespaces_are_unknown(store: Store, embedder: Embedder | None) -> None:
    with Memories(store, embedder=embedder or "none", namespace="own", clock=lambda: NOW) as own:
        own.add_turns("a", [by("Ann", "I bought a red bike")])
    with Memories(store, embedder=embedder or "none", clock=lambda: NOW) as talk:
        talk.add_turns("a", [by("Bob", "I bought a red bike")])
    found = evidence(gathered(store, embedder, "What did Ann buy, a bike?"))
    assert [each.named for each in found.values()] == [0.0]


# --- dates

DAYS = (
    datetime(2025, 3, 3, 12, tzinfo=UTC),
    datetime(2025, 5, 10, 12, tzinfo=UTC),
    NOW - 9 * DAY,
    NOW - DAY,
)


@pytest.fixture
def diary(talk: Memories) -> Memories:
    """The same message on four days, stored in a different order."""
    for number in (2, 0, 3, 1):
        talk.add_turns(f"day {number}", [at(DAYS[number], "We talked about the garden")])
    return talk


@pytest.mark.parametrize(
    ("when", "day"),
    [
        ("on 3 March", 0),
        ("on March 3rd, 2025", 0),
        ("on 2025-03-04", 0),
        ("in May 2025", 1),
        ("in May", 1),
        ("last week", 2),
        ("nine days ago", 2),
        ("yesterday", 3),
        ("last Friday", 3),
        ("this month", 3),
    ],
)
def test_a_date_raises_turns_of_its_day_and_removes_no_turn(
    diary: Memories, when: str, day: int
) -> None:
    hits = diary.search(f"what about the garden {when}?", scope="history")
    assert len(hits) == len(DAYS)
    best = max(hit.score for hit in hits)
    assert DAYS[day] in {hit.date for hit in hits if hit.score == best}
    assert hits[0].date == DAYS[day] or when == "this month"


def test_without_a_date_all_days_count_equally(diary: Memories) -> None:
    assert len({hit.score for hit in diary.search("what about the garden?", scope="history")}) == 1


@pytest.mark.parametrize(
    ("now", "day"), [("2025-05-11", 1), ("2025-03-04", 0), ("2026-02-13", 2), (None, 3)]
)
def test_relative_dates_depend_on_when_the_question_is_asked(
    diary: Memories, now: str | None, day: int
) -> None:
    hits = diary.search("the garden, yesterday", scope="history", now=now)
    assert (hits[0].date, len(hits)) == (DAYS[day], len(DAYS))


def test_a_date_in_a_year_without_turns_removes_none(diary: Memories) -> None:
    hits = diary.search("the garden in 1999", scope="history")
    assert len(hits) == len(DAYS)
    assert {hit.date for hit in diary.search("the garden on 30 February", scope="history")} == set(
        DAYS
    )


def test_a_question_with_only_a_day_finds_its_turns(talk: Memories) -> None:
    for number, day in enumerate(DAYS):
        talk.add_turns(f"day {number}", [at(day, f"Thought number {number}")])
    assert (
        contents(talk.search("what happened yesterday?", scope="history"))[0] == "Thought number 3"
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("When was the garden dug, on 14 February?", ["We dug the garden last Saturday"]),
        ("What was dug in the garden on 2026-02-19?", ["We dug the garden yesterday"]),
        ("Was the garden dug in May?", ["We dug the garden in May"]),
        ("Was the garden dug?", []),
    ],
)
def test_relative_days_in_a_turn_count_from_the_day_of_the_turn(
    store: Store, embedder: Embedder | None, talk: Memories, asked: str, expected: list[str]
) -> None:
    """All messages are from one day, a Friday."""
    texts = (
        "We dug the garden yesterday",
        "We dug the garden last Saturday",
        "We dug the garden in May",
    )
    for number, text in enumerate(texts):
        talk.add_turns(f"{number}", [at(NOW - DAY, text)])
    found = evidence(gathered(store, embedder, asked))
    assert [text for text, each in found.items() if each.told_date == 1] == expected
    assert len(found) == len(texts)


@pytest.mark.parametrize("embedder", ["words"], indirect=True)
@pytest.mark.parametrize(
    ("day", "first"), [("2026-02-19", "yesterday"), ("2026-02-21", "tomorrow")]
)
def test_a_turn_about_the_requested_day_ranks_first_among_turns_of_one_day(
    talk: Memories, day: str, first: str
) -> None:
    for word in ("yesterday", "today", "tomorrow"):
        talk.add_turns(word, [at(NOW - DAY, f"The garden party, {word}")])
    hits = contents(talk.search(f"the garden party on {day}", scope="history"))
    assert hits[0] == f"The garden party, {first}"
    assert len(hits) == 3


def test_closeness_is_computed_by_utc_day(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    midnight = datetime(2026, 2, 20, tzinfo=UTC)
    second = timedelta(seconds=1)
    for name, moment in {
        "before": midnight - second,
        "first": midnight,
        "last": midnight + DAY - second,
    }.items():
        talk.add_turns(name, [at(moment, f"garden {name}")])
    close = {
        text: each.date
        for text, each in evidence(gathered(store, embedder, "garden yesterday")).items()
    }
    assert (close["garden first"], close["garden last"]) == (1, 1)
    assert 0 < close["garden before"] < 1


@pytest.mark.parametrize("embedder", ["words"], indirect=True)
@pytest.mark.parametrize(
    ("hours", "day", "said"),
    [(12, 18, {"evening"}), (0, 17, {"morning", "evening"}), (-12, 16, {"morning"})],
)
def test_days_are_in_the_askers_time_zone(
    store: Store, talk: Memories, hours: int, day: int, said: set[str]
) -> None:
    """Messages from 9:00 and 20:00 UTC on the 17th: half a world away, one of them is from another
    day.
    """
    for text, hour in (("morning", 9), ("evening", 20)):
        talk.add_turns(text, [at(datetime(2026, 2, 17, hour, tzinfo=UTC), f"garden {text}")])
    asked, now = f"the garden on 2026-02-{day}", NOW.astimezone(timezone(timedelta(hours=hours)))
    query = Query(asked, query_terms(asked), now, now, 720.0, None, {})
    found = evidence(gather_surrounded(store, Filter(Collection.HISTORY, ("shared",)), query, 20))
    assert {text.removeprefix("garden ") for text, each in found.items() if each.date == 1} == said


def test_days_before_1970_work(store: Store, embedder: Embedder | None, talk: Memories) -> None:
    talk.add_turns("a", [at(datetime(1969, 7, 20, 20, 17, tzinfo=UTC), "The Eagle has landed")])
    [found] = evidence(gathered(store, embedder, "what landed on 20 July 1969?")).values()
    assert found.date == 1


@pytest.mark.parametrize("year", [1, 9999])
def test_turns_of_any_year_work(talk: Memories, year: int) -> None:
    for number, moment in enumerate(
        (datetime(year, 6, 1, tzinfo=UTC), datetime(2025, 6, 1, tzinfo=UTC))
    ):
        talk.add_turns(f"{number}", [at(moment, "We talked about the garden")])
    assert len(talk.search("the garden on 1 June", scope="history")) == 2


@pytest.mark.parametrize("asked", ["garden in May", "garden on APRİL 3"])
def test_a_turn_with_a_turkish_capital_works(talk: Memories, asked: str) -> None:
    talk.add_turns("a", ["The garden opens APRİL 3"])
    assert contents(talk.search(asked, scope="history")) == ["The garden opens APRİL 3"]


# --- limits


def test_an_empty_history_has_no_results(store: Store, embedder: Embedder | None) -> None:
    assert gathered(store, embedder, "What did Ann say on 5 May?") == GatheredCandidates(
        [], [], has_more=False
    )


def test_only_the_most_promising_rows_are_read(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", [*(f"word {number}" for number in range(3 * MIN_READ)), "a red bike"])
    found = gathered(store, embedder, "red bike", count=2)
    assert len(found.candidates) == len(found.features) == MIN_READ
    assert found.candidates[0].record.text == "a red bike"
    assert len(gathered(store, embedder, "red bike", count=40).candidates) == 40


def test_a_turn_that_matches_only_by_speaker_and_day_is_read(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    """Among many memories that share its words, it is not crowded out before its text is
    examined.
    """
    talk.add_turns(
        "a", [at(NOW - 90 * DAY, f"a red bike, {number}", "Bob") for number in range(3 * MIN_READ)]
    )
    talk.add_turns("b", [at(NOW - DAY, "It was lovely", "Ann")])
    found = gathered(store, embedder, "What did Ann say of her red bike yesterday?", count=2)
    assert found.candidates[0].record.text == "It was lovely"


def test_a_single_conversation_is_gathered_by_itself(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.add_turns("a", ["a red bike"])
    talk.add_turns("b", ["a red bike"])
    [found] = gathered(store, embedder, "red bike", group="b").candidates
    assert found.record.ref.group == "b"


# --- memories


def test_a_memory_has_no_surroundings(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    talk.create("Ann has a red bike", force=True)
    where = Filter(Collection.MEMORY, ("shared",))
    query = Query("red bike, today", query_terms("red bike, today"), NOW, NOW, 720.0, embedder, {})
    [found] = gather_standalone(store, where, query, 10).features
    assert found.evidence == Evidence.standalone(
        found.evidence.word_score, found.evidence.similarity, 1.0
    )
    assert (found.evidence.similarity is None) is (embedder is None)
    assert (found.age_days, found.accesses, found.confidence) == (0, 0, 1)


def test_a_memory_from_the_requested_day_comes_first(
    store: Store, embedder: Embedder | None
) -> None:
    moments = iter([NOW - 40 * DAY, NOW - DAY, NOW - 20 * DAY])
    written: dict[datetime, str] = {}
    for moment in moments:
        with Memories(
            store, embedder=embedder or "none", clock=lambda moment=moment: moment
        ) as then:  # type: ignore[misc]
            made = then.create("The garden was watered", force=True).memory
            assert made is not None
            written[moment] = made.id
    with Memories(store, embedder=embedder or "none", clock=lambda: NOW) as talk:
        hits = talk.search("was the garden watered yesterday?")
        assert len(hits) == 3
        assert hits[0].id == written[NOW - DAY]
        assert (
            talk.search("was the garden watered yesterday?", now=NOW - 19 * DAY)[0].id
            == written[NOW - 20 * DAY]
        )


def test_at_most_the_requested_number_of_memories_is_gathered(
    store: Store, embedder: Embedder | None, talk: Memories
) -> None:
    for number in range(4):
        talk.create(f"red bike number {number}", force=True)
    where = Filter(Collection.MEMORY, ("shared",))
    asked = Query("red bike", query_terms("red bike"), NOW, NOW, 720.0, embedder, {})
    assert gather_standalone(store, where, asked, 2).has_more
    found = gather_standalone(store, where, asked, 10)
    assert (len(found.candidates), found.has_more) == (4, False)


def test_only_short_spans_are_precise() -> None:
    start = date(2026, 5, 1)
    spans = [(start, start + timedelta(days=days)) for days in range(candidates.PRECISE_DAYS + 2)]
    assert candidates.precise_spans(spans) == spans[: candidates.PRECISE_DAYS]


@pytest.mark.parametrize("scope", ["memories", "all"])
def test_a_memory_with_the_tag_role_or_speaker_ranks_like_any_other(
    tmp_path: Path, scope: str
) -> None:
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        memories.create("The harbour crane lifts barrels", tags={"role": "assistant"})
        memories.create("The harbour crane lifts timber", tags={"speaker": "harbour"})
        memories.create("The harbour crane lifts grain")
        memories.add_turns("a", ["The weather is fine"])
        hits = memories.search("the harbour crane lifts", scope=scope)
    assert len(hits) == 3
    assert len({hit.score for hit in hits}) == 1
