"""The stored counts of the SQLite store equal those of the records after any changes."""

import random
from pathlib import Path

import apsw
import pytest
from contract import (
    OTHER,
    SPACE,
    at,
    pool,
    record,
    stage_all,
)

from memories.stores.records import Collection, Filter, Finding, Patch, Record
from memories.stores.sqlite import derived, whole_file
from memories.stores.sqlite.spaces import StoredVectors
from memories.stores.sqlite.store import SQLiteStore

NAMESPACES = ("ann", "bob", "shared")


def find_problems(db: apsw.Connection) -> list[Finding]:
    """Return wrong triggers and wrong counts."""
    inspection = derived.Inspection(db, StoredVectors(None, compact=False))
    return [*derived.find_wrong_triggers(inspection), *derived.find_wrong_counts(inspection)]


def true_counts(
    records: list[Record], where: Filter
) -> tuple[int, int, dict[str, int], dict[str, int]]:
    """Return the true counts: of live and of deleted records, of label keys, and of one label's
    values.
    """
    fits = [
        entry
        for entry in records
        if entry.ref.collection is where.collection and entry.ref.namespace in where.namespaces
    ]
    live = [entry for entry in fits if entry.ended_at is None]
    keys, values = dict[str, int](), dict[str, int]()
    for entry in live:
        for key, value in entry.labels.items():
            keys[key] = keys.get(key, 0) + 1
            if key == "project":
                values[value] = values.get(value, 0) + 1
    deleted = sum(entry.ended_at is not None and entry.ended_by == "delete" for entry in fits)
    return len(live), deleted, dict(sorted(keys.items())), dict(sorted(values.items()))


def counts_of(store: SQLiteStore, where: Filter) -> tuple[int, int, dict[str, int], dict[str, int]]:
    """Return the counts of a store for a filter."""
    deleted = where._replace(state="ended", ended_by="delete")
    return (
        store.count(where),
        store.count(deleted),
        dict(store.labels(where, None)),
        dict(store.labels(where, "project")),
    )


def wrong_counts(path: Path) -> list[str]:
    """Return the wrong counts of a closed store."""
    db = apsw.Connection(str(path))
    try:
        return [finding.what for finding in find_problems(db)]
    finally:
        db.close()


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3))
def test_counts_match_the_records_after_any_changes(path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    there: dict[object, Record] = {}
    store = SQLiteStore(path, SPACE)
    for step in range(120):
        collection = Collection.HISTORY if chosen.random() < 0.3 else Collection.MEMORY
        kind = chosen.random()
        if kind < 0.6 or not there:
            labels = {
                key: f"v{chosen.randrange(3)}" for key in chosen.sample(("project", "type", "x"), 2)
            }
            made = record(
                f"g{step}",
                namespace=chosen.choice(NAMESPACES),
                collection=collection,
                labels=labels,
            )
            made = made if chosen.random() < 0.5 else made._replace(vectors=None)
            if chosen.random() < 0.2:
                made = made._replace(
                    ended_at=at(step), ended_by=chosen.choice(("delete", "update"))
                )
            store.append([made])
            there[made.ref] = made
        else:
            old = chosen.choice(list(there.values()))
            if kind < 0.9:
                ended = chosen.choice((None, at(step)))
                by = None if ended is None else chosen.choice(("delete", "update", "supersede"))
                store.patch([Patch(old.ref, ended, by, {"a": step})])
                there[old.ref] = old._replace(ended_at=ended, ended_by=by)
            elif kind < 0.95:
                with (
                    pytest.raises(ZeroDivisionError),
                    store.transaction(),
                ):  # a write that is rolled back isn't counted
                    store.patch([Patch(old.ref, at(step), "delete", {})])
                    raise ZeroDivisionError
            else:
                store.remove([old.ref])
                del there[old.ref]
    for collection in Collection:
        for namespaces in (*((entry,) for entry in NAMESPACES), NAMESPACES, ("nobody",)):
            where = Filter(collection, namespaces)
            assert counts_of(store, where) == true_counts(list(there.values()), where)
            live = [
                entry
                for entry in there.values()
                if entry.ref[0] is collection and entry.ended_at is None
            ]
            bare = sum(
                entry.ref.namespace in namespaces and entry.vectors is None for entry in live
            )
            assert store.info(where).without_vector_count == bare
    store.close()
    assert wrong_counts(path) == []


def fill(path: Path, number: int = 12) -> None:
    """Return the store of memories, of which a third have no vector and a quarter are deleted."""
    store = SQLiteStore(path, SPACE)
    made = [
        record(f"g{entry}", labels={"project": f"p{entry % 5}", f"k{entry % 3}": "x"})
        for entry in range(number)
    ]
    store.append(
        [entry._replace(vectors=None) if at_ % 3 == 0 else entry for at_, entry in enumerate(made)]
    )
    store.patch([Patch(entry.ref, at(5), "delete", {}) for entry in made[::4]])
    store.close()


def change_file(path: Path, script: str) -> None:
    """Change the file of a closed store directly in SQLite."""
    db = apsw.Connection(str(path))
    db.execute(script)
    db.close()


def test_counts_survive_an_embedder_change(path: Path) -> None:
    fill(path)
    store = SQLiteStore(path, OTHER)
    stage_all(store, OTHER)
    assert store.info(pool()).without_vector_count == 3
    store.switch(OTHER)
    store.append([record("bare", vectors=None)])
    assert store.info(pool()).without_vector_count == 1
    store.close()
    assert wrong_counts(path) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE pool SET live = live + 1", "the counts of a namespace"),
        ("UPDATE label_pool SET live = 0 WHERE label = 1", "the counts of memories by tag "),
        ("DELETE FROM key_pool", "the counts of memories by tag key"),
        ("DROP TRIGGER record_ended", "record_ended, which maintains counts, is missing"),
    ],
)
def test_wrong_counts_are_reported_and_repaired(path: Path, damage: str, said: str) -> None:
    fill(path)
    assert wrong_counts(path) == []
    change_file(path, damage)
    assert [said in f"{entry} " for entry in wrong_counts(path)] == [True]
    db = apsw.Connection(str(path))
    with db:
        derived.recount(derived.Inspection(db, StoredVectors(None, compact=False)))
    assert find_problems(db) == []
    db.close()


