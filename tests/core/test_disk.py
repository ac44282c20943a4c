"""Locks that several processes share."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from memories.core import disk
from memories.core.disk import try_lock

WAITER = """
import sys
from pathlib import Path
from memories.core.disk import try_lock
path, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with try_lock(path, seconds) as held:
    with open(path.with_name("order"), "a") as order:
        order.write(f"{name} {held}\\n")
"""


def waiting(path: Path) -> int:
    """Return how many range locks are held on a file, one for each waiter."""
    inode = f":{path.stat().st_ino} "
    counts = [-1, -2]
    while len(set(counts[-3:])) > 1:  # a line may be skipped while other processes lock and unlock
        locks = Path("/proc/locks").read_text().splitlines()
        counts.append(sum("OFDLCK" in line and inode in line for line in locks))
    return counts[-1]


def start(path: Path, name: str, seconds: float = 300) -> subprocess.Popen[bytes]:
    """Start a process that waits for a lock; return once it is waiting."""
    before = waiting(path)
    running = subprocess.Popen([sys.executable, "-c", WAITER, str(path), name, str(seconds)])
    while waiting(path) <= before and running.poll() is None:
        time.sleep(0.01)
    return running


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The path of a lock."""
    return tmp_path / "lock"


needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks into /proc/locks"
)


@needs_linux
def test_waiters_get_the_lock_in_order_of_arrival(lock: Path) -> None:
    with try_lock(lock, 1) as held:
        assert held
        running = [start(lock, f"p{number}") for number in range(6)]
    with try_lock(lock, 300):  # the last holder is behind the waiters
        order = lock.with_name("order").read_text().splitlines()
    assert [process.wait(300) for process in running] == [0] * 6
    assert order == [f"p{number} True" for number in range(6)]


@needs_linux
def test_a_killed_waiter_does_not_block_others(lock: Path) -> None:
    with try_lock(lock, 1):
        first, second = start(lock, "first"), start(lock, "second")
        first.send_signal(signal.SIGKILL)
        first.wait(300)
        third = start(lock, "third")
    assert (second.wait(300), third.wait(300)) == (0, 0)
    assert lock.with_name("order").read_text() == "second True\nthird True\n"


@needs_linux
def test_a_waiter_that_times_out_leaves_the_queue(lock: Path) -> None:
    with try_lock(lock, 1):
        start(lock, "impatient", seconds=0.1).wait(300)
        assert waiting(lock) == 0
        last = start(lock, "patient")
    assert last.wait(300) == 0
    assert lock.with_name("order").read_text() == "impatient False\npatient True\n"


def test_threads_also_get_the_lock_in_order(lock: Path) -> None:
    order: list[int] = []

    def take(number: int) -> None:
        with try_lock(lock, 300) as held:
            assert held
            order.append(number)

    with try_lock(lock, 1):
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            while sys.platform.startswith("linux") and waiting(lock) <= number:
                time.sleep(0.01)
    for thread in threads:
        thread.join(300)
    assert sorted(order) == list(range(5))
    if sys.platform.startswith("linux"):
        assert order == list(range(5))


def test_a_caller_that_does_not_wait_cannot_jump_the_queue(lock: Path) -> None:
    with try_lock(lock, 1), try_lock(lock, 0) as held:
        assert not held
    with try_lock(lock, 0) as held:
        assert held


@pytest.mark.parametrize("seconds", [None, 1])
def test_a_forked_child_does_not_keep_the_lock(lock: Path, seconds: float | None) -> None:
    with try_lock(lock, seconds) as held:
        assert held
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
    try:
        with try_lock(lock, 0) as held:
            assert held
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("has_queues", [False, True])
def test_without_range_locks_there_is_no_queue(
    lock: Path, monkeypatch: pytest.MonkeyPatch, has_queues: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(disk, "_QUEUES", has_queues)
    monkeypatch.setattr(disk, "_range", refuse)
    with try_lock(lock, 0) as held, try_lock(lock, 0.001) as again:
        assert (held, again) == (True, False)
    assert disk._draw_ticket(0) is None
    assert not disk._has_waiting(0, 1)


def test_a_home_that_others_own_or_can_write_to_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    assert disk.home_in_doubt(home) == ""
    home.mkdir(mode=0o700)
    found = home.stat()
    for owner, user, is_in_doubt in ((7, 7, False), (0, 7, False), (7, 0, False), (8, 7, True)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        status = os.stat_result((*found[:4], owner, *found[5:10]))
        monkeypatch.setattr(Path, "stat", lambda *_, status=status, **__: status)
        assert ("belongs to another user" in disk.home_in_doubt(home)) is is_in_doubt
    monkeypatch.undo()
    monkeypatch.setattr(disk, "_is_private", lambda _: False)
    for mode, doubt in (
        (0o755, ""),
        (0o775, "other members of its group"),
        (0o777, "by everyone"),
        (0o1777, "group"),
    ):
        home.chmod(mode)
        assert doubt in disk.home_in_doubt(home)
        assert bool(doubt) == bool(disk.home_in_doubt(home))
    monkeypatch.setattr(disk, "_is_private", lambda _: True)
    home.chmod(0o1777)
    assert disk.home_in_doubt(home) == ""
    home.chmod(0o700)
    tmp_path.chmod(0o702)
    assert f"{tmp_path} is writable by everyone" in disk.home_in_doubt(home)
    tmp_path.chmod(0o700)


def test_the_error_for_a_failed_write_names_the_file(tmp_path: Path) -> None:
    """The system reports a full disk without the file's name."""
    file = tmp_path / "tokens.json"
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"tokens\.json") as caught, disk.replacing(file):
        raise full
    assert caught.value.filename == str(file)
    assert list(tmp_path.iterdir()) == []
