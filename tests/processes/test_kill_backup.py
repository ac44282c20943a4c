"""Backups and restores during writes and reads, and killed at every step: nothing is lost or
incomplete.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture.forks import ON_PATH

# The process that starts, kills and checks. Only its forks open a store; they start with all
# modules loaded and die with it.
DRIVER = """
import contextlib, json, os, random, shutil, signal, sys, time
from torture import forks
from torture.forks import fork
from datetime import UTC, datetime
from pathlib import Path
import memories.search.search, memories.read.versions, memories.write.create, memories.write.turns
import memories.stores.sqlite.backup, memories.transfer.backup
from memories import Memories
from memories.config import load_config
from memories.embedders.fake import FakeEmbedder
from memories.errors import StoreBusy, StoreDamaged
from memories.stores.sqlite.connection import SQLiteFile
from memories.transfer.backup import back_up, restore

os.environ["COUNT_ACCESSES"] = "false"
mode, folder, rounds, seed = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
forks.LONGEST_SECONDS = 900
drawn = random.Random(seed)
totals = {"rounds": 0, "killed": 0, "acked": 0}
quiet = lambda what, done, whole: None
STEPS = set("execute fetchall close link unlink rename replace fsync open flock pwrite write mkdir ftruncate".split())


def finish(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def done(child):
    ended = finish(child)
    if ended:
        sys.exit(f"round {totals['rounds']}: a process ended with {ended}")


def config_of(path):
    return load_config({"store": f"sqlite:///{path}", "embedder": "fake"})


def write(path, ledger, start):
    # Create numbered memories until killed or until the store is replaced; list the acknowledged in the ledger.
    fd = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        for number in range(start, start + 1_000_000):
            try:
                memories.create(f"note {number}", force=True)
                os.write(fd, f"{number}\\n".encode())
                if number % 7 == 0:
                    memories.add_turns("talk", [f"said {number}"])
            except StoreDamaged as exc:
                assert "was removed or replaced while it was open" in str(exc), exc
                os._exit(0)


def fill(path, numbers):
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        memories.create_many([f"note {number}" for number in numbers], force=True)
        memories.add_turns("talk", ["said"])


def fill_and_die(path, numbers):
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        memories.create_many([f"note {number}" for number in numbers], force=True)
        os.kill(os.getpid(), signal.SIGKILL)


def acked(ledger):
    return [int(line) for line in ledger.read_text().split("\\n")[:-1]] if ledger.exists() else []


def numbers_in(path):
    found = set()
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        cursor = None
        while True:
            page = memories.list(limit=1000, cursor=cursor)
            found |= {int(memory.content.split()[1]) for memory in page.memories}
            cursor = page.next_cursor
            if not cursor:
                break
        if found:
            some = max(found)
            assert memories.search(f"note {some}")[0].memory.content == f"note {some}"
    return found


def intact(path):
    file = SQLiteFile(path)
    with file.write() as db:
        assert db.pragma("integrity_check") == "ok"
        count = lambda table: db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
        log = count("record WHERE pool IN (SELECT id FROM pool WHERE collection = 'log')")
        assert count("record") - log == count("vector") + count("turn_vector"), "vectors"
        assert count("record") - log == count("words") + count("turn_words") + count("words_ended"), "words"
    file.close()


def take_backup(path, target):
    back_up(config_of(path), str(target), now=datetime.now(UTC), progress=quiet)


def put_back(source, path):
    restore(config_of(path), source, FakeEmbedder(), replace=True, now=datetime.now(UTC), progress=quiet)


def killed_at(step, work, *arguments):
    # Run it, and kill the process before the step with this number; return the number of steps if there are fewer.
    passed = 0

    def watch(frame, event, called):
        nonlocal passed
        if event == "c_call" and getattr(called, "__name__", "") in STEPS:
            if passed == step:
                os.kill(os.getpid(), signal.SIGKILL)
            passed += 1

    def run():
        sys.setprofile(watch)
        work(*arguments)
        sys.setprofile(None)

    return finish(fork(run)) == -signal.SIGKILL


def under_load():
    # Each drill: back up while three processes write, restore elsewhere and sometimes in place of the store.
    path = folder / "store.db"
    for drill in range(rounds):
        ledgers = [folder / f"{drill}-{number}.ledger" for number in range(3)]
        start = (drill + 1) * 10_000_000
        before = set()
        if path.exists():
            check = folder / "before"
            done(fork(lambda: check.write_text(json.dumps(sorted(numbers_in(path))))))
            before = set(json.loads(check.read_text()))
        writers = [fork(write, path, ledger, start + 1_000_000 * n) for n, ledger in enumerate(ledgers)]
        while min(len(acked(ledger)) for ledger in ledgers) < 7:
            time.sleep(0.01)
        target = folder / f"{drill}.db"
        first = {number for ledger in ledgers for number in acked(ledger)}
        done(fork(take_backup, path, target))
        last = {number for ledger in ledgers for number in acked(ledger)}
        last |= {max(acked(ledger)) + 1 for ledger in ledgers}  # each writer may have one that is not acknowledged yet
        apart = folder / f"{drill}-restored.db"
        done(fork(put_back, target, apart))
        done(fork(intact, apart))
        shown = folder / "shown"
        done(fork(lambda: shown.write_text(json.dumps(sorted(numbers_in(apart))))))
        got = set(json.loads(shown.read_text()))
        assert first | before <= got <= last | before, drill
        if drill % 2:
            done(fork(put_back, target, path))  # the writers notice that their store was replaced
            for writer in writers:
                done(writer)
            done(fork(lambda: shown.write_text(json.dumps(sorted(numbers_in(path))))))
            assert set(json.loads(shown.read_text())) == got, drill
            [aside] = folder.glob("store.db.replaced-*[0-9a-f]")
            done(fork(lambda: shown.write_text(json.dumps(sorted(numbers_in(aside))))))
            everything = before | {number for ledger in ledgers for number in acked(ledger)}
            assert everything <= set(json.loads(shown.read_text())), drill
        else:
            for writer in writers:
                os.kill(writer, signal.SIGKILL)
                assert finish(writer) == -signal.SIGKILL
        totals["acked"] += sum(len(acked(ledger)) for ledger in ledgers)
        totals["rounds"] += 1
        for left in (*folder.glob(f"{drill}*"), *folder.glob("store.db.replaced-*")):
            left.unlink()


def killed(work, prepare, check):
    # Kill before each step, or before every nth step, until a run finishes before its kill.
    step, stride = 0, max(1, rounds)
    while True:
        prepare()
        alive = not killed_at(step, work)
        done(fork(check))
        totals["rounds"] += 1
        totals["killed"] += not alive
        if alive:
            return
        step += drawn.randint(1, 2 * stride - 1)


def killed_backup():
    path, target = folder / "store.db", folder / "backup.db"
    done(fork(fill, path, range(100)))
    stale = folder / "stale.db"
    done(fork(take_backup, path, stale))
    done(fork(fill, path, range(100, 200)))

    def prepare():
        target.unlink(missing_ok=True)
        shutil.copy(stale, target)  # this name always has a valid backup

    def check():
        assert not [left for left in folder.iterdir() if left.name.startswith("backup.db")][1:], list(folder.iterdir())
        apart = folder / "apart.db"
        put_back(target, apart)
        assert len(numbers_in(apart)) in (100, 200)
        for left in folder.glob("apart.db*"):
            left.unlink()
        assert numbers_in(path) == set(range(200))

    killed(lambda: take_backup(path, target), prepare, check)
    take_backup(path, target)
    assert not [left for left in folder.iterdir() if ".new" in left.name]  # left by killed processes


def killed_restore():
    path, source, original = folder / "store.db", folder / "backup.db", folder / "original.db"
    done(fork(fill, original, range(100)))
    done(fork(take_backup, original, source))
    done(fork(fill, folder / "other.db", range(500, 550)))

    def prepare():
        for left in folder.glob("*store.db*"):
            left.unlink()
        shutil.copy(folder / "other.db", path)
        path.chmod(0o600)
        assert finish(fork(fill_and_die, path, range(550, 600))) == -signal.SIGKILL
        assert (folder / "store.db-wal").stat().st_size

    def check():
        found = numbers_in(path)
        with (folder / "seen").open("a") as seen:
            seen.write("new\\n" if found == set(range(100)) else "old\\n")
        assert found in (set(range(100)), set(range(500, 600))), sorted(found)
        put_back(source, path)
        assert numbers_in(path) == set(range(100))
        intact(path)
        kept = sorted(folder.glob("store.db.replaced-*[0-9a-f]"))
        assert any(numbers_in(file) == set(range(500, 600)) for file in kept), kept
        assert not list(folder.glob(".store.db*")), list(folder.iterdir())

    killed(lambda: put_back(source, path), prepare, check)
    for state in ("old", "new"):
        totals[state] = (folder / "seen").read_text().count(state)


try:
    {"load": under_load, "backup": killed_backup, "restore": killed_restore}[mode]()
finally:
    print(json.dumps(totals))
"""


def run_drills(
    tmp_path: Path, environment: dict[str, str], mode: str, rounds: int
) -> dict[str, Any]:
    """Run this many drills under load, or kill before steps that are on average this far apart."""
    folder = tmp_path / "stores"
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", ON_PATH + DRIVER, mode, str(folder), str(rounds), "1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=3000,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.thorough
def test_a_backup_contains_a_state_between_its_start_and_its_end(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """If it replaces the store, every process that has the store open notices."""
    totals = run_drills(tmp_path, clean_environment, "load", 4)
    assert totals["rounds"] == 4
    assert totals["acked"] >= 80


@pytest.mark.parametrize("mode", ["backup", "restore"])
@pytest.mark.thorough
def test_a_kill_leaves_the_old_or_the_new_file(
    tmp_path: Path, clean_environment: dict[str, str], mode: str
) -> None:
    totals = run_drills(tmp_path, clean_environment, mode, 12)
    assert totals["killed"] >= 5
    assert mode == "backup" or min(totals["old"], totals["new"]) > 0


@pytest.mark.slow
@pytest.mark.torture
def test_many_backups_and_restores_under_load_lose_nothing(
    tmp_path: Path,
    clean_environment: dict[str, str],
    size: Callable[[int, int], int],
    figures: dict[str, Any],
) -> None:
    rounds = size(60, 200)
    figures |= run_drills(tmp_path, clean_environment, "load", rounds)
    assert figures["rounds"] == rounds


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("mode", ["backup", "restore"])
def test_a_kill_before_any_step_leaves_the_old_or_the_new_file(
    tmp_path: Path, clean_environment: dict[str, str], mode: str, figures: dict[str, Any]
) -> None:
    figures |= run_drills(tmp_path, clean_environment, mode, 1)
    assert figures["rounds"] >= 60
