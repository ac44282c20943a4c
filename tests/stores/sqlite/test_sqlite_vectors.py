"""The vectors of a SQLite store: blocks find the best, compact codes keep the cosines, and the
space can be changed.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import (
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    by_other,
    embed_other,
    pool,
    record,
    search,
    seen,
    stage_all,
    unit_vectors,
)
from sqlite_scripts import CHECK, RunPython

from memories.stores.records import (
    Filter,
    Record,
    Ref,
    Space,
)
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite.quantize import Quantizer
from memories.stores.sqlite.store import SQLiteStore

REAL = SPACE._replace(model="clusters/1", dimension=384)

ROWS = 6_500


@pytest.fixture(scope="module")
def clusters() -> Any:
    """Unit vectors in 150 clusters, shape (rows, 384)."""
    drawn = np.random.default_rng(5)
    centres = drawn.standard_normal((150, 384))
    near = centres[drawn.integers(150, size=ROWS)] + 0.7 * drawn.standard_normal((ROWS, 384))
    return (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)


def _row(number: int, vector: Any) -> Record:
    """Return a record with a vector, a namespace and a label."""
    labels = {"wide": "yes"} if number % 10 else {"narrow": "yes" if number % 50 == 0 else "no"}
    namespace = "bob" if number % 5 == 4 else "ann"
    return record(
        f"m{number:05}",
        namespace=namespace,
        text=f"w{number}",
        labels=labels,
        vectors=vector[np.newaxis],
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, clusters: Any) -> Path:
    """A closed store file of 6,500 records, 5,200 of them in `ann`."""
    path = tmp_path_factory.mktemp("large") / "memories.db"
    store = SQLiteStore(path, REAL)
    for start in range(0, ROWS, 500):
        store.append(
            [_row(number, clusters[number]) for number in range(start, min(start + 500, ROWS))]
        )
    store.close()
    return path


@pytest.fixture
def many(large: Path, path: Path) -> Iterator[SQLiteStore]:
    """The store of a copy of that file."""
    shutil.copy(large, path)
    path.chmod(0o600)
    store = SQLiteStore(path, REAL)
    yield store
    store.close()


def recall_at_10(
    store: SQLiteStore, vectors: Any, where: Filter, meant: list[int], queries: int = 20
) -> float:
    """Return the share of the true ten best that a search finds; a result within 0.002 of the tenth
    counts too.
    """
    drawn = np.random.default_rng(6)
    results = 0
    for _ in range(queries):
        query = vectors[drawn.integers(ROWS)] + 0.03 * drawn.standard_normal(384)
        query = (query / np.linalg.norm(query)).astype(np.float32)
        scores = dict(zip(meant, (vectors[meant] @ query).tolist(), strict=True))
        tenth = sorted(scores.values())[-10]
        candidates = store.candidates(where, vector=query, terms=[], k=10)
        assert len(candidates) == 10
        results += sum(
            scores[int(candidate.record.ref.group[1:])] >= tenth - 0.002 for candidate in candidates
        )
    return results / (10 * queries)


OF_ANN = [number for number in range(ROWS) if number % 5 != 4]


@pytest.mark.parametrize(
    ("conditions", "meant"),
    [
        ({}, OF_ANN),
        ({"labels": {"wide": "yes"}}, [number for number in OF_ANN if number % 10]),
        ({"labels": {"narrow": "yes"}}, [number for number in OF_ANN if number % 50 == 0]),
        ({"group": "m00", "prefix": True}, [number for number in OF_ANN if number < 1000]),
    ],
    ids=["namespace", "wide-label", "narrow-label", "group"],
)
@pytest.mark.parametrize("exact_rows", [pytest.param(4096, marks=pytest.mark.thorough), 20])
def test_the_ten_best_records_are_found(
    many: SQLiteStore,
    clusters: Any,
    conditions: Any,
    meant: list[int],
    exact_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few exact rows, even a selective filter uses the blocks and must go far down their list."""
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", exact_rows)
    assert recall_at_10(many, clusters, pool(**conditions), meant) >= 0.99


