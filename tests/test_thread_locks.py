"""Threads read and change shared data only under its lock."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import Memories
from memories.core import ids
from memories.core.deadline import Deadline, MemoryTimeout
from memories.core.http import Address, JsonClient
from memories.embedders import e5, minilm
from memories.scratchpad.mirror import Mirror
from memories.stores import words
from memories.stores.damage import Damaged, damaged_record
from memories.stores.records import Collection, Ref
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite.connection import SQLiteFile
from memories.stores.sqlite.query import ReadCache
from memories.write.accesses import Accesses

REF = Ref(Collection.MEMORY, "bob", "id", 1)


class Labelled(dict[int, Any]):
    """The windows of each label, with the lock that guards their changes."""

    _lock: threading.Lock


def use_of_damage(_folder: Path, watch: Callable[..., None]) -> None:
    """Record a finding of damage, query it, and clear it."""
    damaged = Damaged()
    watch(damaged, "_lock", "_findings")
    damaged.note(damaged_record(REF, "torn"))
    assert len(damaged.since()) == 1
    damaged.remove(lambda ref: ref == REF)
    assert damaged.since() == ()


def use_of_ids(_folder: Path, watch: Callable[..., None]) -> None:
    """Create two ids in one millisecond."""
    counter = ids._Counter()
    watch(counter, "_lock", "_last")
    assert counter.next(7) < counter.next(7)


def use_of_reads(folder: Path, watch: Callable[..., None]) -> None:
    """Query the number of waiting reads."""
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


def use_of_a_read_cache(_folder: Path, watch: Callable[..., None]) -> None:
    """Cache a value for a connection, and look it up."""
    kept: ReadCache[str, int] = ReadCache(2)
    watch(kept, "_lock", "_cached")
    db = apsw.Connection(":memory:")
    kept.current(db)["a"] = 1
    assert kept.current(db) == {"a": 1}


def use_of_calls_with_a_deadline(_folder: Path, watch: Callable[..., None]) -> None:
    """Make two calls in time and two late ones, and close."""
    deadline, is_over = Deadline(300), threading.Event()
    watch(deadline, "_lock", "_idle", "_abandoned", "_is_closed")
    assert [deadline.run(len, "ab"), deadline.run(len, "abc")] == [2, 3]
    deadline.seconds = 0
    with pytest.raises(MemoryTimeout):
        deadline.run(is_over.wait)
    with pytest.raises(MemoryTimeout, match="earlier call"):
        deadline.run(len, "ab")
    is_over.set()
    deadline.close()


def use_of_connections_to_a_server(_folder: Path, watch: Callable[..., None]) -> None:
    """Open the pool of connections, and close it."""
    client = JsonClient(Address("A server", "127.0.0.1", 1, tls=False))
    watch(client, "_lock", "_pool")
    client._open_pool()
    client.close()


def use_of_models(_folder: Path, watch: Callable[..., None]) -> None:
    """Load each model that runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for module, kind in ((minilm, minilm.MiniLM), (e5, e5.E5)):
            patch.setattr(module, "_load_model", lambda: ("tokenizer", "session"))
            model = kind()
            watch(model, "_lock", "_loaded")
            assert model._load() == ("tokenizer", "session")


def use_of_vectors(folder: Path, watch: Callable[..., None]) -> None:
    """Read vectors inside and outside of blocks."""
    with Memories(f"sqlite:///{folder}/m.db", embedder="fake") as memories:
        memories.create("The gate is green")
        store = memories._raw_store
        with store._file.read() as db:  # type: ignore[attr-defined]
            vectors = store._vectors.index(db, Collection.MEMORY)  # type: ignore[attr-defined]
            watch(vectors, "_lock", "_blocks", "_epoch", "_newest")
            vectors._load_blocks(db)
            vectors._load_newest(db, 0)


def use_of_labels_of_vectors(folder: Path, watch: Callable[..., None]) -> None:
    """Look up vectors by two labels; only one of them is cached."""
    with Memories(f"sqlite:///{folder}/m.db", embedder="fake") as memories:
        memories.create("The gate is green")
        store = memories._raw_store
        with store._file.read() as db, pytest.MonkeyPatch.context() as patch:  # type: ignore[attr-defined]
            patch.setattr(sqlite_vectors, "_MAX_LABELLED", -1)
            vectors = store._vectors.index(db, Collection.MEMORY)  # type: ignore[attr-defined]
            labelled = Labelled()
            labelled._lock = vectors._lock
            watch(labelled, "_lock", "pop")
            blocks = vectors._load_blocks(db)._replace(labelled=labelled)
            for label in (1, 2):
                vectors._find_labelled_windows(db, blocks, label)
        assert [*labelled] == [2]


def use_of_pending_scratchpad_changes(_folder: Path, watch: Callable[..., None]) -> None:
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
        use_of_pending_scratchpad_changes,
        use_of_damage,
        use_of_ids,
        use_of_reads,
        use_of_connections,
        use_of_a_read_cache,
        use_of_calls_with_a_deadline,
        use_of_connections_to_a_server,
        use_of_models,
        use_of_vectors,
        use_of_labels_of_vectors,
    ],
)
def test_shared_data_is_used_only_under_its_lock(
    tmp_path: Path, use: Callable[[Path, Callable[..., None]], None]
) -> None:
    touched: list[bool] = []

    def watch(shared: Any, lock: str, *names: str) -> None:
        kind = type(shared)

        class Watched(kind):  # type: ignore[misc, valid-type]
            """The same class, which records whether the lock is held when one of the names is
            used.
            """

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


def test_threads_use_the_tokenizer_of_a_connection_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokenizer belongs to a connection, which threads can't use at the same time."""
    tokenizer = words._tokenizer()
    held: list[bool] = []

    def noted() -> Callable[[str], list[str]]:
        held.append(words._lock.locked())
        return tokenizer

    monkeypatch.setattr(words, "_tokenizer", noted)
    assert words.tokens("green gates") == ["green", "gate"]
    assert words.parse("gate") is not None
    assert held == [True, True]
