"""A namespace's data in files next to the store: captured events, sessions, uncounted reads, and
turns that have not been stored yet.

All these files contain JSON lines. A program locks the file before it adds a line; see `hooks` and
`write.accesses`.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import make_folder, read_file, replacing, try_lock
from memories.errors import StoreBusy
from memories.guard import validate
from memories.models import SHARED
from memories.settings import Config
from memories.write.turn_queue import RetryQueue

FLUSH_LOCK = ".flush.lock"  # file in the inbox, locked while waiting events are stored
GIVEN_TO = "given_to"  # key in a session's line: the namespace whose memories were shown
# key in a session's state: its texts up to this time were erased; in milliseconds since 1970
FORGOTTEN = "forgotten"
_WAIT_SECONDS = 60.0  # maximum time to wait for a flusher to finish

Edit = Callable[[Any], Any]  # returns the changed line, or None to remove the line


@contextlib.contextmanager
def at_rest(config: Config) -> Iterator[None]:
    """Prevent captured events from being stored while a namespace is moved or erased.

    Raises:
        StoreBusy: A flusher is storing events and does not finish in time.
    """
    inbox = config.home / "inbox"
    if not inbox.is_dir():
        yield
        return
    with try_lock(inbox / FLUSH_LOCK, _WAIT_SECONDS) as is_locked:
        if not is_locked:
            raise StoreBusy(
                "captured events are being stored; try again in a minute; nothing was changed"
            )
        yield


def change(config: Config, name: str, into: str | None, *, dry_run: bool = False) -> int:
    """Move a namespace's captured data to another namespace, or remove it.

    Args:
        config: The settings, which determine the folder.
        name: The namespace.
        into: The other namespace; None to remove the data.
        dry_run: Change nothing.

    Returns:
        The number of events that were waiting to be stored.
    """
    inbox = config.home / "inbox"
    for file in sorted(config.home.glob("accesses-*")):
        _edit_lines(file, partial(_edit_accesses, name=name, into=into), dry_run=dry_run)

    def edit_event(line: Any) -> Any:
        if not _is_event_of(line, name, config):
            return line
        return None if into is None else {**line, "namespace": into}

    count = 0
    for file in _event_files(inbox):
        count += _edit_lines(file, edit_event, dry_run=dry_run, removes=True)
    edit_session = partial(_edit_session, name=name, into=into)
    for file in sorted((config.home / "sessions").glob("*")):
        changed = _edit_lines(file, edit_session, dry_run=dry_run)
        if changed and into is None and not dry_run:
            _forget_utterances(inbox, file.name)
    return count


class UnstoredTexts(NamedTuple):
    """Texts that are waiting to be stored, from a namespace's conversations.

    Attributes:
        queue: The queued turns.
        namespace: The namespace.
        config: The settings, if events are captured for this store; else None.
    """

    queue: RetryQueue
    namespace: str
    config: Config | None

    def discard(self, conversation: str, *, dry_run: bool = False) -> int:
        """Erase a conversation's queued turns and captured texts; return how many there were.

        Raises:
            StoreBusy: Captured events are being stored; nothing was changed.
        """
        captured = self._discard_captured(conversation, dry_run=dry_run)
        if dry_run:
            return captured + len(self.queue.entries(conversation))
        return captured + self.queue.discard(conversation)

    def _discard_captured(self, conversation: str, *, dry_run: bool) -> int:
        if self.config is None:
            return 0
        config, inbox = self.config, self.config.home / "inbox"
        texts: list[object] = []

        def edit_event(line: Any) -> Any:
            if isinstance(line, dict):
                if not _is_event_of(line, self.namespace, config):
                    return line
                texts.extend(filter(None, (line.get("prompt"), line.get("answer"))))
            return None  # unreadable lines are erased too

        files = [*_event_files(inbox), *(inbox / "state").glob("*.json")]
        for session in {file.stem for file in files}:
            if session.replace(".", ":", 1) != conversation:
                continue
            with at_rest(config):
                for file in _event_files(inbox):
                    if file.stem == session:
                        _edit_lines(file, edit_event, dry_run=dry_run, removes=True)
                if not dry_run:
                    _forget_utterances(inbox, session)
        return len(texts)


def _event_files(inbox: Path) -> list[Path]:
    """Return the files with captured events, each named after its session."""
    return [*sorted(inbox.glob("*.jsonl")), *sorted((inbox / "refused").glob("*"))]


def _is_event_of(line: Any, name: str, config: Config) -> bool:
    """Return whether a line is an event that belongs to a namespace. An event that names no
    namespace belongs to the default one.
    """
    default = config.identity or SHARED
    return isinstance(line, dict) and _is_name(line.get("namespace") or default, name)


def _edit_session(line: Any, name: str, into: str | None) -> Any:
    """Return a session's line with the new namespace. Without a new namespace, return only the keys
    that must stay, or None if the line has none of them.
    """
    if not isinstance(line, dict):
        return line
    if _is_name(line.get("named"), name):
        line = {**line, "named": into or ""}
    keys = [key for key in (GIVEN_TO, "namespace") if _is_name(line.get(key), name)]
    if not keys:
        return line
    if into is not None:
        return {**line, **dict.fromkeys(keys, into)}
    # A session that was switched off stays off. Any other session continues with its hook's
    # identity.
    return {key: line[key] for key in ("off", "reset") if key in line} or None


def _edit_accesses(line: Any, name: str, into: str | None) -> Any:
    """Move the reads in a line to the new namespace, or remove them if there is none.

    The line lists the reads of one search. Return the changed line, or None if no reads are left.
    """
    if not isinstance(line, list) or not all(isinstance(ref, list) and ref for ref in line):
        return line
    refs = []
    for namespace, *address in line:
        if not _is_name(namespace, name):
            refs.append([namespace, *address])
        elif into is not None:
            refs.append([into, *address])
    return refs or None


def _is_name(value: object, name: str) -> bool:
    try:
        return isinstance(value, str) and validate.canonical_namespace(value) == name
    except ValueError:
        return False


def _edit_lines(file: Path, edit: Edit, *, dry_run: bool, removes: bool = False) -> int:
    """Apply an edit to each line of a file; return the number of changed lines.

    The edit gets the value in a line, or the bytes of a line that can't be read. With `removes`,
    the file is removed if no lines are left; programs that add lines to it must expect that.
    """
    count = 0
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), file.open("r+b") as stream:
        _lock(stream.fileno())
        lines: list[bytes] = []
        for line in stream.read().splitlines(keepends=True):
            try:
                before = json.loads(line)
            except (ValueError, RecursionError):
                before = line
            after = edit(before)
            if after == before:
                lines.append(line)
                continue
            count += 1
            if after is not None:
                lines.append(json.dumps(after).encode() + b"\n")
        if count and not dry_run:
            stream.seek(0)
            stream.write(b"".join(lines))
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
            if removes and not lines:
                file.unlink()
    return count


def _forget_utterances(inbox: Path, session: str) -> None:
    """Mark a session's utterances up to now as erased, and forget their hashes.

    After that, they aren't read from the host's transcript again. The position in the transcript is
    kept.
    """
    if not inbox.is_dir():
        return
    file = inbox / "state" / f"{session}.json"
    progress: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        progress = json.loads(read_file(file))
    make_folder(file.parent)
    erased = {"last": [], "events": {}, "lines": {}, FORGOTTEN: time.time_ns() // 1_000_000}
    with replacing(file) as stream:
        stream.write(json.dumps({**progress, **erased}).encode())


def _lock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl
        return
    fcntl.flock(fd, fcntl.LOCK_EX)
