"""Makes system calls fail, and checks that no acknowledged write is lost, that each error is one of
ours, and that the next start works.

`system_calls.py FOLDER COUNT` runs the first COUNT of all cases, in a mixed order. A case is a
system call, an error, the number of the failing call, whether it fails once or from then on, and
whether the store is warm, being created, or being erased from. A traced child does the work, so
that a case takes a fraction of a second. Only errors that a kernel can return are used: a write
that is interrupted forever, or that falsely reports success, means a broken kernel.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import work

from memories import Memories, MemoriesError
from memories.stores.sqlite import connection

FAULTS = {
    "pwrite64": ("EIO", "ENOSPC", "EDQUOT", "EFBIG"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT"),
    "fsync": ("EIO", "ENOSPC"),
    "pread64": ("EIO",),
    "openat": ("EMFILE", "ENFILE", "EACCES", "EIO"),
    "ftruncate": ("EIO", "ENOSPC"),
    "mmap": ("ENOMEM",),
    "fcntl": ("EAGAIN", "ENOLCK"),
    "unlink": ("EIO", "EACCES"),
    "rename": ("EIO", "ENOSPC"),
    "newfstatat": ("EIO", "EACCES"),
}
ONCE_ONLY = {
    "pwrite64": ("EINTR",),
    "pread64": ("EINTR",),
    "fdatasync": ("EINTR",),
}  # SQLite retries these
NTH = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 60)
STATES = ("warm", "new", "forget")
SECONDS = 120  # limit for one case, since a hang is a defect


def cases() -> list[tuple[str, str, str, str]]:
    """Return all cases: system call, error, number of the call, and state of the store."""
    lasting = [(call, error) for call, errors in FAULTS.items() for error in errors]
    once = lasting + [(call, error) for call, errors in ONCE_ONLY.items() for error in errors]
    faults = [(call, error, f"{nth}") for (call, error), nth in itertools.product(once, NTH)]
    faults += [(call, error, f"{nth}+") for (call, error), nth in itertools.product(lasting, NTH)]
    found = [(*fault, state) for fault in faults for state in STATES]
    random.Random(1).shuffle(found)
    return found


def main(folder: Path, count: int) -> None:
    """Run the first `count` cases."""
    forks.die_with_parent()
    forks.warm()
    connection.BUSY_SECONDS = 0.5  # a lasting error may leave a lock: don't wait for it
    done = {"cases": 0, "acknowledged": 0, "refused": 0}
    failed: list[str] = []
    for number, case in enumerate(cases()[:count]):
        call, error, when, state = case
        name = f"{call} {error} at {when}, {state}"
        try:
            told, refused = _case(folder / f"case{number}" / "memories.db", case)
        except Failed as exc:
            failed.append(f"{name}: {exc}")
            continue
        finally:
            shutil.rmtree(folder / f"case{number}", ignore_errors=True)
        done["cases"] += 1
        done["acknowledged"] += told
        done["refused"] += refused
        forks.print_figures(**done, failed=len(failed))
    if failed:
        sys.exit("\n".join(failed))


class Failed(Exception):
    """A case ended wrongly."""


def _case(path: Path, case: tuple[str, str, str, str]) -> tuple[int, int]:
    """Run one case; return the numbers of acknowledged and of refused writes."""
    call, error, when, state = case
    log = path.parent.with_suffix(".log")
    if state != "new":
        forks.wait([forks.fork(_prepare, path)])
    ended = _traced(path, log, f"{call}:error={error}:when={when}", state)
    lines = log.read_text().splitlines() if log.exists() else []
    if ended:
        raise Failed(f"the writer ended with {ended}, after {lines}")
    child = forks.fork(_check, path, lines, state)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended:
        raise Failed(f"the next start ended with {ended}, after {lines}")
    return tuple(sum(line[0] == sign for line in lines) for sign in "+!")  # type: ignore[return-value]


def _prepare(path: Path) -> None:
    """Create a store with three memories."""
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        for number in range(3):
            memories.create(f"made before {number}", key=f"before/{number}")


def _traced(path: Path, log: Path, inject: str, state: str) -> int:
    """Run a child whose calls fail; return its exit code."""
    ready, start = os.pipe()
    opened, warm = os.pipe()
    child = forks.fork(_work, path, log, (ready, start, warm), state)
    os.close(ready)
    os.close(warm)
    os.read(opened, 1)
    os.close(opened)
    call = inject.partition(":")[0]
    tracer = subprocess.Popen(
        ["strace", "-fq", "-e", f"trace={call}", "-e", f"inject={inject}", "-o", "/dev/null", "-p", str(child)],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
            if tracer.poll() is not None:
                sys.exit(f"strace ended with {tracer.returncode}")
            time.sleep(0.001)
        os.close(start)
        return _ended(child)
    finally:
        tracer.kill()
        tracer.communicate(timeout=300)


def _ended(child: int) -> int:
    """Wait for the end of a child; return its exit code."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Failed(f"it was not done after {SECONDS} s")


def _work(path: Path, log: Path, pipes: tuple[int, int, int], state: str) -> None:
    """Use a store while its system calls fail; log each acknowledged write and each error."""
    ready, start, warm = pipes
    note = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.close(start)
    memories = Memories(f"sqlite:///{path}", embedder="fake")
    if state != "new":
        memories.list()
    os.close(warm)
    os.read(ready, 1)  # returns when the parent closes its side, once the tracer is attached
    for number in range(5):
        text = f"w{number} was noted " + "with many words " * 100
        try:
            made = memories.create(text, force=True).memory
            assert made is not None
            os.write(note, f"+{made.id}\n".encode())
            memories.search(f"w{number}")
            if state == "forget":
                memories.forget(made.id)
                os.write(note, f"-{made.id}\n".encode())
        except MemoriesError as exc:
            assert "\n" not in str(exc)
            os.write(note, f"!{exc}\n".encode())
    os._exit(0)  # like a killed process, without any cleanup


def _check(path: Path, lines: list[str], state: str) -> None:
    """Check that everything acknowledged is in the store and everything forgotten is not."""
    told, gone = ([line[1:] for line in lines if line[0] == sign] for sign in "+-")
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        for memory_id in told:
            found = work.state(memories, memory_id)
            if memory_id in gone:
                assert found == work.GONE, (memory_id, found)
            elif state != "forget":  # else its erasure has begun, and may be complete
                assert found[0] == "live", (memory_id, found)
        memories.create("the next start works", force=True)
    work.check_file(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
