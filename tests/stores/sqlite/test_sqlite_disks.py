"""Full and read-only disks: a SQLite store reports them in one sentence and loses nothing."""

import errno
import json
import os
import resource
import subprocess
from pathlib import Path

import apsw
import pytest
from sqlite_scripts import AS_PLAIN_USER, CHECK, STORE, RunPython, mounted, needs_setpriv, on_tmpfs

from memories.errors import StoreError
from memories.stores.sqlite import errors

FILL = """
written = []
def fill():
    try:
        for number in range(len(written), 100_000):
            with store.transaction():
                add(f"g{number}", f"text {number} " + "some more words " * 40)
            written.append(f"g{number}")
    except StoreError as exc:
        print(exc)
def kept():
    found = {record.ref.group for record in store.scan(mine, limit=100_000)}
    assert found == set(written), found ^ set(written)
    vector = FakeEmbedder().embed("text 1")[0]
    assert len(store.candidates(mine, vector=vector, terms=["text"], k=5)) >= 5
"""


def test_a_file_that_cannot_grow_gives_a_one_line_error(path: Path, run_python: RunPython) -> None:
    """Earlier records stay, and writing works once there is room again."""
    script = (
        STORE
        + FILL
        + f"""
import resource
add("g"); written.append("g")
resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, {resource.RLIM_INFINITY}))
fill(); kept()
store.close(); store = SQLiteStore(path, FakeEmbedder.space); kept()
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
add("later"); written.append("later"); kept()
"""
    )
    process = run_python(script, path)
    assert process.stderr == ""
    assert process.stdout.count("\n") == 1
    assert f"the disk of {path} reported an error" in process.stdout
    assert run_python(CHECK, path).stdout == "ok\n"


@pytest.mark.usefixtures("mounting")
def test_a_full_disk_gives_a_one_line_error(tmp_path: Path, run_python: RunPython) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = (
        STORE
        + FILL
        + """
(path.parent / "ballast").write_bytes(bytes(200_000))
fill(); kept()
store.close(); store = SQLiteStore(path, FakeEmbedder.space); kept()
fill(); kept()
(path.parent / "ballast").unlink()
add("later"); written.append("later"); kept()
"""
    )
    process = run_python(
        script, folder / "memories.db", prefix=on_tmpfs(folder, "size=2m,mode=700")
    )
    assert process.stderr == ""
    sentence = f"the disk of {folder / 'memories.db'} is full; nothing was written; free some space and try again\n"
    assert process.stdout == 2 * sentence


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.Error])
def test_an_error_while_reading_does_not_say_that_nothing_was_written(
    tmp_path: Path, error: type[apsw.Error]
) -> None:
    with pytest.raises(StoreError) as raised, errors.read_errors(tmp_path / "memories.db"):
        raise error
    assert "nothing was" not in str(raised.value)


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize(
    "options",
    [
        "size=64k,mode=700",
        pytest.param("size=4k,mode=700", marks=pytest.mark.thorough),
        pytest.param("size=2m,nr_inodes=2,mode=700", marks=pytest.mark.thorough),
    ],
)
def test_a_disk_without_room_for_a_store_gives_a_one_line_error(
    tmp_path: Path, options: str, run_python: RunPython
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = (
        STORE
        + "\ntry:\n    add('m')\nexcept StoreError as exc:\n    print(exc)\n"
        + "print(store.count(mine))"
    )
    process = run_python(script, folder / "memories.db", prefix=on_tmpfs(folder, options))
    assert process.stderr == ""
    sentence, count = process.stdout.splitlines()
    assert str(folder / "memories.db") in sentence
    assert count == "0"


READ_ONLY = (
    STORE
    + """
def use(what):
    try:
        print(what())
    except StoreError as exc:
        print("refused:", exc)
use(lambda: [record.text for record in store.scan(mine, limit=9)])
vector = FakeEmbedder().embed("note")[0]
use(lambda: len(store.candidates(mine, vector=vector, terms=["note"], k=5)))
use(lambda: store.touch([Ref(Collection.MEMORY, "ann", "m", 1)]))
use(lambda: add("n"))
"""
)


@needs_setpriv
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "log_is_left"),
    [
        (0o555, 0o444, False),
        (0o755, 0o444, True),
        pytest.param(0o755, 0o444, False, marks=pytest.mark.thorough),
        pytest.param(0o555, 0o644, False, marks=pytest.mark.thorough),
        pytest.param(0o555, 0o644, True, marks=pytest.mark.thorough),
        pytest.param(0o555, 0o444, True, marks=pytest.mark.thorough),
    ],
)
def test_a_read_only_file_is_read_or_refused_with_a_one_line_error(
    tmp_path: Path, folder_mode: int, file_mode: int, log_is_left: bool, run_python: RunPython
) -> None:
    path = tmp_path / "folder" / "memories.db"
    run_python(STORE + f"add('m'); {'os._exit(0)' if log_is_left else 'store.close()'}", path)
    for file in path.parent.iterdir():
        file.chmod(file_mode)
    path.parent.chmod(folder_mode)
    process = run_python(READ_ONLY, path, prefix=AS_PLAIN_USER)
    path.parent.chmod(0o755)
    assert process.stderr == ""
    scanned, searched, touched, added = process.stdout.splitlines()
    refusals = (
        f"refused: cannot write to {path} or its folder",
        f"refused: cannot open {path}: it or its folder is not writable",
    )
    assert (scanned, searched) == ("['note m']", "1") or all(
        line.startswith(refusals) for line in (scanned, searched)
    )
    assert touched in ("True", "False")  # no error was raised
    if not (log_is_left and file_mode == 0o644):  # in that case nothing new is needed in the folder
        assert added.startswith("refused: ")
        assert str(path) in added


