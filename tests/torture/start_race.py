"""Makes processes create a store at the same moment: `start_race.py FOLDER PROCESSES ROUNDS`."""

import os
import sys
from pathlib import Path

import forks
import work

from memories import Memories


def main(folder: Path, processes: int, rounds: int) -> None:
    """Race this many times."""
    forks.die_with_parent()
    forks.warm()
    for number in range(rounds):
        path = folder / f"round{number}" / "memories.db"
        ready, start = os.pipe()
        children = [forks.fork(_first, path, ready, start, each) for each in range(processes)]
        os.close(start)
        os.close(ready)
        forks.wait(children)
        forks.wait([forks.fork(_check_stored, path, processes)])
        forks.wait([forks.fork(work.check_file, path)])
        forks.print_figures(processes=processes, rounds=number + 1, errors=0)


def _first(path: Path, ready: int, start: int, number: int) -> None:
    """Store a memory as soon as all processes are ready."""
    os.close(start)
    os.read(ready, 1)
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        assert memories.create(f"the first of {number}", force=True).stored


def _check_stored(path: Path, processes: int) -> None:
    """Check that the store has a memory of each process."""
    with Memories(f"sqlite:///{path}", embedder="fake") as memories:
        assert memories.status().memory_count == processes


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
