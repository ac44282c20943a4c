"""The queue on disk: concurrent use loses no entry, and the entries of a conversation stay in
order.
"""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memories import MCPError, load_config
from memories.core.disk import locked
from memories.write.turn_queue import QueueFull, RetryQueue, files_of

Step = Callable[[], object]


def filled_queue(path: Path, count: int) -> RetryQueue:
    """Return a queue with entries of one group."""
    queue = RetryQueue(path, group="c")
    for number in range(count):
        queue.add({"n": number, "c": "a"})
    return queue


def numbers(queue: RetryQueue) -> list[int]:
    """Return the numbers of the entries."""
    return [entry["n"] for entry in queue.entries()]


def all_but_the_first_fail(entry: dict[str, Any]) -> None:
    """Accept the first entry only."""
    if entry["n"]:
        raise MCPError("full")


def refuse(_entry: object) -> None:
    """Refuse every entry for good."""
    raise ValueError("never")


def in_threads(*steps: Step) -> None:
    """Run steps in parallel threads; raise the error of any of them."""
    errors: list[BaseException] = []

    def run(step: Step) -> None:
        try:
            step()
        except BaseException as exc:  # noqa: BLE001 - raised below
            errors.append(exc)

    running = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(300)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("length", [65_534, 65_535, 65_536, 131_071])
def test_a_new_entry_replaces_only_a_half_written_line(tmp_path: Path, length: int) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl")
    queue.add({"n": 0, "text": "x" * 200_000})
    queue.add({"n": 1})
    with queue.path.open("ab") as file:
        file.write(b"x" * length)  # like a crash during a write, around the size of a block
    queue.add({"n": 2})
    assert numbers(queue) == [0, 1, 2]