def test_most_vectors_of_a_large_store_are_in_blocks(
    many: SQLiteStore, path: Path, run_python: RunPython
) -> None:
    assert many.count(pool("ann", "bob")) == ROWS
    script = (
        "import sys, apsw; db = apsw.Connection(sys.argv[1]); "
        "print(*db.execute('SELECT hi FROM block').fetchall())"
    )
    assert run_python(script, path).stdout.split() == [
        f"({hi},)" for hi in (1024, 2048, 3072, 4096, 5120, 6144)
    ]


def test_an_unselective_search_uses_the_blocks(
    many: SQLiteStore, clusters: Any, path: Path, run_python: RunPython
) -> None:
    """Without the blocks' bits, a search finds little, so the recall test does test the blocks."""
    script = (
        "import sys, apsw; "
        "apsw.Connection(sys.argv[1]).execute('UPDATE block SET bits = zeroblob(length(bits))')"
    )
    run_python(script, path)
    assert recall_at_10(many, clusters, pool(), OF_ANN, queries=10) < 0.5


def test_blocks_survive_a_removal(many: SQLiteStore, clusters: Any, path: Path) -> None:
    """This includes another open store that has read the blocks before."""
    other = SQLiteStore(path, REAL)
    assert recall_at_10(other, clusters, pool(), OF_ANN, queries=5) > 0.9
    removed = set(random.Random(7).sample(OF_ANN, 40)) | {1023, 1020, ROWS - 1, ROWS - 2}
    many.remove(
        [
            Ref(MEMORY, namespace, f"m{number:05}", 1)
            for number in removed
            for namespace in ("ann", "bob")
        ]
    )
    left = [number for number in OF_ANN if number not in removed]
    for store in (many, other):
        assert store.count(pool()) == len(left)
        assert recall_at_10(store, clusters, pool(), left) >= 0.99
    other.close()


def test_vectors_after_the_last_block_are_found(many: SQLiteStore) -> None:
    vectors = unit_vectors(1, seed=9)
    vector = np.pad(vectors[0], (0, 384 - SPACE.dimension))
    many.append([record("new", text="new", vectors=vector[np.newaxis])])
    (result,) = many.candidates(pool(), vector=vector, terms=[], k=1)
    assert result.record.ref.group == "new"


def test_texts_with_several_windows_fill_blocks_too(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 10)
    vectors = unit_vectors(3 * 1100)
    store.append(
        [record(f"m{n:04}", text="x", vectors=vectors[3 * n : 3 * n + 3]) for n in range(1100)]
    )
    for number in (0, 500, 1023, 1024, 1099):
        (result,) = store.candidates(pool(), vector=vectors[3 * number + 2], terms=[], k=1)
        assert result.record.ref.group == f"m{number:04}"
        assert result.similarity == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("rows", "blocks"), [(15, 0), (16, 1), (17, 1), (32, 2)])
