"""What hooks keep of a namespace beside the store: events that wait, and what sessions were given and how they are.

All are files of JSON lines, to which hooks add under the lock of the file; see `skins.capture`.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memories import validate
from memories.disk import read_file, replacing
from memories.models import SHARED
from memories.settings import Config

Changed = dict[str, Any] | None  # a line as it is now; None for one that goes
GIVEN_TO = "given_to"  # in a line of a session: whose memories it was given


def change(config: Config, name: str, into: str | None, *, dry_run: bool = False) -> int:
    """Give what hooks keep of a namespace to another one, or take it out.

    Args:
        config: The settings, which name the folder.
        name: The namespace.
        into: The other one; None to take it out.
        dry_run: Change nothing.

    Returns:
        How many events waited.
    """

    def event(line: dict[str, Any]) -> Changed:
        if not _is(line.get("namespace") or config.identity or SHARED, name):
            return line
        return None if into is None else {**line, "namespace": into}

    def known(line: dict[str, Any]) -> Changed:
        own = [key for key in (GIVEN_TO, "namespace") if _is(line.get(key), name)]
        if own and into is None:
            # Who was switched off stays so; a session goes on as whoever its hook names.
            return {key: line[key] for key in ("off", "reset") if key in line} or None
        return {**line, **dict.fromkeys(own, into)}

    inbox = config.home / "inbox"
    count = sum(_change(file, event, dry_run=dry_run) for file in sorted(inbox.glob("*.jsonl")))
    count += sum(_change(file, event, dry_run=dry_run) for file in sorted((inbox / "refused").glob("*")))
    for file in sorted((config.home / "sessions").glob("*")):
        if _change(file, known, dry_run=dry_run) and into is None and not dry_run:
            _forget_said(inbox / "state" / f"{file.name}.json")
    return count


def _is(found: object, name: str) -> bool:
    try:
        return isinstance(found, str) and validate.namespace(found) == name
    except ValueError:
        return False


def _change(file: Path, changed: Callable[[dict[str, Any]], Changed], *, dry_run: bool) -> int:
    """Change the lines of a file; return how many were changed. One that can't be read stays: its reader tells."""
    count = 0
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), file.open("r+b") as stream:
        _lock(stream.fileno())
        kept: list[bytes] = []
        for line in stream.read().splitlines(keepends=True):
            try:
                told = json.loads(line)
            except ValueError:
                told = None
            now = changed(told) if isinstance(told, dict) else told
            count += now != told
            kept += [line] if now == told else [] if now is None else [json.dumps(now).encode() + b"\n"]
        if count and not dry_run:
            stream.seek(0)
            stream.write(b"".join(kept))
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
    return count


def _forget_said(file: Path) -> None:
    """Forget the hashes of what was said in a session, but not how far it was read: that would be captured again."""
    try:
        known = json.loads(read_file(file))
    except (FileNotFoundError, ValueError):
        return
    with replacing(file) as stream:
        stream.write(json.dumps({**known, "last": [], "events": {}, "lines": {}}).encode())


def _lock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: as in `disk`
        return
    fcntl.flock(fd, fcntl.LOCK_EX)