def test_a_record_with_damaged_labels_can_be_removed(path: Path) -> None:
    fill(path)
    change_file(path, "UPDATE record SET labels = '3,x' WHERE seq = 2")
    change_file(path, "DELETE FROM record WHERE seq = 2")
    store = SQLiteStore(path, SPACE)
    assert store.count(pool()) == 8
    store.close()
    assert all("tag" in entry for entry in wrong_counts(path))


def test_a_forgotten_memory_leaves_no_label_key(path: Path) -> None:
    store = SQLiteStore(path, SPACE)
    store.append(
        [
            record("a", labels={"secretkey": "x"}),
            record("b", namespace="bob", labels={"other": "x"}),
        ]
    )
    store.remove([record("a").ref])
    store.close()
    assert b"secretkey" not in path.read_bytes()


def steps(store: SQLiteStore) -> dict[str, int]:
    """Return how many hundreds of steps SQLite's virtual machine takes for each query."""
    taken = dict[str, int]()
    where = pool()
    deleted = where._replace(state="ended", ended_by="delete")
    asked = {
        "tag keys": lambda: store.labels(where, None),
        "values of a tag": lambda: store.labels(where, "project"),
        "count": lambda: store.count(where),
        "deleted": lambda: store.count(deleted),
        "info": lambda: store.info(where),
        "list deleted": lambda: store.scan(
            where._replace(state="ended", ended_by="delete"), limit=3, newest_first=True
        ),
    }
    for name, ask in asked.items():
        ask()
        count = [0]

        def more(count: list[int] = count) -> bool:
            count[0] += 1
            return False

        db = store._file._connection()
        db.set_progress_handler(more, 20)
        ask()
        db.set_progress_handler(None)
        taken[name] = count[0]
    return taken


def test_the_cost_of_tags_and_status_does_not_grow_with_the_store(tmp_path: Path) -> None:
    taken = []
    for number in (100, 1_000):
        fill(tmp_path / f"{number}.db", number)
        store = SQLiteStore(tmp_path / f"{number}.db", SPACE)
        taken.append(steps(store))
        store.close()
    few, many = taken
    assert {name: many[name] for name in many if many[name] > few[name] + 5} == {}


@pytest.mark.parametrize("key", ["rare", "common"])
def test_a_listing_by_label_checks_the_rarer_condition_first(store: SQLiteStore, key: str) -> None:
    """A listing then reads few rows, whether few records have the label or nearly all do."""
    store.append(
        [
            record(f"m{n:04}", labels={"common": "1"} | ({"rare": "1"} if n % 400 == 0 else {}))
            for n in range(2000)
        ]
    )
    steps: list[int] = []
    with store._file.read() as db:
        db.set_progress_handler(lambda: bool(steps.append(1)), 1)
        records = store.scan(pool(labels={key: "1"}), limit=5)
        db.set_progress_handler(None)
    step = 400 if key == "rare" else 1
    assert [entry.ref.group for entry in records] == [f"m{n:04}" for n in range(0, 5 * step, step)]
    assert len(steps) < 5_000


def test_records_with_two_labels_are_counted_individually(path: Path) -> None:
    both, one = {"a": "1", "b": "1"}, {"a": "1"}
    store = SQLiteStore(path, SPACE)
    store.append(
        [record("m1", labels=both), record("m2", labels=one), record("m3", labels={"b": "1"})]
    )
    counts = [store.count(pool("ann", labels=labels)) for labels in ({}, one, both)]
    assert counts == [3, 2, 1]
    assert [store.count(pool("ann", labels=one), at_most=most) for most in (0, 1, 2, 3)] == [
        0,
        1,
        2,
        2,
    ]
    assert [store.count(pool("ann", labels=both), at_most=most) for most in (0, 1, 2)] == [0, 1, 1]
    store.close()


def test_the_last_page_of_a_file_is_read_completely(path: Path) -> None:
    store = SQLiteStore(path, SPACE)
    store.append([record("m1")])
    store.close()
    data = path.read_bytes()
    count = len(data) // 4096
    pages = whole_file.read_pages(path, 4096, [1, count, count + 1])
    assert pages == {1: data[:4096], count: data[-4096:], count + 1: b""}
