"""All kinds of work on a store, with a ledger of acknowledged operations, and checks of the store
against ledgers.

A writer adds a line to its ledger before each operation and another after it. After a kill, the
ledger therefore shows what must be stored, and the one operation that may be stored, completely or
not at all.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memories import Memories, NotFound
from memories.stores.sqlite.store import SQLiteStore

State = tuple[str, str]  # live, deleted or gone; and the content
GONE: State = ("gone", "")
_LOG = "SELECT id FROM pool WHERE collection = 'log'"
_FTS = "SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE%fts5%'"


class Writer:
    """Does random operations until it is killed."""

    def __init__(self, path: Path, ledger: Path, seed: object) -> None:
        self._drawn = random.Random(f"{seed} {ledger}")
        self._note = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._memories = Memories(f"sqlite:///{path}", embedder="fake")
        self._by = ledger.name
        self._live: dict[str, str] = {}
        self._deleted: dict[str, str] = {}

    def run(self, times: int | None = None) -> None:
        """Do operations, without end if no number is given."""
        works: list[Callable[[], None]] = [
            self._create, self._create, self._create, self._bulk, self._update, self._delete, self._restore,
            self._forget, self._turns, self._search, self._search,
        ]  # fmt: skip
        while times is None or times > 0:
            self._drawn.choice(works)()
            times = None if times is None else times - 1

    def _text(self) -> str:
        return (
            f"{self._drawn.randbytes(12).hex()} of {self._by} "
            + "with more words " * self._drawn.randrange(40)
        )

    def _logged(
        self, kind: str, ids: Sequence[str], texts: Sequence[str], work: Callable[[], Sequence[str]]
    ) -> None:
        self._log(["begin", kind, ids, texts])
        self._log(["end", work()])

    def _log(self, entry: object) -> None:
        os.write(self._note, f"{json.dumps(entry)}\n".encode())

    def _create(self) -> None:
        self._write([self._text()])

    def _bulk(self) -> None:
        self._write([self._text() for _ in range(self._drawn.randint(2, 120))])

    def _write(self, texts: list[str]) -> None:
        def work() -> list[str]:
            from memories import Draft

            drafts = [Draft(text, tags={"by": self._by}) for text in texts]
            made = [
                each.memory.id
                for each in self._memories.create_many(drafts, force=True)
                if each.memory
            ]
            self._live |= dict(zip(made, texts, strict=True))
            return made

        self._logged("create", [], texts, work)

    def _chosen(self, among: dict[str, str]) -> str | None:
        return self._drawn.choice(list(among)) if among else None

    def _update(self) -> None:
        if memory_id := self._chosen(self._live):
            text = self._text()
            self._logged(
                "update", [memory_id], [text], lambda: [self._memories.update(memory_id, text).id]
            )
            self._live[memory_id] = text

    def _delete(self) -> None:
        if memory_id := self._chosen(self._live):
            self._logged("delete", [memory_id], [], lambda: [self._memories.delete(memory_id).id])
            self._deleted[memory_id] = self._live.pop(memory_id)

    def _restore(self) -> None:
        if memory_id := self._chosen(self._deleted):
            self._logged("restore", [memory_id], [], lambda: [self._memories.restore(memory_id).id])
            self._live[memory_id] = self._deleted.pop(memory_id)

    def _forget(self) -> None:
        if memory_id := self._chosen(self._live):
            self._logged("forget", [memory_id], [], lambda: [self._memories.forget(memory_id).id])
            del self._live[memory_id]

    def _turns(self) -> None:
        texts = [self._text() for _ in range(self._drawn.randint(1, 30))]
        self._logged(
            "turns",
            [],
            texts,
            lambda: [turn.id for turn in self._memories.add_turns(self._by, texts)],
        )

    def _search(self) -> None:
        if memory_id := self._chosen(self._live):
            found = [hit.id for hit in self._memories.search(self._live[memory_id], limit=5)]
            assert memory_id in found, (self._live[memory_id], found)


class Ledger:
    """The expected contents of a store according to one writer's ledger.

    Attributes:
        may: The allowed states of each memory: one, or two if a change was interrupted.
        turns: The turns that must be stored.
        perhaps: The turns that it was storing when it was killed.
        open_creates: The number of memories that it was creating when it was killed.
        acknowledged: The number of acknowledged memories and turns.
        forgotten: The first words of memories that must be erased.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.name
        self.may: dict[str, tuple[State, ...]] = {}
        self.turns: list[str] = []
        self.perhaps: list[str] = []
        self.open_creates = 0
        self.acknowledged = 0
        self.forgotten: list[str] = []
        *lines, _cut = (
            file.read_text().split("\n") if file.exists() else [""]
        )  # a kill can interrupt a long line
        entries = list(map(json.loads, lines))
        for begun, ended in zip(entries[::2], [*entries[1::2], None], strict=False):
            self._take(begun, None if ended is None else ended[1])

    def _take(self, begun: Any, ended: list[str] | None) -> None:
        _, kind, ids, texts = begun
        if kind == "turns":
            self.turns += texts if ended is not None else []
            self.perhaps = texts if ended is None else []
            self.acknowledged += 0 if ended is None else len(texts)
        elif kind == "create" and ended is None:
            self.open_creates = len(texts)
        elif kind == "create":
            self.may |= {
                memory_id: (("live", text),)
                for memory_id, text in zip(ended or [], texts, strict=True)
            }
            self.acknowledged += len(texts)
        else:
            (before,) = self.may[ids[0]]
            after = (
                GONE
                if kind == "forget"
                else ("deleted" if kind == "delete" else "live", (texts or before[1:])[0])
            )
            self.may[ids[0]] = (after,) if ended is not None else (before, after)
            self.acknowledged += ended is not None
            if kind == "forget" and ended is not None:
                self.forgotten.append(before[1].split()[0])


