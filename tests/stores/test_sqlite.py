"""The SQLite store passes the contract; and what is its own: vectors in blocks, its file, its locks, its erasures."""

import errno
import itertools
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are made to explain themselves
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_other,
    by_words,
    embed,
    embed_other,
    everything,
    holders,
    matching,
    pool,
    record,
    refs_of,
    search,
    seen,
    stage_all,
    turn,
    turns,
    unit_vectors,
)

from memories import Memories  # noqa: E402
from memories.errors import Conflict, MemoriesError, SchemaTooNew, StoreBusy, StoreDamaged, StoreError  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Collection,
    Filter,
    Patch,
    Record,
    Ref,
    Space,
    TurnQuery,
)
from memories.stores.sqlite import connection as sqlite_file  # noqa: E402
from memories.stores.sqlite import place as sqlite_place  # noqa: E402
from memories.stores.sqlite import quantize as sqlite_quantize  # noqa: E402
from memories.stores.sqlite import schema as sqlite_schema  # noqa: E402
from memories.stores.sqlite import vectors as sqlite_vectors  # noqa: E402
from memories.stores.sqlite import words as sqlite_words  # noqa: E402
from memories.stores.sqlite.engine import engine_is_safe  # noqa: E402
from memories.stores.sqlite.place import filesystem_of  # noqa: E402
from memories.stores.sqlite.postings import Postings  # noqa: E402
from memories.stores.sqlite.quantize import Quantizer  # noqa: E402
from memories.stores.sqlite.query import selection  # noqa: E402
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402
from memories.stores.words import score as bm25  # noqa: E402
from memories.stores.words import tokens_of  # noqa: E402

RunPython = Callable[..., subprocess.CompletedProcess[str]]

needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs setpriv as root")
AS_PLAIN_USER = (
    "setpriv",
    "--bounding-set",
    "-dac_override,-dac_read_search",
    "--inh-caps",
    "-dac_override,-dac_read_search",
)

# Begins every script that runs in a process of its own: `store` is the one of the first argument.
STORE = """
import os, sys, time
from pathlib import Path
from datetime import UTC, datetime
from memories.embedders.fake import FakeEmbedder
from memories.errors import StoreError
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sqlite.store import SQLiteStore
path = Path(sys.argv[1])
store = SQLiteStore(path, FakeEmbedder.space)
mine = Filter(Collection.MEMORY, ("ann",))
def add(group, text=""):
    text = text or f"note {group}"
    ref = Ref(Collection.MEMORY, "ann", group, 1)
    store.append([Record(ref, text, datetime.now(UTC), vectors=FakeEmbedder().embed(text))])
"""
CHECK = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
print(db.pragma("integrity_check"))
for table in ("words", "turn_words", "words_ended"):
    db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memories.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[OpenStore]:
    opened: list[SQLiteStore] = []

    def open_one(space: Space | None) -> SQLiteStore:
        opened.append(SQLiteStore(path, space))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> SQLiteStore:
    return open_store(SPACE)  # type: ignore[return-value]


class TestSQLite(StoreContract):
    @pytest.fixture
    def open_store(self, open_store: OpenStore) -> OpenStore:
        return open_store


class TestSQLiteByBlocks(StoreContract):
    """The same where almost every store is a large one."""

    @pytest.fixture
    def open_store(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
        monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
        monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
        monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
        monkeypatch.setattr(sqlite_quantize, "_MANY", 20)
        return open_store


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def all_uses(store: SQLiteStore) -> list[Callable[[], object]]:
    """Return every way to use a store, each as a call."""
    ref = Ref(MEMORY, "ann", "m", 1)
    return [
        lambda: store.scan(pool(), limit=1),
        lambda: store.groups(pool(), limit=1),
        lambda: store.count(pool()),
        lambda: store.labels(pool(), None),
        lambda: search(store, "note"),
        lambda: store.info(pool()),
        lambda: matching(store, "note"),
        lambda: store.read([ref]),
        lambda: store.values(HISTORY, ["ann"], "who"),
        lambda: store.namespaces(MEMORY),
        lambda: store.vectors([ref]),
        lambda: store.unstaged(OTHER, MEMORY, limit=1),
        lambda: store.stage(OTHER, {ref: embed_other("note")}),
        lambda: store.switch(OTHER),
        lambda: store.append([record("n")]),
        lambda: store.patch([Patch(ref, None, None, {})]),
        lambda: store.remove([ref]),
        lambda: store.transaction().__enter__(),
    ]


# --- vectors in blocks -----------------------------------------------------------------------------------------------

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
    labels = {"wide": "yes"} if number % 10 else {"narrow": "yes" if number % 50 == 0 else "no"}
    namespace = "bob" if number % 5 == 4 else "ann"
    return record(f"m{number:05}", namespace=namespace, text=f"w{number}", labels=labels, vectors=vector[np.newaxis])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, clusters: Any) -> Path:
    """A closed store file of 6,500 records, of which 5,200 are those of `ann`."""
    path = tmp_path_factory.mktemp("large") / "memories.db"
    store = SQLiteStore(path, REAL)
    for start in range(0, ROWS, 500):
        store.append([_row(number, clusters[number]) for number in range(start, min(start + 500, ROWS))])
    store.close()
    return path


@pytest.fixture
def many(large: Path, path: Path) -> Iterator[SQLiteStore]:
    shutil.copy(large, path)
    path.chmod(0o600)
    store = SQLiteStore(path, REAL)
    yield store
    store.close()


def recall_at_10(store: SQLiteStore, vectors: Any, where: Filter, meant: list[int], queries: int = 60) -> float:
    """Return the share of the true ten best that a search finds; as good as the tenth, within 0.002, counts as well."""
    drawn = np.random.default_rng(6)
    found = 0
    for _ in range(queries):
        query = vectors[drawn.integers(ROWS)] + 0.03 * drawn.standard_normal(384)
        query = (query / np.linalg.norm(query)).astype(np.float32)
        scores = dict(zip(meant, (vectors[meant] @ query).tolist(), strict=True))
        tenth = sorted(scores.values())[-10]
        candidates = store.candidates(where, vector=query, terms=[], k=10)
        assert len(candidates) == 10
        found += sum(scores[int(candidate.record.ref.group[1:])] >= tenth - 0.002 for candidate in candidates)
    return found / (10 * queries)


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
@pytest.mark.parametrize("exact_rows", [4096, 20])
def test_the_ten_best_are_found(
    many: SQLiteStore,
    clusters: Any,
    conditions: Any,
    meant: list[int],
    exact_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With few exact rows even a selective filter goes through the blocks, and must walk far down their list."""
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", exact_rows)
    assert recall_at_10(many, clusters, pool(**conditions), meant) >= 0.99


def test_most_vectors_of_a_large_store_are_in_blocks(many: SQLiteStore, path: Path, run_python: RunPython) -> None:
    assert many.count(pool("ann", "bob")) == ROWS
    script = "import sys, apsw; print(*apsw.Connection(sys.argv[1]).execute('SELECT hi FROM block').fetchall())"
    assert run_python(script, path).stdout.split() == [f"({hi},)" for hi in (1024, 2048, 3072, 4096, 5120, 6144)]


def test_an_unselective_search_goes_by_the_blocks(
    many: SQLiteStore, clusters: Any, path: Path, run_python: RunPython
) -> None:
    """With all their bits taken away it finds little: so the test of its recall tests the blocks."""
    script = "import sys, apsw; apsw.Connection(sys.argv[1]).execute('UPDATE block SET bits = zeroblob(length(bits))')"
    run_python(script, path)
    assert recall_at_10(many, clusters, pool(), OF_ANN, queries=10) < 0.5


def test_blocks_survive_a_removal(many: SQLiteStore, clusters: Any, path: Path) -> None:
    """Also for another store that has read the blocks before."""
    other = SQLiteStore(path, REAL)
    assert recall_at_10(other, clusters, pool(), OF_ANN, queries=5) > 0.9
    removed = set(random.Random(7).sample(OF_ANN, 40)) | {1023, 1020, ROWS - 1, ROWS - 2}
    many.remove([Ref(MEMORY, namespace, f"m{number:05}", 1) for number in removed for namespace in ("ann", "bob")])
    left = [number for number in OF_ANN if number not in removed]
    for store in (many, other):
        assert store.count(pool()) == len(left)
        assert recall_at_10(store, clusters, pool(), left) >= 0.99
    other.close()


def test_what_is_added_after_the_last_block_is_found(many: SQLiteStore) -> None:
    vectors = unit_vectors(1, seed=9)
    vector = np.pad(vectors[0], (0, 384 - SPACE.dimension))
    many.append([record("new", text="new", vectors=vector[np.newaxis])])
    (found,) = many.candidates(pool(), vector=vector, terms=[], k=1)
    assert found.record.ref.group == "new"


def test_texts_of_several_windows_fill_blocks_too(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 10)
    vectors = unit_vectors(3 * 1100)
    store.append([record(f"m{n:04}", text="x", vectors=vectors[3 * n : 3 * n + 3]) for n in range(1100)])
    for number in (0, 500, 1023, 1024, 1099):
        (found,) = store.candidates(pool(), vector=vectors[3 * number + 2], terms=[], k=1)
        assert found.record.ref.group == f"m{number:04}"
        assert found.similarity == pytest.approx(1.0, abs=0.01)


def test_the_places_of_a_label_are_kept_up_with_what_is_written(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where texts have several windows, records are removed, and a second label narrows it further."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 4)
    monkeypatch.setattr(sqlite_vectors, "_MOST_LABELLED", 100)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    vectors = unit_vectors(3 * 240, seed=5)
    live: dict[str, tuple[int, dict[str, str]]] = {}

    def expect_the_nearest() -> None:
        for labels in ({"kind": "1"}, {"kind": "2"}, {"size": "0"}, {"kind": "0", "size": "1"}, {"kind": "none"}, {}):
            wanted = {group: n for group, (n, having) in live.items() if labels.items() <= having.items()}
            scores = {group: float((vectors[3 * n : 3 * n + 3] @ vectors[7]).max()) for group, n in wanted.items()}
            found = store.candidates(pool(labels=labels), vector=vectors[7], terms=[], k=5)
            best = [each.record.ref.group for each in sorted(found, key=lambda each: -(each.similarity or 0.0))]
            assert best == sorted(scores, key=lambda group: -scores[group])[:5]

    for first in range(0, 240, 60):
        for n in range(first, first + 60):
            live[f"m{n:03}"] = n, {"kind": str(n % 3), "size": str(n % 5 // 3)}
        numbers = range(first, first + 60)
        store.append(
            [record(f"m{n:03}", labels=live[f"m{n:03}"][1], vectors=vectors[3 * n : 3 * n + 3]) for n in numbers]
        )
        expect_the_nearest()
        gone = [f"m{n:03}" for n in range(first, first + 60, 7)]
        store.remove([Ref(MEMORY, "ann", group, 1) for group in gone])
        for group in gone:
            del live[group]
        expect_the_nearest()


@pytest.mark.parametrize("key", ["rare", "common"])
def test_the_way_to_what_has_a_label_begins_at_what_is_rarer(store: SQLiteStore, key: str) -> None:
    """So that a listing reads few rows, whether few records or nearly all have the label."""
    store.append(
        [record(f"m{n:04}", labels={"common": "1"} | ({"rare": "1"} if n % 400 == 0 else {})) for n in range(2000)]
    )
    steps: list[int] = []
    with store._file.read() as db:
        db.set_progress_handler(lambda: bool(steps.append(1)), 1)
        found = store.scan(pool(labels={key: "1"}), limit=5)
        db.set_progress_handler(None)
    step = 400 if key == "rare" else 1
    assert [each.ref.group for each in found] == [f"m{n:04}" for n in range(0, 5 * step, step)]
    assert len(steps) < 5_000


def test_in_a_large_store_rare_words_still_find(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that very many rows have are left out there, unless there is no other."""
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)
    store.append([record(f"m{n:02}", text="weekly report", vectors=None) for n in range(60)])
    store.append([record("rare", text="weekly report zanzibar", vectors=None)])
    assert set(by_words(store, ["weekly", "report", "zanzibar"])) == {"rare"}
    assert len(by_words(store, ["weekly", "report"], k=10)) == 10