@needs_setpriv
def test_a_folder_without_permission_is_refused_with_a_one_line_error(
    tmp_path: Path, run_python: RunPython
) -> None:
    path = tmp_path / "folder" / "memories.db"
    run_python(STORE + "add('m')", path)
    path.parent.chmod(0)
    process = run_python(READ_ONLY, path, prefix=AS_PLAIN_USER)
    path.parent.chmod(0o700)
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert len(lines) == 4
    for line in (*lines[:2], lines[3]):
        assert line == f"refused: cannot use {path}: {os.strerror(errno.EACCES)}"


def test_too_many_open_files_give_a_one_line_error(path: Path, run_python: RunPython) -> None:
    script = (
        STORE
        + """
import resource
add("m"); store.close()
store = SQLiteStore(path, FakeEmbedder.space)
store.candidates(mine, vector=FakeEmbedder().embed("x")[0], terms=["x"], k=1); store.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
for use in (lambda: store.count(mine), lambda: add("n")):
    try:
        use()
    except StoreError as exc:
        print(exc)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
add("n")
print(store.count(mine))
"""
    )
    process = run_python(script, path)
    assert process.stderr == ""
    *sentences, count = process.stdout.splitlines()
    assert len(sentences) == 2
    assert all(str(path) in sentence and "too many" in sentence.lower() for sentence in sentences)
    assert count == "2"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk"
)
@pytest.mark.parametrize(
    "size",
    [
        "140k",
        "260k",
        *(pytest.param(size, marks=pytest.mark.thorough) for size in ("180k", "220k", "300k")),
    ],
)
def test_a_disk_that_is_full_at_the_first_write_leaves_no_partial_store(
    size: str, tmp_path: Path, run_python: RunPython
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, timeout=300).returncode:
        pytest.skip("this system allows no mounts")
    writing = (
        "import sys; from memories import Memories; "
        "Memories(sys.argv[1], embedder='none').create(sys.argv[2])"
    )
    try:
        run_python(writing, f"sqlite:///{disk}/m.db", "first", check=False)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True, timeout=300)
        run_python(writing, f"sqlite:///{disk}/m.db", "second")
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=300)


@pytest.mark.parametrize(
    ("is_root", "blocks", "inodes", "is_full"),
    [
        (True, (8, 0), (1, 0), False),
        (False, (0, 8), (0, 1), False),
        (True, (7, 8), (1, 1), True),
        (False, (8, 7), (1, 1), True),
        (True, (8, 8), (0, 1), True),
        (False, (8, 8), (1, 0), True),
    ],
)
def test_a_disk_without_free_blocks_or_inodes_for_this_user_counts_as_full(
    monkeypatch: pytest.MonkeyPatch,
    is_root: bool,
    blocks: tuple[int, int],
    inodes: tuple[int, int],
    is_full: bool,
) -> None:
    """Shared memory takes 8 blocks. The first number of each pair counts all free blocks, the
    second those that users other than root may use.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    status = [4096, 4096, 9, *blocks, 9, *inodes, 0, 0]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(status))
    assert errors._is_full(Path("/")) is is_full


def test_a_disk_with_unknown_usage_does_not_count_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not errors._is_full(tmp_path / "none")
    no_inodes = [4096, 4096, 10_000, 10_000, 10_000, 0, 0, 0, 0, 0]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(no_inodes))
    assert not errors._is_full(tmp_path)


@pytest.mark.usefixtures("mounting")
def test_remedies_for_a_read_only_disk_are_appropriate(path: Path, run_python: RunPython) -> None:
    run_python(STORE + "add('m'); store.close()", path)
    script = (
        "import os, sys\nfrom memories.__main__ import main\n"
        "os.environ['MEMORY_HOME'] = sys.argv.pop(1)\nmain()"
    )
    prefix = mounted(path.parent, "mount --bind store store; mount -o remount,bind,ro store")
    checked = run_python(script, path.parent, "doctor", prefix=prefix, check=False)
    findings = json.loads(checked.stdout)["findings"]
    remedies = {row["what"].partition(": ")[0]: row["remedy"] for row in findings}
    mount = "mount its file system for writing, or set MEMORY_HOME to a folder on another one"
    assert remedies[f"{path.parent} can't be written"] == mount
    assert remedies["operations can't be recorded"] == f"{mount}, or set MEMORY_EVENTS=off"
    backup = run_python(script, path.parent, "backup", prefix=prefix, check=False)
    assert "Read-only file system; name another place" in backup.stderr


READS = STORE + "print(told(lambda: store.count(mine))); print(told(lambda: add('more')))"


@pytest.mark.usefixtures("mounting")
def test_a_full_disk_is_reported_while_reading(path: Path, run_python: RunPython) -> None:
    """On a full disk, SQLite can't create its shared memory."""
    run_python(STORE + "add('m'); store.close()", path)
    small = f'cp "{path}" kept; mount -t tmpfs -o size=1m,mode=700 tmpfs store; cp -p kept "{path}"'
    process = run_python(
        READS, path, prefix=mounted(path.parent, f"{small}; cat /dev/zero > store/z || true")
    )
    first, second = process.stdout.splitlines()
    for sentence in (first, second):
        assert str(path) in sentence
        assert "full" in sentence
        assert "free some space" in sentence


