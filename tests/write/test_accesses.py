"""Reads are counted later, each once, and a read never waits for the count."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memories import Memories
from memories.core import disk
from memories.stores import open_store
from memories.stores.records import Collection, Filter, Record, Ref
from memories.write import accesses
from memories.write.accesses import Accesses

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def memories() -> Iterator[Memories]:
    """Memories as the command opens them."""
    with Memories(embedder="none", channel="cli") as found:
        yield found


def create_memory(memories: Memories, content: str = "the sky is blue") -> str:
    """Create a memory; return its id."""
    found = memories.create(content).id
    assert found is not None
    return found


def read_count(memory_id: str) -> int:
    """Return the read count of a memory in the store."""
    with Memories(embedder="none") as other:
        [record] = other._store.scan(
            Filter(Collection.MEMORY, ("shared",), group=memory_id), limit=9
        )
        return record.accesses


def queued_files(home: Path) -> list[Path]:
    """Return the files of reads that haven't been counted yet."""
    return sorted([*home.glob("accesses-*.jsonl"), *home.glob("accesses-*.taken")])


def test_a_read_writes_nothing_into_the_store(memories: Memories, home: Path) -> None:
    one = create_memory(memories)
    before = {path: path.stat().st_mtime_ns for path in home.glob("memories.db*")}
    for _ in range(3):
        memories.get(one)
        memories.search("sky")
    assert {path: path.stat().st_mtime_ns for path in home.glob("memories.db*")} == before
    assert read_count(one) == 0
    [file] = queued_files(home)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        [["shared", one, 1]]
    ] * 6
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "how", ["create", "update", "delete another", "move another", "status", "transaction", "close"]
)
def test_the_next_write_counts_reads(home: Path, how: str) -> None:
    with Memories(embedder="none") as memories:
        one, other = create_memory(memories), create_memory(memories, "grass is green")
        for _ in range(3):
            memories.get(one)
        if how == "create":
            memories.create("something else")
        elif how == "update":
            memories.update(other, "grass is yellow")
        elif how == "delete another":
            memories.delete(other)
        elif how == "move another":
            memories.move([other], "bob")
        elif how == "status":
            memories.status()
        elif how == "transaction":
            with memories.transaction():
                memories.create("something else")
                assert len(queued_files(home)) == 1
        assert how == "close" or queued_files(home) == []
    assert queued_files(home) == []
    assert read_count(one) == 3


