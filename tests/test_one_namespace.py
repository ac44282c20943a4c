"""A program that reads one namespace requests and writes only records of that namespace."""

import functools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from changes import CHANGES, chain, moment, talk, waiting
from memories import Draft, Memories
from memories.core.ids import new_id
from memories.scratchpad import refresh
from memories.stores.records import Filter
from memories.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.usefixtures("home")

BY_FILTER = (
    "scan",
    "groups",
    "count",
    "labels",
    "days",
    "candidates",
    "matches",
    "used",
    "refs",
    "info",
)
BY_RECORDS = ("append", "patch", "touch", "remove", "read", "vectors")

ID = new_id(datetime(2026, 6, 1, tzinfo=UTC))

READINGS: dict[str, Callable[[Memories], object]] = {
    "list": lambda m: m.list(),
    "search": lambda m: m.search("deadline"),
    "search of the history": lambda m: m.search("hello", scope="history"),
    "list by a condition": lambda m: m.list(where="updated > 2020-01-01"),
    "duplicates": lambda m: list(m.duplicates()),
    "log": lambda m: m.log(),
    "tags": lambda m: m.tags(),
    "conversations": lambda m: m.conversations(),
    "a conversation": lambda m: m.conversation("talk"),
    "turns": lambda m: m.turns("talk"),
    "last turns": lambda m: m.tail_turns("talk"),
    "what waits": lambda m: m.review.select(),
    "scratchpad": lambda m: m.scratchpad(),
    "a new scratchpad": lambda m: m.scratchpad(rebuild=True),
    "a scratchpad without a file": lambda m: refresh.read_store(
        m._scratchpads._editor("bob"), m._scratchpads._rules()
    ),
    "storing again what was stored": lambda m: [
        m.create_many([Draft("Ann plays", id=ID)]) for _ in range(2)
    ],
    "rollback": lambda m: m.rollback(moment(m) - timedelta(days=1), dry_run=True),
}


def refs(given: Iterable[Any]) -> set[str]:
    """Return the namespaces of records, patches or refs."""
    return {getattr(each, "ref", each).namespace for each in given}


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The namespaces of all requests to stores."""
    namespaces_asked: set[str] = set()

    def noting(name: str, namespaces: Callable[[Any], Iterable[str]]) -> None:
        method = getattr(SQLiteStore, name)

        @functools.wraps(method)
        def noted(store: SQLiteStore, given: Any, *more: Any, **named: Any) -> Any:
            namespaces_asked.update(namespaces(given))
            return method(store, given, *more, **named)

        monkeypatch.setattr(SQLiteStore, name, noted)

    def of_filter(where: Filter) -> Iterable[str]:
        return where.namespaces

    for name in BY_FILTER:
        noting(name, of_filter)
    for name in BY_RECORDS:
        noting(name, refs)
    return namespaces_asked


def open_bob(folder: Path) -> Memories:
    """Open the memories of bob, without the shared ones."""
    return Memories(f"sqlite:///{folder}/m.db", embedder="fake", namespace="bob").without_shared()


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"move a namespace"}))
def test_a_change_requests_only_its_own_namespace(
    tmp_path: Path, requested: set[str], name: str
) -> None:
    prepare, change = CHANGES[name]
    with open_bob(tmp_path) as memories:
        change(memories, prepare(memories))
    assert requested == {"bob"}


@pytest.mark.parametrize("name", READINGS)
def test_a_read_requests_only_the_namespace_that_it_reads(
    tmp_path: Path, requested: set[str], name: str
) -> None:
    with open_bob(tmp_path) as memories:
        chain(memories)
        waiting(memories)
        talk(memories)
        READINGS[name](memories)
    assert requested == {"bob"}