def test_the_queue_is_private_and_keeps_only_complete_lines(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "deep" / "er" / "q.jsonl")
    assert (bool(queue), queue.entries(), queue.drain(print).done) == (False, [], 0)  # type: ignore[comparison-overlap]
    queue.add({"text": "first\n\u2028 line"})
    assert stat.S_IMODE(queue.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(queue.path.parent.stat().st_mode) == 0o700
    with queue.path.open("ab") as file:
        file.write(b'{"text": "half' * 9)  # like a crash during a write
    assert queue.entries() == [{"text": "first\n\u2028 line"}]
    queue.add({"text": "x" * 200_000})
    queue.add({"text": "third"})
    seen: list[Any] = []
    with queue.path.open("ab") as file:
        file.write(b"damaged\n[]\n")
    assert queue.drain(seen.append).done == 3
    assert [entry["text"][:5] for entry in seen] == ["first", "xxxxx", "third"]
    assert not queue
    assert queue.path.with_name("q.jsonl.refused").read_bytes() == b"damaged\n[]\n"
    assert queue.refused_count() == 2


def test_a_queue_can_be_filled_to_the_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled_queue(tmp_path / "q.jsonl", 2)
    monkeypatch.setattr("memories.write.turn_queue.MAX_BYTES", queue.path.stat().st_size // 2 * 3)
    queue.add({"n": 2, "c": "a"})
    with pytest.raises(QueueFull):
        queue.add({"n": 3, "c": "a"})
    assert numbers(queue) == [0, 1, 2]


def test_a_queue_with_only_a_half_written_line_is_empty(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl")
    queue.path.write_bytes(b'{"text": "half')
    assert queue.drain(pytest.fail).done == 0
    assert not queue.path.exists()


def test_a_damaged_line_is_refused_once(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl")
    queue.path.write_bytes(b'damaged\n{"n": 1}\n')

    def fail(_entry: dict[str, Any]) -> None:
        raise MCPError("full")

    for _ in range(3):
        assert queue.drain(fail).done == 0
    assert queue.path.read_bytes() == b'{"n": 1}\n'
    assert queue.path.with_name("q.jsonl.refused").read_bytes() == b"damaged\n"


def test_a_failing_entry_holds_up_only_its_own_conversation(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl", group="c")
    for number in range(9):
        queue.add({"n": number, "c": "abc"[number % 3]})
    seen = []

    def not_four(entry: dict[str, Any]) -> None:
        if entry["n"] == 4:
            raise MCPError("full")
        seen.append(entry["n"])

    drained = queue.drain(not_four)
    assert (seen, drained.done, list(drained.failed)) == ([0, 1, 2, 3, 5, 6, 8], 7, ["b"])
    assert [entry["n"] for entry in queue.entries()] == [4, 7]
    assert queue.drain(seen.append, before="a").done == 2


def test_draining_stops_without_a_connection_or_after_many_failures(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl", group="c")
    for number in range(9):
        queue.add({"n": number, "c": str(number)})
    seen = []

    def fail(entry: dict[str, Any]) -> None:
        seen.append(entry["n"])
        raise MCPError("full") if entry["n"] else ConnectionError("gone")

    with pytest.raises(ConnectionError):
        queue.drain(fail)
    queue.discard("0")
    assert (queue.drain(fail).done, seen) == (0, [0, 1, 2, 3])
    assert len(queue.entries()) == 8


def test_entries_can_be_added_during_a_drain(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl", group="c")
    queue.add({"n": 0, "c": "a"})
    inside, others = threading.Event(), threading.Event()

    def slowly(_entry: dict[str, Any]) -> None:
        inside.set()
        assert others.wait(300)

    draining = threading.Thread(target=queue.drain, args=(slowly,))
    draining.start()
    assert inside.wait(300)
    queue.add({"n": 1, "c": "a"})
    assert queue.drain(pytest.fail).done == 0
    others.set()
    draining.join()
    assert queue.entries() == [{"n": 1, "c": "a"}]


# --- concurrent use


def test_a_second_drain_loses_no_entry_added_in_the_meantime(tmp_path: Path) -> None:
    """A drain removes entries by their positions: if another drain had removed some, it would
    remove others.
    """
    queue = filled_queue(tmp_path / "q.jsonl", 2)
    inside, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def slowly(entry: dict[str, Any]) -> None:
        inside.set()
        assert go_on.wait(300)
        seen.append(entry["n"])

    def second() -> None:
        try:
            assert inside.wait(300)
            queue.drain(lambda entry: seen.append(entry["n"]))
            for number in (2, 3):
                queue.add({"n": number, "c": "a"})
        finally:
            go_on.set()

    in_threads(lambda: queue.drain(slowly), second)
    assert seen == [0, 1]
    assert numbers(queue) == [2, 3]


@pytest.mark.parametrize("before", [None, "a"])
def test_concurrent_drains_and_adds_keep_the_order(tmp_path: Path, before: str | None) -> None:
    queue, most = filled_queue(tmp_path / "q.jsonl", 0), 60
    seen: list[tuple[str, int]] = []
    added = threading.Event()

    def add(group: str) -> None:
        for number in range(most):
            queue.add({"n": number, "c": group})

    def drain() -> None:
        while not added.is_set() or queue:
            queue.drain(lambda entry: seen.append((entry["c"], entry["n"])), before=before)

    def adders() -> None:
        try:
            in_threads(lambda: add("a"), lambda: add("b"))
        finally:
            added.set()

    in_threads(drain, drain, drain, adders)
    for group in "ab":
        assert [number for each, number in seen if each == group] == list(range(most))


def test_entries_added_during_a_rewrite_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled_queue(tmp_path / "q.jsonl", 2)
    adders: list[threading.Thread] = []
    fsync = os.fsync

    def slow_fsync(fd: int) -> None:
        """Flush while another thread adds an entry or waits for the lock."""
        monkeypatch.setattr(os, "fsync", fsync)
        adders.append(threading.Thread(target=queue.add, args=({"n": 2, "c": "a"},)))
        adders[0].start()
        adders[0].join(0.3)
        fsync(fd)

    def deal_with(entry: dict[str, Any]) -> None:
        all_but_the_first_fail(entry)
        monkeypatch.setattr(os, "fsync", slow_fsync)

    assert queue.drain(deal_with).done == 1
    [adder] = adders
    adder.join(300)
    assert numbers(queue) == [1, 2]


def test_adding_waits_for_another_process_that_changes_the_file(
    tmp_path: Path, clean_environment: Mapping[str, str]
) -> None:
    queue = filled_queue(tmp_path / "q.jsonl", 1)
    script = """
import sys
from pathlib import Path
from memories.write.turn_queue import RetryQueue, files_of
print("ready", flush=True)
RetryQueue(Path(sys.argv[1]), "c").add({"n": 1, "c": "a"})
"""
    command = [sys.executable, "-c", script, str(queue.path)]
    with locked(queue.path.with_name("q.jsonl.lock")):
        adding = subprocess.Popen(
            command, env=dict(clean_environment), stdout=subprocess.PIPE, text=True
        )
        assert adding.stdout is not None
        assert adding.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            adding.wait(0.5)
        assert numbers(queue) == [0]
    assert adding.communicate(timeout=300) == ("", None)
    assert (adding.returncode, numbers(queue)) == (0, [0, 1])


def test_draining_does_not_wait_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memories.write.turn_queue.GROUP_SECONDS", 0.1)
    queue = filled_queue(tmp_path / "q.jsonl", 1)
    with locked(queue.path.with_name("q.jsonl.drain.lock")):
        assert queue.drain(pytest.fail, before="a").done == 0
        assert queue.drain(pytest.fail, before="another").done == 0
    assert numbers(queue) == [0]


# --- on the disk


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bytes]]:
    """The flushes to disk: inode, size, and for a folder the names in it."""
    found: list[tuple[int, int, bytes]] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        known = os.fstat(fd)
        names = (
            b"\n".join(sorted(map(os.fsencode, os.listdir(fd))))
            if stat.S_ISDIR(known.st_mode)
            else b""
        )
        found.append((known.st_ino, known.st_size, names))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_an_added_entry_is_on_disk(tmp_path: Path, flushed: list[tuple[int, int, bytes]]) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl")
    for number in range(2):
        queue.add({"n": number})
        known = queue.path.stat()
        assert (known.st_ino, known.st_size, b"") in flushed  # with its complete content
    folder = tmp_path.stat().st_ino
    assert [b"q.jsonl" in names.split(b"\n") for inode, _, names in flushed if inode == folder] == [
        True
    ]


def test_a_rewrite_is_on_disk_before_it_replaces_the_queue(
    tmp_path: Path, flushed: list[tuple[int, int, bytes]]
) -> None:
    queue = filled_queue(tmp_path / "q.jsonl", 3)
    flushed.clear()
    queue.drain(all_but_the_first_fail)
    known, folder = queue.path.stat(), tmp_path.stat().st_ino
    assert numbers(queue) == [1, 2]
    assert (known.st_ino, known.st_size, b"") in flushed
    assert flushed[-1][0] == folder
    assert b"q.jsonl" in flushed[-1][2].split(b"\n")


def test_a_refused_entry_is_on_disk_before_it_leaves_the_queue(
    tmp_path: Path, flushed: list[tuple[int, int, bytes]]
) -> None:
    queue = filled_queue(tmp_path / "q.jsonl", 1)
    flushed.clear()
    queue.drain(refuse)
    known = queue.refused.stat()
    assert flushed[0][:2] == (known.st_ino, known.st_size)
    assert not queue.path.exists()
    assert b"q.jsonl" not in flushed[-1][2].split(b"\n")


# --- discarding


def test_a_conversation_is_discarded_from_all_files_and_others_stay(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl")
    for group in ("a", "ab", "caf\u00e9"):
        queue.add({"conversation_id": group, "text": f"refused {group}"})
    queue.drain(refuse)
    for group in ("caf\u00e9", "a", "ab"):
        queue.add({"conversation_id": group, "text": f"waits {group}"})
    with queue.refused.open("ab") as file:
        file.write(
            b'{"conversation_id": "a", "text": "damaged\n'
            b'{"conversation_id": "ab", "text": "damaged\n'
        )
    assert [queue.discard(group) > 0 for group in ("a", "caf\u00e9", "a", "none")] == [
        True,
        True,
        False,
        False,
    ]
    assert queue.entries() == [{"conversation_id": "ab", "text": "waits ab"}]
    kept = [
        {"conversation_id": "ab", "text": "refused ab"},
        '{"conversation_id": "ab", "text": "damaged',
    ]
    assert queue.refused.read_text() == f"{json.dumps(kept[0])}\n{kept[1]}\n"


def test_discarding_during_a_drain_removes_no_other_entries(tmp_path: Path) -> None:
    queue = RetryQueue(tmp_path / "q.jsonl", group="c")
    for number, group in enumerate("abb"):
        queue.add({"n": number, "c": group})
    inside, go_on = threading.Event(), threading.Event()

    def slowly(entry: dict[str, Any]) -> None:
        inside.set()
        assert go_on.wait(300)
        all_but_the_first_fail(entry)

    def discard() -> None:
        assert inside.wait(300)
        releasing = threading.Timer(0.2, go_on.set)
        releasing.start()
        assert queue.discard("a") == 0  # it was handled before
        releasing.join()

    in_threads(lambda: queue.drain(slowly), discard)
    assert numbers(queue) == [1, 2]


def test_discarding_nothing_creates_no_file(tmp_path: Path) -> None:
    assert RetryQueue(tmp_path / "none" / "q.jsonl").discard("a") == 0
    assert not (tmp_path / "none").exists()


def test_a_queue_is_beside_a_store_that_is_one_file(tmp_path: Path) -> None:
    config = load_config({"store": f"sqlite:///{tmp_path}/a.db"}, environment={})
    assert files_of(config, "ann") == (tmp_path, "a.db.ann")


@pytest.mark.parametrize(
    ("store", "other", "same"),
    [
        ("postgresql://ann:old@h:5432/d", "postgresql://bob:new@H:5432/d?sslmode=require", True),
        ("postgresql://h/d", "postgresql://h/e", False),
        ("postgresql://h/d", "postgresql://h/d?schema=x", False),
        ("chroma://h:8000", "chroma://:key@h:8000/memories", True),
        ("chroma://h:8000/a", "chroma://h:8000/b", False),
        ("files:///a", "files:///b", False),
    ],
)
def test_a_queue_belongs_to_a_store_and_not_to_a_login(
    tmp_path: Path, store: str, other: str, same: bool
) -> None:
    first, second = (
        load_config({"home": str(tmp_path), "store": url}, environment={}) for url in (store, other)
    )
    assert (files_of(first, "ann") == files_of(second, "ann")) is same
    assert files_of(first, "ann")[0] == tmp_path
    assert files_of(first, "ann") != files_of(first, "bob")
    named = load_config(
        {"home": str(tmp_path), "store": "chroma://h"}, environment={"COLLECTION_NAME": "other"}
    )
    plain = load_config({"home": str(tmp_path), "store": "chroma://h"}, environment={})
    assert files_of(named, "ann") != files_of(plain, "ann")
