"""Caches between searches: an open store has the results of a newly opened one."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from contract import MEMORY, SPACE, at, by_words, pool, record

from memories.stores.records import Patch, Ref
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.query import ReadCache, selection
from memories.stores.sqlite.store import SQLiteStore
from memories.stores.sqlite.words import Postings
from opening import opening

WORDS = ("apple", "pear", "plum", "fig", "a well-known", "kiwi", "kiwis")
OpenStore = Callable[[], SQLiteStore]


@pytest.fixture
def open_store(path: Path) -> Iterator[OpenStore]:
    """Opens the store of `path`."""
    with opening(lambda: SQLiteStore(path, SPACE)) as open_store:
        yield open_store


def results(store: SQLiteStore, *, where: object = None) -> list[dict[str, float]]:
    """Return the results and scores of some queries: single words, phrases, prefixes and several
    words.
    """
    queries = [
        ["apple"],
        ["well-known", "fig"],
        ["ki*", "plum"],
        ["apple", "pear", "plum", "fig", "kiwi"],
        ["none"],
    ]
    return [by_words(store, terms, where, k=40) for terms in queries]  # type: ignore[arg-type]


def labelled(store: SQLiteStore) -> dict[str, dict[str, str]]:
    """Return the labels of each group."""
    return {entry.ref.group: dict(entry.labels) for entry in store.scan(pool(), limit=1_000)}


def test_counting_a_read_does_not_clear_the_search_cache(open_store: OpenStore) -> None:
    store = open_store()
    store.append([record("m1", text="apple")])
    cache: ReadCache[str, int] = ReadCache(10)
    for number in range(3):
        with store._file.read() as db:
            cache.current(db).setdefault("apple", number)
        assert store.touch([Ref(MEMORY, "ann", "m1", 1)])
    with store._file.read() as db:
        assert cache.current(db) == {"apple": 0}
    store.append([record("m2", text="pear")])
    with store._file.read() as db:
        assert cache.current(db) == {}


@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_searches_see_the_writes_of_any_connection(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """This includes a namespace so large that the counting of common words stops early."""
    if large:
        monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 20)
        monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 15)
    dice = random.Random(5)
    ours, theirs = open_store(), open_store()
    live: dict[str, Ref] = {}
    for step in range(22):
        writer = dice.choice((ours, theirs))
        change = dice.random()
        if change < 0.6 or len(live) < 10:
            texts = {
                f"m{step:02}{n}": " ".join(dice.choices(WORDS, k=dice.randint(1, 9)))
                for n in range(3)
            }
            records = [
                record(group, text=text, labels={"kind": f"kind {step % 7}"}, vectors=None)
                for group, text in texts.items()
            ]
            writer.append(records)
            live |= {entry.ref.group: entry.ref for entry in records}
        elif change < 0.75:
            writer.remove([live.pop(dice.choice(list(live)))])
        elif change < 0.9:
            writer.patch([Patch(live.pop(dice.choice(list(live))), at(9), "delete", {})])
        else:
            assert writer.touch(list(live.values())[:3])
        fresh = open_store()
        expected = (
            results(fresh),
            results(fresh, where=pool(labels={"kind": "kind 1"})),
            labelled(fresh),
        )
        fresh.close()
        for store in (ours, theirs):
            assert (
                results(store),
                results(store, where=pool(labels={"kind": "kind 1"})),
                labelled(store),
            ) == expected


def test_rolled_back_writes_are_not_cached(open_store: OpenStore) -> None:
    store = open_store()
    store.append([record("one", text="apple and pear", labels={"kind": "old"}, vectors=None)])
    before = results(store)
    with pytest.raises(RuntimeError), store.transaction():
        store.append(
            [record("two", text="apple apple apple", labels={"kind": "new"}, vectors=None)]
        )
        assert set(by_words(store, ["apple"])) == {"one", "two"}
        assert labelled(store)["two"] == {"kind": "new"}
        raise RuntimeError
    assert results(store) == before
    store.append(
        [record("three", text="a pear, a fig and an apple", labels={"kind": "other"}, vectors=None)]
    )
    assert results(store) == results(open_store())
    assert labelled(store) == {"one": {"kind": "old"}, "three": {"kind": "other"}}


def test_a_repair_by_another_process_invalidates_the_cache(
    open_store: OpenStore, path: Path
) -> None:
    """The index had words of a different text for a record, so another length."""
    store = open_store()
    store.append(
        [record(f"m{n}", text=f"apple pear fig {'plum ' * n}", vectors=None) for n in range(4)]
    )
    right = results(store)
    db = apsw.Connection(str(path))
    [(seq, number)] = db.execute("SELECT seq, pool FROM record WHERE grp = 'm1'").fetchall()
    db.execute("DELETE FROM words_docsize WHERE id = ?", (seq,))
    db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (seq, f"{number}zappl " * 30))
    db.close()
    other = open_store()
    assert results(other) != right
    assert open_store().repair()
    assert results(other) == right


def test_a_large_store_limits_the_cached_counts_of_terms(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.stores.sqlite.words._MAX_COUNTS", 10)
    store, postings = open_store(), Postings()
    store.append([record(f"m{n}", text=f"word{n}", vectors=None) for n in range(50)])
    for first in range(0, 50, 5):
        with store._file.read() as db:
            terms = [f"word{n}" for n in range(first, first + 5)]
            assert (
                len(sqlite_words.search_words(db, postings, selection(db, pool()), terms).scores)
                == 5
            )
            assert len(postings.snapshot(db).counts) <= 15
