"""Kills writers and checks that every acknowledged write is stored: `kills.py FOLDER all|first
ROUNDS SEED`.
"""

import random
import sys
import time
from pathlib import Path

import forks
import work

ROUNDS_OF_A_STORE = 100
EVERY = 20  # rounds between two checks of everything


def main(folder: Path, mode: str, rounds: int, seed: str) -> None:
    """Kill the writers of this many rounds."""
    forks.die_with_parent()
    forks.warm()
    drawn = random.Random(seed)
    done = {"rounds": 0, "kills": 0, "acknowledged": 0, "forgotten": 0}
    files: list[Path] = []
    for number in range(rounds):
        if mode == "first" or number % ROUNDS_OF_A_STORE == 0:
            path, files = folder / f"store{number}" / "memories.db", []
        started = [folder / f"ledger{number}-{writer}" for writer in range(drawn.randint(2, 4))]
        files += started
        children = [forks.fork(_write, path, file, seed) for file in started]
        if mode == "all":
            forks.wait_for_lines(started, drawn.randint(1, 40), children)
        else:
            forks.wait_for_lines(
                started, drawn.randint(0, 6), children
            )  # a writer logs a line before it creates the store, and one after
        time.sleep(drawn.uniform(0.0, 0.03))
        forks.kill(children, drawn)
        ledgers = [work.Ledger(file) for file in started]
        deeply = mode == "first" or number % EVERY == EVERY - 1 or number == rounds - 1
        forks.wait(
            [
                forks.fork(
                    work.check,
                    path,
                    [work.Ledger(file) for file in files] if deeply else ledgers,
                    drawn,
                )
            ]
        )
        if deeply:
            forks.wait([forks.fork(work.check_file, path)])
        forks.wait(
            [forks.fork(work.check_nothing_left, path, [work.Ledger(file) for file in files])]
        )
        done["rounds"] += 1
        done["kills"] += len(children)
        done["acknowledged"] += sum(ledger.acknowledged for ledger in ledgers)
        done["forgotten"] += sum(len(ledger.forgotten) for ledger in ledgers)
        forks.print_figures(**done, lost=0)


def _write(path: Path, ledger: Path, seed: str) -> None:
    """Write until the process is killed."""
    work.Writer(path, ledger, seed).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
