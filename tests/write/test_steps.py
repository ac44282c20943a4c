"""A change reads and writes in one transaction, in which it first reads everything that its
decision depends on.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from changes import CHANGES
from memories import Memories
from memories.stores.records import SEARCHED
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export
from memories.write.bulk import moment_after
from memories.write.rollback import _has_time

pytestmark = pytest.mark.usefixtures("home")

READS = ("scan", "read", "count", "refs", "candidates", "unstaged")


class Steps(list[list[str]]):
    """Lists of the reads and writes of each transaction, in order, and of those between
    transactions.
    """

    def __init__(self) -> None:
        """Begin outside of a transaction."""
        super().__init__()
        self.depth = 0

    def add(self, step: str) -> None:
        """Add a step."""
        if not self.depth:
            self.append([])
        self[-1].append(step)

    @property
    def writing(self) -> list[list[str]]:
        """The transactions in which records were written."""
        return [steps for steps in self if "write" in steps]


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Yield the steps of stores during the block."""
    steps = Steps()
    transaction = SQLiteStore.transaction

    @contextlib.contextmanager
    def noted_transaction(store: SQLiteStore) -> Iterator[None]:
        with transaction(store):
            if not steps.depth:
                steps.append([])
            steps.depth += 1
            try:
                yield
            finally:
                steps.depth -= 1

    def noting(name: str, step: Callable[[Any], str]) -> None:
        method = getattr(SQLiteStore, name)

        def noted(store: SQLiteStore, given: Any, *more: Any, **named: Any) -> Any:
            if said := step(given):
                steps.add(said)
            return method(store, given, *more, **named)

        monkeypatch.setattr(SQLiteStore, name, noted)

    def is_write(given: Any) -> str:
        """Return whether records other than log entries are written."""
        return "write" if any(each.ref.collection in SEARCHED for each in given) else ""

    with monkeypatch.context():
        monkeypatch.setattr(SQLiteStore, "transaction", noted_transaction)
        for name in READS:
            noting(name, lambda _: "read")
        for name in ("append", "patch"):
            noting(name, is_write)
        noting("stage", lambda _: "write")
        noting("switch", lambda _: "write")
        yield steps


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_one_transaction_that_begins_with_a_read(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare, change = CHANGES[name]
    given = prepare(memories)
    with watched(monkeypatch) as steps:
        change(memories, given)
    assert [each[0] for each in steps.writing] == ["read"]


def test_an_export_reads_everything_in_one_transaction(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories.create_many(["The gate is green", "Rain is expected"])
    lines: list[str] = []
    with watched(monkeypatch) as steps:
        export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    assert len(lines) == 4
    assert [set(each) for each in steps if each] == [{"read"}]


@pytest.mark.parametrize(
    ("seconds", "later"),
    [(0.001, False), (0, True), (-1, True), (-60, True), (-60.001, False)],
)
def test_a_time_shortly_before_the_last_change_is_moved_to_just_after_it(
    seconds: float, later: bool
) -> None:
    last = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with Memories(embedder="none", namespace="bob", clock=lambda: last) as memories:
        now = last + timedelta(seconds=seconds)
        assert moment_after(memories._store, "bob", now) == now
        memories.create("The gate is green")
        expected = last + timedelta(milliseconds=1) if later else now
        assert moment_after(memories._store, "bob", now) == expected


@pytest.mark.parametrize(
    ("memory_id", "has_time"),
    [
        ("019de368-f600-7abc-8000-000000000000", True),
        ("019de368-0ba0-7abc-8000-000000000000", True),
        ("019de368-0b9f-7abc-8000-000000000000", False),
        ("019de368-f600-4abc-8000-000000000000", False),
        ("019de368-f600-7abc-8000-00000000000", False),
        ("zzzzzzzz-b400-7abc-8000-000000000000", False),
        ("note", False),
    ],
)
def test_an_id_has_a_time_only_if_it_is_close_to_the_time_of_writing(
    memory_id: str, has_time: bool
) -> None:
    written_at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert _has_time(memory_id, written_at) is has_time
