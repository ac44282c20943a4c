"""Where a SQLite store lies and who else uses it: file systems, disks, locks, forks; and what is said of it."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, everything, pool, record  # noqa: E402

from memories import Memories  # noqa: E402
from memories.errors import StoreBusy, StoreError  # noqa: E402
from memories.stores.sqlite import connection, place  # noqa: E402
from memories.stores.sqlite.place import filesystem_of, is_network  # noqa: E402
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# Begins scripts: `store` is the one of the first argument.
STORE = """
import os, sys, threading, time
from datetime import UTC, datetime
from pathlib import Path
from memories.errors import MemoriesError, StoreError
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sqlite import connection
from memories.stores.sqlite.store import SQLiteStore
path = Path(sys.argv[1])
store = SQLiteStore(path, None)
mine = Filter(Collection.MEMORY, ("ann",))
def add(name):
    store.append([Record(Ref(Collection.MEMORY, "ann", name, 1), f"note {name}", datetime.now(UTC))])
def told(use):
    try:
        return use()
    except StoreError as exc:
        return exc
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder / "memories.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    made = SQLiteStore(path, SPACE)
    yield made
    made.close()


# --- file systems ----------------------------------------------------------------------------------------------------

NETWORK = """nfs nfs4 cifs smb2 smb3 smbfs ncpfs afs ceph glusterfs lustre beegfs gpfs ocfs2 gfs2 orangefs 9p virtiofs
    vboxsf prl_fs vmhgfs drvfs fuse fuse.sshfs fuse.s3fs fuse.rclone fuse.gcsfuse fuse.glusterfs fuse.ceph
    fuse.ceph-fuse fuse.juicefs fuse.JuiceFS:home fuse.mount-s3 fuse.blobfuse2 fuse.grpcfuse fuse.vmhgfs-fuse fuse.davfs
    fuse.unheard-of""".split()
LOCAL = """ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay aufs vfat exfat ntfs3 fuseblk
    ecryptfs squashfs erofs apfs hfsplus fuse.fuse-overlayfs fuse.mergerfs fuse.gocryptfs fuse.encfs
    fuse.bindfs""".split()


