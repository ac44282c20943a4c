"""Reads and writes of one namespace or collection never reach another."""

import itertools
from collections.abc import Mapping
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
    matching,
    pool,
    record,
    refs_of,
    search,
    seen,
    turn,
    turns,
    unit_vectors,
)
from memories import Draft, Memories, RequestError
from memories.stores import Store
from memories.stores.records import SEARCHED, Collection, Filter, Patch, Record, Ref, TurnQuery
from tables import failed_cases

_NARROWED: list[dict[str, Any]] = [
    {},
    {"state": "any"},
    {"state": "ended"},
    {"state": "ended", "ended_by": "update"},
    {"labels": {"kind": "x"}},
    {"labels": {"who": "bob"}},
    {"labels": {"secret": "bob-1"}, "state": "any"},
    {"as_of": at(5)},
    {"since": T0, "until": at(100)},
    {"group": "g1", "state": "any"},
    {"group": "g", "prefix": True, "state": "any"},
    {"group": "", "prefix": True, "state": "any"},
    {"key": "key1"},
]


class Isolation(Opened):
    """Tests of namespaces and collections."""

    # --- isolation

    @pytest.fixture
    def twins(self, store: Store) -> Store:
        """A store in which both collections of two namespaces contain the same names and texts."""
        for namespace in ("ann", "bob"):
            for collection in (MEMORY, HISTORY):
                store.append(
                    [
                        record(
                            f"g{number}",
                            position,
                            namespace=namespace,
                            collection=collection,
                            text=f"common words of g{number} {namespace}",
                            key=f"key{number}" if position == 2 else None,
                            labels={
                                "who": namespace,
                                "secret": f"{namespace}-{number}",
                                "kind": "x",
                            },
                            ended_at=at(9) if position == 1 else None,
                            ended_by="update" if position == 1 else None,
                        )
                        for number in range(5)
                        for position in (1, 2)
                    ]
                )
        return store

    def test_a_write_by_id_does_not_change_copies_in_other_namespaces(self, store: Store) -> None:
        ids = [f"01a1fdf1-92cd-7000-8000-{number:012}" for number in range(7)]
        ann, shared = (
            Memories(store, namespace=name, embedder="fake") for name in ("ann", "shared")
        )
        for one in (ann, shared):
            drafts = [
                Draft(f"common words {entry}", decay="reinforceable", id=entry) for entry in ids
            ]
            assert all(made.stored for made in one.create_many(drafts, force=True))
        before = everything(store, pool("shared"))
        listed, cursor = list[tuple[str, str]](), ""
        while cursor is not None:
            page = ann.list(limit=3, cursor=cursor or None)
            listed += [(memory.id, memory.namespace) for memory in page.memories]
            cursor = page.next_cursor  # type: ignore[assignment]
        assert sorted(listed) == sorted(
            (entry, name) for entry in ids for name in ("ann", "shared")
        )
        assert ann.forget(ids[0]).versions == 1
        assert ann.delete(ids[1]).namespace == "ann"
        assert ann.restore(ids[1]).namespace == "ann"
        assert ann.update(ids[2], "other words").version == 2
        assert ann.reinforce(ids[3]).namespace == "ann"
        assert ann.pin(ids[4]).pinned
        assert ann.create("last words", supersedes=ids[5], force=True).stored
        with pytest.raises(RequestError, match="is in namespace shared, but you write to ann"):
            ann.forget(ids[0])
        assert everything(store, pool("shared")) == before

    def test_no_read_reaches_another_namespace_or_collection(self, twins: Store) -> None:
        def check(collection: Collection, conditions: Mapping[str, Any]) -> None:
            where = pool("ann", collection=collection, **conditions)
            own = [
                entry
                for entry in everything(twins, pool("ann", "bob", collection=collection))
                if _means(where, entry)
            ]
            records = twins.scan(where, limit=1000)
            assert sorted(entry.ref for entry in records) == sorted(entry.ref for entry in own)
            assert {entry.ref.namespace for entry in records} <= {"ann"}
            assert {entry.ref.collection for entry in records} <= {collection}
            assert twins.count(where) == len(own)
            assert set(twins.groups(where, limit=100)) == {
                ("ann", entry.ref.group) for entry in own
            }
            assert set(twins.labels(where, "secret")) == {entry.labels["secret"] for entry in own}
            assert twins.labels(where, None) == (
                {key: len(own) for key in ("kind", "secret", "who")} if own else {}
            )
            candidates = twins.candidates(
                where, vector=embed("common words bob")[0], terms=["common", "bob"], k=50
            )
            assert {candidate.record.ref for candidate in candidates} == {
                entry.ref for entry in own
            }
            matches = twins.matches(
                where, TurnQuery(embed("common words bob")[0], ["common", "bob"], 50)
            )
            assert sorted(refs_of(matches, collection)) == sorted(entry.ref for entry in own)
            assert {label.get("who") for label in matches.labels} <= {"ann"}
            assert twins.values(collection, ["ann"], "secret") == [
                f"ann-{number}" for number in range(5)
            ]
            assert twins.values(collection, ["ann"], "who") == ["ann"]

        assert failed_cases(check, itertools.product(SEARCHED, _NARROWED)) == []

    def test_only_an_exactly_named_namespace_is_read(self, twins: Store) -> None:
        def check(*namespaces: str) -> None:
            where = Filter(MEMORY, namespaces, state="any")
            assert twins.scan(where, limit=100) == []
            assert twins.groups(where, limit=100) == []
            assert twins.count(where) == 0
            assert twins.labels(where, None) == {}
            assert twins.labels(where, "secret") == {}
            assert (
                twins.candidates(where, vector=embed("common words")[0], terms=["common"], k=50)
                == []
            )
            assert refs_of(matching(twins, "common words", where)) == []
            assert twins.values(MEMORY, namespaces, "secret") == []
            assert twins.read([Ref(MEMORY, namespace, "g1", 1) for namespace in namespaces]) == []
            assert twins.info(where).without_vector_count == 0

        named = [(), ("%",), ("*",), ("ANN",), ("an",), ("ann ",), ("ann','bob",), ("",)]
        assert failed_cases(check, named) == []

    def test_two_namespaces_can_be_read_together(self, twins: Store) -> None:
        assert twins.count(pool("ann", "bob")) == 10
        assert twins.labels(pool("ann", "bob"), "who") == {"ann": 5, "bob": 5}

    def test_no_write_reaches_another_namespace_or_collection(self, twins: Store) -> None:
        others = [pool("bob"), pool("bob", collection=HISTORY), pool("ann", collection=HISTORY)]
        before = [seen(twins, where) for where in others]
        refs = [entry.ref for entry in everything(twins, pool("ann"))]
        twins.touch(refs)
        twins.patch([Patch(ref, at(50), "delete", {"mark": 1}) for ref in refs])
        twins.append([record("g9", text="common words", labels={"who": "ann"})])
        assert [seen(twins, where) for where in others] == before
        twins.remove(refs)
        assert [seen(twins, where) for where in others] == before
        assert [group for _, group in twins.groups(pool("ann", state="any"), limit=10)] == ["g9"]

    def test_a_ref_with_the_wrong_namespace_changes_nothing(self, store: Store) -> None:
        """The group and position belong to a record of `bob`, but the namespace or collection
        doesn't.
        """
        store.append([record("only-bob", namespace="bob", text="common words")])
        before = seen(store, pool("bob"))
        wrong = [
            Ref(MEMORY, "ann", "only-bob", 1),
            Ref(HISTORY, "bob", "only-bob", 1),
            Ref(MEMORY, "%", "only-bob", 1),
            Ref(MEMORY, "bob", "only-bob", 2),
        ]
        store.patch([Patch(ref, at(50), "delete", {"mark": 1}) for ref in wrong])
        store.touch(wrong)
        store.remove(wrong)
        assert seen(store, pool("bob")) == before
        assert store.count(pool("ann", state="any")) == 0

    def test_better_matches_in_another_namespace_do_not_crowd_out_your_own(
        self, store: Store
    ) -> None:
        store.append(
            [record(f"b{number}", namespace="bob", text="red green blue") for number in range(60)]
        )
        store.append(
            [record("mine", text="red with several other words that make it match less well")]
        )
        assert set(search(store, "red green blue", k=3)) == {"mine"}

    def test_keys_and_positions_of_two_namespaces_do_not_collide(self, store: Store) -> None:
        for namespace in ("ann", "bob"):
            for collection in SEARCHED:
                store.append(
                    [record("m", namespace=namespace, collection=collection, key="user/editor")]
                )
        assert store.count(pool("bob", key="user/editor")) == 1

    def test_records_without_vectors_are_counted_by_namespace(self, store: Store) -> None:
        store.append(
            [record("a1"), record("a2", vectors=None), record("b1", namespace="bob", vectors=None)]
        )
        store.append([record("b2", namespace="bob", vectors=None)])
        assert store.info(pool("ann")).without_vector_count == 1
        assert store.info(pool("bob")).without_vector_count == 2

    # --- two collections in one store

    def test_turns_do_not_change_how_rare_the_words_of_memories_are(self, store: Store) -> None:
        store.append([record(f"m{number}", text=f"weekly report {number}") for number in range(20)])
        store.append([record("rare", text="weekly report of zanzibar")])
        before = by_words(store, ["weekly", "zanzibar"], k=50)
        store.append([turn(number, text="the weekly report of zanzibar") for number in range(200)])
        assert by_words(store, ["weekly", "zanzibar"], k=50) == before
        store.remove([Ref(HISTORY, "ann", "talk", position) for position in range(100)])
        assert by_words(store, ["weekly", "zanzibar"], k=50) == before

    def test_memories_do_not_change_how_rare_the_words_of_turns_are(self, store: Store) -> None:
        store.append([turn(number, text=f"weekly report {number}") for number in range(20)])
        before = matching(store, "weekly report").word_score.tolist()
        store.append([record(f"m{number}", text="the weekly report") for number in range(50)])
        store.patch(
            [
                Patch(Ref(MEMORY, "ann", f"m{number}", 1), at(99), "delete", {})
                for number in range(25)
            ]
        )
        assert matching(store, "weekly report").word_score.tolist() == before

    def test_a_search_of_one_collection_finds_nothing_in_the_other(self, store: Store) -> None:
        """Nor do better matches in the other collection crowd out its own."""
        store.append([turn(number, text="red green blue") for number in range(60)])
        store.append(
            [record("mine", text="red with several other words that make it match less well")]
        )
        assert set(search(store, "red green blue", k=3)) == {"mine"}
        store.append([record(f"m{number}", text="red green blue") for number in range(60)])
        store.append(
            [
                turn(
                    99,
                    group="other",
                    text="red with several other words that make it match less well",
                )
            ]
        )
        where = turns(group="other")
        assert refs_of(matching(store, "red green blue", where, k=3)) == [
            Ref(HISTORY, "ann", "other", 99)
        ]
        assert set(search(store, "red green blue", where, k=3)) == {"other"}

    def test_interleaved_memories_and_turns_are_all_found(self, store: Store) -> None:
        """There are enough of each, written together and separately, for a store to build indexes."""
        count = 1_100
        vectors = unit_vectors(2 * count)
        own = {MEMORY: vectors[:count], HISTORY: vectors[count:]}
        batches = [
            [
                record(
                    f"{number:05}",
                    0,
                    collection=collection,
                    text=f"w{number}",
                    vectors=own[collection][[number]],
                )
                for number in range(start, start + 50)
                for collection in (MEMORY, HISTORY)
            ]
            for start in range(0, count, 50)
        ]
        for batch in batches:
            half = len(batch) // 2
            store.append(batch[:half])
            store.append([entry for entry in batch[half:] if entry.ref.collection is HISTORY])
            store.append([entry for entry in batch[half:] if entry.ref.collection is MEMORY])

        def nearest(collection: Collection, number: int) -> list[int]:
            query, where = own[collection][number], pool(collection=collection)
            (result,) = store.candidates(where, vector=query, terms=[], k=1)
            matches = store.matches(where, TurnQuery(query, [], 1))
            best = refs_of(matches, collection)[int(np.nanargmax(matches.similarity))]
            assert {result.record.ref.collection, best.collection} == {collection}
            return [int(result.record.ref.group), int(best.group)]

        some = (0, 1, 49, 50, 700, 1023, 1024, 1025, 1070, count - 1)
        for collection in (MEMORY, HISTORY):
            assert [nearest(collection, number) for number in some] == [
                [number, number] for number in some
            ]
        gone = (1, 700, 1024, 1070)
        store.remove([Ref(HISTORY, "ann", f"{number:05}", 0) for number in gone])
        assert store.count(turns()) == count - len(gone)
        for number in some:
            assert nearest(MEMORY, number) == [number, number]
            assert (number in nearest(HISTORY, number)) is (number not in gone)


def _means(where: Filter, entry: Record) -> bool:
    """Implement a filter in plain Python."""
    if where.as_of is not None:
        current = entry.created_at <= where.as_of and (
            entry.ended_at is None or entry.ended_at > where.as_of
        )
    else:
        current = where.state == "any" or (where.state == "live") == (entry.ended_at is None)
    group = where.group or ""
    return (
        current
        and entry.ref.namespace in where.namespaces
        and where.labels.items() <= entry.labels.items()
        and (where.ended_by is None or entry.ended_by == where.ended_by)
        and (where.since is None or entry.created_at >= where.since)
        and (where.until is None or entry.created_at <= where.until)
        and (entry.ref.group.startswith(group) if where.prefix else group in ("", entry.ref.group))
        and (where.key is None or (entry.key == where.key and entry.ended_at is None))
    )
