"""Forks and threads in a program that has a SQLite store open."""

import threading
from pathlib import Path

from contract import (
    pool,
    record,
)
from sqlite_scripts import CHECK, STORE, RunPython

from memories.stores.sqlite.store import SQLiteStore


def test_a_fork_after_opening_works_in_parent_and_child(path: Path, run_python: RunPython) -> None:
    script = (
        STORE
        + """
add("before")
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        for turn in range(20):
            add(f"child{number}-{turn}")
        assert store.count(mine) > 20
        sys.exit(0)  # an orderly end, at which Python collects what it inherited
    children.append(child)
for turn in range(40):
    add(f"parent-{turn}")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
for turn in range(5):
    add(f"after-{turn}")
print(store.count(mine))
"""
    )
    assert run_python(script, path).stdout == "106\n"
    assert run_python(CHECK, path).stdout == "ok\n"


def test_a_child_that_only_inherits_a_store_does_not_touch_it(
    path: Path, run_python: RunPython
) -> None:
    """It exits normally, while the parent's transaction is open and continues."""
    script = (
        STORE
        + """
add("before")
with store.transaction():
    add("inside")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add("inside too")
print(store.count(mine), SQLiteStore(path, None).count(mine))
"""
    )
    process = run_python(script, path)
    assert (process.stdout, process.stderr) == ("3 3\n", "")


def test_a_child_forked_during_a_transaction_is_refused(path: Path, run_python: RunPython) -> None:
    """SQLite would treat the parent's locks as its own, so the child can continue only without that
    store.
    """
    script = (
        STORE
        + """
add("before")
with store.transaction():
    child = os.fork()
    if child == 0:
        for use in (
            lambda: store.count(mine),
            lambda: add("child"),
            lambda: SQLiteStore(path, None).count(mine),
        ):
            try:
                use()
            except StoreError as exc:
                print(exc)
        other = SQLiteStore(path.with_name("other.db"), None)
        other.touch([]); print(other.count(mine), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add("parent")
print(store.count(mine))
"""
    )
    sentence = f"{path} was in use when this process was forked; start processes before opening it, or use spawn"
    assert run_python(script, path).stdout.splitlines() == [sentence, sentence, sentence, "0", "2"]


def test_a_close_while_another_thread_writes_leaves_all_stores_usable(
    path: Path, run_python: RunPython
) -> None:
    """Connections that aren't in use are closed, and a child that is forked then can use other
    stores.
    """
    script = (
        STORE
        + """
import threading
from memories.errors import StoreError
add("m")
sound = SQLiteStore(path.with_name("sound.db"), FakeEmbedder.space)
sound.append([Record(Ref(Collection.MEMORY, "ann", "s", 1), "sound", datetime.now(UTC))])
writing, closed = threading.Event(), threading.Event()
def write():
    with store._file.write() as db:
        cursor = db.cursor()
        def held():  # SQLite is inside a statement meanwhile
            writing.set()
            return closed.wait(60)
        db.create_scalar_function("held", held, 0)
        cursor.execute("SELECT held()").fetchall()
thread = threading.Thread(target=write)
thread.start()
assert writing.wait(60)
try:
    store.close()
    print("closed")
except StoreError as exc:
    print(exc, flush=True)
print(store.count(mine), flush=True)
child = os.fork()
if child == 0:
    try:
        print(sound.count(mine), flush=True)
    finally:
        os._exit(0)
os.waitpid(child, 0)
closed.set()
thread.join()
add("n")
print(store.count(mine))
store.close()
"""
    )
    said = run_python(script, path).stdout.splitlines()
    assert "in use by another thread" in said[0]
    assert said[1:] == ["1", "1", "2"]


def test_closing_a_store_does_not_report_false_damage_to_reading_threads(
    path: Path, run_python: RunPython
) -> None:
    """The last connection to close removes the log; another thread must not report that as damage."""
    script = (
        STORE
        + """
import threading
from memories.errors import StoreDamaged, StoreError
add("m")
sys.setswitchinterval(1e-5)
damage, done = [], threading.Event()
def read():
    while not done.is_set():
        try:
            store.count(mine)
        except StoreDamaged as exc:
            damage.append(str(exc))
        except StoreError:  # it was closed in the middle of a read
            pass
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(200):
    try:
        store.close()
    except StoreError as exc:
        assert "in use by another thread" in str(exc), exc
    time.sleep(0.003)
done.set()
for thread in threads:
    thread.join()
print(damage)
"""
    )
    assert run_python(script, path).stdout == "[]\n"


def test_writes_by_a_child_outlive_its_parent(path: Path, run_python: RunPython) -> None:
    """If SQLite treated the parent's locks as the child's, the last process to close would remove
    the log that the child uses.
    """
    script = (
        STORE
        + """
idle = SQLiteStore(path, None)
add("before"); idle.count(mine)
if os.fork():
    store.close(); idle.close()
    Path(sys.argv[2]).touch()
    os.wait()
    print(SQLiteStore(path, None).count(mine))
else:
    add("child")
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    for number in range(5):
        add(f"child-{number}")
    os._exit(0)
"""
    )
    assert run_python(script, path, path.with_name("closed")).stdout == "7\n"


def test_ended_threads_leave_no_open_files(store: SQLiteStore) -> None:
    store.append([record("m")])
    for _ in range(30):
        thread = threading.Thread(target=store.count, args=(pool(),))
        thread.start()
        thread.join()
    assert len(store._file._opened) <= 2


def test_a_child_of_a_parent_with_a_reading_thread_is_refused(
    path: Path, run_python: RunPython
) -> None:
    """The parent's thread, which doesn't exist in the child, was inside SQLite."""
    script = (
        STORE
        + """
add("m")
inside, go = threading.Event(), threading.Event()
def read():
    with store._file.read() as db:
        db.create_scalar_function("pause", lambda: (inside.set(), go.wait(60))[0])
        db.execute("SELECT pause()").fetchall()
thread = threading.Thread(target=read)
thread.start()
inside.wait(60)
child = os.fork()
if child == 0:
    print(told(lambda: store.count(mine)))
    print(told(lambda: add("child")), flush=True)
    os._exit(0)
os.waitpid(child, 0)
go.set(); thread.join()
print(store.count(mine))
"""
    )
    sentence = f"{path} was in use when this process was forked; start processes before opening it, or use spawn"
    assert run_python(script, path).stdout.splitlines() == [sentence, sentence, "1"]
