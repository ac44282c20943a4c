"""System calls that fail: every error is one of ours, what was acknowledged stays, and the next start works."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# Writes five memories under faults that begin once it has been warmed, since it waits for the tracer to be attached.
WRITER = """
import os, sys
from memories import Memories, MemoriesError
import memories.search.search, memories.stores.sqlite.store, memories.stores.sqlite.vectors, memories.write.create
memories.stores.sqlite.connection.BUSY_SECONDS = 1.0
memories = Memories(f"sqlite:///{sys.argv[1]}", embedder="fake")
if sys.argv[2] == "warm":
    print("+", memories.create("made before").memory.id)
print("ready", flush=True)
sys.stdin.readline()
for number in range(5):
    try:
        print("+", memories.create(f"w{number} was noted " + "with many words " * 300, force=True).memory.id)
        memories.search(f"w{number}")
    except MemoriesError as exc:
        print("!", exc)
sys.stdout.flush()
"""
READER = """
import sys, apsw
from memories import Memories
memories = Memories(f"sqlite:///{sys.argv[1]}", embedder="fake")
for memory_id in sys.argv[2:]:
    memories.get(memory_id)
memories.create("the next start works", force=True)
memories.close()
db = apsw.Connection(sys.argv[1])
assert db.pragma("integrity_check") == "ok"
for table in ("words", "words_ended"):
    db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 0)")
"""
FAULTS = [
    ("pwrite64", "error=EIO"),
    ("pwrite64", "error=ENOSPC"),
    ("pwrite64", "error=EDQUOT"),
    ("pwrite64", "error=EINTR"),
    ("pwrite64", "retval=100"),
    ("fdatasync", "error=EIO"),
    ("fdatasync", "error=ENOSPC"),
    ("pread64", "error=EIO"),
    ("openat", "error=EMFILE"),
    ("openat", "error=EACCES"),
    ("ftruncate", "error=ENOSPC"),
    ("mmap", "error=ENOMEM"),
    ("fcntl", "error=EAGAIN"),
    ("unlink", "error=EIO"),
    ("rename", "error=EIO"),
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("state", ["warm", "new"])
@pytest.mark.parametrize("when", ["{}", "{}+"], ids=["once", "from-then-on"])
@pytest.mark.parametrize(("call", "fault"), FAULTS)
def test_a_system_call_that_fails_loses_nothing(  # noqa: PLR0917 - what is given by name
    tmp_path: Path,
    run_python: RunPython,
    clean_environment: Mapping[str, str],
    call: str,
    fault: str,
    when: str,
    state: str,
) -> None:
    for nth in (1, 2, 4, 8, 16):
        path = tmp_path / str(nth) / "memories.db"
        acknowledged = []
        running = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=clean_environment,
        )
        assert running.stdin is not None
        assert running.stdout is not None
        while (line := running.stdout.readline()) != "ready\n":
            acknowledged.append(line)
        inject = f"{call}:{fault}:when={when.format(nth)}"
        tracer = subprocess.Popen(
            ["strace", "-fq", "-e", f"trace={call}", "-e", f"inject={inject}", "-o/dev/null", f"-p{running.pid}"],
            stderr=subprocess.PIPE,
        )
        try:
            while "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text():
                assert tracer.poll() is None
            printed, error = running.communicate("\n", timeout=300)
        finally:
            running.kill()
            tracer.kill()
            tracer.communicate()
        assert "Traceback" not in error, (inject, error)
        lines = acknowledged + printed.splitlines()
        assert all(line[0] in "+!" for line in lines)
        run_python(READER, path, *(line.split()[1] for line in lines if line[0] == "+"))