@pytest.mark.parametrize("kind", NETWORK)
def test_what_several_machines_see_is_a_network_filesystem(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_what_one_machine_sees_is_none(kind: str) -> None:
    assert not is_network(kind)


def test_a_path_that_is_too_long_for_sqlite_is_reported_as_that(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 100)
    store = SQLiteStore(folder / "memories.db", None)
    with pytest.raises(StoreError, match="its path is too long for SQLite; choose a folder nearer to the root"):
        store.append([record("m", vectors=None)])
    store.close()


def test_a_mount_point_may_have_any_character() -> None:
    mounts = "/dev/a / ext4 rw 0 0\nserver:/x /mnt/a\\040b\\011c\\134d nfs4 rw 0 0\n"
    assert filesystem_of("/mnt/a b\tc\\d/e", mounts) == "nfs4"
    assert filesystem_of("/mnt/a", mounts) == "ext4"


@pytest.mark.parametrize("use", ["read", "write"])
def test_a_store_that_came_to_a_network_filesystem_is_refused(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    store.append([record("m")])
    store.close()
    before = path.read_bytes()
    monkeypatch.setattr(place, "_checked", set())
    monkeypatch.setattr(place, "filesystem_of", lambda *_: "nfs4")
    again = SQLiteStore(path, SPACE)
    with pytest.raises(StoreError, match=r"network filesystem \(nfs4\).*copy the whole folder to a local disk"):
        again.count(pool()) if use == "read" else again.append([record("n")])
    again.close()
    assert path.read_bytes() == before


def test_a_file_system_is_looked_up_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(place, "_checked", set())
    monkeypatch.setattr(place, "filesystem_of", lambda resolved, mounts: asked.append(resolved) or "ext4")
    for _ in range(3):
        store = SQLiteStore(path, SPACE)
        store.append([record(f"m{len(asked)}{_}")])
        store.close()
    assert asked == [str(path.parent)]


# --- disks -----------------------------------------------------------------------------------------------------------


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False, timeout=300
    )
    return done.returncode == 0


@pytest.fixture(scope="module")
def mounting() -> None:
    if not _can_mount():
        pytest.skip("may not mount here")


def mounted(folder: Path, script: str) -> tuple[str, ...]:
    """Return what runs a command after a shell script that may mount what it likes."""
    return ("unshare", "-m", "sh", "-ec", f'cd "{folder.parent}"; {script}; exec "$@"', "sh")


READS = STORE + "print(told(lambda: store.count(mine))); print(told(lambda: add('more')))"


@pytest.mark.usefixtures("mounting")
def test_a_full_disk_is_told_while_reading(path: Path, run_python: RunPython) -> None:
    """SQLite can make no shared memory there."""
    run_python(STORE + "add('m'); store.close()", path)
    small = f'cp "{path}" kept; mount -t tmpfs -o size=1m,mode=700 tmpfs store; cp -p kept "{path}"'
    done = run_python(READS, path, prefix=mounted(path.parent, f"{small}; cat /dev/zero > store/z || true"))
    first, second = done.stdout.splitlines()
    for sentence in (first, second):
        assert str(path) in sentence
        assert "full" in sentence or "no room is left" in sentence
        assert "make room" in sentence


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize("how", ["mount", "folder"])
def test_a_store_that_can_not_be_written_can_be_read(path: Path, run_python: RunPython, how: str) -> None:
    run_python(STORE + "add('m'); store.close()", path)
    script = "mount --bind store store; mount -o remount,bind,ro store" if how == "mount" else "chmod 500 store; :"
    prefix = mounted(path.parent, script)
    if how == "folder":
        plain = ("--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search")
        prefix = (*prefix, "setpriv", *plain)
    done = run_python(READS, path, prefix=prefix)
    path.parent.chmod(0o700)
    assert done.stderr == ""
    count, sentence = done.stdout.splitlines()
    assert count == "1"
    assert str(path) in sentence
    assert {found.name for found in path.parent.iterdir()} == {"memories.db", "memories.db.lock"}


@pytest.mark.usefixtures("mounting")
def test_a_log_in_a_folder_that_can_not_be_written_is_read_or_told(path: Path, run_python: RunPython) -> None:
    run_python(STORE + "add('m'); os._exit(0)", path)
    ro = "mount --bind store store; mount -o remount,bind,ro store"
    assert run_python(READS, path, prefix=mounted(path.parent, ro)).stdout.splitlines()[0] == "1"
    Path(f"{path}-shm").unlink()
    sentence = run_python(READS, path, prefix=mounted(path.parent, ro)).stdout.splitlines()[0]
    assert "can't be written, which reading the log of memories.db needs; copy the whole folder" in sentence


@pytest.mark.usefixtures("mounting")
def test_what_changes_while_it_is_read_without_locks_is_refused(path: Path, run_python: RunPython) -> None:
    """The same folder, mounted for reading only here, is written elsewhere."""
    run_python(STORE + "add('m'); store.close()", path)
    ro = "mkdir view; chmod 700 view; mount --bind store view; mount -o remount,bind,ro view"
    script = (
        STORE
        + f"""
print(store.count(mine))
rw = SQLiteStore(Path({str(path)!r}), None)
rw.append([Record(Ref(Collection.MEMORY, "ann", "n", 1), "note n", datetime.now(UTC))])
print(told(lambda: store.count(mine)))
rw.close()
print(told(lambda: SQLiteStore(path, None).count(mine)))
"""
    )
    view = path.parent.with_name("view") / path.name
    done = run_python(script, view, prefix=mounted(path.parent, ro))
    first, second, third = done.stdout.splitlines()
    assert (first, third) == ("1", "2")
    assert "was written by another process" in second


@pytest.mark.parametrize("problem", ["link", "folder"])
def test_a_problem_of_the_lock_names_the_lock(path: Path, store: SQLiteStore, problem: str) -> None:
    lock = Path(f"{path}.lock")
    if problem == "link":
        lock.symlink_to(path.with_name("target"))
    else:
        lock.mkdir()
    sentence = r"cannot use .*memories\.db\.lock, the lock of memories\.db: "
    with pytest.raises(StoreError, match=sentence + ("it is a symbolic link; remove it" if problem == "link" else "")):
        store.append([record("m")])
    assert not path.exists()


def test_when_no_more_files_can_be_opened_that_is_what_is_said(path: Path, run_python: RunPython) -> None:
    script = (
        STORE
        + """
import resource
add("m"); store.close()
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
os.close(taken.pop())
print(told(lambda: store.count(mine)))
"""
    )
    assert "too many files open" in run_python(script, path).stdout


# --- locks and forks -------------------------------------------------------------------------------------------------


def test_who_gives_up_behind_others_that_commit_is_told_how_many(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is blamed that held the lock for a moment only."""
    store.append([record("m")])
    script = (
        STORE
        + "print('on', flush=True)\n"
        + "while True:\n    with store.transaction():\n        add(str(time.time_ns())); time.sleep(0.05)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(24)
    ]
    monkeypatch.setattr(connection, "BUSY_SECONDS", 1.0)
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
        sentences = set()
        for number in range(200):
            try:
                store.append([record(f"n{number}")])
            except StoreBusy as exc:
                sentences.add(str(exc))
                break
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=300)
    [sentence] = sentences
    assert "commits by others in the 1 s of waiting; nothing was written; try again" in sentence
    assert "process" not in sentence.partition("busy")[2]


def test_writers_that_never_stop_let_each_other_in(path: Path, run_python: RunPython) -> None:
    """Each process and thread writes as fast as it can, and none has to wait long for its turn."""
    script = (
        STORE
        + """
connection.BUSY_SECONDS = 60.0
def write(name):
    for number in range(12):
        add(f"{name}-{number}")
threads = [threading.Thread(target=write, args=(f"{os.getpid()}-{thread}",)) for thread in range(3)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
"""
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(path)], stderr=subprocess.PIPE, text=True) for _ in range(8)
    ]
    assert [process.communicate(timeout=600)[1] for process in running] == [""] * 8
    store = SQLiteStore(path, None)
    assert len(everything(store, pool())) == 8 * 3 * 12
    store.close()


def test_the_child_of_a_parent_whose_thread_is_reading_is_told_so(path: Path, run_python: RunPython) -> None:
    """The parent's thread, which does not exist in the child, was inside of SQLite."""
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
    sentence = f"{path} was in use when this process was forked; start processes before, or by spawn"
    assert run_python(script, path).stdout.splitlines() == [sentence, sentence, "1"]


# --- a log that grows ------------------------------------------------------------------------------------------------


def test_a_log_that_grows_under_a_reader_is_counted(path: Path, store: SQLiteStore) -> None:
    store.append([record("m")])
    reader = SQLiteStore(path, SPACE)
    with reader._file.read() as db:
        db.execute("SELECT count(*) FROM record").fetchall()
        for number in range(40):
            store.append([record(f"n{number}", text="many words " * 20_000)])
        info = store.info(pool())
        assert info.log_bytes == Path(f"{path}-wal").stat().st_size
        assert info.log_bytes > 8_000_000
    reader.close()


# --- limited memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [40, 60, 80, 100, 120, 140, 170])
def test_a_command_with_little_memory_says_so_in_one_sentence(
    tmp_path: Path, clean_environment: dict[str, str], megabytes: int
) -> None:
    command = f'ulimit -v {megabytes * 1024}; exec "{sys.executable}" -m memories search hello'
    environment = clean_environment | {"EMBEDDER": "minilm", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr or "address space" in done.stderr
    assert "ulimit -v" in done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_folder_that_was_moved_away_is_not_made_again(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    with Memories(f"{kind}:///{data}/m.db", embedder="none") as memories:
        made = memories.create("The office is in Berlin").memory
        assert made is not None
        data.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(StoreError, match="removed"):
                memories.create("The office is in Bonn", force=True)
            if kind == "sqlite":
                with pytest.raises(StoreError, match="removed"):
                    memories.forget(made.id)
        assert not data.exists()
        (tmp_path / "away").rename(data)
        assert memories.create("The office is in Bonn", force=True).stored
        assert memories.status().memory_count == 2