def test_a_block_is_written_once_it_is_full(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, rows: int, blocks: int
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    vectors = unit_vectors(rows)
    store.append([record(f"m{n:02}", vectors=vectors[n : n + 1]) for n in range(rows)])
    with store._file.read() as db:
        index = store._vectors.index(db, MEMORY)
        assert db.execute(f"SELECT count(*) FROM {index._block_table}").fetchall() == [(blocks,)]


def test_cached_label_indexes_follow_writes(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes texts of several windows, removed records, and a second label that narrows the
    search.
    """
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 4)
    monkeypatch.setattr(sqlite_vectors, "_MAX_LABELLED", 100)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    vectors = unit_vectors(3 * 240, seed=5)
    live: dict[str, tuple[int, dict[str, str]]] = {}

    def expect_the_nearest() -> None:
        for labels in (
            {"kind": "1"},
            {"kind": "2"},
            {"size": "0"},
            {"kind": "0", "size": "1"},
            {"kind": "none"},
            {},
        ):
            wanted = {
                group: n for group, (n, having) in live.items() if labels.items() <= having.items()
            }
            scores = {
                group: float((vectors[3 * n : 3 * n + 3] @ vectors[7]).max())
                for group, n in wanted.items()
            }
            candidates = store.candidates(pool(labels=labels), vector=vectors[7], terms=[], k=5)
            best = [
                each.record.ref.group
                for each in sorted(candidates, key=lambda each: -(each.similarity or 0.0))
            ]
            assert best == sorted(scores, key=lambda group: -scores[group])[:5]

    for first in range(0, 240, 60):
        for n in range(first, first + 60):
            live[f"m{n:03}"] = n, {"kind": str(n % 3), "size": str(n % 5 // 3)}
        numbers = range(first, first + 60)
        store.append(
            [
                record(f"m{n:03}", labels=live[f"m{n:03}"][1], vectors=vectors[3 * n : 3 * n + 3])
                for n in numbers
            ]
        )
        expect_the_nearest()
        gone = [f"m{n:03}" for n in range(first, first + 60, 7)]
        store.remove([Ref(MEMORY, "ann", group, 1) for group in gone])
        for group in gone:
            del live[group]
        expect_the_nearest()


def test_threads_change_cached_label_indexes_one_at_a_time(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlocked: list[str] = []

    class Guarded(dict[int, Any]):
        """Places of labels that record a change without the lock."""

        def pop(self, *given: Any) -> Any:
            unlocked.extend(["pop"] if not index._lock.locked() else [])
            return super().pop(*given)

        def __setitem__(self, label: int, places: Any) -> None:
            unlocked.extend(["set"] if not index._lock.locked() else [])
            super().__setitem__(label, places)

    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 4)
    monkeypatch.setattr(sqlite_vectors, "_MAX_LABELLED", 10)
    vectors = unit_vectors(64, seed=5)
    store.append(
        [
            record(f"m{n:02}", labels={"kind": str(n % 2), "all": "1"}, vectors=vectors[n : n + 1])
            for n in range(64)
        ]
    )
    store.candidates(pool(), vector=vectors[7], terms=[], k=5)
    index = store._vectors._indexes[MEMORY, SPACE.dimension, store._compact]
    places = Guarded()
    index._blocks = index._blocks._replace(labelled=places)
    for kind in ("0", "1"):
        store.candidates(pool(labels={"kind": kind, "all": "1"}), vector=vectors[7], terms=[], k=5)
    assert len(places) == 1  # above the limit, others are dropped
    assert unlocked == []


def test_compact_codes_take_five_bits_and_keep_cosines() -> None:
    vectors = unit_vectors(600, seed=5)
    compact, usual = Quantizer(SPACE.dimension, compact=True), Quantizer(SPACE.dimension)
    codes = compact.encode(vectors[100:])
    assert len(codes) == 500 * (4 + 5 * SPACE.dimension // 8)
    queries = compact.rotate(vectors[:100])
    scores = np.array([compact.scores(query, codes) for query in queries])
    assert np.abs(scores - vectors[:100] @ vectors[100:].T).max() < 0.03
    differing = np.bitwise_count(
        compact.bits(codes) ^ usual.bits(usual.encode(vectors[100:]))
    ).sum()
    assert differing < 0.01 * 500 * SPACE.dimension
    again = compact.numbers(codes) @ compact.rotate(np.eye(SPACE.dimension, dtype=np.float32)).T
    again /= np.linalg.norm(again, axis=1, keepdims=True)
    assert (
        compact.numbers(compact.encode(again.astype(np.float32))) == compact.numbers(codes)
    ).all()


def test_the_form_of_codes_changes_only_with_new_vectors(path: Path) -> None:
    """The setting applies when a store gets its first vectors; a store that is opened with the
    other setting keeps its form.
    """
    vectors = unit_vectors(40, seed=41)
    refs = [Ref(MEMORY, "ann", f"m{number}", 1) for number in range(40)]

    def similarity(store: SQLiteStore, number: int) -> float | None:
        [result] = store.candidates(pool(), vector=vectors[number], terms=[], k=1)
        assert result.record.ref == refs[number]
        return result.similarity

    def expect(store: SQLiteStore, compact: bool) -> None:
        assert store.info(pool()).compact is compact
        assert [similarity(store, number) for number in (3, 39)] == pytest.approx(
            [1.0, 1.0], abs=0.01
        )
        assert store.vectors(refs[:1])[refs[0]] @ vectors[0] == pytest.approx(1.0, abs=0.01)
        assert store.check(deep=True) == []

    usual, compact = SQLiteStore(path, SPACE), SQLiteStore(path, SPACE, compact=True)
    for number in range(30):
        compact.append([record(f"m{number}", text="x", vectors=vectors[[number]])])
    usual.append(
        [record(f"m{number}", text="x", vectors=vectors[[number]]) for number in range(30, 40)]
    )
    expect(usual, compact=True)
    expect(compact, compact=True)
    for store, other in ((usual, compact), (compact, usual)):
        left = store.unstaged(SPACE, MEMORY, limit=100)
        assert len(left) == 40
        store.stage(SPACE, {ref: vectors[[number]] for number, ref in enumerate(refs)})
        store.switch(SPACE)
        expect(store, compact=store is compact)
        expect(other, compact=store is compact)
        assert store.unstaged(SPACE, MEMORY, limit=1) == []
    usual.close()
    compact.close()


def test_vectors_of_other_namespaces_change_no_result_of_the_blocks(
    clusters: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So few vectors are rescored that the choice is partly random; other namespaces must not affect it."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 512)
    monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", 40)
    monkeypatch.setattr(sqlite_vectors, "MIN_MATCHING", 20)
    told: list[str] = []
    for name, others in (("alone", 0), ("among", 3)):
        store = SQLiteStore(tmp_path / f"{name}.db", REAL)
        for start in range(0, 1_300, 100):
            for number in range(others):
                rows = clusters[start + 2_000 : start + 2_000 + 100]
                group = f"{name}{number}-{start}"
                store.append(
                    [
                        record(f"{group}-{n}", namespace="bob", vectors=row[np.newaxis])
                        for n, row in enumerate(rows)
                    ]
                )
            store.append(
                [
                    record(f"m{n:05}", vectors=clusters[[n]], text="x")
                    for n in range(start, start + 100)
                ]
            )
        store.remove([Ref(MEMORY, "ann", f"m{n:05}", 1) for n in range(40, 700, 60)])
        candidates = [
            store.candidates(pool(), vector=query, terms=[], k=10)
            for query in clusters[4_000:4_060]
        ]
        told.append(
            repr([[(one.record.ref, one.similarity) for one in entry] for entry in candidates])
        )
        store.close()
    assert told[0] == told[1]


def test_a_rolled_back_switch_changes_nothing(
    store: SQLiteStore, path: Path, run_python: RunPython
) -> None:
    store.append([record(f"m{number}") for number in range(50)])
    before = seen(store, pool())
    stage_all(store)
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.switch(OTHER)
        assert store.info(pool()).model == OTHER.model
        _ = 1 / 0
    assert seen(store, pool()) == before
    assert store.unstaged(OTHER, MEMORY, limit=9) == []
    store.switch(OTHER)
    assert run_python(CHECK, path).stdout == "ok\n"


@pytest.mark.parametrize("space", [None, OTHER])
def test_removing_does_not_need_the_right_embedder(
    open_store: OpenStore, space: Space | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    open_store(SPACE).append([record(f"m{number:02}") for number in range(64)])
    open_store(space).remove([Ref(MEMORY, "ann", f"m{number:02}", 1) for number in (0, 17, 63)])
    hits = search(open_store(SPACE), "note m18 1", k=1)
    assert hits.popitem()[0] == "m18"


def test_cached_blocks_are_reread_after_changes(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", 8)
    monkeypatch.setattr(sqlite_vectors, "MIN_MATCHING", 4)
    writer, reader = open_store(SPACE), open_store(SPACE)
    vectors = unit_vectors(400, seed=31)
    refs = [Ref(MEMORY, "ann", f"m{number:03}", 1) for number in range(200)]
    writer.append(
        [record(ref.group, text="x", vectors=vectors[[number]]) for number, ref in enumerate(refs)]
    )

    def nearest(vector: Any) -> Ref:
        (result,) = reader.candidates(pool(), vector=vector, terms=[], k=1)
        return result.record.ref

    assert [nearest(vectors[number]) for number in (3, 70, 199)] == [
        refs[number] for number in (3, 70, 199)
    ]
    writer.stage(SPACE, {refs[number]: vectors[[200 + number]] for number in range(0, 200, 2)})
    assert [nearest(vectors[200 + number]) for number in (4, 70, 198)] == [
        refs[number] for number in (4, 70, 198)
    ]
    for space, shift in ((SPACE._replace(model="other/64"), 1), (SPACE, 2)):
        writer.stage(space, {ref: vectors[[number + shift]] for number, ref in enumerate(refs)})
        writer.switch(space)
    assert [nearest(vectors[number + 2]) for number in (3, 70, 199)] == [
        refs[number] for number in (3, 70, 199)
    ]


def test_all_candidates_are_scored_if_there_are_few(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    vectors = unit_vectors(64, seed=32)
    store.append(
        [record(f"m{number:02}", text="x", vectors=vectors[[number]]) for number in range(64)]
    )
    for least in (63, 64, 65):
        monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", least)
        candidates = store.candidates(pool(), vector=vectors[7], terms=[], k=10)
        assert "m07" in {entry.record.ref.group for entry in candidates}


def test_rolled_back_blocks_are_not_cached(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other blocks take their places, with the same numbers."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", 2)
    monkeypatch.setattr(sqlite_vectors, "MIN_MATCHING", 1)
    vectors = unit_vectors(192, seed=37)

    def nearest(vector: Any) -> str:
        (result,) = store.candidates(pool(), vector=vector, terms=[], k=1)
        return result.record.ref.group

    store.append(
        [record(f"m{number}", text="x", vectors=vectors[[number]]) for number in range(64)]
    )
    assert nearest(vectors[7]) == "m7"
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append(
            [record(f"u{number}", text="x", vectors=vectors[[64 + number]]) for number in range(64)]
        )
        assert nearest(vectors[64 + 40]) == "u40"
        _ = 1 / 0
    store.append(
        [record(f"n{number}", text="x", vectors=vectors[[128 + number]]) for number in range(64)]
    )
    assert [nearest(vectors[128 + number]) for number in range(64)] == [
        f"n{number}" for number in range(64)
    ]
    assert nearest(vectors[7]) == "m7"


def test_moved_vectors_are_identical(open_store: OpenStore, tmp_path: Path) -> None:
    """Therefore an export after an import is the same file."""
    store = open_store(REAL)
    drawn = np.random.default_rng(35).standard_normal((300, 384)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    store.append(
        [
            record(f"m{number:03}", text="x", vectors=drawn[number : number + 2])
            for number in range(299)
        ]
    )
    refs = [entry.ref for entry in store.scan(pool(), limit=999)]
    assert len(refs) == 299
    first = store.vectors(refs)
    other = SQLiteStore(tmp_path / "other.db", REAL)
    other.append([record(ref.group, text="x", vectors=first[ref]) for ref in refs])
    again = other.vectors(refs)
    other.close()
    assert all(np.array_equal(first[ref], again[ref]) for ref in refs)


def test_a_scan_of_unstaged_records_restarts_when_staged_vectors_are_dropped(
    open_store: OpenStore,
) -> None:
    store, rival = open_store(SPACE), open_store(SPACE)
    store.append([record(f"m{number}") for number in range(20)])
    for _ in range(2):
        records = store.unstaged(OTHER, MEMORY, limit=8)
        store.stage(OTHER, {entry.ref: embed_other(entry.text) for entry in records})
    rival.stage(OTHER._replace(model="third/1"), {Ref(MEMORY, "ann", "m0", 1): embed_other("x")})
    assert len(store.unstaged(OTHER, MEMORY, limit=99)) == 20
    assert len(stage_all(store)) == 20
    store.switch(OTHER)
    assert by_other(open_store(OTHER), "note m3 1")["m3"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 64])
def test_vectors_get_their_block_despite_writes_between_them(step: int) -> None:
    """Memories added one by one get every second sequence number; log entries get the others."""
    for start in (1, 2):
        looks = [
            seq
            for seq in range(start, start + 6_400 * step, step)
            if sqlite_vectors._should_look(seq, 1)
        ]
        assert 50 < len(looks) < 200
        assert max(np.diff([start, *looks])) < 500 * step
