"""Steps by which what was written is on the disk for sure."""

import os
from pathlib import Path


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however little the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def flush_folder(folder: Path) -> None:
    """Make new and renamed names in a folder outlast a power cut; where there is no such thing, do nothing."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
