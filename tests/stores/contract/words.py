"""Searches by words, which depend only on the words of their own namespace."""

from typing import Any

import numpy as np
import pytest

from contract.samples import (
    HISTORY,
    MEMORY,
    Opened,
    at,
    by_words,
    embed,
    everything,
    pool,
    record,
    refs_of,
    turn,
    turns,
    unit_vectors,
)
from memories.languages.text import query_terms
from memories.stores import Store
from memories.stores.records import SEARCHED, Collection, Filter, Patch, Record, Ref, TurnQuery
from memories.stores.words import score, tokens_of
from tables import failed_cases

_WORDS = "apple banana cherry date elder fig grape hazel iris juniper".split()
_SCRIPTS = [
    ("Der Käse ist im Kühlschrank", "kase"),
    ("the deploys happened", "deploy"),
    ("東京で会議があります", "会議"),
    ("we use C++ here", "C++"),
    ("mail ann.b@example.com about it", "ann.b@example.com"),
    ("see /usr/local/bin/tool", "/usr/local/bin"),
    ("ship it 🚀", "🚀"),
]
_SIGNS = [
    '"',
    "'",
    "*",
    "(",
    ")",
    "NEAR(",
    "NEAR(a b, 2)",
    "AND",
    "OR",
    "NOT",
    "a AND",
    "-x",
    "a:b",
    "text:b",
    "^a",
    "{",
    *(
        "",
        " ",
        "don't",
        "C++",
        "a@b.com",
        "/usr/bin",
        "50%",
        "[x]",
        "`",
        "\\",
        ";",
        "--",
        '""',
        '" OR "',
    ),
    *(
        "rowid",
        "rank",
        "text",
        "x" * 4000,
        "$1",
        ":a",
        "?1",
        "%s",
        "a\0b",
        "\u200b",
        "()" * 300,
        "' OR 1=1 --",
    ),
]
_QUERIES = ("apple fig", "hazel iris juniper", '"cherry date" elder', "banana")


def _mixtures(
    namespace: str, collection: Collection, count: int, seed: int, *, first: int = 0
) -> list[Record]:
    """Return records with many combinations of few words; every seventh has ended."""
    drawn = np.random.default_rng(seed)
    ended: dict[bool, dict[str, Any]] = {
        True: {"ended_at": at(400), "ended_by": "delete"},
        False: {},
    }
    return [
        record(
            f"g{number:03}",
            number,
            namespace=namespace,
            collection=collection,
            text=" ".join(drawn.choice(_WORDS, size=int(drawn.integers(1, 9)))),
            labels={"half": str(number % 2)},
            session=0 if collection is HISTORY else None,
            **ended[number % 7 == 3],
        )
        for number in range(first, first + count)
    ]


def _candidates(store: Store, where: Filter, vector: Any, terms: list[str]) -> list[Any]:
    """Return the result of `candidates` by address."""
    candidates = store.candidates(where, vector=vector, terms=terms, k=20)
    return sorted((one.record.ref, one.word_score, one.similarity) for one in candidates)


def _matches(store: Store, where: Filter, vector: Any, terms: list[str]) -> list[Any]:
    """Return the rows of `matches` by address."""
    matches = store.matches(where, TurnQuery(vector, terms, 20))
    columns = (
        matches.word_score.tolist(),
        np.nan_to_num(matches.similarity, nan=9.0).tolist(),
        matches.holds.T.tolist(),
    )
    return [
        matches.searched,
        list(matches.terms),
        sorted(zip(refs_of(matches, where.collection), *columns, strict=True)),
    ]


def _search_results(store: Store, *, vector: bool) -> list[Any]:
    """Return all results of searches by `ann`."""
    told: list[Any] = []
    for collection in SEARCHED:
        own = pool("ann", "shared", collection=collection)
        for where in (
            pool("ann", collection=collection),
            own,
            own._replace(labels={"half": "1"}),
            own._replace(state="any"),
            own._replace(group="g007"),
        ):
            for query in _QUERIES:
                asked, terms = embed(query)[0] if vector else None, query_terms(query)
                told += [
                    _candidates(store, where, asked, terms),
                    _matches(store, where, asked, terms),
                ]
    return told


