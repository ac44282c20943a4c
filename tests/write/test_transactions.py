"""A change reads its memory while it excludes other writers, so none can write in between."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import Draft, Memories
from memories.errors import StoreBusy
from memories.read.lookup import Lookup
from memories.stores.logged import LoggedStore
from memories.transfer.export import export
from memories.transfer.importing import _Importer, import_
from memories.write import bulk, create, review, rollback

pytestmark = pytest.mark.usefixtures("home")

FACT = "Deploys happen on Tuesdays"


def import_again(memories: Memories, memory_id: str) -> None:
    """Export all, forget a memory, and import it."""
    lines: list[str] = []
    export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    memories.forget(memory_id)
    import_(memories._store, [line.encode() for line in lines], None, namespaces=None)


@pytest.mark.parametrize(
    ("owner", "reads", "change"),
    [
        pytest.param(Lookup, "find_live", lambda m, one: m.reinforce(one), id="reinforce"),
        pytest.param(
            Lookup, "find_live", lambda m, one: m.update(one, "Deploys are over"), id="update"
        ),
        pytest.param(Lookup, "find_own", lambda m, one: m.delete(one), id="delete"),
        pytest.param(
            bulk,
            "_read_again",
            lambda m, one: m.tag_where("kind = note", tags={"kind": "fact"}),
            id="tag many",
        ),
        pytest.param(
            bulk, "_read_again", lambda m, one: m.delete_where("kind = note"), id="delete many"
        ),
        pytest.param(_Importer, "_select_new", import_again, id="import"),
    ],
)
def test_no_other_writer_can_write_between_read_and_change(
    memories: Memories,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    reads: str,
    change: Callable[[Memories, str], object],
) -> None:
    one = memories.create(FACT, decay="reinforceable", tags={"kind": "note"}).id
    assert one is not None
    other = apsw.Connection(f"{tmp_path}/m.db")
    other.set_busy_timeout(0)
    alone: list[bool] = []
    read = getattr(owner, reads)

    def reading(*given: Any, **named: Any) -> Any:
        try:
            other.execute("BEGIN IMMEDIATE; ROLLBACK")
            alone.append(False)
        except apsw.BusyError:
            alone.append(True)
        return read(*given, **named)

    monkeypatch.setattr(owner, reads, reading)
    change(memories, one)
    other.close()
    assert alone[-1:] == [True]  # only the last read must exclude others


CHANGES: dict[str, Callable[[Memories, list[str]], object]] = {
    "changed": lambda memories, _: memories.tag_where("a = b", tags={"a": "c"}),
    "deleted": lambda memories, _: memories.delete_where("a = b"),
    "rolled back": lambda memories, _: memories.rollback("2020-01-01"),
    "processed": lambda memories, _: memories.create_many([str(n) for n in range(90)]),
    "accepted": lambda memories, ids: memories.review.accept(ids),
    "rejected": lambda memories, ids: memories.review.reject(ids),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_an_error_after_the_first_batch_says_how_much_was_written(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((rollback, "BATCH"), (review, "BATCH_COMPARED"), (review, "PAGE_SIZE")):
        monkeypatch.setattr(module, name, 25)
    monkeypatch.setattr(create, "BATCH_COMPARED", 25)
    monkeypatch.setattr(bulk.in_batches, "__defaults__", (25,))
    begin, calls = LoggedStore.transaction, 0

    @contextlib.contextmanager
    def busy_the_second_time(store: LoggedStore) -> Iterator[None]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreBusy("another program kept it busy; nothing was written; try again")
        with begin(store):
            yield

    with Memories(embedder="none") as memories:
        pending = verb in ("accepted", "rejected")
        ids = [
            created.id
            for created in memories.create_many(
                [Draft(f"fact {n}", tags={"a": "b"}, pending=pending) for n in range(60)],
                force=True,
            )
        ]
        monkeypatch.setattr(LoggedStore, "transaction", busy_the_second_time)
        with pytest.raises(StoreBusy) as raised:
            CHANGES[verb](memories, ids)
    assert str(raised.value) == (
        f"25 records were {verb}, but another program kept it busy; try again"
    )
