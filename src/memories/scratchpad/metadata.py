"""`metadata.json` of a namespace: its name, when it began, how much it holds and when it was last
written to.

It is for people and other programs, and decides nothing: only the time of the beginning is ever
read back.
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
from memories.scratchpad.file import content
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
    """Write the file of a namespace; the caller holds the lock of its folder.

    It is not flushed to the disk, which would cost as much as storing a memory: after a power cut
    the next write makes it again.

    Args:
        folder: The folder of the namespace.
        name: The namespace.
        count: Returns how many current memories, or turns, it has.
        now: When it was written to.
        created_at: When it began, where no earlier file says so; now by default.
    """
    known = {
        "name": name,
        "created_at": to_iso(created(folder) or created_at or now),
        "last_used_at": to_iso(now),
        "memory_count": count(Collection.MEMORY),
        "turn_count": count(Collection.HISTORY),
    }
    make_folder(folder)
    scratch = folder / SCRATCH
    fd = os.open(scratch, CREATING | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        write_all(fd, json.dumps(known, indent=1).encode() + b"\n")
    finally:
        os.close(fd)
    scratch.replace(folder / FILE)


def created(folder: Path) -> datetime | None:
    """Return when the namespace of a folder began, as its file says; None if it does not, or can't
    be relied on.
    """
    with contextlib.suppress(InvalidInput, ValueError, KeyError, TypeError, RecursionError):
        at = datetime.fromisoformat(json.loads(content(folder / FILE) or "{}")["created_at"])
        return at if at.tzinfo is not None else None
    return None
