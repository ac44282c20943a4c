"""A namespace's `metadata.json`: its name, creation time, counts and last use.

It is for people and other programs. Memories itself reads only the creation time from it.
"""

import contextlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from memories.core.disk import CREATING, make_folder, write_all
from memories.core.times import to_iso
from memories.errors import InvalidInput
from memories.scratchpad.text import read_text
from memories.stores.records import Collection

FILE = "metadata.json"
SCRATCH = f".{FILE}.new"


def write(
    folder: Path,
    name: str,
    count: Callable[[Collection], int],
    now: datetime,
    created_at: datetime | None = None,
) -> None:
    """Write a namespace's file; the caller holds the lock of its folder.

    It is not flushed to disk, which would cost as much as storing a memory: after a power failure
    the next write recreates it.

    Args:
        folder: The folder of the namespace.
        name: The namespace.
        count: Returns how many current memories, or turns, it has.
        now: The time of the write.
        created_at: When it was created, unless an earlier file records that; now by default.
    """
    metadata = {
        "name": name,
        "created_at": to_iso(read_created(folder) or created_at or now),
        "last_used_at": to_iso(now),
        "memory_count": count(Collection.MEMORY),
        "turn_count": count(Collection.HISTORY),
    }
    make_folder(folder)
    scratch = folder / SCRATCH
    fd = os.open(scratch, CREATING | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        write_all(fd, json.dumps(metadata, indent=1).encode() + b"\n")
    finally:
        os.close(fd)
    scratch.replace(folder / FILE)


def read_created(folder: Path) -> datetime | None:
    """Return when a namespace was created; None if its file is missing or damaged."""
    with contextlib.suppress(InvalidInput, ValueError, KeyError, TypeError, RecursionError):
        metadata = json.loads(read_text(folder / FILE) or "{}")
        created_at = datetime.fromisoformat(metadata["created_at"])
        return created_at if created_at.tzinfo is not None else None
    return None
