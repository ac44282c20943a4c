"""Searches by filter and vector, and the columns of matches."""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from contract.samples import (
    HISTORY,
    MEMORY,
    T0,
    Opened,
    at,
    by_words,
    embed,
    everything,
    failing,
    holders,
    matching,
    pool,
    record,
    refs_of,
    search,
    turn,
    turns,
    unit_vectors,
)
from memories.core.ids import new_id
from memories.languages.text import query_terms
from memories.stores import Store
from memories.stores.records import SEARCHED, SPEAKER, Collection, Ref, TurnQuery
from tables import failed_cases

_FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "m1.2 m3.1 m4.2"),
    ({"state": "ended"}, "m1.1 m2.1 m4.1"),
    ({"state": "any"}, "m1.1 m1.2 m2.1 m3.1 m4.1 m4.2"),
    ({"state": "ended", "ended_by": "delete"}, "m2.1"),
    ({"state": "any", "ended_by": "update"}, "m1.1 m4.1"),
    ({"state": "any", "ended_by": "supersede"}, ""),
    ({"labels": {"a": "1"}}, "m1.2"),
    ({"labels": {"a": "1"}, "state": "any"}, "m1.1 m1.2"),
    ({"labels": {"a": "1", "b": "2"}, "state": "any"}, "m1.2"),
    ({"labels": {"a": "3"}}, ""),
    ({"labels": {"1": "a"}}, ""),
    ({"labels": {"a": "%"}}, ""),
    ({"since": at(25)}, "m3.1 m4.2"),
    ({"since": at(25.001)}, ""),
    ({"until": at(20)}, "m1.2"),
    ({"until": at(19.999)}, ""),
    ({"since": at(15), "until": at(20), "state": "any"}, "m1.2 m2.1"),
    ({"as_of": at(9.999)}, ""),
    ({"as_of": at(10)}, "m1.1"),
    ({"as_of": at(19.999)}, "m1.1 m2.1"),
    ({"as_of": at(20)}, "m1.2 m2.1"),
    ({"as_of": at(25)}, "m1.2 m2.1 m3.1 m4.2"),
    ({"as_of": at(30)}, "m1.2 m3.1 m4.2"),
    ({"as_of": at(19), "state": "ended"}, "m1.1 m2.1"),
    ({"as_of": at(19), "labels": {"a": "2"}}, "m2.1"),
    ({"key": "k3"}, "m3.1"),
    ({"key": "k3", "state": "any"}, "m3.1"),
    ({"key": "K3"}, ""),
    ({"group": "m1"}, "m1.2"),
    ({"group": "m1", "state": "any"}, "m1.1 m1.2"),
    ({"group": "m"}, ""),
    ({"group": "m", "prefix": True}, "m1.2 m3.1 m4.2"),
    ({"group": "m3", "prefix": True}, "m3.1"),
    ({"group": "m3x", "prefix": True}, ""),
    ({"group": "%", "prefix": True}, ""),
]