class Words(Opened):
    """Tests of searches by words."""

    # --- candidates by words

    def test_a_better_word_match_has_a_higher_score(self, store: Store) -> None:
        store.append(
            [
                record("both", text="red apple"),
                record("one", text="green apple"),
                record("none", text="pear"),
            ]
        )
        scores = by_words(store, ["red", "apple"])
        assert scores["both"] > scores["one"] > 0.0
        assert "none" not in scores

    def test_rare_words_score_higher_than_common_ones(self, store: Store) -> None:
        store.append([record(f"m{number:02}", text="weekly report sales") for number in range(20)])
        store.append([record("rare", text="weekly report zanzibar")])
        scores = by_words(store, ["weekly", "zanzibar"], k=5)
        assert max(scores, key=scores.__getitem__) == "rare"

    def test_k_limits_the_best_records_by_words(self, store: Store) -> None:
        store.append([record(f"m{number:02}", text="apple", vectors=None) for number in range(30)])
        assert len(by_words(store, ["apple"], k=7)) == 7

    def test_candidates_are_the_union_of_matches_by_words_and_by_vector(self, store: Store) -> None:
        near, far = unit_vectors(2)
        store.append([record("by-vector", text="banana", vectors=near[np.newaxis])])
        store.append([record("by-words", text="zanzibar", vectors=far[np.newaxis])])
        candidates = store.candidates(pool(), vector=near, terms=["zanzibar"], k=1)
        scores = {candidate.record.ref.group: candidate for candidate in candidates}
        assert set(scores) == {"by-vector", "by-words"}
        assert scores["by-words"].word_score > 0.0 == scores["by-vector"].word_score
        assert scores["by-words"].similarity == pytest.approx(float(near @ far), abs=0.01)

    def test_without_a_query_vector_there_is_no_similarity(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        (result,) = store.candidates(pool(), vector=None, terms=["apple"], k=5)
        assert result.similarity is None

    def test_a_query_without_vector_and_terms_finds_nothing(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        assert store.candidates(pool(), vector=None, terms=[], k=5) == []

    def test_a_phrase_matches_its_words_only_in_order(self, store: Store) -> None:
        store.append(
            [record("in-order", text="the red apple pie"), record("else", text="apple that is red")]
        )
        assert set(by_words(store, ["red apple"])) == {"in-order"}

    def test_words_of_any_script_are_found(self, store: Store) -> None:
        store.append(
            [
                record(f"m{number}", text=text, vectors=None)
                for number, (text, _) in enumerate(_SCRIPTS)
            ]
        )
        store.append([record("other", text="nothing alike", vectors=None)])
        results = {query: set(by_words(store, query_terms(query))) for _, query in _SCRIPTS}
        assert results == {query: {f"m{number}"} for number, (_, query) in enumerate(_SCRIPTS)}

    def test_characters_in_a_term_are_never_operators(self, store: Store) -> None:
        store.append(
            [record("m", text="plain words"), record("b", namespace="bob", text="plain words")]
        )

        def check(term: str) -> None:
            assert by_words(store, [term]) == {}
            assert set(by_words(store, [term, "plain"])) == {"m"}

        assert failed_cases(check, [(term,) for term in _SIGNS]) == []

    def test_query_operators_of_engines_are_ordinary_words(self, store: Store) -> None:
        words = ["near", "and", "or", "not", "text", "rank"]
        store.append([record(word, text=f"it says {word} there", vectors=None) for word in words])
        assert {word: set(by_words(store, [word])) for word in words} == {
            word: {word} for word in words
        }

    def test_a_term_that_ends_in_a_star_matches_any_ending(self, store: Store) -> None:
        store.append(
            [
                record("m", text="xylophone"),
                record("n", text="xenon"),
                record("o", text="a xylograph"),
            ]
        )
        assert set(by_words(store, ["xylo*"])) == {"m", "o"}
        assert by_words(store, ["xylo"]) == {}
        assert by_words(store, ["*"]) == by_words(store, ["**"]) == by_words(store, ['"*']) == {}

    def test_a_query_may_have_many_terms(self, store: Store) -> None:
        store.append([record("m", text="w7", vectors=None)])
        assert set(by_words(store, [f"w{number}" for number in range(64)])) == {"m"}

    # --- words of a namespace are its own

    @pytest.fixture
    def own(self, store: Store) -> Store:
        """A store in which `ann` and `shared` have memories and turns with many combinations of few
        words; some have ended.
        """
        for namespace, seed in (("ann", 5), ("shared", 6)):
            store.append(
                [
                    *_mixtures(namespace, MEMORY, 40, seed),
                    *_mixtures(namespace, HISTORY, 40, seed + 10),
                ]
            )
        return store

    @pytest.mark.parametrize(
        "vector",
        [pytest.param(False, marks=pytest.mark.thorough), True],
        ids=["words", "words-and-vectors"],
    )
    def test_writes_to_other_namespaces_neither_change_nor_hide_results(
        self, own: Store, vector: bool
    ) -> None:
        before = _search_results(own, vector=vector)
        for batch in range(2):  # ever more of the same words, and nearer vectors
            for collection in SEARCHED:
                own.append(_mixtures("bob", collection, 60, 50 + batch, first=60 * batch))
                for query in _QUERIES:
                    texts = [
                        record(f"{query} {n}", batch, namespace="eve", collection=collection)
                        for n in range(5)
                    ]
                    own.append([one._replace(text=query, vectors=embed(query)) for one in texts])
        assert _search_results(own, vector=vector) == before
        some = [
            Ref(collection, "bob", f"g{n:03}", n)
            for collection in SEARCHED
            for n in range(5, 60, 5)
        ]
        own.patch([Patch(ref, at(300), "delete", {}) for ref in some])
        own.remove(
            [
                Ref(collection, "bob", f"g{n:03}", n)
                for collection in SEARCHED
                for n in range(60, 120)
            ]
        )
        assert _search_results(own, vector=vector) == before

    def test_scores_do_not_reveal_the_words_of_other_namespaces(self, own: Store) -> None:
        """Results are identical before and after writes to another namespace."""
        words = [*_WORDS[::4], "merger", "initech", "zanzibar"]
        probes = [*words, *(f"{word} apple" for word in words), *(f"{word[:3]}*" for word in words)]

        def answers() -> bytes:
            told: list[Any] = []
            for where in (
                pool("ann"),
                turns("ann"),
                pool("ann", "shared", state="any"),
                turns("ann", group="g001"),
            ):
                for probe in probes:
                    terms = [probe, *probe.split()]
                    told.append(_candidates(own, where, None, terms))
                    told.append(_matches(own, where, None, terms))
            return repr(told).encode()

        before = answers()
        own.append(
            [
                record(f"s{n}", namespace="bob", text="the merger with initech", vectors=None)
                for n in range(99)
            ]
        )
        own.append([turn(n, namespace="bob", text="apple merger", vectors=None) for n in range(99)])
        own.append(
            [record(f"t{n}", namespace="bob", text="apple elder", vectors=None) for n in range(99)]
        )
        assert answers() == before

    def test_scores_follow_the_formula(self, store: Store) -> None:
        """Every store scores with BM25 of `memories.stores.words`, with the counts of the
        namespaces that are read.
        """
        terms = ["apple", "grape hazel", "iris", "fi*", "zanzibar"]
        for seed, namespace in enumerate(("ann", "shared", "bob")):
            for collection in SEARCHED:
                entries = _mixtures(namespace, collection, 45, seed)
                store.append([entry._replace(ended_at=None, ended_by=None) for entry in entries])
        for collection in SEARCHED:
            for where in (
                pool("ann", collection=collection),
                pool("ann", "shared", collection=collection),
            ):
                entries = everything(store, where)
                scores = score([tokens_of(entry) for entry in entries], terms).scores.tolist()
                expected = {
                    entry.ref: candidates
                    for entry, candidates in zip(entries, scores, strict=True)
                    if candidates
                }
                candidates = store.candidates(where, vector=None, terms=terms, k=200)
                assert {one.record.ref: one.word_score for one in candidates} == pytest.approx(
                    expected, abs=1e-6
                )
                matches = store.matches(where, TurnQuery(None, terms, 200))
                rows = zip(refs_of(matches, collection), matches.word_score.tolist(), strict=True)
                assert {ref: words for ref, words in rows if words} == pytest.approx(
                    expected, abs=1e-6
                )
