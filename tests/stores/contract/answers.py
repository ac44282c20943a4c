"""The same calls of `Memories` get the same answers as from a SQLite store."""

import random
import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clock import Clock
from contract.samples import OpenStore
from memories import Memories
from memories.errors import MemoriesError
from memories.stores import Store
from memories.stores.sqlite.store import SQLiteStore

CALLS = 40
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
TEXTS = [f"{name} lives in {city}" for name in ("Ann", "Bert") for city in ("Rome", "Paris")]
TEXTS += [
    f"The {name} server listens on port {port}" for name in ("mail", "web") for port in "1234"
]
_MAPPING = re.compile(r"\{[^{}]*\}")
WHERE = ("type = fact", "not type = fact", "colour or version > 1", "is deleted", "content ~ Ann")


def _sorted(mapping: re.Match[str]) -> str:
    """Return a mapping's items in order; a store may return them in any order."""
    return " ".join(sorted(mapping[0].strip("{}").split(", ")))


class Calls:
    """Makes random calls; the same seed makes the same calls.

    Attributes:
        answers: The answers and errors as text, with numbers in place of ids.
    """

    def __init__(self, store: Store, seed: int, *, scores: bool) -> None:
        """Open the memories of `ann`; `scores` says whether word scores are compared too."""
        self._drawn, self._clock, self._ids = random.Random(seed), Clock(), [""]
        self._memories = Memories(store, namespace="ann", embedder="none", clock=self._clock)
        self._scores = scores
        self.answers: list[str] = []

    def run(self) -> list[str]:
        """Make the calls, and return the answers."""
        calls = (self._create, self._create, self._change, self._change_many, self._read)
        for _ in range(CALLS):
            self._clock.move(timedelta(minutes=self._drawn.choice((0, 1, 600))))
            call = self._drawn.choice(calls)()
            try:
                answer = str(call())
            except MemoriesError as exc:
                answer = f"{type(exc).__name__}: {exc}"
            for memory_id in _ID.findall(answer):
                if memory_id not in self._ids:
                    self._ids.append(memory_id)
            answer = _ID.sub(lambda found: f"#{self._ids.index(found[0])}", answer)
            self.answers.append(_MAPPING.sub(_sorted, answer))
        return self.answers

    def _tags(self) -> dict[str, str]:
        return self._drawn.choice(({}, {"type": "fact"}, {"colour": "red", "type": "rule"}))

    def _create(self) -> Callable[[], object]:
        text, tags = self._drawn.choice(TEXTS), self._tags()
        key, pending = self._drawn.choice((None, None, "user/city")), self._drawn.random() < 0.1

        def create() -> object:
            created = self._memories.create(text, tags=tags, key=key, pending=pending)
            similar = created.similar_to if self._scores else ()
            return created.stored, created.memory, created.corrects, created.merged, similar

        return create

    def _change(self) -> Callable[[], object]:
        memory_id, text = self._drawn.choice(self._ids), self._drawn.choice(TEXTS)
        memories: Any = self._memories
        name = self._drawn.choice(
            ("update", "delete", "restore", "forget", "pin", "get", "history")
        )
        if name == "update":
            return lambda: memories.update(memory_id, text, tags={"colour": "blue"})
        if name == "forget":
            return lambda: memories.forget(memory_id).versions
        return lambda: getattr(memories, name)(memory_id)

    def _change_many(self) -> Callable[[], object]:
        memories, where = self._memories, self._drawn.choice(WHERE)
        then = self._clock.now - timedelta(hours=self._drawn.choice((1, 24)))
        calls: tuple[Callable[[], object], ...] = (
            lambda: memories.delete_where(where),
            lambda: memories.tag_where(where, tags={"size": "large"}),
            lambda: memories.rollback(then),
            lambda: memories.add_turns("standup", [where]),
        )
        return self._drawn.choice(calls)

    def _read(self) -> Callable[[], object]:
        memories, where = self._memories, self._drawn.choice(WHERE)
        sort = self._drawn.choice((None, "updated", "version", "accesses"))
        then = self._clock.now - timedelta(hours=self._drawn.choice((1, 24)))
        calls: list[Callable[[], object]] = [
            lambda: memories.list(where=where, sort=sort),
            lambda: memories.list(as_of=then, limit=3),
            lambda: (memories.tags("type"), memories.namespaces(), memories.turns("standup")),
        ]
        if self._scores:
            calls.append(lambda: memories.search(where, scope="all"))
        return self._drawn.choice(calls)


class Answers:
    """A store answers like SQLite."""

    exact_scores = True  # a store that estimates word scores sets it to False

    @pytest.mark.parametrize("seed", range(2))
    def test_calls_return_the_same_answers_as_with_sqlite(
        self, open_store: OpenStore, tmp_path: Path, seed: int
    ) -> None:
        with closing(SQLiteStore(tmp_path / "same.db", None)) as sqlite:
            expected = Calls(sqlite, seed, scores=self.exact_scores).run()
        answers = Calls(open_store(None), seed, scores=self.exact_scores).run()
        for number, answer in enumerate(answers):
            assert answer == expected[number]