class Search(Opened):
    """Tests of filters and vectors."""

    # --- filters

    @pytest.fixture
    def varied(self, store: Store) -> Store:
        store.append(
            [
                record(
                    "m1",
                    1,
                    created_at=at(10),
                    ended_at=at(20),
                    ended_by="update",
                    labels={"a": "1"},
                    text="apple",
                ),
                record("m1", 2, created_at=at(20), labels={"a": "1", "b": "2"}, text="apple tree"),
                record(
                    "m2",
                    1,
                    created_at=at(15),
                    ended_at=at(30),
                    ended_by="delete",
                    labels={"a": "2"},
                    text="apple",
                ),
                record("m3", 1, created_at=at(25), labels={"b": "2"}, key="k3", text="pear apple"),
                record(
                    "m4",
                    1,
                    created_at=at(25),
                    ended_at=at(25),
                    ended_by="update",
                    key="k3",
                    text="apple",
                ),
                record("m4", 2, created_at=at(25), text="apple", vectors=None),
            ]
        )
        return store

    def test_a_filter_selects_the_same_records_in_every_read(self, varied: Store) -> None:
        def check(conditions: Mapping[str, Any], expected: str) -> None:
            where = pool(**conditions)
            records = varied.scan(where, limit=99)
            assert (
                " ".join(f"{entry.ref.group}.{entry.ref.position}" for entry in records) == expected
            )
            assert varied.count(where) == len(records)
            assert varied.count(where, at_most=2) == min(2, len(records))
            assert varied.groups(where, limit=99) == [
                ("ann", g) for g in dict.fromkeys(entry.ref.group for entry in records)
            ]
            counted: dict[str, int] = {}
            for entry in records:
                for key in entry.labels:
                    counted[key] = counted.get(key, 0) + 1
            assert varied.labels(where, None) == counted
            for vector, terms in (
                (embed("apple")[0], []),
                (None, ["apple"]),
                (embed("apple")[0], ["apple"]),
            ):
                candidates = varied.candidates(where, vector=vector, terms=terms, k=50)
                embedded = [
                    entry.ref
                    for entry in records
                    if entry.ref != ("memory", "ann", "m4", 2) or terms
                ]
                assert sorted(candidate.record.ref for candidate in candidates) == sorted(embedded)
                assert set(embedded) <= set(
                    refs_of(varied.matches(where, TurnQuery(vector, terms, 50)), MEMORY)
                )
            matches = varied.matches(where, TurnQuery(embed("apple")[0], ["apple"], 50))
            assert sorted(refs_of(matches, MEMORY)) == sorted(entry.ref for entry in records)
            assert varied.info(where).without_vector_count == ("m4.2" in expected)

        assert failed_cases(check, _FILTERS) == []

    def test_a_group_is_found_by_a_prefix_of_its_name(self, store: Store) -> None:
        ids = [
            "01a1fdf1-92cd-72f2-8000-000000000001",
            "01a1fdf1-92cd-72f2-8000-000000000002",
            "01a1fdf1-92ce-72f2-8000-000000000003",
        ]
        names = ["01a1fdf1-notes", "session-1", "session-10", "Session-1", "sess%"]
        store.append([record(name) for name in (*ids, *names)])

        def beginning(prefix: str) -> set[str]:
            return {group for _, group in store.groups(pool(group=prefix, prefix=True), limit=99)}

        assert beginning("01a1fdf1") == {*ids, "01a1fdf1-notes"}
        assert beginning("01a1fdf1-92c") == set(ids)
        assert beginning("01a1fdf1-92cd-72f2-8000-00000000000") == set(ids[:2])
        assert beginning(ids[0]) == {ids[0]}
        assert beginning(ids[0] + "0") == set()
        assert beginning("session-1") == {"session-1", "session-10"}
        assert beginning("sess") == {"session-1", "session-10", "sess%"}
        assert beginning("sess%") == {"sess%"}
        assert beginning("zzz") == set()
        assert beginning("") == {*ids, *names}

    def test_labels_counts_the_keys_and_values_of_filtered_records(self, store: Store) -> None:
        store.append(
            [
                record(f"m{number}", labels={"type": "fact", "n": str(number % 2)})
                for number in range(4)
            ]
        )
        store.append([record("m9", labels={"type": "event"}, ended_at=at(9), ended_by="delete")])
        assert store.labels(pool(), None) == {"n": 4, "type": 4}
        assert store.labels(pool(), "type") == {"fact": 4}
        assert store.labels(pool(state="any"), "type") == {"event": 1, "fact": 4}
        assert store.labels(pool(), "n") == {"0": 2, "1": 2}
        assert store.labels(pool(), "missing") == {}

    # --- candidates by vector

    def test_days_counts_the_records_of_each_utc_day(self, store: Store) -> None:
        moments = [
            datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
            at(0),
            at(86_399.999),
            at(86_400),
        ]
        day = (T0 - datetime(1970, 1, 1, tzinfo=UTC)).days
        store.append(
            [record(f"m{place}", created_at=moment) for place, moment in enumerate(moments)]
        )
        store.append([record("gone", created_at=at(1), ended_at=at(2), ended_by="delete")])
        store.append([record("other", namespace="bob", created_at=at(1))])
        assert list(store.days(pool()).items()) == [(-1, 1), (0, 1), (day, 2), (day + 1, 1)]
        assert store.days(pool(state="any"))[day] == 3
        assert store.days(pool("ann", "bob"))[day] == 3
        assert store.days(pool("nobody")) == {}

    def test_similarity_equals_the_cosine_within_one_hundredth(self, store: Store) -> None:
        vectors = unit_vectors(300)
        store.append(
            [record(f"m{number:03}", text="x", vectors=vectors[[number]]) for number in range(300)]
        )
        query = unit_vectors(1, seed=2)[0]
        candidates = store.candidates(pool(), vector=query, terms=[], k=300)
        exact = vectors @ query
        assert len(candidates) == 300
        for candidate in candidates:
            assert candidate.similarity == pytest.approx(
                exact[int(candidate.record.ref.group[1:])], abs=0.01
            )
            assert candidate.word_score == 0.0

    def test_the_best_of_several_windows_counts(self, store: Store) -> None:
        near, far, other = unit_vectors(3)
        store.append([record("windows", text="x", vectors=np.stack([far, -near, near]))])
        store.append([record("single", text="x", vectors=other[np.newaxis])])
        candidates = store.candidates(pool(), vector=near, terms=[], k=10)
        scores = {candidate.record.ref.group: candidate.similarity for candidate in candidates}
        assert scores["windows"] == pytest.approx(1.0, abs=0.01)
        assert scores["single"] == pytest.approx(float(near @ other), abs=0.01)
        assert len(candidates) == 2

    def test_an_opposite_vector_has_a_similarity_of_minus_one(self, store: Store) -> None:
        vector = unit_vectors(1)
        store.append([record("m", text="x", vectors=-vector)])
        (result,) = store.candidates(pool(), vector=vector[0], terms=[], k=1)
        assert result.similarity == pytest.approx(-1.0, abs=0.01)

    def test_k_limits_the_best_records_by_vector(self, store: Store) -> None:
        vectors = unit_vectors(60)
        store.append(
            [record(f"m{number:02}", text="x", vectors=vectors[[number]]) for number in range(60)]
        )
        query = unit_vectors(1, seed=2)[0]
        candidates = store.candidates(pool(), vector=query, terms=[], k=5)
        best = sorted(range(60), key=lambda number: -float(vectors[number] @ query))
        assert len(candidates) == 5
        assert {int(candidate.record.ref.group[1:]) for candidate in candidates} <= set(best[:7])
        assert best[0] in {int(candidate.record.ref.group[1:]) for candidate in candidates}

    def test_a_record_without_a_vector_has_no_similarity(self, store: Store) -> None:
        store.append([record("with", text="apple"), record("without", text="apple", vectors=None)])
        hits = search(store, "apple")
        assert hits["without"].similarity is None
        assert hits["with"].similarity == pytest.approx(1.0, abs=0.01)

    # --- matches

    @pytest.fixture
    def talks(self, store: Store) -> Store:
        """A store of 60 turns in three conversations and as many memories, with many combinations
        of few words.
        """
        drawn = np.random.default_rng(4)
        words = "apple banana cherry date elder fig grape hazel iris juniper".split()
        values: list[dict[str, Any]] = [{}, {"vectors": None}]
        for collection in (HISTORY, MEMORY):
            store.append(
                [
                    record(
                        f"talk{number % 3}",
                        number,
                        collection=collection,
                        text=" ".join(drawn.choice(words, size=int(drawn.integers(1, 12)))),
                        labels={"role": ("user", "tool")[number % 2]} if number % 5 else {},
                        session=number // 10 * 10 if number % 7 else None,
                        **values[number % 11 == 0],
                    )
                    for number in range(60)
                ]
            )
        return store

    def test_the_columns_of_matches_agree(self, talks: Store) -> None:
        matches = matching(talks, "apple banana cherry")
        rows = len(matches.group)
        assert rows >= 50
        for column in (matches.position, matches.session, matches.created_at, matches.label):
            assert column.shape == (rows,)
            assert column.dtype == np.int64
        for scores in (matches.word_score, matches.similarity):
            assert scores.shape == (rows,)
            assert scores.dtype == np.float64
        assert matches.holds.shape == (len(matches.terms), rows)
        assert matches.holds.dtype == np.bool_
        assert sorted(matches.groups) == [("ann", f"talk{number}") for number in range(3)]
        assert set(matches.group.tolist()) == {0, 1, 2}
        assert len(matches.labels) == 3 == len({tuple(labels.items()) for labels in matches.labels})
        assert matches.searched >= 60

    def test_a_row_of_matches_equals_its_record(self, talks: Store) -> None:
        matches = matching(talks, "apple")
        records = {entry.ref: entry for entry in everything(talks, turns())}
        assert len(matches.group) >= 50
        for row, ref in enumerate(refs_of(matches)):
            entry = records.pop(ref)
            assert matches.session[row] == (-1 if entry.session is None else entry.session)
            assert (
                T0 + timedelta(milliseconds=int(matches.created_at[row]) - T0.timestamp() * 1000)
                == entry.created_at
            )
            assert matches.labels[matches.label[row]] == entry.labels

    def test_matches_have_the_scores_of_candidates(self, talks: Store) -> None:
        def check(collection: Collection, conditions: Mapping[str, Any]) -> None:
            where = pool(collection=collection, **conditions)
            query = 'apple fig "cherry date" hazel'
            matches = matching(talks, query, where)
            scores = zip(matches.word_score.tolist(), matches.similarity.tolist(), strict=True)
            rows = dict(zip(refs_of(matches, collection), scores, strict=True))
            candidates = talks.candidates(
                where, vector=embed(query)[0], terms=query_terms(query), k=60
            )
            assert len(candidates) > 10
            assert rows.keys() >= {candidate.record.ref for candidate in candidates}
            for candidate in candidates:
                words, similarity = rows[candidate.record.ref]
                assert words == pytest.approx(candidate.word_score, abs=0.01)
                if candidate.similarity is None:
                    assert np.isnan(similarity)
                else:
                    assert similarity == pytest.approx(candidate.similarity, abs=0.01)

        narrowed: list[dict[str, Any]] = [
            {},
            {"labels": {"role": "tool"}},
            {"group": "talk1"},
            {"since": at(30)},
        ]
        assert failed_cases(check, itertools.product(SEARCHED, narrowed)) == []

    def test_holds_marks_records_that_contain_a_term(self, store: Store) -> None:
        texts = [
            "the red apple pie",
            "apple that is red",
            "apples deployed",
            "xylophone",
            "日本語 C++",
            "nothing",
        ]
        store.append([turn(number, text=text) for number, text in enumerate(texts)])
        expected = {
            "red": {0, 1},
            "red apple": {0},
            "apple": {0, 1, 2},
            "deploy": {2},
            "xylo*": {3},
            "xylo": set(),
            "日本": {4},
            "cplusplus": {4},
            "zanzibar": set(),
            "*": set(),
            '"': set(),
            "AND": set(),
        }
        matches = store.matches(turns(), TurnQuery(None, list(expected), 50))
        assert set(matches.terms) == set(expected)
        assert {term: holders(matches, term) for term in matches.terms} == expected
        assert set(matches.position[matches.word_score > 0].tolist()) == {0, 1, 2, 3, 4}

    def test_holds_covers_live_and_ended_records(self, store: Store) -> None:
        ended: dict[str, Any] = {"ended_at": at(9), "ended_by": "delete"}
        store.append(
            [turn(1, text="apple"), turn(2, text="apple", **ended), turn(3, text="pear", **ended)]
        )
        for state, expected in (("live", {1}), ("ended", {2}), ("any", {1, 2})):
            matches = store.matches(turns(state=state), TurnQuery(None, ["apple"], 50))
            assert holders(matches, "apple") == expected

    @pytest.mark.parametrize("vector", [False, True])
    def test_matches_include_the_best_by_words_and_by_vector(
        self, talks: Store, vector: bool
    ) -> None:
        asked = embed("banana iris")[0] if vector else None
        candidates = talks.candidates(
            turns(), vector=asked, terms=[] if vector else ["banana", "iris"], k=5
        )
        matches = talks.matches(turns(), TurnQuery(asked, [] if vector else ["banana", "iris"], 5))
        assert set(refs_of(matches)) >= {candidate.record.ref for candidate in candidates}

    def test_matches_return_group_names_as_written(self, store: Store) -> None:
        names = [
            new_id(T0),
            new_id(at(1)).upper(),
            "0" * 36,
            "01",
            "null",
            "a/b:c",
            "über",
            "日本 🎉",
            "it's",
            "x" * 256,
        ]
        store.append([turn(1, group=name, text="apple") for name in names])
        matches = matching(store, "apple")
        assert sorted(matches.groups) == sorted(("ann", name) for name in names)
        assert sorted(ref.group for ref in refs_of(matches)) == sorted(names)

    def test_matches_of_two_namespaces_keep_conversations_with_one_name_apart(
        self, store: Store
    ) -> None:
        for namespace in ("ann", "bob"):
            store.append(
                [
                    turn(number, namespace=namespace, text=f"apple {namespace}")
                    for number in range(3)
                ]
            )
        matches = matching(store, "apple", turns("ann", "bob"))
        assert sorted(matches.groups) == [("ann", "talk"), ("bob", "talk")]
        assert len(set(refs_of(matches))) == 6

    def test_without_a_query_vector_matches_have_no_similarity(self, talks: Store) -> None:
        matches = talks.matches(turns(), TurnQuery(None, ["apple"], 50))
        assert np.isnan(matches.similarity).all()
        assert (matches.word_score > 0).any()

    def test_a_turn_without_a_vector_matches_by_words_only(self, store: Store) -> None:
        store.append([turn(1, text="apple", vectors=None), turn(2, text="apple")])
        matches = matching(store, "apple")
        similarity = dict(zip(matches.position.tolist(), matches.similarity.tolist(), strict=True))
        assert np.isnan(similarity[1])
        assert similarity[2] == pytest.approx(1.0, abs=0.01)
        assert holders(matches, "apple") == {1, 2}

    def test_matches_of_a_query_without_vector_and_terms_score_zero(self, talks: Store) -> None:
        matches = talks.matches(turns(), TurnQuery(None, [], 5))
        assert (list(matches.terms), float(matches.word_score.sum())) == ([], 0.0)

    def test_words_of_a_turn_include_its_speaker_but_words_of_a_memory_do_not(
        self, store: Store
    ) -> None:
        labels = {SPEAKER: "Zanzibar Lee"}
        store.append(
            [turn(1, text="we ship", labels=labels), record("m", text="we ship", labels=labels)]
        )
        for terms in (["zanzibar"], ["zanzibar lee"]):
            assert holders(store.matches(turns(), TurnQuery(None, terms, 5)), terms[0]) == {1}
            assert by_words(store, terms, turns()).keys() == {"talk"}
            assert by_words(store, terms) == {}
            assert not store.matches(pool(), TurnQuery(None, terms, 5)).holds.any()

    # --- read and values

    def test_read_returns_the_records_at_the_given_addresses(self, store: Store) -> None:
        names = [new_id(T0), "0" * 36, "01", "1e5", "null", "[1]", "it's", "日本 🎉", "x" * 256]
        for namespace in ("ann", "bob"):
            store.append(
                [
                    turn(at, group=name, namespace=namespace, key=None)
                    for name in names
                    for at in (0, 1, 7)
                ]
            )
        store.append(
            [record(names[0], 1, text="a memory", labels={"a": "b"}, fields={"n": 1}, key="k")]
        )
        wanted = [Ref(HISTORY, "ann", name, position) for name in names for position in (0, 7)]
        wanted.append(Ref(MEMORY, "ann", names[0], 1))
        results = {entry.ref: entry for entry in store.read(wanted)}
        assert results.keys() == set(wanted)
        known = [*everything(store, turns()), *everything(store, pool())]
        assert results == {entry.ref: entry for entry in known if entry.ref in results}

    def test_read_leaves_out_missing_records(self, store: Store) -> None:
        store.append([turn(1), turn(2, ended_at=at(9), ended_by="delete")])
        missing = [
            Ref(HISTORY, "ann", "talk", 3),
            Ref(HISTORY, "bob", "talk", 1),
            Ref(HISTORY, "%", "talk", 1),
            Ref(MEMORY, "ann", "talk", 1),
            Ref(HISTORY, "ann", "Talk", 1),
            Ref(HISTORY, "ann", new_id(T0), 1),
        ]
        assert store.read(missing) == store.read([]) == []
        there = [Ref(HISTORY, "ann", "talk", position) for position in (1, 2)]
        assert sorted(entry.ref for entry in store.read([*missing, *there])) == there

    def test_values_come_from_one_collection_and_the_given_namespaces(self, store: Store) -> None:
        for number, name in enumerate(("Zoë", "Bob", "Ann", "Bob", "ann")):
            store.append([turn(number, labels={SPEAKER: name, "other": "Eve"})])
        store.append(
            [
                turn(0, namespace="bob", labels={SPEAKER: "Carl"}),
                record("m", labels={SPEAKER: "Dora"}),
            ]
        )
        assert store.values(HISTORY, ["ann"], SPEAKER) == sorted(["Ann", "Bob", "Zoë", "ann"])
        assert store.values(HISTORY, ["bob"], SPEAKER) == ["Carl"]
        assert store.values(HISTORY, ["bob", "ann"], SPEAKER) == sorted(
            ["Ann", "Bob", "Carl", "Zoë", "ann"]
        )
        assert store.values(MEMORY, ["ann"], SPEAKER) == ["Dora"]
        assert (
            store.values(MEMORY, ["bob"], SPEAKER)
            == store.values(HISTORY, ["ann"], "missing")
            == []
        )
        assert store.values(HISTORY, [], SPEAKER) == []

    def test_a_value_disappears_with_its_last_record(self, store: Store) -> None:
        store.append(
            [turn(number, labels={SPEAKER: "Ann" if number else "Bob"}) for number in range(3)]
        )
        store.append(
            [
                record("m", labels={SPEAKER: "Ann"}),
                turn(0, namespace="bob", labels={SPEAKER: "Bob"}),
            ]
        )
        store.remove([Ref(HISTORY, "ann", "talk", position) for position in (0, 1)])
        assert store.values(HISTORY, ["ann"], SPEAKER) == ["Ann"]
        store.remove([Ref(HISTORY, "ann", "talk", 2)])
        assert store.values(HISTORY, ["ann"], SPEAKER) == []
        assert store.values(MEMORY, ["ann"], SPEAKER) == ["Ann"]
        assert store.values(HISTORY, ["bob"], SPEAKER) == ["Bob"]
        store.append([turn(5, labels={SPEAKER: "Carl"})])
        assert store.values(HISTORY, ["ann"], SPEAKER) == ["Carl"]

    def test_a_value_from_a_failed_transaction_does_not_exist(self, store: Store) -> None:
        with failing(), store.transaction():
            store.append([turn(0, labels={SPEAKER: "Ann"})])
            raise ZeroDivisionError
        assert store.values(HISTORY, ["ann"], SPEAKER) == []
