"""The place of a SQLite store: file systems, engines, logs and folders."""

import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from contract import SPACE, pool, record

from memories import Memories
from memories.errors import StoreError
from memories.stores.sqlite import engine
from memories.stores.sqlite.engine import engine_is_safe, filesystem_of, is_network
from memories.stores.sqlite.store import SQLiteStore

# --- file systems

NETWORK = """
    nfs nfs4 cifs smb2 smb3 smbfs ncpfs afs ceph glusterfs lustre beegfs gpfs ocfs2 gfs2 orangefs
    9p virtiofs vboxsf prl_fs vmhgfs drvfs fuse fuse.sshfs fuse.s3fs fuse.rclone fuse.gcsfuse
    fuse.glusterfs fuse.ceph fuse.ceph-fuse fuse.juicefs fuse.JuiceFS:home fuse.mount-s3
    fuse.blobfuse2 fuse.grpcfuse fuse.vmhgfs-fuse fuse.davfs fuse.unheard-of
""".split()
LOCAL = """
    ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay aufs vfat exfat
    ntfs3 fuseblk ecryptfs squashfs erofs apfs hfsplus fuse.fuse-overlayfs fuse.mergerfs
    fuse.gocryptfs fuse.encfs fuse.bindfs
""".split()


@pytest.mark.parametrize("kind", NETWORK)
def test_shared_filesystems_count_as_network_filesystems(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_local_filesystems_do_not_count_as_network_filesystems(kind: str) -> None:
    assert not is_network(kind)


def test_a_path_that_is_too_long_for_sqlite_is_reported_as_such(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 100)
    store = SQLiteStore(folder / "memories.db", None)
    with pytest.raises(
        StoreError, match="its path is too long for SQLite; choose a folder closer to the root"
    ):
        store.append([record("m", vectors=None)])
    store.close()


def test_a_mount_point_can_contain_any_character() -> None:
    mounts = "/dev/a / ext4 rw 0 0\nserver:/x /mnt/a\\040b\\011c\\134d nfs4 rw 0 0\n"
    assert filesystem_of("/mnt/a b\tc\\d/e", mounts) == "nfs4"
    assert filesystem_of("/mnt/a", mounts) == "ext4"


def test_the_last_mount_at_a_place_hides_earlier_mounts() -> None:
    mounts = "/dev/a / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/b /data xfs rw 0 0\n"
    assert filesystem_of("/data/x", mounts) == "xfs"


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.7.0", False),
        ("3.40.1", False),
        ("3.44.5", False),
        ("3.44.6", True),
        ("3.44.9", True),
        ("3.45.0", False),
        ("3.50.6", False),
        ("3.50.7", True),
        ("3.51.0", False),
        ("3.51.2", False),
        ("3.51.3", True),
        ("3.52.0", True),
        ("3.54.1", True),
        ("4.0.0", True),
    ],
)
def test_only_engines_without_the_wal_reset_bug_are_safe(version: str, safe: bool) -> None:
    assert engine_is_safe(version) is safe


def test_an_unsafe_engine_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(StoreError, match=r"SQLite 3\.40\.1 can lose acknowledged writes"):
        SQLiteStore(path, SPACE)


MOUNTS = """\
overlay / overlay rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vda /home/ann/local ext4 rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "overlay"),
        ("/tmp/x", "tmpfs"),
        ("/tmpx", "overlay"),
        ("/home", "nfs4"),
        ("/home/ann", "nfs4"),
        ("/home/ann/local/x", "ext4"),
        ("/homes", "overlay"),
        ("/mnt/my share/x", "cifs"),
    ],
)
def test_a_folders_filesystem_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert filesystem_of(folder, MOUNTS) == kind


def test_no_store_is_created_on_a_network_filesystem(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "filesystem_of", lambda resolved, mounts: "nfs4")
    with pytest.raises(StoreError, match=r"network filesystem \(nfs4\).*MEMORY_HOME"):
        store.append([record("m")])
    assert not path.exists()


@pytest.mark.parametrize("use", ["read", "write"])
def test_a_store_moved_to_a_network_filesystem_is_refused(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    store.append([record("m")])
    store.close()
    before = path.read_bytes()
    monkeypatch.setattr(engine, "_checked_folders", set())
    monkeypatch.setattr(engine, "filesystem_of", lambda *_: "nfs4")
    again = SQLiteStore(path, SPACE)
    with pytest.raises(
        StoreError, match=r"network filesystem \(nfs4\).*copy the whole folder to a local disk"
    ):
        again.count(pool()) if use == "read" else again.append([record("n")])
    again.close()
    assert path.read_bytes() == before


def test_a_filesystem_is_looked_up_once_per_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(engine, "_checked_folders", set())
    monkeypatch.setattr(
        engine, "filesystem_of", lambda resolved, mounts: asked.append(resolved) or "ext4"
    )
    for _ in range(3):
        store = SQLiteStore(path, SPACE)
        store.append([record(f"m{len(asked)}{_}")])
        store.close()
    assert asked == [str(path.parent)]


# --- disks


@pytest.mark.parametrize("problem", ["link", "folder"])
def test_an_error_about_the_lock_file_names_it(
    path: Path, store: SQLiteStore, problem: str
) -> None:
    lock = Path(f"{path}.lock")
    if problem == "link":
        lock.symlink_to(path.with_name("target"))
    else:
        lock.mkdir()
    sentence = r"cannot use .*memories\.db\.lock, the lock of memories\.db: "
    with pytest.raises(
        StoreError,
        match=sentence + ("it is a symbolic link; remove it" if problem == "link" else ""),
    ):
        store.append([record("m")])
    assert not path.exists()


# --- locks and forks


# --- a log that grows


def test_log_bytes_grow_while_a_reader_holds_the_log(path: Path, store: SQLiteStore) -> None:
    store.append([record("m")])
    reader = SQLiteStore(path, SPACE)
    with reader._file.read() as db:
        db.execute("SELECT count(*) FROM record").fetchall()
        for number in range(12):
            store.append([record(f"n{number}", text="x" * 220_000, vectors=None)])
        info = store.info(pool())
        assert info.log_bytes == Path(f"{path}-wal").stat().st_size
        assert info.log_bytes > 2_400_000
    reader.close()


# --- limited memory


@pytest.mark.parametrize(
    "megabytes",
    [
        40,
        120,
        *(pytest.param(size, marks=pytest.mark.thorough) for size in (60, 80, 100, 140, 170)),
    ],
)
def test_a_command_with_little_memory_reports_it_in_one_line(
    tmp_path: Path, clean_environment: dict[str, str], megabytes: int
) -> None:
    command = f'ulimit -v {megabytes * 1024}; exec "{sys.executable}" -m memories search hello'
    environment = clean_environment | {"EMBEDDER": "minilm", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
        check=False,
    )
    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1, process.stderr
    assert "memory" in process.stderr or "address space" in process.stderr
    assert "ulimit -v" in process.stderr


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_moved_folder_is_not_recreated(tmp_path: Path, kind: str) -> None:
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