@pytest.mark.usefixtures("mounting")
@pytest.mark.parametrize("how", ["mount", pytest.param("folder", marks=pytest.mark.thorough)])
def test_a_store_that_cannot_be_written_can_be_read(
    path: Path, run_python: RunPython, how: str
) -> None:
    run_python(STORE + "add('m'); store.close()", path)
    script = (
        "mount --bind store store; mount -o remount,bind,ro store"
        if how == "mount"
        else "chmod 500 store; :"
    )
    prefix = mounted(path.parent, script)
    if how == "folder":
        plain = (
            "--bounding-set",
            "-dac_override,-dac_read_search",
            "--inh-caps",
            "-dac_override,-dac_read_search",
        )
        prefix = (*prefix, "setpriv", *plain)
    in_transaction = "\nwith store.transaction():\n print(store.count(mine))"
    process = run_python(READS + in_transaction, path, prefix=prefix)
    path.parent.chmod(0o700)
    assert process.stderr == ""
    count, sentence, count_in_transaction = process.stdout.splitlines()
    assert (count, count_in_transaction) == ("1", "1")
    assert str(path) in sentence
    assert {entry.name for entry in path.parent.iterdir()} == {"memories.db", "memories.db.lock"}


@pytest.mark.usefixtures("mounting")
def test_a_log_in_a_read_only_folder_is_read_or_reported(path: Path, run_python: RunPython) -> None:
    run_python(STORE + "add('m'); os._exit(0)", path)
    ro = "mount --bind store store; mount -o remount,bind,ro store"
    assert run_python(READS, path, prefix=mounted(path.parent, ro)).stdout.splitlines()[0] == "1"
    Path(f"{path}-shm").unlink()
    sentence = run_python(READS, path, prefix=mounted(path.parent, ro)).stdout.splitlines()[0]
    assert (
        "is not writable, but reading the log of memories.db requires that; copy the whole folder"
        in sentence
    )


@pytest.mark.usefixtures("mounting")
def test_a_change_during_a_read_without_locks_is_noticed(path: Path, run_python: RunPython) -> None:
    """The folder is mounted read-only here, but another process writes to it through a different
    mount.
    """
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
    process = run_python(script, view, prefix=mounted(path.parent, ro))
    first, second, third = process.stdout.splitlines()
    assert (first, third) == ("1", "2")
    assert "another process wrote to" in second


def test_a_process_without_free_descriptors_reports_that(path: Path, run_python: RunPython) -> None:
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
    assert "too many open files" in run_python(script, path).stdout


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "the system did not report a reason"),
        ({"_is_out_of_descriptors": True}, "this process has too many open files"),
        ({"access": False, "_is_out_of_descriptors": True}, "it or its folder is not writable"),
        ({"_MAX_PATH_BYTES": 5, "access": False}, "its path is too long for SQLite"),
        ({"_is_full": True, "_MAX_PATH_BYTES": 5}, "its disk is full"),
        ({"_find_folder_in_the_way": "a folder is in the way", "_is_full": True}, "a folder is in the way"),
    ],
)  # fmt: skip
def test_the_first_reason_why_a_file_cannot_be_opened_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], why: str
) -> None:
    path = tmp_path / "m.db"
    path.touch()
    causes = {"_find_folder_in_the_way": "", "_is_full": False, "_is_out_of_descriptors": False}
    for name, answer in (causes | {"access": True} | changed).items():
        if name == "access":
            monkeypatch.setattr(os, name, lambda *_, answer=answer: answer)
        elif name == "_MAX_PATH_BYTES":
            monkeypatch.setattr(errors, name, answer)
        else:
            monkeypatch.setattr(errors, name, lambda *_, answer=answer: answer)
    assert errors._why_it_cannot_open(path).startswith(why)
    path.unlink()
    path.mkdir()
    assert errors._why_it_cannot_open(path) == "it is a folder"


@pytest.mark.parametrize(
    ("code", "is_out"), [(None, False), (errno.EMFILE, True), (errno.ENFILE, True), (errno.EACCES, False)]
)  # fmt: skip
def test_a_process_is_out_of_descriptors_if_the_system_refuses_a_new_one(
    monkeypatch: pytest.MonkeyPatch, code: int | None, is_out: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, "refused")

    if code is not None:
        monkeypatch.setattr(os, "open", refuse)
    assert errors._is_out_of_descriptors() is is_out
