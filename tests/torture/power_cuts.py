"""Simulates power cuts while writers work, and checks that every acknowledged write is stored:
`power_cuts.py FOLDER CUTS SEED`.

Root only. The store is on an ext4 filesystem in a file; the ledgers are outside. The writers are
stopped, then the filesystem is shut down without writing its journal, so that only flushed data
stays. Without the stop, a flush in progress could falsely be reported as done.
"""

import contextlib
import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import forks
import work

CUTS_OF_A_STORE = 12  # then a new filesystem, so that creations are cut too
IMAGE_BYTES = 256 << 20
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


def main(folder: Path, cuts: int, seed: str) -> None:
    """Cut the power this many times."""
    forks.die_with_parent()
    forks.own_mounts()
    forks.warm()
    drawn = random.Random(seed)
    done = {"cuts": 0, "first_creations": 0, "acknowledged": 0, "forgotten": 0}
    image, mount, files = folder / "image0", folder / "mount", list[Path]()
    mount.mkdir()
    path = mount / "store" / "memories.db"
    for number in range(cuts):
        if number % CUTS_OF_A_STORE == 0:
            files = []
            image.unlink(missing_ok=True)
            image = folder / f"image{number}"  # a loop device may still write to the old one
            _make(image)
        first = number % CUTS_OF_A_STORE == 0
        started = [folder / f"ledger{number}-{writer}" for writer in range(2)]
        with _mounted(image, mount):
            children = [forks.fork(_write, path, file, seed) for file in started]
            forks.wait_for_lines(
                started, drawn.randint(0, 3) if first else drawn.randint(2, 30), children
            )
            time.sleep(drawn.uniform(0.0, 0.05))
            _cut(mount, children)
        files += started
        ledgers = [work.Ledger(file) for file in files]
        with _mounted(image, mount):
            forks.wait([forks.fork(work.check, path, ledgers, drawn)])
            forks.wait([forks.fork(work.check_file, path)])
            forks.wait([forks.fork(work.check_nothing_left, path, ledgers)])
        done["cuts"] += 1
        done["first_creations"] += first
        done["acknowledged"] += sum(ledger.acknowledged for ledger in ledgers[-2:])
        done["forgotten"] += sum(len(ledger.forgotten) for ledger in ledgers[-2:])
        forks.print_figures(**done, lost=0)


def _make(image: Path) -> None:
    """Create a filesystem in a file."""
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    _run("mkfs.ext4", "-qF", image)


@contextlib.contextmanager
def _mounted(image: Path, mount: Path) -> Iterator[None]:
    """Mount the filesystem during the block."""
    _run("mount", "-o", "loop", image, mount)
    try:
        yield
    finally:
        _run("umount", mount)


def _cut(mount: Path, children: Sequence[int]) -> None:
    """Stop the writers and shut the filesystem down, like a power cut."""
    for child in children:
        os.kill(child, signal.SIGSTOP)
    for child in children:
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
            time.sleep(0.001)
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)
    for child in children:
        os.kill(child, signal.SIGKILL)
    forks.wait(children, -signal.SIGKILL)


def _run(*command: object) -> None:
    """Run a command; exit if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr}")


def _write(path: Path, ledger: Path, seed: str) -> None:
    """Write until the power is cut."""
    work.Writer(path, ledger, seed).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
