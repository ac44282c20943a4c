"""The words of a SQLite store: each namespace is scored with its own words by the formula,
regardless of other writers.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import (
    HISTORY,
    MEMORY,
    SPACE,
    OpenStore,
    at,
    by_words,
    everything,
    pool,
    record,
    refs_of,
    turn,
    turns,
)
from sqlite_scripts import RunPython

from memories.stores import words
from memories.stores.records import (
    Filter,
    Patch,
    Record,
    Ref,
    TurnQuery,
)
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.query import selection
from memories.stores.sqlite.store import SQLiteStore
from memories.stores.sqlite.words import Postings
from memories.stores.words import score as bm25
from memories.stores.words import tokens_of


def test_rare_words_find_records_in_a_large_store(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words in very many rows are ignored in a large store, unless there are no others."""
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)
    store.append([record(f"m{n:02}", text="weekly report", vectors=None) for n in range(60)])
    store.append([record("rare", text="weekly report zanzibar", vectors=None)])
    assert set(by_words(store, ["weekly", "report", "zanzibar"])) == {"rare"}
    hits = by_words(store, ["weekly", "report"], k=10)
    assert len(hits) == 10
    assert min(set(hits) - {"rare"}) >= "m41"  # only the newest of the matches are ranked


def test_common_words_find_records_with_all_of_them_in_a_large_store(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes old records, and not every record with one of the words is ranked."""
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 30)
    store.append([record("all", text="plan of the weekly report", vectors=None)])
    store.append(
        [record(f"two{n}", text="a weekly report and more of it", vectors=None) for n in range(5)]
    )
    for word in ("plan", "weekly", "report"):
        store.append(
            [
                record(f"{word}{n:03}", text=f"{word} and much more of it", vectors=None)
                for n in range(200)
            ]
        )
    terms = ["plan", "weekly", "report", "missing"]
    hits = by_words(store, terms, k=8)
    assert next(iter(hits)) == "all"
    assert {f"two{n}" for n in range(5)} <= set(by_words(store, terms[1:3], k=8))
    with store._file.read() as db:
        ranked = sqlite_words.search_words(db, Postings(), selection(db, pool()), terms)
    assert len(ranked.scores) <= 30
    assert set(ranked.holders) == set(terms)


def test_common_words_find_records_with_a_rare_label_in_a_large_store(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few records have the label, so few have both, however common the word is."""
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
    results = {
        c.record.ref.group
        for c in store.candidates(pool(labels={"topic": "1"}), vector=None, terms=TOPICS, k=50)
    }
    assert results == {"m001", *(f"m{n:03}" for n in range(0, 40, 5))}


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
    """Return memories and turns with words in several scripts; some have ended, some are empty."""
    drawn = np.random.default_rng(seed)
    entries: list[Record] = []
    for number in range(count):
        given: dict[str, Any] = (
            {"ended_at": at(900), "ended_by": "delete"} if number % 5 == 1 else {}
        )
        given["text"] = " ".join(drawn.choice(DRAWN, size=int(drawn.integers(0, 30))))
        given["labels"] = {"speaker": "Zoë Lee"} if number % 3 else {}
        given["namespace"] = namespaces[number % len(namespaces)]
        given["collection"] = HISTORY if number % 4 < 2 else MEMORY
        entries.append(record(f"g{number}", number, vectors=None, **given))
    return entries


TERMS = [
    "apple",
    "run run",
    "äpf*",
    "日本",
    "cplusplus",
    "a b c de",
    "zoe",
    "zoë lee",
    "xylo*",
    "🚀",
    "*",
    "missing",
]


def _expected(store: SQLiteStore, where: Filter) -> dict[Ref, float]:
    """Return the BM25 scores of `TERMS` by the formula; live and ended records are separate
    corpora.
    """
    entries = everything(store, where)
    results: dict[Ref, float] = {}
    for ended in (False, True):
        corpus = [entry for entry in entries if (entry.ended_at is not None) == ended]
        scores = bm25([tokens_of(entry) for entry in corpus], TERMS).scores.tolist()
        if not ended or where.state != "live":
            results |= {
                entry.ref: value for entry, value in zip(corpus, scores, strict=True) if value
            }
    return results


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))]
)
def test_word_scores_follow_the_formula_after_any_changes(
    open_store: OpenStore, path: Path, seed: int
) -> None:
    """This includes ends, restorations and removals, and any records of other namespaces."""
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
            candidates = store.candidates(where, vector=None, terms=TERMS, k=500)
            assert {one.record.ref: one.word_score for one in candidates} == pytest.approx(
                expected, abs=1e-9
            )
            matches = store.matches(where, TurnQuery(None, TERMS, 500))
            rows = zip(refs_of(matches, where.collection), matches.word_score.tolist(), strict=True)
            assert {ref: words for ref, words in rows if words} == pytest.approx(expected, abs=1e-9)
        entries = [entry for where in filters[::3] for entry in everything(store, where)]
        some = drawn.sample(entries, 20)
        store.patch([Patch(one.ref, None if one.ended_at else at(999), None, {}) for one in some])
        store.remove([one.ref for one in drawn.sample(entries, 8)])