def test_in_a_large_store_common_words_find_what_has_all_of_them(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it is; and not every record that has one is ranked."""
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 30)
    store.append([record("all", text="plan of the weekly report", vectors=None)])
    store.append([record(f"two{n}", text="a weekly report and more of it", vectors=None) for n in range(5)])
    for word in ("plan", "weekly", "report"):
        store.append([record(f"{word}{n:03}", text=f"{word} and much more of it", vectors=None) for n in range(200)])
    terms = ["plan", "weekly", "report", "missing"]
    found = by_words(store, terms, k=8)
    assert next(iter(found)) == "all"
    assert {f"two{n}" for n in range(5)} <= set(by_words(store, terms[1:3], k=8))
    with store._file.read() as db:
        ranked = sqlite_words.ranked(db, Postings(), selection(db, pool()), terms)
    assert len(ranked.scores) <= 30
    assert set(ranked.holders) == set(terms)


def test_in_a_large_store_common_words_still_find_what_has_a_rare_label(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few have the label, so few have both, however common the word is."""
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 100)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 30)
    store.append(
        [
            record(
                f"m{n:03}",
                text="weekly report" if n % 5 == 0 else "zanzibar" if n == 1 else "something else",
                labels={"topic": "1"} if n < 40 else {},
                vectors=None,
            )
            for n in range(300)
        ]
    )
    found = {c.record.ref.group for c in store.candidates(pool(labels={"topic": "1"}), vector=None, terms=TOPICS, k=50)}
    assert found == {"m001", *(f"m{n:03}" for n in range(0, 40, 5))}


# --- compact vectors -------------------------------------------------------------------------------------------------