def test_a_read_counts_many_waiting_reads(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = create_memory(memories)
    monkeypatch.setattr(accesses, "FLUSH_BYTES", 500)
    for _ in range(50):
        memories.get(one)
    assert 40 <= read_count(one) <= 50


def test_a_log_of_reads_has_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [Ref(Collection.MEMORY, "shared", "a", 1)]
    line = len(b'[["shared","a",1]]\n')
    monkeypatch.setattr(accesses, "FLUSH_BYTES", 2 * line)
    monkeypatch.setattr(accesses, "MAX_BYTES", 3 * line)
    waiting = accesses.Accesses(tmp_path, "store")
    assert [waiting.add(refs) for _ in range(5)] == [False, False, True, True, True]
    assert waiting.of(refs) == [3]
    read = Record(refs[0], "the gate is open", datetime(2026, 5, 1, tzinfo=UTC), accesses=2)
    assert [each.accesses for each in waiting.include_waiting([read])] == [
        4
    ]  # all except the last read
    assert [
        each.accesses
        for each in waiting.include_waiting([read._replace(ref=refs[0]._replace(group="b"))])
    ] == [1]
    assert [
        each.accesses
        for each in accesses.Accesses(tmp_path, "b").include_waiting([read._replace(accesses=0)])
    ] == [0]


def test_the_number_of_waiting_reads_is_bounded(
    memories: Memories, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = create_memory(memories)
    monkeypatch.setattr(accesses, "MAX_BYTES", 500)
    for _ in range(50):
        memories.get(one)
    [file] = queued_files(home)
    assert file.stat().st_size < 600


def test_reads_during_a_write_are_answered_at_once_and_counted_later(
    memories: Memories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accesses, "FLUSH_BYTES", 1)
    one, inside, go_on = create_memory(memories), threading.Event(), threading.Event()

    def write() -> None:
        with Memories(embedder="none") as other, other.transaction():
            other.create("something else")
            inside.set()
            go_on.wait(60)

    writer = threading.Thread(target=write)
    writer.start()
    assert inside.wait(60)
    assert [memories.get(one).content for _ in range(5)] == ["the sky is blue"] * 5
    assert read_count(one) == 0
    go_on.set()
    writer.join()
    memories.status()
    assert read_count(one) == 5


def test_reads_work_in_a_read_only_home(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as first:
        one = create_memory(first)
        config = first.config._replace(home=file / "home")
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", config=config) as memories:
        assert memories.get(one).content == "the sky is blue"
        assert memories.status().memory_count == 1


@pytest.mark.parametrize("step", ["before it is counted", "after it is counted"])
def test_an_interrupted_batch_is_counted_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with Memories(embedder="none", channel="cli") as memories:
        one = create_memory(memories)
        for _ in range(4):
            memories.get(one)

        def cut_short(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            if step.startswith("before"):
                patched.setattr(type(memories._raw_store), "touch", cut_short)
            else:
                patched.setattr(Path, "unlink", cut_short)
            memories.status()
        assert [path.suffix for path in queued_files(home)] == [".taken"]
        memories.get(one)  # this read waits for the next batch
        memories.status()
        memories.status()
    assert queued_files(home) == []
    assert read_count(one) == 5


def test_foreign_lines_are_ignored(memories: Memories, home: Path) -> None:
    one = create_memory(memories)
    memories.get(one)
    [file] = queued_files(home)
    line = file.read_text()
    unknown = json.dumps([["shared", "none", 1]])
    file.write_text(f'7\n{line}[["a"]]\n{unknown}\nnull\n{{}}\n{line}[["shared"')
    memories.status()
    assert queued_files(home) == []
    assert read_count(one) == 2


def test_reads_are_recorded_per_store(home: Path, tmp_path: Path) -> None:
    with (
        Memories(embedder="none", channel="cli") as here,
        Memories(f"sqlite:///{tmp_path}/other.db", embedder="none", channel="cli") as there,
    ):
        one, other = create_memory(here), create_memory(there)
        here.get(one)
        there.get(other)
        assert len(queued_files(home)) == 2
        there.status()
        assert [read_count(one), len(queued_files(home))] == [0, 1]
        there.close()
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/other.db", None)) as store:
        assert [
            each.accesses for each in store.scan(Filter(Collection.MEMORY, ("shared",)), limit=9)
        ] == [1]


def test_many_stores_share_one_lock_file(home: Path, tmp_path: Path) -> None:
    """An earlier version created a lock for each store, which left thousands in a folder of many
    stores.
    """
    home.mkdir(parents=True, exist_ok=True)
    former = [home / f"accesses-{number:08x}.lock" for number in range(3)]
    for lock in former:
        lock.touch()
    with disk.try_lock(former[0], 0):  # like a program of that version during a count
        for number in range(4):
            url = f"sqlite:///{tmp_path}/{number}.db"
            with Memories(url, embedder="none", channel="cli") as memories:
                memories.get(create_memory(memories))
                memories.status()
        assert [path for path in former if path.exists()] == former[:1]
    assert queued_files(home) == []
    assert {path.name for path in home.glob("accesses*")} == {former[0].name, "accesses.lock"}


_READER = """
import sys
from memories import Memories
memories = Memories(embedder="none", channel="cli")
for number in range(100_000):
    memories.get(sys.argv[1])
    print(number + 1, flush=True)
    if number % 3 == 2:
        memories.flush_accesses()
"""


def test_a_killed_reader_neither_loses_nor_duplicates_counts(
    memories: Memories, clean_environment: Mapping[str, str], home: Path
) -> None:
    one, told, rounds = create_memory(memories), 0, 8
    environment = {**clean_environment, "MEMORY_HOME": str(home)}
    for number in range(rounds):
        with subprocess.Popen(
            [sys.executable, "-c", _READER, one], env=environment, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            for _ in range(5 + number):
                reader.stdout.readline()
            os.kill(reader.pid, signal.SIGKILL)
            told += 5 + number + len(reader.stdout.readlines())
    memories.status()
    assert queued_files(home) == []
    assert told <= read_count(one) <= told + rounds  # a kill may follow a read before it is printed


def test_readers_and_flushes_of_many_threads_count_each_read_once(home: Path) -> None:
    with Memories(embedder="none", channel="cli") as memories:
        one = create_memory(memories)

        def read() -> None:
            for number in range(40):
                memories.get(one)
                if number % 10 == 9:
                    memories.flush_accesses()

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        memories.status()
    assert queued_files(home) == []
    assert read_count(one) == 160


def test_no_file_is_created_without_waiting_reads(tmp_path: Path) -> None:
    waiting = Accesses(tmp_path / "home", "somewhere")
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        waiting.flush(memories._store)
    assert not (tmp_path / "home").exists()


def test_access_counts_include_waiting_reads_of_all_processes(
    memories: Memories, home: Path
) -> None:
    """Of a known file only the new part is read; a file that replaced it is read from the
    beginning.
    """
    one, other = (
        Ref(Collection.MEMORY, "shared", create_memory(memories, text), 1)
        for text in ("a sky", "a meadow")
    )
    place = str(home / "memories.db")
    ours, theirs = Accesses(home, place), Accesses(home, place)
    assert ours.of([one, other]) == [0, 0]
    ours.add([one, other])
    theirs.add([one])
    assert ours.of([one, other]) == theirs.of([one, other]) == [2, 1]
    [file] = queued_files(home)
    with file.open("ab") as stream:
        stream.write(b'[["shared",')  # an unfinished line
    assert ours.of([one, other]) == [2, 1]
    content = file.read_bytes()
    file.write_bytes(b'[["shared","another",1]]\n' * 40 + content[: content.rfind(b"\n") + 1])
    assert ours.of([one, other]) == [2, 1]
    theirs.flush(memories._store)
    assert ours.of([one, other]) == [0, 0]
    ours.add([other])
    assert ours.of([one, other]) == theirs.of([one, other]) == [0, 1]


def test_reads_that_cannot_be_recorded_are_not_counted(tmp_path: Path) -> None:
    ref = Ref(Collection.MEMORY, "shared", "m", 1)
    (tmp_path / "file").touch()
    waiting = Accesses(tmp_path / "file", "store")
    assert not waiting.add([ref])
    assert waiting.of([ref]) == [0]


def test_closing_and_statistics_count_waiting_reads() -> None:
    with Memories(embedder="none", channel="http") as memories:
        one = create_memory(memories)
        memories.get(one)
        assert read_count(one) == 0
        assert [used.access_count for used in memories.stats().most_used] == [1]
        assert read_count(one) == 1
        memories.get(one)
    assert read_count(one) == 2
