"""Records that are added together leave the same bytes in a SQLite store as records added one by
one.
"""

import itertools
import random
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from contract import (
    SPACE,
    at,
    record,
    turn,
    unit_vectors,
)

from memories import Memories
from memories.errors import Conflict
from memories.stores.records import (
    Collection,
    Record,
    Ref,
)
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite.quantize import Quantizer
from memories.stores.sqlite.store import SQLiteStore


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("dimension", [384, 256, 6, 7])
def test_vectors_get_the_same_codes_whether_added_together_or_one_by_one(
    dimension: int, compact: bool
) -> None:
    quantizer = Quantizer(dimension, compact=compact)
    given = np.random.default_rng(5).normal(size=(97, 1, dimension)).astype(np.float32)
    given /= np.linalg.norm(given, axis=2, keepdims=True)
    alone = [quantizer.encode(vectors) for vectors in given]
    assert quantizer.encode_each(list(given)) == alone
    windows = np.concatenate(list(given[:3]))
    assert quantizer.encode_each([*given, windows]) == [*alone, quantizer.encode(windows)]


def test_memories_added_one_by_one_fill_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 32)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 8)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake", namespace="ann") as memories:
        for n in range(96):
            memories.create(f"note {n}", force=True)
    assert len(tables_of(tmp_path / "m.db")["block"]) in (2, 3)


def tables_of(path: Path) -> dict[str, list[Any]]:
    """Return every row of every table of a store, and the positions of each word."""
    db = apsw.Connection(str(path))
    indexes = [
        name
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING fts5%'")
    ]
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for name in indexes:
        db.execute(
            f"INSERT INTO {name} ({name}) VALUES ('optimize')"
        )  # into one segment, which is independent of the number of writes
        db.execute(
            f"CREATE VIRTUAL TABLE temp.{name}_where USING fts5vocab (main, {name}, instance)"
        )
    # The write that added a word, and the index segment that contains it, depend on the number of
    # writes.
    own = {f"{name}_{part}" for name in indexes for part in ("data", "idx", "docsize")} | {*indexes}
    results = {
        name: sorted(map(repr, db.execute(f"SELECT * FROM {name}")))
        for name in names
        if name not in own
    }
    for name in indexes:
        results[f"{name}_where"] = sorted(map(repr, db.execute(f"SELECT * FROM temp.{name}_where")))
        pages = db.execute(
            f"SELECT id & 0x1fffffffff, block FROM {name}_data WHERE id <> 10 ORDER BY id"
        )
        results[f"{name}_data"] = [repr(page) for page in pages]
        results[f"{name}_docsize"] = [
            repr(row) for row in db.execute(f"SELECT id, sz FROM {name}_docsize ORDER BY id")
        ]
    db.close()
    return results


def mixed(count: int) -> list[Record]:
    """Return records of every kind: of both collections, the log and three namespaces, with and
    without vectors, labels, ends and reads.
    """
    drawn = random.Random(5)
    vectors = iter(unit_vectors(4 * count))
    words = "vim emacs Zürich 東京 naïve port 8080 the a of x-y_z e\u0301".split()
    results: list[Record] = []
    for n in range(count):
        windows = drawn.choice([1, 1, 1, 2, 3])
        given = np.stack([next(vectors) for _ in range(windows)])
        namespace = drawn.choice(["ann", "bob", "cat"])
        values: dict[str, Any] = {"text": " ".join(drawn.choices(words, k=drawn.randrange(1, 40)))}
        values["vectors"] = drawn.choice([given, given, given, None])
        if n % 11 == 10:
            ref = Ref(Collection.LOG, namespace, "chain", n)
            results.append(Record(ref, values["text"], at(n)))
            continue
        if n % 5 == 4:
            results.append(turn(n, namespace=namespace, **values))
            continue
        values["labels"] = dict(
            drawn.sample([("team", "web"), ("team2", "é"), ("type", "fact"), ("a", "b")], k=n % 4)
        )
        values["fields"] = {"operation": "create", "n": n}
        values["accesses"] = drawn.choice([0, 0, 3])
        if n % 7 == 0:
            values |= {"ended_at": at(n + 1), "ended_by": "update"}
        elif n % 7 == 1:
            values["key"] = f"key/{n}"
        group = drawn.choice([f"m{n}", f"01a1fdf1-92cd-72f2-8abc-{n:012x}"])
        results.append(record(group, namespace=namespace, created_at=at(n), **values))
    return results


@pytest.mark.parametrize("compact", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_records_leave_the_same_bytes_whether_added_together_or_one_by_one(
    tmp_path: Path, compact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 64)
    monkeypatch.setattr("os.urandom", bytes)  # used in the ids of the store and of commits
    records = mixed(600)
    results = []
    for name, sizes in (
        ("alone", [1] * 600),
        ("together", [2, 1, 5, 92, 3, 37, 256, 200, 4]),
        ("all", [600]),
    ):
        store = SQLiteStore(tmp_path / f"{name}.db", SPACE, compact=compact)
        left = iter(records)
        with store.transaction():
            for size in sizes:
                store.append(list(itertools.islice(left, size)))
        assert next(left, None) is None
        assert list(store.check(deep=True)) == []
        store.close()
        results.append(tables_of(tmp_path / f"{name}.db"))
    alone, *others = results
    assert len(alone["block"]) > 2
    assert len(alone["words_where"]) > 1_000
    assert {name for name, rows in alone.items() if not rows} == {
        "staged_vector",
        "staged_turn_vector",
    }
    for other in others:
        assert other.keys() == alone.keys()
        for name, rows in alone.items():
            assert other[name] == rows, name


def test_a_refused_record_undoes_all_records_added_with_it(store: SQLiteStore, path: Path) -> None:
    records = mixed(60)
    store.append(records[:20])
    before = tables_of(path)
    for refused in (records[3], record("new", key="key/1", namespace=records[1].ref.namespace)):
        with pytest.raises(Conflict, match=f"of {refused.ref.group}, "), store.transaction():
            store.append([*records[20:40], refused, *records[40:]])
    assert tables_of(path) == before
    store.append(records[20:])
    assert list(store.check(deep=True)) == []