def test_compact_codes_take_five_bits_and_keep_cosines() -> None:
    vectors = unit_vectors(600, seed=5)
    compact, usual = Quantizer(SPACE.dimension, compact=True), Quantizer(SPACE.dimension)
    codes = compact.encode(vectors[100:])
    assert len(codes) == 500 * (4 + 5 * SPACE.dimension // 8)
    queries = compact.rotate(vectors[:100])
    scores = np.array([compact.scores(query, codes) for query in queries])
    assert np.abs(scores - vectors[:100] @ vectors[100:].T).max() < 0.03
    differing = np.bitwise_count(compact.bits(codes) ^ usual.bits(usual.encode(vectors[100:]))).sum()
    assert differing < 0.01 * 500 * SPACE.dimension
    again = compact.numbers(codes) @ compact.rotate(np.eye(SPACE.dimension, dtype=np.float32)).T
    again /= np.linalg.norm(again, axis=1, keepdims=True)
    assert (compact.numbers(compact.encode(again.astype(np.float32))) == compact.numbers(codes)).all()


def test_a_store_stays_as_it_is_until_its_vectors_are_made_again(path: Path) -> None:
    """The setting counts for the first vectors of a store; one that is opened with the other setting goes on."""
    vectors = unit_vectors(40, seed=41)
    refs = [Ref(MEMORY, "ann", f"m{number}", 1) for number in range(40)]

    def similarity(store: SQLiteStore, number: int) -> float | None:
        [found] = store.candidates(pool(), vector=vectors[number], terms=[], k=1)
        assert found.record.ref == refs[number]
        return found.similarity

    def expect(store: SQLiteStore, compact: bool) -> None:
        assert store.info(pool()).compact is compact
        assert [similarity(store, number) for number in (3, 39)] == pytest.approx([1.0, 1.0], abs=0.01)
        assert store.vectors(refs[:1])[refs[0]] @ vectors[0] == pytest.approx(1.0, abs=0.01)
        assert store.check(deep=True) == []

    usual, compact = SQLiteStore(path, SPACE), SQLiteStore(path, SPACE, compact=True)
    for number in range(30):
        compact.append([record(f"m{number}", text="x", vectors=vectors[[number]])])
    usual.append([record(f"m{number}", text="x", vectors=vectors[[number]]) for number in range(30, 40)])
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


# --- words of a namespace are its own --------------------------------------------------------------------------------


TOPICS = ["zanzibar", "weekly", "report"]
DRAWN = [
    "apple",
    "apples",
    "Äpfel",
    "run",
    "running",
    "日本語",
    "C++",
    "don't",
    "a.b@c.de",
    "🚀",
    "xylophone",
    "x" * 90,
]


def _draw(count: int, seed: int, *namespaces: str) -> list[Record]:
    """Return memories and turns of words in several scripts; some ended, some empty."""
    drawn = np.random.default_rng(seed)
    entries: list[Record] = []
    for number in range(count):
        given: dict[str, Any] = {"ended_at": at(900), "ended_by": "delete"} if number % 5 == 1 else {}
        given["text"] = " ".join(drawn.choice(DRAWN, size=int(drawn.integers(0, 30))))
        given["labels"] = {"speaker": "Zoë Lee"} if number % 3 else {}
        given["namespace"] = namespaces[number % len(namespaces)]
        given["collection"] = HISTORY if number % 4 < 2 else MEMORY
        entries.append(record(f"g{number}", number, vectors=None, **given))
    return entries


TERMS = ["apple", "run run", "äpf*", "日本", "cplusplus", "a b c de", "zoe", "zoë lee", "xylo*", "🚀", "*", "missing"]


def _expected(store: SQLiteStore, where: Filter) -> dict[Ref, float]:
    """Return BM25 of `TERMS` by the formula; live and ended records are two corpora."""
    entries = everything(store, where)
    found: dict[Ref, float] = {}
    for ended in (False, True):
        corpus = [entry for entry in entries if (entry.ended_at is not None) == ended]
        scores = bm25([tokens_of(entry) for entry in corpus], TERMS).scores.tolist()
        if not ended or where.state != "live":
            found |= {entry.ref: value for entry, value in zip(corpus, scores, strict=True) if value}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_words_are_scored_by_the_formula_through_all_changes(open_store: OpenStore, path: Path, seed: int) -> None:
    """Also after ends, restorations and removals, and whatever others hold."""
    store: Any = open_store(SPACE)
    store.append([*_draw(120, seed, "ann", "shared"), *_draw(150, seed + 9, "bob")])
    drawn = random.Random(seed)
    filters = [
        Filter(collection, names, state=state)
        for collection in (MEMORY, HISTORY)
        for names in (("ann",), ("shared", "ann"), ("nobody", "ann"))
        for state in ("live", "any")
    ]
    for _ in range(4):
        for where in filters:
            expected = _expected(store, where)
            assert len(expected) > 5
            found = store.candidates(where, vector=None, terms=TERMS, k=500)
            assert {one.record.ref: one.words for one in found} == pytest.approx(expected, abs=1e-9)
            matches = store.matches(where, TurnQuery(None, TERMS, 500))
            rows = zip(refs_of(matches, where.collection), matches.words.tolist(), strict=True)
            assert {ref: words for ref, words in rows if words} == pytest.approx(expected, abs=1e-9)
        entries = [entry for where in filters[::3] for entry in everything(store, where)]
        some = drawn.sample(entries, 20)
        store.patch([Patch(one.ref, None if one.ended_at else at(999), None, {}) for one in some])
        store.remove([one.ref for one in drawn.sample(entries, 8)])


COUNTED = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
counted = {(pool, bool(ended), *numbers) for pool, ended, *numbers in db.execute("SELECT * FROM corpus")}
held = set()
for table in ("words", "turn_words", "words_ended"):
    db.execute(f"CREATE VIRTUAL TABLE temp.{table}_seen USING fts5vocab(main, {table}, instance)")
    lengths = dict(db.execute(f"SELECT doc, count(*) FROM {table}_seen GROUP BY doc"))
    sql = f"SELECT r.seq, r.pool, r.ended_at FROM {table}_docsize d JOIN record r ON r.seq = d.id"
    rows = db.execute(sql).fetchall()
    assert all((ended is not None) == (table == "words_ended") for *_, ended in rows)
    for pool in {pool for _, pool, _ in rows}:
        own = [lengths.get(seq, 0) for seq, of, _ in rows if of == pool]
        held.add((pool, table == "words_ended", len(own), sum(own)))
assert len(counted) == 8 and counted == held, (counted, held)
"""


def test_what_is_counted_of_a_namespace_is_what_it_has(store: SQLiteStore, path: Path, run_python: RunPython) -> None:
    store.append(_draw(90, 1, "ann", "shared"))
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append(_draw(40, 2, "bob", "eve"))
        raise ZeroDivisionError
    entries = [*everything(store, pool("ann", "shared")), *everything(store, turns("ann", "shared"))]
    store.patch([Patch(one.ref, None if one.ended_at else at(999), None, {}) for one in entries[::2]])
    store.remove([one.ref for one in entries[::5]])
    run_python(COUNTED, path)


def _told_to_bob(store: SQLiteStore) -> str:
    told: list[Any] = []
    for where in (pool("bob"), turns("bob"), pool("bob", state="any"), turns("bob", group="talk")):
        for terms in (["deploy", "zebra"], ["deploy"], ["friday", "zeb*"], ["from the"]):
            told.append(store.candidates(where, vector=None, terms=terms, k=10))
            matches = store.matches(where, TurnQuery(None, terms, 10))
            told += [
                refs_of(matches, where.collection),
                matches.words.tolist(),
                matches.holds.tolist(),
                matches.searched,
            ]
    return repr(told)


@pytest.mark.parametrize(
    "lines", [pytest.param(11_000, marks=pytest.mark.thorough, id="at-its-real-size"), pytest.param(150, id="small")]
)
def test_a_crawler_hides_nothing_of_another_namespace(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """Its lines stand between those of bob and share a word with them."""
    if lines < 10_000:
        monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 100)
        monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)

    def fill(first: int, namespace: str, texts: list[str]) -> None:
        for make in (lambda number, **values: record(f"m{number}", **values), turn):
            numbered = enumerate(texts, first)
            store.append([make(number, namespace=namespace, text=text, vectors=None) for number, text in numbered])

    fill(0, "bob", ["deploy on friday from the branch", "the zebra crosses", "lunch at noon"])
    before = _told_to_bob(store)
    fill(0, "crawler", [f"deploy number {number} of the zebra" for number in range(lines)])
    assert _told_to_bob(store) == before
    assert set(by_words(store, ["deploy", "zebra"], pool("bob"))) == {"m0", "m1"}


def test_vectors_of_others_change_nothing_that_the_blocks_find(
    store: SQLiteStore, clusters: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So few are looked at again that which ones is a matter of luck; that of others must not decide it."""
    monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", 40)
    monkeypatch.setattr(sqlite_vectors, "MIN_MATCHING", 20)
    told: list[str] = []
    for name, others in (("alone", 0), ("among", 3)):
        store = SQLiteStore(tmp_path / f"{name}.db", REAL)
        for start in range(0, 2_600, 100):
            for number in range(others):
                rows = clusters[start + 2_000 : start + 2_000 + 100]
                group = f"{name}{number}-{start}"
                store.append(
                    [record(f"{group}-{n}", namespace="bob", vectors=row[np.newaxis]) for n, row in enumerate(rows)]
                )
            store.append([record(f"m{n:05}", vectors=clusters[[n]], text="x") for n in range(start, start + 100)])
        store.remove([Ref(MEMORY, "ann", f"m{n:05}", 1) for n in range(40, 700, 60)])
        found = [store.candidates(pool(), vector=query, terms=[], k=10) for query in clusters[4_000:4_060]]
        told.append(repr([[(one.record.ref, one.similarity) for one in each] for each in found]))
        store.close()
    assert told[0] == told[1]


# --- turns beside memories -------------------------------------------------------------------------------------------

WORDS = "apple banana cherry date elder fig grape hazel iris juniper kiwi lemon mango nut olive pear quince".split()


def _talk(count: int) -> list[Record]:
    drawn = np.random.default_rng(13)
    return [
        turn(number, text=" ".join(drawn.choice(WORDS, size=6)), session=number // 20 * 20) for number in range(count)
    ]


@pytest.mark.parametrize("query", ["apple banana", "cherry date elder", "quince", "olive pear nut mango"])
def test_a_long_conversation_gives_the_same_best_turns_as_a_short_one(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """By the blocks and by the index of words alone, as where all turns are looked at."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    store.append([record(f"m{number}", text="apple banana") for number in range(100)])
    for start in range(0, 600, 100):
        store.append(_talk(600)[start : start + 100])
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 10_000)
    every = matching(store, query, k=20)
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 64)
    best = matching(store, query, k=20)
    assert len(every.group) == 600 > len(best.group) >= 20
    at = {position: row for row, position in enumerate(every.position.tolist())}
    rows = [at[position] for position in best.position.tolist()]
    assert best.words == pytest.approx(every.words[rows])
    assert best.similarity == pytest.approx(every.similarity[rows])
    assert {term: holders(best, term) for term in best.terms} == {term: holders(every, term) for term in every.terms}
    tenth = np.sort(every.similarity)[-10]
    assert set(every.position[every.similarity > tenth].tolist()) <= set(best.position.tolist())
    assert set(every.position[every.words > 0].tolist()) <= set(best.position.tolist())


def test_matches_of_a_filter_are_the_same_by_the_blocks(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    store.append(_talk(300))
    store.append([turn(entry.ref.position, group="other", text=entry.text) for entry in _talk(300)])
    wheres = [turns(group="other"), turns(since=at(100), until=at(280)), turns(state="any"), turns(as_of=at(150))]
    exact = [matching(store, "cherry date", where, k=10) for where in wheres]
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 32)
    for where, every in zip(wheres, exact, strict=True):
        found = matching(store, "cherry date", where, k=10)
        assert set(refs_of(found)) <= set(refs_of(every))
        best = {ref for ref, similar in zip(refs_of(every), every.similarity, strict=True) if similar > 0.7}
        assert best
        assert best <= set(refs_of(found))


def test_turns_and_memories_fill_blocks_of_their_own(
    store: SQLiteStore, path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 50)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 50)
    for number in range(120):
        store.append([record(f"m{number}", text=f"note {number}"), turn(number, text=f"note {number}")])
    script = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
for table in ("block", "turn_block"):
    print(*db.execute(f"SELECT hi FROM {table}").fetchall())
"""
    assert run_python(script, path).stdout == "(99,) (199,)\n(100,) (200,)\n"
    store.remove([Ref(HISTORY, "ann", "talk", number) for number in range(10, 60)])
    assert run_python(script, path).stdout == "(99,) (199,)\n(20,) (200,)\n"
    for number in (0, 9, 60, 119):
        found = matching(store, f"note {number}", k=1)
        assert found.position[int(np.nanargmax(found.similarity))] == number
    assert "m30" in search(store, "note 30", k=1)


def test_turns_take_no_word_out_of_a_search_of_memories(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)
    store.append([record(f"m{number}", text="weekly report") for number in range(30)])
    store.append([record("rare", text="weekly zanzibar")])
    before = by_words(store, ["weekly", "zanzibar"], k=50)
    store.append([turn(number, text="something else") for number in range(50)])
    assert by_words(store, ["weekly", "zanzibar"], k=50) == before


def _steps(store: SQLiteStore, entry: Record) -> int:
    """Append a record; return how many steps SQLite's machine took."""
    taken = 0

    def step() -> bool:
        nonlocal taken
        taken += 1
        return False

    connection = store._file._connection()
    connection.set_progress_handler(step, 1)
    store.append([entry])
    connection.set_progress_handler(None)
    return taken


@pytest.mark.parametrize("memories", [0, 1_100])
def test_what_an_append_costs_does_not_grow(store: SQLiteStore, memories: int) -> None:
    """Now and then SQLite tidies up its index of words; the median leaves that out."""
    store.append([record(f"m{number}") for number in range(memories)])
    cost = [_steps(store, turn(number, labels={"role": "user"})) for number in range(600)]
    assert float(np.median(cost[-50:])) < 1.2 * float(np.median(cost[10:60]))


# --- changing the space ----------------------------------------------------------------------------------------------


def test_a_switch_that_is_undone_leaves_everything(store: SQLiteStore, path: Path, run_python: RunPython) -> None:
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
def test_who_has_no_embedder_or_another_one_may_remove(
    open_store: OpenStore, space: Space | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    open_store(SPACE).append([record(f"m{number:02}") for number in range(64)])
    open_store(space).remove([Ref(MEMORY, "ann", f"m{number:02}", 1) for number in (0, 17, 63)])
    found = search(open_store(SPACE), "note m18 1", k=1)
    assert found.popitem()[0] == "m18"


def test_blocks_that_were_read_before_are_read_anew_after_changes_among_them(
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
    writer.append([record(ref.group, text="x", vectors=vectors[[number]]) for number, ref in enumerate(refs)])

    def nearest(vector: Any) -> Ref:
        (found,) = reader.candidates(pool(), vector=vector, terms=[], k=1)
        return found.record.ref

    assert [nearest(vectors[number]) for number in (3, 70, 199)] == [refs[number] for number in (3, 70, 199)]
    writer.stage(SPACE, {refs[number]: vectors[[200 + number]] for number in range(0, 200, 2)})
    assert [nearest(vectors[200 + number]) for number in (4, 70, 198)] == [refs[number] for number in (4, 70, 198)]
    for space, shift in ((SPACE._replace(model="other/64"), 1), (SPACE, 2)):
        writer.stage(space, {ref: vectors[[number + shift]] for number, ref in enumerate(refs)})
        writer.switch(space)
    assert [nearest(vectors[number + 2]) for number in (3, 70, 199)] == [refs[number] for number in (3, 70, 199)]


def test_blocks_that_are_undone_are_not_remembered(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take their places, under the same numbers."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
    monkeypatch.setattr(sqlite_vectors, "MIN_RESCORED", 2)
    monkeypatch.setattr(sqlite_vectors, "MIN_MATCHING", 1)
    vectors = unit_vectors(192, seed=37)

    def nearest(vector: Any) -> str:
        (found,) = store.candidates(pool(), vector=vector, terms=[], k=1)
        return found.record.ref.group

    store.append([record(f"m{number}", text="x", vectors=vectors[[number]]) for number in range(64)])
    assert nearest(vectors[7]) == "m7"
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append([record(f"u{number}", text="x", vectors=vectors[[64 + number]]) for number in range(64)])
        assert nearest(vectors[64 + 40]) == "u40"
        _ = 1 / 0
    store.append([record(f"n{number}", text="x", vectors=vectors[[128 + number]]) for number in range(64)])
    assert [nearest(vectors[128 + number]) for number in range(64)] == [f"n{number}" for number in range(64)]
    assert nearest(vectors[7]) == "m7"


def test_staged_vectors_are_erased_too(store: SQLiteStore, path: Path, run_python: RunPython) -> None:
    vectors = unit_vectors(2, seed=33)[:, : OTHER.dimension]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    codes = [Quantizer(OTHER.dimension).encode(vectors[[number]])[4:].hex() for number in range(2)]
    refs = [Ref(MEMORY, "ann", name, 1) for name in ("m", "n")]
    store.append([record("m"), record("n")])
    store.stage(OTHER, {ref: vectors[[number]] for number, ref in enumerate(refs)})
    assert len(run_python(GREP, path, *codes).stdout.splitlines()) >= 2
    store.remove([refs[0]])
    assert run_python(GREP, path, codes[0]).stdout == ""
    assert run_python(GREP, path, codes[1]).stdout != ""
    store.switch(OTHER)
    assert run_python(CHECK, path).stdout == "ok\n"


def test_vectors_that_are_moved_are_the_same_to_the_bit(open_store: OpenStore, tmp_path: Path) -> None:
    """So an export of what was imported is the same file."""
    store = open_store(REAL)
    drawn = np.random.default_rng(35).standard_normal((300, 384)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    store.append([record(f"m{number:03}", text="x", vectors=drawn[number : number + 2]) for number in range(299)])
    refs = [entry.ref for entry in store.scan(pool(), limit=999)]
    assert len(refs) == 299
    first = store.vectors(refs)
    other = SQLiteStore(tmp_path / "other.db", REAL)
    other.append([record(ref.group, text="x", vectors=first[ref]) for ref in refs])
    again = other.vectors(refs)
    other.close()
    assert all(np.array_equal(first[ref], again[ref]) for ref in refs)


def test_a_walk_along_what_is_staged_starts_again_when_it_was_dropped(open_store: OpenStore) -> None:
    store, rival = open_store(SPACE), open_store(SPACE)
    store.append([record(f"m{number}") for number in range(20)])
    for _ in range(2):
        found = store.unstaged(OTHER, MEMORY, limit=8)
        store.stage(OTHER, {entry.ref: embed_other(entry.text) for entry in found})
    rival.stage(OTHER._replace(model="third/1"), {Ref(MEMORY, "ann", "m0", 1): embed_other("x")})
    assert len(store.unstaged(OTHER, MEMORY, limit=99)) == 20
    assert len(stage_all(store)) == 20
    store.switch(OTHER)
    assert by_other(open_store(OTHER), "note m3 1")["m3"] == pytest.approx(1.0, abs=0.01)


# --- modes, links, folders -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", ["0o000", "0o077", "0o022"])
def test_files_are_for_their_owner_only(tmp_path: Path, umask: str, run_python: RunPython) -> None:
    script = (
        f"import os; os.umask({umask})"
        + STORE
        + """
add("m"); store.remove([]); add("n")
for found in sorted((path.parent, path.parent.parent, *path.parent.iterdir())):
    print(found.name, oct(found.stat().st_mode & 0o777))
"""
    )
    assert run_python(script, tmp_path / "one" / "two" / "m.db").stdout.splitlines() == [
        "one 0o700",
        "two 0o700",
        "m.db 0o600",
        "m.db-shm 0o600",
        "m.db-wal 0o600",
        "m.db.lock 0o600",
    ]


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path, path: Path, store: SQLiteStore) -> None:
    target = tmp_path / "target.db"
    target.write_bytes(b"precious")
    path.symlink_to(target)
    for use in all_uses(store):
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert target.read_bytes() == b"precious"


def test_a_link_to_nowhere_is_refused_and_not_followed(tmp_path: Path, path: Path, store: SQLiteStore) -> None:
    path.symlink_to(tmp_path / "nowhere.db")
    for use in all_uses(store):
        with pytest.raises(StoreError, match="symbolic link"):
            use()
    assert not (tmp_path / "nowhere.db").exists()


def test_a_link_in_place_of_the_side_file_is_refused(tmp_path: Path, store: SQLiteStore) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "memories.db.lock").symlink_to(target)
    with pytest.raises(StoreError, match="cannot use"):
        store.append([record("m")])
    assert target.read_bytes() == b"precious"


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(tmp_path: Path, store: SQLiteStore) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / ".memories.db.new").symlink_to(target)
    store.append([record("m")])
    assert target.read_bytes() == b"precious"


def test_what_everybody_may_write_is_refused(tmp_path: Path, open_store: OpenStore) -> None:
    open_store(SPACE).append([record("m")])
    for part in (tmp_path, tmp_path / "memories.db"):
        usual = mode(part)
        part.chmod(usual | 0o002)
        with pytest.raises(StoreError, match="written by everybody; run: chmod"):
            open_store(SPACE).count(pool())
        part.chmod(usual)
    assert open_store(SPACE).count(pool()) == 1


def test_a_folder_in_place_of_the_file_is_refused(path: Path, store: SQLiteStore) -> None:
    path.mkdir()
    for use in all_uses(store):
        with pytest.raises(StoreError, match="is a folder"):
            use()
    assert list(path.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for use in all_uses(SQLiteStore(tmp_path / "file" / "memories.db", SPACE)):
        with pytest.raises(StoreError, match="cannot use"):
            use()


# --- files that are no store -----------------------------------------------------------------------------------------


def _other_program() -> bytes:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE record (x); INSERT INTO record VALUES (1); PRAGMA user_version=1")
    return db.serialize("main")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"<!DOCTYPE html><html><body>Sign in to continue</body></html>" * 200,
        random.Random(8).randbytes(50),
        random.Random(8).randbytes(50_000),
        b"\0" * 8192,
        _other_program(),
        b"SQLite format 3\0" + random.Random(8).randbytes(8192),
    ],
    ids=["nothing", "one-byte", "html", "short-noise", "noise", "zeros", "other-program", "only-a-header"],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    for number in range(len(all_uses(SQLiteStore(path, SPACE)))):
        store = SQLiteStore(path, SPACE)
        with pytest.raises(StoreDamaged) as caught:
            all_uses(store)[number]()
        store.close()
        assert str(path) in str(caught.value)
        assert path.read_bytes() == content
    assert {found.name for found in path.parent.iterdir() if found.is_file()} == {path.name, f"{path.name}.lock"}


def test_counting_a_read_does_not_wait_for_a_program_that_is_none_of_ours(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 3600)
    store.append([record("one")])
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    thread = threading.Thread(target=store.touch, args=([record("one").ref],), daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()  # a writer would wait for an hour
    foreign.execute("ROLLBACK")
    foreign.close()
    assert [found.accesses for found in everything(store, pool())] == [0]


def test_touching_a_file_that_is_no_store_is_no_silent_success(path: Path, store: SQLiteStore) -> None:
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreDamaged):
        store.touch([Ref(MEMORY, "ann", "m", 1)])


def test_a_newer_schema_is_refused_and_left_alone(path: Path, run_python: RunPython) -> None:
    """Its writer was killed, so that its log is still there: not even that is taken over."""
    script = STORE + "add('m'); db = store._file._connection(); db.pragma('user_version', 9); os._exit(0)"
    run_python(script, path)
    files = [path, Path(f"{path}-wal")]
    before = [file.read_bytes() for file in files]
    assert len(before[1]) > 0
    for number in range(len(all_uses(SQLiteStore(path, SPACE)))):
        store = SQLiteStore(path, SPACE)
        with pytest.raises(
            SchemaTooNew, match=f"has schema 9 and this program knows {KNOWN} at most; upgrade memories"
        ):
            all_uses(store)[number]()
        store.close()
    assert [file.read_bytes() for file in files] == before


def test_a_newer_schema_is_noticed_when_it_comes_while_open(
    path: Path, store: SQLiteStore, run_python: RunPython
) -> None:
    store.append([record("m")])
    run_python("import sys, apsw; apsw.Connection(sys.argv[1]).pragma('user_version', 9)", path)
    for use in all_uses(store):
        with pytest.raises(SchemaTooNew):
            use()


# --- migrations ------------------------------------------------------------------------------------------------------

RELEASED = sqlite_schema.MIGRATIONS
KNOWN = len(RELEASED)
NEXT = """
CREATE TABLE extra (x);
ALTER TABLE record ADD COLUMN note TEXT;
UPDATE record SET note = 'migrated';
"""


@pytest.fixture
def old(path: Path) -> Path:
    """A closed store file of the newest schema with three records."""
    store = SQLiteStore(path, SPACE)
    store.append([record(f"m{number}", text="common words", labels={"who": "ann"}) for number in range(3)])
    store.close()
    return path


def look(path: Path) -> list[str]:
    """Return version and notes of a file that no connection of this process has open."""
    script = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
print(db.pragma("user_version"), db.pragma("integrity_check"))
print(*db.execute("SELECT name FROM pragma_table_info('record') WHERE name = 'note'"))
print(*db.execute("SELECT name FROM sqlite_schema WHERE name = 'extra'"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.split()


def migrate_to(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (*RELEASED, *scripts))


@pytest.mark.parametrize("first_use", ["read", "write"])
def test_a_migration_keeps_everything_and_leaves_a_snapshot(
    old: Path, monkeypatch: pytest.MonkeyPatch, first_use: str
) -> None:
    store = SQLiteStore(old, SPACE)
    before = seen(store, pool())
    store.close()
    os.umask(previous := os.umask(0))
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    if first_use == "write":
        store.touch([])
    assert seen(store, pool()) == before
    assert store.info(pool()).schema_version == KNOWN + 1
    assert list(store.remove([])) == [f"{old}.v{KNOWN}.backup"]
    store.close()
    os.umask(previous)
    assert look(old) == [str(KNOWN + 1), "ok", "('note',)", "('extra',)"]
    assert mode(Path(f"{old}.v{KNOWN}.backup")) == 0o600
    assert look(Path(f"{old}.v{KNOWN}.backup")) == [str(KNOWN), "ok"]


def test_a_migration_of_several_steps_leaves_one_snapshot(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate_to(monkeypatch, NEXT, "CREATE TABLE third (x)")
    store = SQLiteStore(old, SPACE)
    assert store.info(pool()).schema_version is not None
    assert store.count(pool()) == 3
    assert store.info(pool()).schema_version == KNOWN + 2
    store.close()
    assert [found.name for found in old.parent.glob("*.backup")] == [f"{old.name}.v{KNOWN}.backup"]


def test_a_migration_that_fails_leaves_the_old_version(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteStore(old, SPACE)
    before = seen(store, pool())
    store.close()
    with monkeypatch.context() as broken:
        migrate_to(broken, NEXT + "; SELECT no_such_column FROM record")
        store = SQLiteStore(old, SPACE)
        for use in all_uses(store):
            with pytest.raises(StoreError):
                use()
        store.close()
        assert look(old) == [str(KNOWN), "ok"]
    store = SQLiteStore(old, SPACE)
    assert seen(store, pool()) == before
    store.close()


def test_a_migration_that_is_killed_leaves_the_old_version(
    old: Path, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    script = (
        "from memories.stores.sqlite import schema as sqlite_schema\n"
        f"sqlite_schema.MIGRATIONS += ({NEXT + endless!r},)" + STORE + "store.count(mine)"
    )
    running = subprocess.Popen([sys.executable, "-c", script, str(old)])
    try:
        snapshot = Path(f"{old}.v{KNOWN}.backup")
        while not snapshot.exists() and running.poll() is None:
            time.sleep(0.01)
        time.sleep(0.1)
        assert running.poll() is None
    finally:
        running.kill()
        running.wait(300)
    assert look(old) == [str(KNOWN), "ok"]
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    assert store.count(pool()) == 3
    store.close()
    assert look(old)[0] == str(KNOWN + 1)


def test_processes_that_migrate_at_once_all_go_on(old: Path) -> None:
    script = (
        "from memories.stores.sqlite import schema as sqlite_schema\n"
        f"sqlite_schema.MIGRATIONS += ({NEXT!r},)"
        + STORE
        + "print('ready', flush=True); input(); print(store.count(mine) >= 3); add(sys.argv[2])"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(old), f"p{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(4)
    ]
    assert [process.stdout.readline() for process in running if process.stdout] == ["ready\n"] * 4
    for process in running:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=300)[0] for process in running] == ["True\n"] * 4
    assert look(old)[:2] == [str(KNOWN + 1), "ok"]


def test_a_leftover_of_a_snapshot_that_was_cut_short_does_not_matter(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old.parent / f".{old.name}.v{KNOWN}.backup.new").write_bytes(b"half")
    migrate_to(monkeypatch, NEXT)
    store = SQLiteStore(old, SPACE)
    assert store.count(pool()) == 3
    store.close()
    assert look(Path(f"{old}.v{KNOWN}.backup")) == [str(KNOWN), "ok"]


DOWNGRADE = """
import re, sys, apsw
sys.path.insert(0, sys.argv[2])
from memories.stores.sqlite.schema import MIGRATIONS
def tables(db):
    sql = {name: sql for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    return {name: re.sub(r"--.*|\\s+", "", text) for name, text in sql.items()}
db = apsw.Connection(sys.argv[1])
from memories.text import index_text
for (trigger,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
    db.execute(f"DROP TRIGGER {trigger}")
db.execute("DROP INDEX record_deleted")
for column in ("live", "deleted", "without_vector"):
    db.execute(f"ALTER TABLE pool DROP COLUMN {column}")
first = apsw.Connection(":memory:")
first.execute(MIGRATIONS[0])
later = ("turn_words", "turn_vector", "turn_block", "label_pool", "staged_vector", "staged_turn_vector")
later += ("corpus", "store", "key_pool")
for table in (*later, "words", "words_ended"):
    db.execute(f"DROP TABLE {table}")
for table, state in (("words", "IS NULL"), ("words_ended", "IS NOT NULL")):
    db.execute(first.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get)
    rows = db.execute(f"SELECT seq, text FROM record WHERE ended_at {state}").fetchall()
    rows = [(seq, index_text(text)) for seq, text in rows]
    db.executemany(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", rows)
db.execute("DROP INDEX record_said")
db.execute("ALTER TABLE record DROP COLUMN session")
db.execute("ALTER TABLE block DROP COLUMN pools")
db.execute("ALTER TABLE record DROP COLUMN state_crc")
db.execute("ALTER TABLE vector DROP COLUMN crc")
db.execute("DELETE FROM meta WHERE name = 'secure'")
db.pragma("user_version", 1)
assert tables(db) == tables(first), tables(db).items() ^ tables(first).items()
"""


@pytest.fixture
def first_schema(path: Path, run_python: RunPython) -> Any:
    """A closed store file of schema 1, with what `seen` told of it before; what later schemas added is taken out."""
    store = SQLiteStore(path, SPACE)
    vectors = unit_vectors(1_100)
    store.append(
        [
            record(f"m{number:04}", text=f"common words w{number}", labels={"who": "ann"}, vectors=vectors[[number]])
            for number in range(1_100)
        ]
    )
    store.append([record("m0000", 2, text="common words again", key="k", labels={"who": "ann", "項目": "値"})])
    store.append([record("b", namespace="bob", text="common words of bob", labels={"who": "bob"}, fields={"n": 1.5})])
    store.patch([Patch(Ref(MEMORY, "ann", "m0001", 1), at(50), "delete", {"mark": 1})])
    store.touch([Ref(MEMORY, "ann", "m0002", 1)] * 3)
    before = [seen(store, pool(name, state=state)) for name in ("ann", "bob") for state in ("live", "ended", "any")]
    store.close()
    run_python(DOWNGRADE, path, Path(sqlite_schema.__file__).parents[2])
    return before


@pytest.mark.parametrize("first_use", ["read", "write", "turn"])
def test_a_file_of_the_first_schema_keeps_everything_and_takes_turns(
    first_schema: Any, path: Path, first_use: str, run_python: RunPython
) -> None:
    store = SQLiteStore(path, SPACE)
    if first_use == "write":
        store.touch([])
    if first_use == "turn":
        store.append([turn(0, text="common words of a turn", labels={"speaker": "Zoë"})])
    after = [seen(store, pool(name, state=state)) for name in ("ann", "bob") for state in ("live", "ended", "any")]
    assert after == first_schema
    assert store.info(pool()).schema_version == KNOWN
    assert store.values(MEMORY, ["ann"], "who") == ["ann"]
    assert store.values(MEMORY, ["ann", "bob"], "who") == ["ann", "bob"]
    assert store.values(MEMORY, ["bob"], "項目") == []
    assert {entry.session for entry in everything(store, pool("ann", "bob"))} == {None}
    store.append([turn(number, text=f"common words of turn {number}") for number in range(1, 4)])
    assert {ref.position for ref in refs_of(matching(store, "common words"))} >= {1, 2, 3}
    assert by_words(store, ["w7"]).keys() == {"m0007"}
    (found,) = store.candidates(pool(), vector=unit_vectors(1_100)[1_050], terms=[], k=1)
    assert found.record.ref.group == "m1050"
    assert list(store.remove([Ref(MEMORY, "bob", "b", 1)])) == [f"{path}.v1.backup"]
    assert store.values(MEMORY, ["bob"], "who") == []
    store.close()
    assert look(path) == [str(KNOWN), "ok"]
    assert look(Path(f"{path}.v1.backup")) == ["1", "ok"]
    assert mode(Path(f"{path}.v1.backup")) == 0o600
    assert run_python(CHECK, path).stdout == "ok\n"


# --- engine and filesystem -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.7.0", False),
        ("3.40.1", False),
        ("3.44.5", False),
        ("3.44.6", True),
        ("3.44.9", True),
        ("3.45.0", False),
        ("3.50.6", False),
        ("3.50.7", True),
        ("3.51.0", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.52.0", True),
        ("3.54.1", True),
        ("4.0.0", True),
    ],
)
def test_only_engines_without_the_wal_reset_bug_are_safe(version: str, safe: bool) -> None:
    assert engine_is_safe(version) is safe


def test_an_unsafe_engine_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(StoreError, match=r"SQLite 3\.40\.1 can lose acknowledged writes"):
        SQLiteStore(path, SPACE)


MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vda /home/ann/local ext4 rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "overlay"),
        ("/tmp/x", "tmpfs"),
        ("/tmpx", "overlay"),
        ("/home", "nfs4"),
        ("/home/ann", "nfs4"),
        ("/home/ann/local/x", "ext4"),
        ("/homes", "overlay"),
        ("/mnt/my share/x", "cifs"),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert filesystem_of(folder, MOUNTS) == kind


def test_no_store_is_made_on_a_network_filesystem(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_place, "filesystem_of", lambda resolved, mounts: "nfs4")
    with pytest.raises(StoreError, match=r"network filesystem \(nfs4\).*MEMORY_HOME"):
        store.append([record("m")])
    assert not path.exists()


# --- the file changes under us ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_goes_while_open_is_noticed(path: Path, store: SQLiteStore, replaced: bool) -> None:
    store.append([record("m")])
    if replaced:
        other = SQLiteStore(path.with_name("other.db"), SPACE)
        other.append([record("other")])
        other.close()
        path.with_name("other.db").rename(path)
    else:
        path.unlink()
    for use in all_uses(store):
        with pytest.raises(StoreDamaged, match="removed or replaced while it was open"):
            use()
    assert path.exists() is replaced


def test_a_log_without_its_file_is_not_taken_for_an_empty_store(path: Path, run_python: RunPython) -> None:
    """The file was removed after its writer was killed; SQLite would replay the log into a new one."""
    run_python(STORE + "add('m'); os._exit(0)", path)
    path.rename(path.with_name("aside"))
    for use in all_uses(SQLiteStore(path, SPACE)):
        with pytest.raises(StoreDamaged, match=r"is gone, but its log memories\.db-wal is still there"):
            use()
    assert not path.exists()
    path.with_name("aside").rename(path)
    store = SQLiteStore(path, SPACE)
    assert store.count(pool()) == 1
    store.close()


def test_a_file_that_was_removed_may_be_made_again_by_a_new_start(path: Path) -> None:
    for name in ("first", "second"):
        store = SQLiteStore(path, SPACE)
        store.append([record(name)])
        assert [entry.ref.group for entry in everything(store, pool())] == [name]
        store.close()
        path.unlink()


def test_a_flipped_byte_in_a_text_is_noticed(path: Path, old: Path) -> None:
    content = old.read_bytes()
    places = [place for place in range(len(content)) if content.startswith(b"common words", place)]
    assert len(places) == 3
    for flip in (0x01, 0x20, 0x80):  # the last makes it no UTF-8
        damaged = bytearray(content)
        damaged[places[1] + 3] ^= flip
        path.write_bytes(damaged)
        store = SQLiteStore(path, SPACE)
        assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["m0", "m2"]
        [finding] = store.damaged.since()
        assert finding.ref == Ref(MEMORY, "ann", "m1", 1)
        assert "restore a backup" in finding.remedy
        store.close()


def test_no_damage_makes_a_wrong_text_or_an_error_of_the_driver(path: Path) -> None:
    """400 single-bit flips anywhere in the file: every read gives texts that were written, or one of our errors."""
    store = SQLiteStore(path, SPACE)
    texts = {f"text number {number} of the store, with some more words" for number in range(40)}
    store.append([record(f"m{at}", text=text, labels={"n": str(at % 3)}) for at, text in enumerate(sorted(texts))])
    store.patch([Patch(Ref(MEMORY, "ann", f"m{number}", 1), None, None, {"a": 1}) for number in range(40)])
    store.close()
    content = path.read_bytes()
    drawn = random.Random(11)
    query = embed("text number 7")[0]
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[drawn.randrange(len(damaged))] ^= 1 << drawn.randrange(8)
        path.write_bytes(damaged)
        store = SQLiteStore(path, SPACE)
        for use in (
            lambda: store.scan(pool(), limit=99),  # noqa: B023 - used before the next turn
            lambda: [found.record for found in store.candidates(pool(), vector=query, terms=["text"], k=50)],  # noqa: B023
            lambda: [use() for use in (*all_uses(store)[1:4], all_uses(store)[5])][:0],  # noqa: B023
        ):
            try:
                assert {entry.text for entry in use()} <= texts
            except MemoriesError:
                refused += 1
        store.close()
    assert refused > 20


# --- forks and threads -----------------------------------------------------------------------------------------------


def test_a_fork_after_opening_works_on_both_sides(path: Path, run_python: RunPython) -> None:
    script = (
        STORE
        + """
add("before")
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        for turn in range(20):
            add(f"child{number}-{turn}")
        assert store.count(mine) > 20
        sys.exit(0)  # an orderly end, at which Python collects what it inherited
    children.append(child)
for turn in range(40):
    add(f"parent-{turn}")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
for turn in range(5):
    add(f"after-{turn}")
print(store.count(mine))
"""
    )
    assert run_python(script, path).stdout == "106\n"
    assert run_python(CHECK, path).stdout == "ok\n"


def test_a_child_that_only_inherits_a_store_leaves_it_alone(path: Path, run_python: RunPython) -> None:
    """It ends in order, while the parent's transaction is open and goes on."""
    script = (
        STORE
        + """
add("before")
with store.transaction():
    add("inside")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add("inside too")
print(store.count(mine), SQLiteStore(path, None).count(mine))
"""
    )
    done = run_python(script, path)
    assert (done.stdout, done.stderr) == ("3 3\n", "")


def test_a_child_that_was_forked_in_the_middle_of_a_use_is_told_so(path: Path, run_python: RunPython) -> None:
    """SQLite would take the parent's locks for its own; the child may go on without that store only."""
    script = (
        STORE
        + """
add("before")
with store.transaction():
    child = os.fork()
    if child == 0:
        for use in (lambda: store.count(mine), lambda: add("child"), lambda: SQLiteStore(path, None).count(mine)):
            try:
                use()
            except StoreError as exc:
                print(exc)
        other = SQLiteStore(path.with_name("other.db"), None)
        other.touch([]); print(other.count(mine), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add("parent")
print(store.count(mine))
"""
    )
    sentence = f"{path} was in use when this process was forked; start processes before, or by spawn"
    assert run_python(script, path).stdout.splitlines() == [sentence, sentence, sentence, "0", "2"]


def test_a_close_while_another_thread_writes_leaves_all_stores_usable(path: Path, run_python: RunPython) -> None:
    """Its connection that is not in use was closed; and a child that was forked then may use other stores."""
    script = (
        STORE
        + """
import threading
from memories.errors import StoreError
add("m")
sound = SQLiteStore(path.with_name("sound.db"), FakeEmbedder.space)
sound.append([Record(Ref(Collection.MEMORY, "ann", "s", 1), "sound", datetime.now(UTC))])
writing, closed = threading.Event(), threading.Event()
def write():
    with store._file.write() as db:
        cursor = db.cursor()
        def held():  # SQLite is inside a statement meanwhile
            writing.set()
            return closed.wait(60)
        db.create_scalar_function("held", held, 0)
        cursor.execute("SELECT held()").fetchall()
thread = threading.Thread(target=write)
thread.start()
assert writing.wait(60)
try:
    store.close()
    print("closed")
except StoreError as exc:
    print(exc, flush=True)
print(store.count(mine), flush=True)
child = os.fork()
if child == 0:
    try:
        print(sound.count(mine), flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
closed.set()
thread.join()
add("n")
print(store.count(mine))
store.close()
"""
    )
    said = run_python(script, path).stdout.splitlines()
    assert "in use by another thread" in said[0]
    assert said[1:] == ["1", "1", "2"]


def test_what_a_child_writes_outlives_its_parent(path: Path, run_python: RunPython) -> None:
    """Were the parent's locks taken for the child's, the last to close would remove the log under the child."""
    script = (
        STORE
        + """
idle = SQLiteStore(path, None)
add("before"); idle.count(mine)
if os.fork():
    store.close(); idle.close()
    Path(sys.argv[2]).touch()
    os.wait()
    print(SQLiteStore(path, None).count(mine))
else:
    add("child")
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    for number in range(5):
        add(f"child-{number}")
    os._exit(0)
"""
    )
    assert run_python(script, path, path.with_name("closed")).stdout == "7\n"


def test_threads_that_ended_leave_no_open_files(store: SQLiteStore) -> None:
    store.append([record("m")])
    for _ in range(30):
        thread = threading.Thread(target=store.count, args=(pool(),))
        thread.start()
        thread.join()
    assert len(store._file._opened) <= 2


# --- erasure ---------------------------------------------------------------------------------------------------------

GREP = """
import sys
from pathlib import Path
for file in sorted(Path(sys.argv[1]).parent.iterdir()):
    content = file.read_bytes() if file.is_file() else b""
    for needle in sys.argv[2:]:
        if bytes.fromhex(needle) in content:
            print(file.name, bytes.fromhex(needle)[:12])
"""


@pytest.mark.parametrize("others", [0, 50])
def test_what_is_removed_leaves_no_byte(path: Path, open_store: OpenStore, others: int, run_python: RunPython) -> None:
    """Nor do its earlier versions, its metadata, its words in the index or its vectors; a second store is open."""
    store, idle = open_store(SPACE), open_store(SPACE)
    store.append([record(f"other{number}", text=f"quite ordinary remark {number}") for number in range(others)])
    texts = ["the quixotrumpelstil word", "then a quixozanzibarel one", "last the quixofandangole"]
    vectors = unit_vectors(4, seed=12)
    for position, text in enumerate(texts, 1):
        if position > 1:
            store.patch(
                [Patch(Ref(MEMORY, "ann", "m", position - 1), at(position), "update", {"mark": "fieldsentinel"})]
            )
        windows = vectors[:2] if position == 1 else vectors[[position]]
        labels = {"labelkeysentinel": f"labelvaluesentinel{position}"}
        store.append([record("m", position, text=text, labels=labels, key="key/sentinel", vectors=windows)])
    assert idle.count(pool()) == others + 1
    codes = [Quantizer(SPACE.dimension).encode(vectors[[number]])[4:36] for number in range(4)]
    needles = [text.encode() for text in texts]
    # The index shares beginnings of words: what shows is a word's end, as its stem.
    needles += [b"umpelstil", b"anzibarel", b"fandangol"]
    needles += [b"fieldsentinel", b"labelkeysentinel", b"labelvaluesentinel", b"key/sentinel", *codes]
    shown = run_python(GREP, path, *(needle.hex() for needle in needles)).stdout
    assert len({line.split(" ", 1)[1] for line in shown.splitlines()}) == len({needle[:12] for needle in needles})
    store.remove([Ref(MEMORY, "ann", "m", position) for position in (1, 2, 3)])
    assert run_python(GREP, path, *(needle.hex() for needle in needles)).stdout == ""
    assert len(search(idle, "quixotrumpelstil ordinary remark", k=100)) == others
    assert run_python(CHECK, path).stdout == "ok\n"


def test_an_erasure_that_a_reader_holds_up_says_so_and_can_be_finished(
    path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.3)
    store, reader = open_store(SPACE), open_store(SPACE)
    store.append([record("m", text="sentinelword"), record("n", text="other")])
    ref = Ref(MEMORY, "ann", "m", 1)
    with reader._file.read() as held:
        held.execute("SELECT * FROM record").fetchall()
        with pytest.raises(StoreBusy, match="forget it again"):
            store.remove([ref])
        assert store.count(pool()) == 1
    store.remove([ref])
    assert run_python(GREP, path, b"sentinelword".hex()).stdout == ""


def test_removing_is_no_part_of_a_transaction(store: SQLiteStore) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="can't be part of a transaction"), store.transaction():
        store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert store.count(pool()) == 1


# --- locks -----------------------------------------------------------------------------------------------------------

HOLD = STORE + "\nwith store.transaction():\n    add('held'); print(os.getpid(), flush=True); sys.stdin.read()"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the middle of a transaction until its standard input is closed."""
    running = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == f"{running.pid}\n"
    yield running
    running.kill()
    running.communicate(timeout=300)


def test_a_busy_store_names_who_keeps_it_busy(
    store: SQLiteStore, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.4)
    said = rf"kept busy by process {holder.pid} for \d+ s; nothing was written; try again"
    with pytest.raises(StoreBusy, match=said):
        store.append([record("m")])


def test_readers_do_not_wait_for_a_writer(
    store: SQLiteStore, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 3600)
    assert store.count(pool()) == 0
    assert search(store, "held") == {}
    thread = threading.Thread(target=store.touch, args=([Ref(MEMORY, "ann", "held", 1)],), daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()  # a writer would wait for an hour


def test_a_writer_that_is_killed_leaves_neither_lock_nor_record(
    store: SQLiteStore, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait(300)
    store.append([record("m")])
    assert [entry.ref.group for entry in everything(store, pool())] == ["m"]


# --- full and read-only disks ----------------------------------------------------------------------------------------

FILL = """
written = []
def fill():
    try:
        for number in range(len(written), 100_000):
            with store.transaction():
                add(f"g{number}", f"text {number} " + "some more words " * 40)
            written.append(f"g{number}")
    except StoreError as exc:
        print(exc)
def kept():
    found = {record.ref.group for record in store.scan(mine, limit=100_000)}
    assert found == set(written), found ^ set(written)
    assert len(store.candidates(mine, vector=FakeEmbedder().embed("text 1")[0], terms=["text"], k=5)) >= 5
"""


def test_a_file_that_may_not_grow_gives_one_sentence(path: Path, run_python: RunPython) -> None:
    """Earlier records stay, and writing goes on when there is room again."""
    script = (
        STORE
        + FILL
        + f"""
import resource
add("g"); written.append("g")
resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, {resource.RLIM_INFINITY}))
fill(); kept()
store.close(); store = SQLiteStore(path, FakeEmbedder.space); kept()
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
add("later"); written.append("later"); kept()
"""
    )
    done = run_python(script, path)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert f"the disk of {path} reported an error" in done.stdout
    assert run_python(CHECK, path).stdout == "ok\n"


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False, timeout=300
    )
    return done.returncode == 0


@pytest.fixture(scope="module")
def mounting() -> None:
    if not _can_mount():
        pytest.skip("may not mount here")


def on_tmpfs(folder: Path, options: str) -> tuple[str, ...]:
    """Return what runs a command with a small filesystem of its own in place of a folder."""
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"', "sh")


@pytest.mark.usefixtures("mounting")
def test_a_full_disk_gives_one_sentence(tmp_path: Path, run_python: RunPython) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = (
        STORE
        + FILL
        + """
(path.parent / "ballast").write_bytes(bytes(200_000))
fill(); kept()
store.close(); store = SQLiteStore(path, FakeEmbedder.space); kept()
fill(); kept()
(path.parent / "ballast").unlink()
add("later"); written.append("later"); kept()
"""
    )
    done = run_python(script, folder / "memories.db", prefix=on_tmpfs(folder, "size=2m,mode=700"))
    assert done.stderr == ""
    sentence = f"the disk of {folder / 'memories.db'} is full; nothing was written; make room and try again\n"
    assert done.stdout == 2 * sentence


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize("options", ["size=64k,mode=700", "size=4k,mode=700", "size=2m,nr_inodes=2,mode=700"])
def test_a_disk_with_no_room_for_a_store_gives_one_sentence(
    tmp_path: Path, options: str, run_python: RunPython
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = STORE + "\ntry:\n    add('m')\nexcept StoreError as exc:\n    print(exc)\nprint(store.count(mine))"
    done = run_python(script, folder / "memories.db", prefix=on_tmpfs(folder, options))
    assert done.stderr == ""
    sentence, count = done.stdout.splitlines()
    assert str(folder / "memories.db") in sentence
    assert count == "0"


READ_ONLY = (
    STORE
    + """
def use(what):
    try:
        print(what())
    except StoreError as exc:
        print("refused:", exc)
use(lambda: [record.text for record in store.scan(mine, limit=9)])
use(lambda: len(store.candidates(mine, vector=FakeEmbedder().embed("note")[0], terms=["note"], k=5)))
use(lambda: store.touch([Ref(Collection.MEMORY, "ann", "m", 1)]))
use(lambda: add("n"))
"""
)


@needs_setpriv
@pytest.mark.parametrize("log_is_left", [False, True])
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o444), (0o755, 0o444), (0o555, 0o644)])
def test_what_may_only_be_read_is_read_or_refused_in_one_sentence(
    tmp_path: Path, folder_mode: int, file_mode: int, log_is_left: bool, run_python: RunPython
) -> None:
    path = tmp_path / "folder" / "memories.db"
    run_python(STORE + f"add('m'); {'os._exit(0)' if log_is_left else 'store.close()'}", path)
    for file in path.parent.iterdir():
        file.chmod(file_mode)
    path.parent.chmod(folder_mode)
    done = run_python(READ_ONLY, path, prefix=AS_PLAIN_USER)
    path.parent.chmod(0o755)
    assert done.stderr == ""
    scanned, searched, touched, added = done.stdout.splitlines()
    refusals = (
        f"refused: {path} or its folder can't be written",
        f"refused: cannot open {path}: it or its folder can't",
    )
    assert (scanned, searched) == ("['note m']", "1") or all(line.startswith(refusals) for line in (scanned, searched))
    assert touched in ("True", "False")  # told, and raised nothing
    if not (log_is_left and file_mode == 0o644):  # else there is nothing left to be made in the folder
        assert added.startswith("refused: ")
        assert str(path) in added


@needs_setpriv
def test_a_folder_that_may_not_be_entered_is_refused_in_one_sentence(tmp_path: Path, run_python: RunPython) -> None:
    path = tmp_path / "folder" / "memories.db"
    run_python(STORE + "add('m')", path)
    path.parent.chmod(0)
    done = run_python(READ_ONLY, path, prefix=AS_PLAIN_USER)
    path.parent.chmod(0o700)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in (*lines[:2], lines[3]):
        assert line == f"refused: cannot use {path}: {os.strerror(errno.EACCES)}"


def test_too_many_open_files_give_one_sentence(path: Path, run_python: RunPython) -> None:
    script = (
        STORE
        + """
import resource
add("m"); store.close()
store = SQLiteStore(path, FakeEmbedder.space)
store.candidates(mine, vector=FakeEmbedder().embed("x")[0], terms=["x"], k=1); store.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
for use in (lambda: store.count(mine), lambda: add("n")):
    try:
        use()
    except StoreError as exc:
        print(exc)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
add("n")
print(store.count(mine))
"""
    )
    done = run_python(script, path)
    assert done.stderr == ""
    *sentences, count = done.stdout.splitlines()
    assert len(sentences) == 2
    assert all(str(path) in sentence and "too many" in sentence.lower() for sentence in sentences)
    assert count == "2"


# --- places that are kept between searches ---------------------------------------------------------------------------


def _all_matches(store: SQLiteStore) -> Any:
    """Return everything that a search of the turns is told, in a form that compares."""
    found = store.matches(turns(), TurnQuery(embed("apple pie")[0], ["apple", "pie"], 10))
    rows = zip(
        found.group.tolist(), found.position.tolist(), found.session.tolist(), found.label.tolist(),
        found.words.round(6).tolist(), found.similarity.round(6).tolist(), found.holds.T.tolist(), strict=True,
    )  # fmt: skip
    return sorted((found.groups[row[0]], row[1:3], found.labels[row[3]].get("who"), *row[4:]) for row in rows)


def test_what_is_kept_between_searches_is_what_a_new_store_sees(path: Path) -> None:
    """Changes by this connection, by another one, by another thread, and ones that are undone."""
    here, there = SQLiteStore(path, SPACE), SQLiteStore(path, SPACE)

    def same() -> Any:
        fresh = SQLiteStore(path, SPACE)
        expected = _all_matches(fresh)
        fresh.close()
        assert _all_matches(here) == _all_matches(there) == expected
        assert _all_matches(here) == expected  # once more, now that it is kept
        return expected

    here.append([turn(number, text="apple", labels={"who": "ann"}) for number in range(5)])
    before = same()
    there.append([turn(5, text="apple pie", labels={"who": "bob"})])
    assert len(same()) == len(before) + 1
    here.append([turn(6, text="pie")])
    same()
    with pytest.raises(ZeroDivisionError), here.transaction():
        here.append([turn(7, text="apple pie, undone")])
        assert len(_all_matches(here)) == 8
        _ = 1 / 0
    assert len(same()) == 7
    thread = threading.Thread(target=lambda: here.append([turn(7, text="apple from a thread")]))
    thread.start()
    thread.join()
    assert len(same()) == 8
    here.patch([Patch(turn(2).ref, at(100), "delete", {})])
    assert len(same()) == 7
    there.remove([turn(3).ref])
    assert len(same()) == 6
    here.close()
    there.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("size", ["140k", "180k", "220k", "260k", "300k"])
def test_a_disk_that_is_full_at_the_first_write_leaves_no_half_made_store(
    size: str, tmp_path: Path, run_python: RunPython
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, timeout=300).returncode:
        pytest.skip("this system mounts nothing")
    writing = "import sys; from memories import Memories; Memories(sys.argv[1], embedder='none').create(sys.argv[2])"
    try:
        run_python(writing, f"sqlite:///{disk}/m.db", "first", check=False)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True, timeout=300)
        run_python(writing, f"sqlite:///{disk}/m.db", "second")
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=300)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("dimension", [384, 256, 6, 7])
def test_vectors_that_are_added_together_have_the_codes_that_each_has_alone(dimension: int, compact: bool) -> None:
    quantizer = Quantizer(dimension, compact=compact)
    given = np.random.default_rng(5).normal(size=(97, 1, dimension)).astype(np.float32)
    given /= np.linalg.norm(given, axis=2, keepdims=True)
    alone = [quantizer.encode(vectors) for vectors in given]
    assert quantizer.encode_each(list(given)) == alone
    windows = np.concatenate(list(given[:3]))
    assert quantizer.encode_each([*given, windows]) == [*alone, quantizer.encode(windows)]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 64])
def test_vectors_get_their_block_whatever_is_written_between_them(step: int) -> None:
    """Memories that come one by one have every second seq: the entries of the log are in between."""
    for start in (1, 2):
        looks = [seq for seq in range(start, start + 6_400 * step, step) if sqlite_vectors._looks(seq, 1)]
        assert 50 < len(looks) < 200
        assert max(np.diff([start, *looks])) < 500 * step


def test_memories_that_come_one_by_one_get_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 32)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 8)
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake", namespace="ann") as memories:
        for n in range(96):
            memories.create(f"note {n}", force=True)
    assert len(tables_of(tmp_path / "m.db")["block"]) in (2, 3)


# --- one by one and together -----------------------------------------------------------------------------------------


def tables_of(path: Path) -> dict[str, list[Any]]:
    """Return every row of every table of a store, and of its words where each stands."""
    db = apsw.Connection(str(path))
    indexes = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING fts5%'")]
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for name in indexes:
        db.execute(f"INSERT INTO {name} ({name}) VALUES ('optimize')")  # into one part: how many writes made it is gone
        db.execute(f"CREATE VIRTUAL TABLE temp.{name}_where USING fts5vocab (main, {name}, instance)")
    # Which write a word came with, and in which part of the index it is, depends on how many writes there were.
    own = {f"{name}_{part}" for name in indexes for part in ("data", "idx", "docsize")} | {*indexes}
    found = {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in names if name not in own}
    for name in indexes:
        found[f"{name}_where"] = sorted(map(repr, db.execute(f"SELECT * FROM temp.{name}_where")))
        pages = db.execute(f"SELECT id & 0x1fffffffff, block FROM {name}_data WHERE id <> 10 ORDER BY id")
        found[f"{name}_data"] = [repr(page) for page in pages]
        found[f"{name}_docsize"] = [repr(row) for row in db.execute(f"SELECT id, sz FROM {name}_docsize ORDER BY id")]
    db.close()
    return found


def mixed(count: int) -> list[Record]:
    """Return records of every kind: both collections, the log, three namespaces, windows, labels, ended, read, none."""
    drawn = random.Random(5)
    vectors = iter(unit_vectors(4 * count))
    words = "vim emacs Zürich 東京 naïve port 8080 the a of x-y_z e\u0301".split()
    found: list[Record] = []
    for n in range(count):
        windows = drawn.choice([1, 1, 1, 2, 3])
        given = np.stack([next(vectors) for _ in range(windows)])
        namespace = drawn.choice(["ann", "bob", "cat"])
        values: dict[str, Any] = {"text": " ".join(drawn.choices(words, k=drawn.randrange(1, 40)))}
        values["vectors"] = drawn.choice([given, given, given, None])
        if n % 11 == 10:
            ref = Ref(Collection.LOG, namespace, "chain", n)
            found.append(Record(ref, values["text"], at(n)))
            continue
        if n % 5 == 4:
            found.append(turn(n, namespace=namespace, **values))
            continue
        values["labels"] = dict(drawn.sample([("team", "web"), ("team2", "é"), ("type", "fact"), ("a", "b")], k=n % 4))
        values["fields"] = {"operation": "create", "n": n}
        values["accesses"] = drawn.choice([0, 0, 3])
        if n % 7 == 0:
            values |= {"ended_at": at(n + 1), "ended_by": "update"}
        elif n % 7 == 1:
            values["key"] = f"key/{n}"
        group = drawn.choice([f"m{n}", f"01a1fdf1-92cd-72f2-8abc-{n:012x}"])
        found.append(record(group, namespace=namespace, created_at=at(n), **values))
    return found


@pytest.mark.parametrize("compact", [False, True])
def test_records_that_are_added_together_leave_the_same_bytes_as_one_by_one(
    tmp_path: Path, compact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 64)
    monkeypatch.setattr(sqlite_schema, "_COUNTED", sqlite_schema._COUNTED.replace("hex(randomblob(16))", "'0'"))
    monkeypatch.setattr("os.urandom", bytes)  # in the id of each commit
    records = mixed(600)
    found = []
    for name, sizes in (("alone", [1] * 600), ("together", [2, 1, 5, 92, 3, 37, 256, 200, 4]), ("all", [600])):
        store = SQLiteStore(tmp_path / f"{name}.db", SPACE, compact=compact)
        left = iter(records)
        with store.transaction():
            for size in sizes:
                store.append(list(itertools.islice(left, size)))
        assert next(left, None) is None
        assert list(store.check(deep=True)) == []
        store.close()
        found.append(tables_of(tmp_path / f"{name}.db"))
    alone, *others = found
    assert len(alone["block"]) > 2
    assert len(alone["words_where"]) > 1_000
    assert {name for name, rows in alone.items() if not rows} == {"staged_vector", "staged_turn_vector"}
    for other in others:
        assert other.keys() == alone.keys()
        for name, rows in alone.items():
            assert other[name] == rows, name


def test_of_records_that_are_added_together_none_is_left_where_one_is_refused(store: SQLiteStore, path: Path) -> None:
    records = mixed(60)
    store.append(records[:20])
    before = tables_of(path)
    for refused in (records[3], record("new", key="key/1", namespace=records[1].ref.namespace)):
        with pytest.raises(Conflict, match=f"of {refused.ref.group} "), store.transaction():
            store.append([*records[20:40], refused, *records[40:]])
    assert tables_of(path) == before
    store.append(records[20:])
    assert list(store.check(deep=True)) == []
