"""The turns of a SQLite store: a long conversation is searched as exactly as a short one, and
separately from memories.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import (
    HISTORY,
    SPACE,
    at,
    by_words,
    embed,
    holders,
    matching,
    record,
    refs_of,
    search,
    turn,
    turns,
)
from sqlite_scripts import RunPython

from memories.stores.records import (
    Patch,
    Record,
    Ref,
    TurnQuery,
)
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite import words as sqlite_words
from memories.stores.sqlite.store import SQLiteStore
from tables import failed_cases

WORDS = (
    "apple banana cherry date elder fig grape hazel iris juniper kiwi lemon mango nut olive pear "
    "quince"
).split()


def _talk(count: int) -> list[Record]:
    """Return the turns of a conversation of random words."""
    drawn = np.random.default_rng(13)
    return [
        turn(number, text=" ".join(drawn.choice(WORDS, size=6)), session=number // 20 * 20)
        for number in range(count)
    ]


def test_a_long_conversation_gives_the_same_best_turns_as_a_short_one(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks and the word index give the same best turns as a look at all turns."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    store.append([record(f"m{number}", text="apple banana") for number in range(100)])
    for start in range(0, 600, 100):
        store.append(_talk(600)[start : start + 100])

    def check(query: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(sqlite_vectors, "BLOCK_ROWS", 10_000)
            every = matching(store, query, k=20)
            patched.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
            patched.setattr(sqlite_vectors, "EXACT_ROWS", 64)
            best = matching(store, query, k=20)
        assert len(every.group) == 600 > len(best.group) >= 20
        at = {position: row for row, position in enumerate(every.position.tolist())}
        rows = [at[position] for position in best.position.tolist()]
        assert best.word_score == pytest.approx(every.word_score[rows])
        assert best.similarity == pytest.approx(every.similarity[rows])
        assert {term: holders(best, term) for term in best.terms} == {
            term: holders(every, term) for term in every.terms
        }
        tenth = np.sort(every.similarity)[-10]
        assert set(every.position[every.similarity > tenth].tolist()) <= set(best.position.tolist())
        assert set(every.position[every.word_score > 0].tolist()) <= set(best.position.tolist())

    queries = ["apple banana", "cherry date elder", "quince", "olive pear nut mango"]
    assert failed_cases(check, [(query,) for query in queries]) == []


def test_matches_of_a_filter_are_the_same_with_blocks(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 64)
    store.append(_talk(300))
    store.append([turn(entry.ref.position, group="other", text=entry.text) for entry in _talk(300)])
    wheres = [
        turns(group="other"),
        turns(since=at(100), until=at(280)),
        turns(state="any"),
        turns(as_of=at(150)),
    ]
    exact = [matching(store, "cherry date", where, k=10) for where in wheres]
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 32)
    for where, every in zip(wheres, exact, strict=True):
        matches = matching(store, "cherry date", where, k=10)
        assert set(refs_of(matches)) <= set(refs_of(every))
        best = {
            ref
            for ref, similar in zip(refs_of(every), every.similarity, strict=True)
            if similar > 0.7
        }
        assert best
        assert best <= set(refs_of(matches))


def test_turns_and_memories_fill_separate_blocks(
    store: SQLiteStore, path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 50)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 50)
    for number in range(120):
        store.append(
            [record(f"m{number}", text=f"note {number}"), turn(number, text=f"note {number}")]
        )
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
        matches = matching(store, f"note {number}", k=1)
        assert matches.position[int(np.nanargmax(matches.similarity))] == number
    assert "m30" in search(store, "note 30", k=1)


def test_common_words_of_turns_do_not_hide_memories(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_words, "_RANK_ALL_ROWS", 50)
    monkeypatch.setattr(sqlite_words, "_RANK_AT_MOST", 20)
    store.append([record(f"m{number}", text="weekly report") for number in range(30)])
    store.append([record("rare", text="weekly zanzibar")])
    before = by_words(store, ["weekly", "zanzibar"], k=50)
    store.append([turn(number, text="something else") for number in range(50)])
    assert by_words(store, ["weekly", "zanzibar"], k=50) == before


def _steps(store: SQLiteStore, entry: Record) -> int:
    """Append a record; return the number of steps of SQLite's virtual machine."""
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


@pytest.mark.parametrize("memories", [pytest.param(0, marks=pytest.mark.thorough), 1_100])
def test_the_cost_of_an_append_does_not_grow(store: SQLiteStore, memories: int) -> None:
    """SQLite occasionally reorganizes its word index; the median leaves that out."""
    store.append([record(f"m{number}") for number in range(memories)])
    cost = [_steps(store, turn(number, labels={"role": "user"})) for number in range(600)]
    assert float(np.median(cost[-50:])) < 1.2 * float(np.median(cost[10:60]))


def _all_matches(store: SQLiteStore) -> Any:
    """Return all results of a search of turns in a comparable form."""
    matches = store.matches(turns(), TurnQuery(embed("apple pie")[0], ["apple", "pie"], 10))
    rows = zip(
        matches.group.tolist(),
        matches.position.tolist(),
        matches.session.tolist(),
        matches.label.tolist(),
        matches.word_score.round(6).tolist(),
        matches.similarity.round(6).tolist(),
        matches.holds.T.tolist(),
        strict=True,
    )
    return sorted(
        (matches.groups[row[0]], row[1:3], matches.labels[row[3]].get("who"), *row[4:])
        for row in rows
    )


def test_cached_rows_equal_those_of_a_new_store(path: Path) -> None:
    """Tested with changes by this connection, another connection and another thread, and with
    undone changes.
    """
    here, there = SQLiteStore(path, SPACE), SQLiteStore(path, SPACE)

    def same() -> Any:
        fresh = SQLiteStore(path, SPACE)
        expected = _all_matches(fresh)
        fresh.close()
        assert _all_matches(here) == _all_matches(there) == expected
        assert _all_matches(here) == expected  # a second time, from the cache
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