COUNTED = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
rows = db.execute("SELECT * FROM corpus")
counted = {(pool, bool(ended), *numbers) for pool, ended, *numbers in rows}
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


def test_word_counts_of_a_namespace_match_its_records(
    store: SQLiteStore, path: Path, run_python: RunPython
) -> None:
    store.append(_draw(90, 1, "ann", "shared"))
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.append(_draw(40, 2, "bob", "eve"))
        raise ZeroDivisionError
    entries = [
        *everything(store, pool("ann", "shared")),
        *everything(store, turns("ann", "shared")),
    ]
    store.patch(
        [Patch(one.ref, None if one.ended_at else at(999), None, {}) for one in entries[::2]]
    )
    store.remove([one.ref for one in entries[::5]])
    run_python(COUNTED, path)


def _results_of_bob(store: SQLiteStore) -> str:
    """Return the results of all searches in Bob's namespace."""
    told: list[Any] = []
    for where in (pool("bob"), turns("bob"), pool("bob", state="any"), turns("bob", group="talk")):
        for terms in (["deploy", "zebra"], ["deploy"], ["friday", "zeb*"], ["from the"]):
            told.append(store.candidates(where, vector=None, terms=terms, k=10))
            matches = store.matches(where, TurnQuery(None, terms, 10))
            told += [
                refs_of(matches, where.collection),
                matches.word_score.tolist(),
                matches.holds.tolist(),
                matches.searched,
            ]
    return repr(told)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(11_000, marks=pytest.mark.thorough, id="at-its-real-size"),
        pytest.param(150, id="small"),
    ],
)
def test_many_records_in_one_namespace_do_not_hide_records_in_another(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """Its records lie between those of bob in the index and share a word with them."""
    if lines < 10_000:
        monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 100)
        monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)

    def fill(first: int, namespace: str, texts: list[str]) -> None:
        for make in (lambda number, **values: record(f"m{number}", **values), turn):
            numbered = enumerate(texts, first)
            store.append(
                [
                    make(number, namespace=namespace, text=text, vectors=None)
                    for number, text in numbered
                ]
            )

    fill(0, "bob", ["deploy on friday from the branch", "the zebra crosses", "lunch at noon"])
    before = _results_of_bob(store)
    fill(0, "crawler", [f"deploy number {number} of the zebra" for number in range(lines)])
    assert _results_of_bob(store) == before
    assert set(by_words(store, ["deploy", "zebra"], pool("bob"))) == {"m0", "m1"}


def test_a_phrase_that_repeats_in_a_text_is_looked_up_once_when_the_text_is_removed(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking up each repetition would take the square of the text's length."""
    store.append([record("zeros", text="0 " * 64 * 50, vectors=None)])
    fetch, looked_up = sqlite_words.fetch, []

    def observed(db: Any, sql: str, values: Any = ()) -> Any:
        looked_up.extend(values[:1] if "MATCH" in sql else [])
        return fetch(db, sql, values)

    monkeypatch.setattr(sqlite_words, "fetch", observed)
    store.remove([Ref(MEMORY, "ann", "zeros", 1)])
    assert 1 <= len(looked_up) == len(set(looked_up)) <= 3


@pytest.mark.parametrize("read", [lambda: words.tokens("the gates"), lambda: words.parse("gates")])
def test_threads_use_the_tokenizer_one_at_a_time(
    read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    split, alone = words._tokenizer(), []

    def observed(text: str) -> list[str]:
        alone.append(words._lock.locked())
        return split(text)

    monkeypatch.setattr(words, "_tokenizer", lambda: observed)
    read()
    assert alone == [True]
