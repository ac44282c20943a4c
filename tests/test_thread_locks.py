"""What threads share is looked at and changed under its lock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import Memories
from memories.core import ids
from memories.scratchpad.mirror import Mirror
from memories.stores.damage import Damaged, damaged_record
from memories.stores.records import Collection, Ref
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.query import ReadCache
from memories.write.accesses import Accesses

REF = Ref(Collection.MEMORY, "bob", "id", 1)


def use_of_damage(_folder: Path, watch: Callable[..., None]) -> None:
    """Note something damaged, ask for it, and forget it."""
    damaged = Damaged()
    watch(damaged, "_lock", "_findings")
    damaged.note(damaged_record(REF, "torn"))
    assert len(damaged.since()) == 1
    damaged.forget(lambda ref: ref == REF)
    assert damaged.since() == ()


def use_of_ids(_folder: Path, watch: Callable[..., None]) -> None:
    """Make two ids of one millisecond."""
    counter = ids._Counter()
    watch(counter, "_lock", "_last")
    assert counter.next(7) < counter.next(7)


def use_of_reads(folder: Path, watch: Callable[..., None]) -> None:
    """Ask how many reads wait."""
    accesses = Accesses(folder, "store")
    accesses.add([REF])
    watch(accesses, "_lock", "_counted")
    assert accesses.of([REF]) == [1]


def use_of_connections(folder: Path, watch: Callable[..., None]) -> None:
    """Open a file and close it."""
    with Memories(f"sqlite:///{folder}/m.db", embedder="none") as memories:
        memories.create("The gate is green")
    file = SQLiteFile(folder / "m.db")
    watch(file, "_opened_lock", "_opened")
    with file.read():
        pass
    file._close_connections()


def use_of_what_is_kept(_folder: Path, watch: Callable[..., None]) -> None:
    """Keep something of a connection, and look it up."""
    kept: ReadCache[str, int] = ReadCache(2)
    watch(kept, "_lock", "_cached")
    db = apsw.Connection(":memory:")
    kept.current(db)["a"] = 1
    assert kept.current(db) == {"a": 1}


def use_of_what_a_scratchpad_waits_for(_folder: Path, watch: Callable[..., None]) -> None:
    """Remember memories, and write them into the scratchpad."""
    with Memories(namespace="bob", embedder="none") as memories:
        assert isinstance(memories._scratchpads.mirror, Mirror)
        watch(memories._scratchpads.mirror, "_lock", "_waiting", "_undescribed")
        for number in range(3):
            memories.create(f"Rain falls on day {number}", force=True)
        memories._scratchpads.flush()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "use",
    [
        use_of_what_a_scratchpad_waits_for,
        use_of_damage,
        use_of_ids,
        use_of_reads,
        use_of_connections,
        use_of_what_is_kept,
    ],
)
def test_threads_take_turns(
    tmp_path: Path, use: Callable[[Path, Callable[..., None]], None]
) -> None:
    touched: list[bool] = []

    def watch(shared: Any, lock: str, *names: str) -> None:
        kind = type(shared)

        class Watched(kind):  # type: ignore[misc, valid-type]
            """The same, which notes whether the lock is held when one of the names is used."""

            def __getattribute__(self, asked: str) -> Any:
                if asked in names:
                    touched.append(object.__getattribute__(self, lock).locked())
                return super().__getattribute__(asked)

            def __setattr__(self, asked: str, value: Any) -> None:
                if asked in names:
                    touched.append(object.__getattribute__(self, lock).locked())
                super().__setattr__(asked, value)

        shared.__class__ = Watched

    use(tmp_path, watch)
    assert touched
    assert all(touched)
