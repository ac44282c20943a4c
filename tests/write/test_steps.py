"""What a change reads and writes: all in one transaction, and what it decides by is read in that
transaction first.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from changes import CHANGES
from memories import Memories
from memories.stores.records import SEARCHED
from memories.stores.sqlite.store import SQLiteStore
from memories.transfer.export import export

pytestmark = pytest.mark.usefixtures("home")

READS = ("scan", "read", "count", "refs", "candidates", "unstaged")


class Steps(list[list[str]]):
    """Transactions in order, each a list of what was read and written in it; what came outside of
    one is one too.
    """

    def __init__(self) -> None:
        """Begin outside of a transaction."""
        super().__init__()
        self.depth = 0

    def add(self, step: str) -> None:
        """Note a step."""
        if not self.depth:
            self.append([])
        self[-1].append(step)

    @property
    def writing(self) -> list[list[str]]:
        """Those transactions in which records were written."""
        return [steps for steps in self if "write" in steps]


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Yield the steps that stores take until the end of the block."""
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
        """Return what it is to write these; entries of the log are none of it."""
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
def test_a_change_is_one_transaction_that_first_reads_what_it_decides_by(
    memories: Memories, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare, change = CHANGES[name]
    given = prepare(memories)
    with watched(monkeypatch) as steps:
        change(memories, given)
    assert [each[0] for each in steps.writing] == ["read"]


def test_an_export_is_of_one_moment(memories: Memories, monkeypatch: pytest.MonkeyPatch) -> None:
    memories.create_many(["The gate is green", "Rain is expected"])
    lines: list[str] = []
    with watched(monkeypatch) as steps:
        export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    assert len(lines) == 4
    assert [set(each) for each in steps if each] == [{"read"}]
