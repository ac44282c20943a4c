"""Every reader gets back each write unchanged, except failed and removed ones."""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from contract.samples import (
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    T0,
    Opened,
    OpenStore,
    at,
    by_words,
    everything,
    failing,
    matching,
    pool,
    record,
    refs_of,
    search,
    seen,
)
from memories.core.ids import new_id
from memories.errors import MemoriesError
from memories.stores import Store
from memories.stores.records import SPEAKER, Patch, Record, Ref


class Durability(Opened):
    """Tests of writes, reads and removals."""

    # --- a store that does not exist

    def test_a_missing_store_reads_as_empty(self, store: Store) -> None:
        assert store.scan(pool(), limit=10) == []
        assert store.groups(pool(), limit=10) == []
        assert store.count(pool(state="any")) == 0
        assert store.labels(pool(), None) == {}
        assert store.labels(pool(), "who") == {}
        assert search(store, "anything") == {}
        assert refs_of(matching(store, "anything")) == []
        assert store.read([Ref(MEMORY, "ann", "m", 1)]) == []
        assert store.values(HISTORY, ["ann"], SPEAKER) == []
        assert store.namespaces(MEMORY) == store.namespaces(HISTORY) == []
        assert store.vectors([Ref(MEMORY, "ann", "m", 1)]) == {}
        assert (
            store.unstaged(SPACE, MEMORY, limit=5) == store.unstaged(OTHER, HISTORY, limit=5) == []
        )
        info = store.info(pool())
        assert (info.model, info.without_vector_count) == (None, 0)

    def test_reading_does_not_create_a_store(self, open_store: OpenStore) -> None:
        first = open_store(SPACE)
        search(first, "anything")
        first.scan(pool(), limit=1)
        version = first.info(pool()).schema_version
        assert open_store(SPACE).info(pool()).schema_version == version is None

    def test_a_reader_opened_before_the_store_exists_sees_later_writes(
        self, open_store: OpenStore
    ) -> None:
        reader, writer = open_store(SPACE), open_store(SPACE)
        assert reader.count(pool()) == 0
        writer.append([record("m")])
        assert reader.count(pool()) == 1

    # --- whole records

    def test_a_record_is_read_as_it_was_written(self, open_store: OpenStore) -> None:
        written = Record(
            ref=Ref(MEMORY, "ann", new_id(T0), 7),
            text="Ünïcode 日本語 🎉 'quotes' \"double\" \\ %s {x}\n\ttwo lines",
            created_at=at(1.234),
            ended_at=at(5.678),
            ended_by="update",
            key="user/editor",
            labels={"who": "ann", "項目": "値=,;", "empty": ""},
            fields={"number": 1.5, "text": "x", "flag": True, "whole": 2**40},
            vectors=None,
            accesses=99,
        )
        open_store(SPACE).append([written])
        (result,) = everything(open_store(SPACE), pool())
        assert result._replace(labels=dict(result.labels), fields=dict(result.fields)) == written

    def test_records_are_returned_without_vectors(self, store: Store) -> None:
        store.append([record("m")])
        assert store.scan(pool(), limit=1)[0].vectors is None
        assert search(store, "note m")["m"].record.vectors is None

    def test_times_of_any_year_are_kept(self, store: Store) -> None:
        years = (1, 1969, 1970, 2038, 9999)
        moments = {
            f"y{year}": datetime(year, 6, 1, 12, 30, 15, 250_000, tzinfo=UTC) for year in years
        }
        store.append(
            [
                record(name, created_at=moment, ended_at=moment, ended_by="delete")
                for name, moment in moments.items()
            ]
        )
        results = {
            entry.ref.group: (entry.created_at, entry.ended_at)
            for entry in everything(store, pool())
        }
        assert results == {name: (moment, moment) for name, moment in moments.items()}
        assert {moment.utcoffset() for pair in results.values() for moment in pair if moment} == {
            timedelta(0)
        }

    def test_a_long_text_is_kept_whole(self, store: Store) -> None:
        text = "long text " * 30_000
        store.append([record("m", text=text, vectors=None)])
        assert store.scan(pool(), limit=1)[0].text == text

    def test_an_empty_append_is_allowed(self, store: Store) -> None:
        store.append([])
        assert store.count(pool()) == 0

    def test_writes_are_still_there_after_reopening(self, open_store: OpenStore) -> None:
        first = open_store(SPACE)
        first.append([record("m")])
        first.close()
        assert open_store(SPACE).count(pool()) == 1

    # --- transactions

    def test_a_successful_transaction_is_kept(self, open_store: OpenStore) -> None:
        store, other = open_store(SPACE), open_store(SPACE)
        store.append([record("m")])
        with store.transaction():
            store.append([record("n")])
            store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {})])
            assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["n"]
            assert [entry.ref.group for entry in other.scan(pool(), limit=9)] == ["m"]
        assert [entry.ref.group for entry in other.scan(pool(), limit=9)] == ["n"]

    def test_a_transaction_that_fails_undoes_everything(self, store: Store) -> None:
        store.append([record("m", text="common words", labels={"who": "ann"})])
        before = seen(store, pool())
        with failing(), store.transaction():
            store.append([record("n", text="common words", labels={"who": "someone"}, key="k")])
            store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {"mark": 1})])
            store.touch([Ref(MEMORY, "ann", "m", 1)])
            raise ZeroDivisionError
        assert seen(store, pool()) == before
        store.append([record("n", key="k")])

    def test_the_first_transaction_of_a_store_may_fail(self, store: Store) -> None:
        with failing(), store.transaction():
            store.append([record("m")])
            raise ZeroDivisionError
        assert store.count(pool(state="any")) == 0
        assert store.info(pool()).model is None

    def test_the_outermost_of_nested_transactions_commits(self, store: Store) -> None:
        with failing(), store.transaction():
            with store.transaction():
                store.append([record("inner")])
            store.append([record("outer")])
            raise ZeroDivisionError
        assert store.count(pool(state="any")) == 0
        with store.transaction():
            with store.transaction():
                store.append([record("inner")])
            store.append([record("outer")])
        assert store.count(pool()) == 2

    def test_no_other_writer_can_write_between_the_read_and_write_of_a_transaction(
        self, open_store: OpenStore
    ) -> None:
        """Four writers assign the next free position 15 times each; none is assigned twice."""
        open_store(SPACE).append([record("m", 0)])
        failures: list[BaseException] = []

        def write() -> None:
            try:
                store = open_store(SPACE)
                for _ in range(15):
                    with store.transaction():
                        (last,) = store.scan(pool(group="m"), limit=1, newest_first=True)
                        store.append([record("m", last.ref.position + 1)])
            except BaseException as exc:  # noqa: BLE001 - asserted below
                failures.append(exc)

        _run_threads([write] * 4)
        assert failures == []
        assert [entry.ref.position for entry in open_store(SPACE).scan(pool(), limit=99)] == list(
            range(61)
        )

    # --- patch, touch, remove

    def test_a_patch_sets_the_end_and_fields(self, store: Store) -> None:
        store.append([record("m", fields={"kept": 1, "changed": "a", "dropped": True})])
        ref = Ref(MEMORY, "ann", "m", 1)
        store.patch(
            [
                Patch(
                    ref,
                    at(9),
                    "delete",
                    {"changed": "b", "dropped": None, "added": 2.5, "absent": None},
                )
            ]
        )
        (result,) = everything(store, pool())
        assert (result.ended_at, result.ended_by) == (at(9), "delete")
        assert result.fields == {"kept": 1, "changed": "b", "added": 2.5}
        assert store.count(pool()) == 0

    def test_a_patch_can_make_a_record_live_again(self, store: Store) -> None:
        store.append(
            [
                record(
                    "m", text="apple", ended_at=at(9), ended_by="delete", key="k", labels={"a": "1"}
                )
            ]
        )
        store.patch([Patch(Ref(MEMORY, "ann", "m", 1), None, None, {})])
        (result,) = store.scan(pool(key="k"), limit=9)
        assert (result.ended_at, result.ended_by, result.text, result.labels) == (
            None,
            None,
            "apple",
            {"a": "1"},
        )
        assert set(search(store, "apple")) == {"m"}

    def test_a_patch_ignores_missing_records(self, store: Store) -> None:
        store.append([record("m")])
        refs = [
            Ref(MEMORY, "ann", "missing", 1),
            Ref(MEMORY, "ann", "m", 1),
            Ref(MEMORY, "nobody", "m", 1),
        ]
        store.patch([Patch(ref, at(9), "delete", {}) for ref in refs])
        assert [entry.ref.group for entry in everything(store, pool(state="ended"))] == ["m"]
        assert store.count(pool("ann", "nobody", state="any")) == 1

    def test_two_patches_of_one_record_are_merged(self, store: Store) -> None:
        store.append([record("m")])
        ref = Ref(MEMORY, "ann", "m", 1)
        store.patch([Patch(ref, at(8), "update", {"a": 1}), Patch(ref, at(9), "delete", {"b": 2})])
        (result,) = everything(store, pool())
        assert (result.ended_at, result.ended_by, result.fields) == (
            at(9),
            "delete",
            {"a": 1, "b": 2},
        )

    def test_a_touch_counts_one_access(self, store: Store) -> None:
        store.append([record("m"), record("n")])
        refs = [Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "missing", 1)]
        store.touch(refs)
        store.touch(refs)
        store.touch([])
        assert [entry.accesses for entry in store.scan(pool(), limit=9)] == [2, 0]

    def test_used_returns_the_most_read_records_first(self, store: Store) -> None:
        store.append([record("m"), record("n"), record("never"), record("other", namespace="bob")])
        one, two, others = (
            Ref(MEMORY, name, group, 1)
            for name, group in (("ann", "m"), ("ann", "n"), ("bob", "other"))
        )
        assert store.used(pool()) == []
        assert store.touch([two, one, two, others, Ref(MEMORY, "ann", "missing", 1)], "first")
        assert store.used(pool()) == [(two, 2), (one, 1)]
        store.append([record("a", namespace="bob")])
        store.touch([Ref(MEMORY, "bob", "a", 1)])
        in_order = [ref.group for ref, _ in store.used(pool("ann", "bob"))]
        assert in_order == ["n", "a", "m", "other"]
        store.patch([Patch(two, at(9), "delete", {})])
        assert store.used(pool()) == [(one, 1)]

    def test_a_removed_record_is_gone_from_every_read(self, store: Store) -> None:
        store.append(
            [
                record("m", text="apple", key="k", labels={"colour": "red"}),
                record("n", text="apple"),
            ]
        )
        remains = store.remove([Ref(MEMORY, "ann", "m", 1), Ref(MEMORY, "ann", "missing", 1)])
        assert isinstance(remains, tuple) and all(
            isinstance(place, str) and place for place in remains
        )
        assert [entry.ref.group for entry in everything(store, pool())] == ["n"]
        assert store.groups(pool(state="any"), limit=9) == [("ann", "n")]
        assert store.count(pool(state="any")) == 1
        assert store.labels(pool(state="any"), None) == {}
        assert store.labels(pool(state="any"), "colour") == {}
        assert set(search(store, "apple")) == {"n"}
        assert by_words(store, ["apple"]).keys() == {"n"}
        assert store.count(pool(key="k")) == 0

    def test_a_removed_address_can_be_reused(self, store: Store) -> None:
        store.append([record("m", text="apple", key="k", labels={"a": "1"})])
        store.touch([Ref(MEMORY, "ann", "m", 1)])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        store.append([record("m", text="pear", key="k")])
        (result,) = store.scan(pool(), limit=9)
        assert (result.text, result.accesses, dict(result.labels)) == ("pear", 0, {})
        assert by_words(store, ["apple"]) == {}

    def test_the_last_record_can_be_removed(self, store: Store) -> None:
        store.append([record("m", text="apple")])
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        assert search(store, "apple") == {}
        store.append([record("n", text="apple")])
        assert set(search(store, "apple")) == {"n"}

    # --- several at once

    def test_eight_threads_can_use_one_store_concurrently(self, store: Store) -> None:
        failures: list[BaseException] = []

        def use(worker: int) -> None:
            try:
                for turn in range(6):
                    group = f"w{worker}-{turn:02}"
                    store.append(
                        [record(group, text=f"shared words of {group}", labels={"w": str(worker)})]
                    )
                    own = store.scan(pool(labels={"w": str(worker)}), limit=99)
                    assert [entry.ref.group for entry in own] == [
                        f"w{worker}-{past:02}" for past in range(turn + 1)
                    ]
                    assert group in search(store, f"shared words of {group}", k=200)
                    store.touch([own[0].ref])
                    store.patch([Patch(own[-1].ref, None, None, {"turn": turn})])
                    assert store.count(pool()) > turn
            except BaseException as exc:  # noqa: BLE001 - asserted below
                failures.append(exc)

        _run_threads([lambda worker=worker: use(worker) for worker in range(8)])
        assert failures == []
        records = store.scan(pool(), limit=999)
        assert len({entry.ref for entry in records}) == len(records) == 48
        assert all(entry.fields == {"turn": int(entry.ref.group[-2:])} for entry in records)

    def test_driver_errors_are_translated(self, store: Store) -> None:
        store.append([record("m", key="k")])
        for wrong in (record("m"), record("n", key="k")):
            with pytest.raises(MemoriesError):
                store.append([wrong])


def _run_threads(targets: Sequence[Callable[[], None]]) -> None:
    """Run functions in parallel threads until all have ended."""
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
