"""What is kept of a namespace beside the store: events of hooks, what sessions were given, reads to
be counted.

All are JSON lines, which are added under the lock of the file; see `hooks` and `write.accesses`.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memories.core.disk import read_file, replacing, try_lock
from memories.errors import StoreBusy
from memories.guard import validate
from memories.models import SHARED
from memories.settings import Config

FLUSH_LOCK = ".flush.lock"  # in the inbox: who has it stores what waits there
_WAIT_SECONDS = 60.0  # that storing what waits may take
GIVEN_TO = "given_to"  # in a line of a session: whose memories it was given


@contextlib.contextmanager
def at_rest(config: Config) -> Iterator[None]:
    """Keep what hooks captured from being stored meanwhile: it would be stored under a name that is
    gone.

    Raises:
        StoreBusy: It is just being stored, for too long.
    """
    inbox = config.home / "inbox"
    if not inbox.is_dir():
        yield
        return
    with try_lock(inbox / FLUSH_LOCK, _WAIT_SECONDS) as held:
        if not held:
            raise StoreBusy(
                "what hooks captured is just being stored; try again in a minute; nothing was changed"
            )
        yield


def change(config: Config, name: str, into: str | None, *, dry_run: bool = False) -> int:
    """Give what is kept of a namespace to another one, or take it out.

    Args:
        config: The settings, which name the folder.
        name: The namespace.
        into: The other one; None to take it out.
        dry_run: Change nothing.

    Returns:
        How many events waited.
    """

    for file in sorted(config.home.glob("accesses-*")):
        _change(file, _read(name, into), dry_run=dry_run)
    inbox, event = config.home / "inbox", _event(name, into, config.identity or SHARED)
    count = sum(_change(file, event, dry_run=dry_run) for file in sorted(inbox.glob("*.jsonl")))
    count += sum(
        _change(file, event, dry_run=dry_run) for file in sorted((inbox / "refused").glob("*"))
    )
    for file in sorted((config.home / "sessions").glob("*")):
        if _change(file, _known(name, into), dry_run=dry_run) and into is None and not dry_run:
            _forget_said(inbox / "state" / f"{file.name}.json")
    return count


def _event(name: str, into: str | None, otherwise: str) -> Callable[[Any], Any]:
    """Return what changes an event; one that names no namespace is for that of the settings."""

    def event(line: Any) -> Any:
        if not isinstance(line, dict) or not _is(line.get("namespace") or otherwise, name):
            return line
        return None if into is None else {**line, "namespace": into}

    return event


def _known(name: str, into: str | None) -> Callable[[Any], Any]:
    """Return what changes a line of a session."""

    def known(line: Any) -> Any:
        own = [
            key
            for key in (GIVEN_TO, "namespace")
            if isinstance(line, dict) and _is(line.get(key), name)
        ]
        if not own:
            return line
        if (
            into is None
        ):  # who was switched off stays so; a session goes on as whoever its hook names
            return {key: line[key] for key in ("off", "reset") if key in line} or None
        return {**line, **dict.fromkeys(own, into)}

    return known


def _read(name: str, into: str | None) -> Callable[[Any], Any]:
    """Return what changes the reads of one search."""

    def read(line: Any) -> Any:
        if not isinstance(line, list) or not all(isinstance(ref, list) and ref for ref in line):
            return line
        found = [[into, *ref[1:]] if _is(ref[0], name) else ref for ref in line]
        return [ref for ref in found if ref[0] is not None] or None

    return read


def _is(found: object, name: str) -> bool:
    try:
        return isinstance(found, str) and validate.canonical_namespace(found) == name
    except ValueError:
        return False


def _change(file: Path, changed: Callable[[Any], Any], *, dry_run: bool) -> int:
    """Change the lines of a file; None takes one out. Return how many; what can't be read stays:
    its reader tells.
    """
    count = 0
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), file.open("r+b") as stream:
        _lock(stream.fileno())
        kept: list[bytes] = []
        for line in stream.read().splitlines(keepends=True):
            try:
                told = json.loads(line)
                now = changed(told)
            except ValueError:
                kept.append(line)
                continue
            count += now != told
            kept += (
                [line] if now == told else [] if now is None else [json.dumps(now).encode() + b"\n"]
            )
        if count and not dry_run:
            stream.seek(0)
            stream.write(b"".join(kept))
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
    return count


def _forget_said(file: Path) -> None:
    """Forget the hashes of what was said in a session, but not how far it was read: that would be
    captured again.
    """
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
