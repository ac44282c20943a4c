"""The entries that a word search finds, and when they are enough for an answer."""

from datetime import UTC, datetime

import pytest

from memories.scratchpad.entries import Entry, EntryRules
from memories.scratchpad.matching import ScratchpadMatches, find_matches

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def search(query: str, *contents: str) -> ScratchpadMatches:
    """Search a scratchpad with these contents."""
    entries = [
        Entry(f"{at}", content, version=1, written=NOW.isoformat())
        for at, content in enumerate(contents)
    ]
    return find_matches(entries, query, lambda _: True, 10, EntryRules(), NOW)


# A query, a text with all its words, and a text with a similar word in place of one of them.
NUMBERS = [
    ("web port 80", "The web proxy listens on port 80", "The web service listens on port 8080"),
    ("web port 80", "web port: 80.", "web port 180"),
    ("web port 80", "the port of the web server (80)", "web port 10.0.0.80"),
    ("web port 443", "web, port=443", "web ports 4430"),
    ("dora note 3", "dora wrote note 3", "dora wrote note 399"),
    ("release 1.2", "the release is 1.2", "the release is 1.20"),
    ("release 1.2", "release 1.2, at last", "release 1.2.3"),
    ("release 1.2", "release 1.2", "release 2.1"),
    ("release 2", "release 2", "release 1.2"),
    ("release v2", "release v2 is out", "release v22 is out"),
    ("release v2", "Release: V2", "release v2.1"),
    ("deployed 2026-01-1", "deployed on 2026-01-1", "deployed on 2026-01-12"),
    ("deployed 2026-01-12", "deployed 2026-01-12", "deployed 2026-01-13"),
    ("deployed 2026-01", "deployed 2026-01", "deployed 2026-01-12"),
    ("meeting 3:15", "meeting at 3:15", "meeting at 3:150"),
    ("meeting 5pm", "the meeting is at 5pm", "the meeting is at 15pm"),
    ("server 10.0.0.1", "the server is 10.0.0.1", "the server is 10.0.0.12"),
    ("server 10.0.0.1", "the server is 10.0.0.1", "the server is 110.0.0.1"),
    ("server fe80::1", "server fe80::1", "server fe80::12"),
    ("cluster k8s", "the k8s cluster", "the k8s2 cluster"),
    ("image python3", "image python3", "image python3.11"),
    ("commit a1b2c3", "commit a1b2c3", "commit a1b2c3d4"),
    ("limit 1,000", "limit 1,000", "limit 1,000,000"),
    ("limit 8", "limit 8", "limit 8,080"),
    ("limit 102", "limit 102", "limit 10²"),
    ("limit 10²", "limit 10²", "limit 102"),
    ("account 007", "account 007", "account 0071"),
    ("issue #12", "issue #12", "issue #123"),
    ("price €80", "price €80", "price €800"),
    ("room b12", "room b12", "room b123"),
    ("port ８０", "port 80", "port ８０８０"),
    ("منفذ ٨٠", "منفذ ٨٠", "منفذ ٨٠٨٠"),
    ("पोर्ट ८०", "पोर्ट ८०", "पोर्ट ८०८०"),
    ("พอร์ต ๘๐", "พอร์ต ๘๐", "พอร์ต ๘๐๘๐"),
    ("порт 80", "порт 80", "порт 8080"),
    ("端口 80", "端口 80", "端口 8080"),
    ("端口80", "端口80号", "端口8080号"),
    ("端口八十", "端口八十", "端口八十八"),
    ("포트 80", "포트 80", "포트 8080"),
    ("the db run", "run the db", "the db running"),
    ("set cat", "set the cat", "set the category"),
    ("web port", "the web port", "the web portal"),
    ("user café", "the user of the café", "the user of the cafeteria"),
]


def test_only_an_entry_with_every_word_unchanged_is_a_sufficient_answer() -> None:
    failures = []
    for query, whole, part in NUMBERS:
        if search(query, part).is_enough:
            failures.append(f"{query!r}: {part!r} is enough")
        matches = search(query, part, whole)
        first = [*[hit.content for hit in matches.best], matches.explanation.hits[0].content]
        if first != [whole, whole]:
            failures.append(f"{query!r} finds {first}")
    assert failures == []


def test_a_number_or_short_word_is_not_found_by_its_prefix() -> None:
    """Such an entry is found only by its other words, so its score is below 1."""
    scores = {
        (query, part): [hit.score for hit in search(query, part).explanation.hits]
        for query, _, part in NUMBERS[:-2]
    }
    assert {pair: score for pair, score in scores.items() if max(score, default=0) >= 1} == {}


def test_without_the_store_other_word_endings_are_found_too() -> None:
    assert search("deployed services", "It deploys the service").explanation.hits
    assert not search("deployed services", "It deploys the service").is_enough
    assert not search("80", "8080", "180", "800").explanation.hits


@pytest.mark.parametrize(
    ("query", "content", "scores"),
    [
        ("gate opens wide", "gates", [0.3333]),  # an entry needs at least a third of the words
        ("gate opens wide daily", "gates", []),
        ("gate opens", "The gates", [0.5]),  # a word of four letters may have another ending
        ("gat opens", "The gates", []),
        ("gate closes 80", "80", [0.3333]),
        ("port 80", "ports 80", [1.0]),
    ],
)
def test_the_score_is_the_share_of_matching_words(
    query: str, content: str, scores: list[float]
) -> None:
    assert [hit.score for hit in search(query, content).explanation.hits] == scores


def test_an_old_entry_scores_slightly_less_than_a_new_one() -> None:
    old = Entry("old", "the gate is open", version=1, written="1970-01-01T00:00:00+00:00")
    new = old._replace(id="new", written=NOW.isoformat())
    hits = find_matches(
        [old, new], "gate open", lambda _: True, 10, EntryRules(), NOW
    ).explanation.hits
    assert [(hit.memory.id, hit.score) for hit in hits] == [("new", 1.0), ("old", 0.985)]
    assert (
        find_matches([old, new], "gate open", lambda _: True, 1, EntryRules(), NOW).explanation.hits
        == hits[:1]
    )


def test_a_hit_has_the_namespace_and_the_writer_of_its_entry() -> None:
    entry = Entry(
        "m", "the gate is open", version=2, written=NOW.isoformat(), by="ann", namespace="bob"
    )
    [hit] = find_matches(
        [entry], "gate open", lambda _: True, 10, EntryRules(), NOW
    ).explanation.hits
    assert (hit.memory.namespace, hit.memory.version) == ("bob", 2)
    assert hit.memory.origin is not None
    assert (hit.memory.origin.namespace, hit.memory.origin.by, hit.memory.origin.trust) == (
        "bob",
        "ann",
        "agent",
    )


def test_one_matching_word_is_never_enough() -> None:
    assert not search("1.2", "1.2").is_enough
    assert not search("the port", "the port").is_enough
