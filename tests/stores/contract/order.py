"""Scans, pages and groups have one order; positions and keys are unique."""

import itertools

import numpy as np
import pytest

from contract.samples import (
    MEMORY,
    SPACE,
    Opened,
    OpenStore,
    at,
    by_words,
    everything,
    pages,
    pool,
    record,
    search,
)
from memories import Memories
from memories.core.ids import new_id
from memories.errors import Conflict
from memories.stores import Store
from memories.stores.records import Patch, Ref
from tables import failed_cases


class Order(Opened):
    """Tests of order and pages."""

    # --- order and pages

    @pytest.fixture(params=["ids", "names", "mixed"])
    def groups(self, request: pytest.FixtureRequest) -> list[str]:
        """Names of groups in order: ids of memories, names of conversations, or both."""
        ids = sorted(new_id(at(number)) for number in range(6))
        names = sorted(
            [
                "main",
                "2026-01-01",
                "Main",
                "über",
                "日本",
                "a/b:c",
                "0" * 36,
                "session-10",
                "session-9",
            ]
        )
        return {"ids": ids, "names": names, "mixed": [*ids, *names]}[request.param]

    @pytest.fixture
    def filled(self, store: Store, groups: list[str]) -> Store:
        shuffled = [record(group, position) for group in groups for position in (0, 1, 2, 10)]
        np.random.default_rng(3).shuffle(shuffled)  # type: ignore[arg-type]
        store.append(shuffled)
        return store

    def test_a_scan_is_in_order_of_group_and_position(
        self, filled: Store, groups: list[str]
    ) -> None:
        records = [
            (entry.ref.group, entry.ref.position) for entry in filled.scan(pool(), limit=1000)
        ]
        names = list(dict.fromkeys(group for group, _ in records))
        assert records == [(group, position) for group in names for position in (0, 1, 2, 10)]
        assert sorted(names) == sorted(groups)
        for kind in (True, False):  # ids are in order among ids, names among names
            of_kind = [
                name for name in names if (name.startswith("019") and len(name) == 36) is kind
            ]
            assert of_kind == sorted(of_kind)

    def test_newest_first_is_the_reverse(self, filled: Store) -> None:
        forwards = filled.scan(pool(), limit=1000)
        assert filled.scan(pool(), limit=1000, newest_first=True) == forwards[::-1]

    def test_pages_add_up_to_the_whole_scan(self, filled: Store) -> None:
        def check(size: int, newest_first: bool) -> None:
            whole = filled.scan(pool(), limit=1000, newest_first=newest_first)
            assert pages(filled, pool(), size=size, newest_first=newest_first) == whole

        assert failed_cases(check, itertools.product((1, 3, 7, 1000), (False, True))) == []

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_pages_of_two_namespaces_add_up_to_the_whole_scan(
        self, store: Store, newest_first: bool
    ) -> None:
        ids = sorted(new_id(at(number)) for number in range(20))
        store.append(
            [record(group, namespace="ann" if at % 3 else "bob") for at, group in enumerate(ids)]
        )
        records = pages(store, pool("bob", "ann"), size=3, newest_first=newest_first)
        assert [entry.ref.group for entry in records] == (ids[::-1] if newest_first else ids)

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_a_scan_returns_each_record_of_a_group_shared_by_namespaces(
        self, store: Store, newest_first: bool
    ) -> None:
        """`after` skips a position in all of the namespaces."""
        for namespace in ("bob", "ann"):
            store.append([record("main", position, namespace=namespace) for position in (1, 2, 3)])
        where = pool("ann", "bob")
        forwards = [
            (entry.ref.position, entry.ref.namespace) for entry in store.scan(where, limit=10)
        ]
        assert forwards == [
            (position, namespace) for position in (1, 2, 3) for namespace in ("ann", "bob")
        ]
        backwards = [
            (entry.ref.position, entry.ref.namespace)
            for entry in store.scan(where, limit=10, newest_first=True)
        ]
        assert backwards == forwards[::-1]
        behind = store.scan(where, limit=10, after=("main", 2), newest_first=newest_first)
        assert {entry.ref.position for entry in behind} == {1 if newest_first else 3}
        assert len(behind) == 2

    def test_after_can_name_a_missing_record(self, store: Store) -> None:
        store.append([record("b", 1), record("d", 1)])
        assert [entry.ref.group for entry in store.scan(pool(), limit=9, after=("c", 5))] == ["d"]
        backwards = store.scan(pool(), limit=9, after=("c", 5), newest_first=True)
        assert [entry.ref.group for entry in backwards] == ["b"]
        assert [entry.ref.group for entry in store.scan(pool(), limit=9, after=("b", 0))] == [
            "b",
            "d",
        ]

    def test_groups_are_listed_once_in_the_order_of_a_scan(self, filled: Store) -> None:
        scanned = list(
            dict.fromkeys(("ann", entry.ref.group) for entry in filled.scan(pool(), limit=1000))
        )
        assert filled.groups(pool(), limit=1000) == scanned
        assert filled.groups(pool(), limit=4) == scanned[:4]

    def test_groups_with_the_same_name_are_listed_once_per_namespace(self, store: Store) -> None:
        for namespace in ("bob", "ann"):
            store.append([record("main", position, namespace=namespace) for position in (1, 2)])
        assert store.groups(pool("ann", "bob"), limit=9) == [("ann", "main"), ("bob", "main")]

    # --- uniqueness

    def test_the_second_writer_to_a_position_gets_a_conflict(self, open_store: OpenStore) -> None:
        open_store(SPACE).append([record("m", text="first")])
        with pytest.raises(Conflict):
            open_store(SPACE).append([record("m", text="second")])
        assert [entry.text for entry in everything(open_store(SPACE), pool())] == ["first"]

    def test_an_ended_record_keeps_its_position(self, store: Store) -> None:
        store.append([record("m", ended_at=at(5), ended_by="delete")])
        with pytest.raises(Conflict):
            store.append([record("m")])

    def test_only_one_live_record_can_have_a_key(self, store: Store) -> None:
        store.append([record("m1", key="user/editor")])
        with pytest.raises(Conflict):
            store.append([record("m2", key="user/editor")])
        assert [entry.ref.group for entry in everything(store, pool())] == ["m1"]

    def test_a_key_can_be_reused_after_its_record_ends(self, store: Store) -> None:
        store.append([record("m1", key="user/editor")])
        store.patch([Patch(Ref(MEMORY, "ann", "m1", 1), at(5), "delete", {})])
        store.append([record("m2", key="user/editor")])
        assert [entry.ref.group for entry in store.scan(pool(key="user/editor"), limit=9)] == ["m2"]

    def test_a_record_cannot_be_restored_while_another_has_its_key(self, store: Store) -> None:
        store.append(
            [record("m1", key="k", ended_at=at(5), ended_by="delete"), record("m2", key="k")]
        )
        store.append([record("m3")])
        with pytest.raises(Conflict):
            store.patch(
                [
                    Patch(Ref(MEMORY, "ann", "m3", 1), at(6), "delete", {"mark": 1}),
                    Patch(Ref(MEMORY, "ann", "m1", 1), None, None, {}),
                ]
            )
        assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["m2", "m3"]
        assert not store.scan(pool(group="m3"), limit=1)[0].fields

    def test_any_number_of_records_can_have_no_key(self, store: Store) -> None:
        store.append([record(f"m{number}") for number in range(3)])
        assert store.count(pool()) == 3

    @pytest.mark.parametrize("in_transaction", [False, True])
    def test_an_append_with_a_conflict_in_the_middle_adds_nothing(
        self, store: Store, in_transaction: bool
    ) -> None:
        """This holds even if the conflict is caught inside a transaction that then succeeds."""
        store.append([record("taken", text="alpha")])
        batch = [
            record("new1", text="beta gamma", labels={"colour": "red"}),
            record("taken", text="beta gamma"),
            record("new2", text="beta gamma"),
        ]
        if in_transaction:
            with store.transaction():
                store.append([record("before")])
                with pytest.raises(Conflict):
                    store.append(batch)
                store.append([record("behind")])
        else:
            with pytest.raises(Conflict):
                store.append(batch)
        kept = {"taken", "before", "behind"} if in_transaction else {"taken"}
        assert {entry.ref.group for entry in everything(store, pool())} == kept
        assert store.labels(pool(state="any"), None) == {}
        assert by_words(store, ["gamma"]) == {}
        assert set(search(store, "beta gamma", k=50)) <= kept

    # --- keys of projects

    def test_a_memory_leaves_its_project_only_if_its_key_is_free_elsewhere(
        self, store: Store
    ) -> None:
        with Memories(store, embedder="fake") as memories:
            kept = memories.create("tabs", key="indent").memory
            moved = memories.create("spaces", key="indent", tags={"project": "shop"}).memory
            assert kept is not None
            assert moved is not None
            before = everything(store, pool("shared", state="any"))
            with pytest.raises(
                Conflict, match='the key "indent" belongs to another memory'
            ) as caught:
                memories.update(moved.id, remove_tags=["project"])
            assert kept.id in str(caught.value)
            assert everything(store, pool("shared", state="any")) == before
            assert memories.update(moved.id, tags={"project": "other"}).key == "indent"
            with pytest.raises(Conflict, match='in project "other"'):
                memories.update(kept.id, tags={"project": "other"})
            memories.delete(kept.id)
            assert memories.update(moved.id, remove_tags=["project"]).tags == {}
