"""Lets many processes write into one store; each logs its acknowledged writes: `writers.py FOLDER
PROCESSES WRITES`.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import forks
import work

from memories import Memories, StoreBusy


def main(folder: Path, processes: int, writes: int) -> None:
    """Start all writers at the same moment, then look for each acknowledged memory."""
    forks.die_with_parent()
    forks.warm()
    path = folder / "store" / "memories.db"
    notes = [folder / f"ledger{number}" for number in range(processes)]
    ready, start = os.pipe()
    begun = time.monotonic()
    children = [forks.fork(_write, path, note, writes, ready, start) for note in notes]
    os.close(start)
    forks.wait(children)
    seconds = time.monotonic() - begun
    entries = [json.loads(line) for note in notes for line in note.read_text().splitlines()]
    waits = sorted(entry["seconds"] for entry in entries)
    told = [entry["id"] for entry in entries if "id" in entry]
    forks.print_figures(
        processes=processes,
        acknowledged=len(told),
        busy=len(entries) - len(told),
        writes_per_second=round(len(told) / seconds, 1),
        wait_p50_ms=round(waits[len(waits) // 2] * 1000),
        wait_p99_ms=round(waits[len(waits) * 99 // 100] * 1000),
        wait_max_ms=round(waits[-1] * 1000),
    )
    forks.wait([forks.fork(_check_stored, path, told)])
    forks.wait([forks.fork(work.check_file, path)])


def _write(path: Path, note: Path, writes: int, ready: int, start: int) -> None:
    """Store memories as soon as all processes are ready; log their ids."""
    os.close(start)
    os.read(ready, 1)  # returns in all of them when the parent closes its side
    ledger = os.open(note, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    memories = Memories(f"sqlite:///{path}", embedder="fake")
    for number in range(writes):
        entry: dict[str, object] = {}
        begun = time.monotonic()
        try:
            made = memories.create(
                f"{note.name} noted {number} that w{note.name}x{number} is so", force=True
            ).memory
            entry["id"] = made.id if made else None
        except StoreBusy:
            pass  # counted as busy: the entry has no id
        entry["seconds"] = round(time.monotonic() - begun, 4)
        os.write(ledger, f"{json.dumps(entry)}\n".encode())


def _check_stored(path: Path, told: Sequence[str]) -> None:
    """Check that each logged id is in the store once."""
    found: list[str] = []
    cursor = None
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        while True:
            page = memories.list(limit=1000, cursor=cursor)
            found += [memory.id for memory in page.memories]
            cursor = page.next_cursor
            if cursor is None:
                break
    lost, doubled = len(set(told) - set(found)), len(found) - len(set(found))
    unknown = len(set(found) - set(told))
    forks.print_figures(lost=lost, doubled=doubled, unknown=unknown)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
