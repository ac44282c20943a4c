"""A system call fails while a store is created: there is no store or a complete one, and the next
start works.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

RunPython = Callable[..., subprocess.CompletedProcess[str]]

# Creates another store first, so that all modules are loaded and only calls for the store can fail.
# Then it waits for the tracer.
FIRST = """
import sys
from memories import Memories, MemoriesError
with Memories(sys.argv[2], embedder="fake") as memories:
    memories.create("of another store")
from memories.stores.files import connection as files
from memories.stores.sqlite import connection as sqlite
files.BUSY_SECONDS = sqlite.BUSY_SECONDS = 0.5
memories = Memories(sys.argv[1], embedder="fake")
print("ready", flush=True)
sys.stdin.readline()
try:
    print("+", memories.create("the first").memory.id)
except MemoriesError as exc:
    print("!", exc)
sys.stdout.flush()
"""
NEXT = """
import sys
from memories import Memories
memories = Memories(sys.argv[1], embedder="fake")
for memory_id in sys.argv[2:]:
    memories.get(memory_id)
memories.create("the second", force=True)
assert "the second" in [hit.memory.content for hit in memories.search("second")]
memories.close()
"""
FAULTS = [
    ("fdatasync", "EIO"),
    ("fdatasync", "ENOSPC"),
    ("fsync", "EIO"),
    ("pread64", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("ftruncate", "EIO"),
    ("rename", "EIO"),
    ("rename", "ENOSPC"),
    ("unlink", "EIO"),
    ("openat", "EIO"),
    ("openat", "ENOSPC"),
    ("openat", "EMFILE"),
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("when", ["{}", "{}+"], ids=["once", "from-then-on"])
@pytest.mark.parametrize(("call", "error"), FAULTS)
def test_a_fault_during_creation_leaves_no_store_or_a_complete_one(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    run_python: RunPython,
    clean_environment: Mapping[str, str],
    call: str,
    error: str,
    when: str,
    kind: str,
) -> None:
    for nth in (1, 2, 3, 5, 8, 13, 25):
        url, other = (
            f"sqlite:///{tmp_path}/{name}/memories.db"
            if kind == "sqlite"
            else f"files:///{tmp_path}/{name}"
            for name in (nth, f"other{nth}")
        )
        running = subprocess.Popen(
            [sys.executable, "-c", FIRST, url, other],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=clean_environment,
        )
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        inject = f"{call}:error={error}:when={when.format(nth)}"
        tracer = subprocess.Popen(
            [
                "strace",
                "-fq",
                "-e",
                f"trace={call}",
                "-e",
                f"inject={inject}",
                "-o/dev/null",
                f"-p{running.pid}",
            ],
            stderr=subprocess.PIPE,
        )
        try:
            while "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text():
                assert tracer.poll() is None
            printed, errors = running.communicate("\n", timeout=300)
        finally:
            running.kill()
            tracer.kill()
            tracer.communicate(timeout=300)
        assert "Traceback" not in errors, (inject, errors)
        assert printed[0] in "+!", (inject, printed)
        run_python(NEXT, url, *([printed.split()[1]] if printed[0] == "+" else []))