def check(path: Path, ledgers: Sequence[Ledger], drawn: random.Random) -> None:
    """Check that everything acknowledged is stored, that nothing is half stored, and that writing
    works.
    """
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        for ledger in ledgers:
            for memory_id, allowed in ledger.may.items():
                assert (found := state(memories, memory_id)) in allowed, (
                    ledger.name,
                    memory_id,
                    found,
                    allowed,
                )
            said = [turn.content for start in range(0, 100_000, 1000)
                    for turn in (memories.turns(ledger.name, start=start, limit=1000) if start <= len(ledger.turns)
                                 else [])]  # fmt: skip
            assert said in (turns := [ledger.turns, ledger.turns + ledger.perhaps]), (said, turns)
            known = sum(allowed[0][0] == "live" for allowed in ledger.may.values())
            tagged = (
                memories.tags("by").get(ledger.name, 0) if ledger.may or ledger.open_creates else 0
            )
            unclear = sum(len(allowed) > 1 for allowed in ledger.may.values())
            assert tagged - known in {*range(-unclear, unclear + 1), ledger.open_creates}, (
                ledger.name,
                tagged,
                known,
            )
        live = [
            allowed[0] for ledger in ledgers for allowed in ledger.may.values() if len(allowed) == 1
        ]
        live = [each for each in live if each[0] == "live"]
        for _, text in drawn.sample(live, min(5, len(live))):
            assert text in (found := [hit.content for hit in memories.search(text, limit=5)]), (
                text,
                found,
            )
        memories.create("the store can still be written", force=True)


def state(memories: Memories, memory_id: str) -> State:
    """Return the stored state of a memory."""
    try:
        last = memories.history(memory_id).versions[-1]
    except NotFound:
        return GONE
    return ("deleted" if last.ended_by == "delete" else "live"), last.content


def check_file(path: Path) -> None:
    """Check that the whole file is sound, and that every record has its words and its vectors, in a
    block or not.
    """
    store = SQLiteStore(path, None)
    with store._file.write() as db:
        assert db.pragma("integrity_check") == "ok"
        words = 0
        for (table,) in db.execute(_FTS).fetchall():
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
            words += db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
        records, vectors, turns = (
            db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
            for table in (f"record WHERE pool NOT IN ({_LOG})", "vector", "turn_vector")
        )
        assert records == words == vectors + turns, (records, words, vectors, turns)
        for table, count in (("block", vectors), ("turn_block", turns)):
            # a vector of the fake embedder has 64 bits
            sealed = f"SELECT coalesce(sum(length(bits) / 8), 0) FROM {table}"
            assert db.execute(sealed).fetchall()[0][0] <= count
    assert list(store.check(deep=True)) == []
    store.close()


def check_nothing_left(path: Path, ledgers: Sequence[Ledger]) -> None:
    """Check that the file and its log contain no forgotten word. The end of each is searched for,
    since an index cuts off beginnings.
    """
    ends = [word[-12:].encode() for ledger in ledgers for word in ledger.forgotten]
    for file in (path, Path(f"{path}-wal")):
        content = file.read_bytes() if file.exists() else b""
        assert not [end for end in ends if end in content], file
