"""Does mixed work for a number of minutes, with a kill every minute: `soak.py FOLDER MINUTES`.

One process works all the time and reports its memory, open files and threads. Two others work until
they are killed, then two new ones start.
"""

import os
import random
import sys
import time
from pathlib import Path

import forks
import work

KILL_SECONDS, LOOK_OPERATIONS = 60.0, 100


def main(folder: Path, minutes: float) -> None:
    """Work, kill and check; print the figures after each kill."""
    forks.die_with_parent()
    forks.warm()
    path, drawn = folder / "store" / "memories.db", random.Random(1)
    report, steady = folder / "report", folder / "steady"
    until = time.monotonic() + 60 * minutes
    staying = forks.fork(_stay, path, steady, report)
    files: list[Path] = []
    kills = largest_log = 0
    while time.monotonic() < until:
        started = [folder / f"ledger{kills}-{number}" for number in range(2)]
        files += started
        children = [forks.fork(_write, path, file) for file in started]
        end = min(until, time.monotonic() + KILL_SECONDS)
        log = Path(f"{path}-wal")
        while time.monotonic() < end:
            largest_log = max(largest_log, log.stat().st_size if log.exists() else 0)
            time.sleep(0.2)
        forks.kill(children, drawn)
        kills += len(children)
        forks.wait([forks.fork(work.check, path, [work.Ledger(file) for file in started], drawn)])
        _print_growth(report, files, kills, largest_log)
    forks.kill([staying], drawn)
    forks.wait(
        [forks.fork(work.check, path, [work.Ledger(file) for file in [*files, steady]], drawn)]
    )
    forks.wait([forks.fork(work.check_file, path)])
    _print_growth(report, [*files, steady], kills, largest_log)


def _print_growth(report: Path, files: list[Path], kills: int, largest_log: int) -> None:
    """Print the figures, with the growth of memory and files."""
    rows = [tuple(map(int, line.split())) for line in report.read_text().splitlines()]
    first, last = rows[len(rows) // 4], rows[-1]  # after the warm-up
    forks.print_figures(
        kills=kills,
        acknowledged=sum(work.Ledger(file).acknowledged for file in files),
        lost=0,
        operations=LOOK_OPERATIONS * len(rows),
        rss_kb=last[0],
        rss_growth_kb=last[0] - first[0],
        files_growth=last[1] - first[1],
        threads_growth=last[2] - first[2],
        largest_log_kb=largest_log >> 10,
    )


def _stay(path: Path, ledger: Path, report: Path) -> None:
    """Work and measure this process until it is killed."""
    writer = work.Writer(path, ledger, "steady")
    note = os.open(report, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    while True:
        writer.run(LOOK_OPERATIONS)
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        held = (
            status["VmRSS"].split()[0],
            len(list(Path("/proc/self/fd").iterdir())),
            status["Threads"].strip(),
        )
        os.write(note, " ".join(map(str, held)).encode() + b"\n")


def _write(path: Path, ledger: Path) -> None:
    """Write until the process is killed."""
    work.Writer(path, ledger, "soak").run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
