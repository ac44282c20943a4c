"""The inbox: captured events that wait to be stored, in one file per session.

Each line is a JSON object. A line is written completely or not at all, and is on disk before the
hook reports success. A process that adds or removes lines holds the file's lock. If the file was
replaced while the process waited for the lock, the process opens the new file.
"""

import json
import os

from memories.hooks import files

MAX_TEXT = 200_000  # maximum length of one text, in characters
MAX_FILE_BYTES = 16 * 1_048_576
MAX_BYTES = 64 * 1_048_576  # maximum total size of the files
SUFFIX, REFUSED = ".jsonl", "refused"
_ATTEMPTS = 100


class InboxFull(OSError):
    """The inbox is full: nothing has been stored for a long time."""


def add(home: str, name: str, event: "dict[str, object]") -> None:
    """Append an event to the file of its session.

    Raises:
        InboxFull: The inbox has no space left.
        OSError: The file can't be written; nothing was added.
    """
    folder = files.private_folder(home, files.INBOX)
    line = json.dumps(event).encode() + b"\n"
    if size(home) + len(line) > MAX_BYTES:
        raise InboxFull(
            f"the inbox is full: {MAX_BYTES >> 20} MiB of events are waiting to be stored; run: "
            "memory capture flush"
        )
    fd = _open_locked(os.path.join(folder, name + SUFFIX), os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(fd).st_size
        if before + len(line) > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES >> 20
            raise InboxFull(
                f"{limit} MiB of events from this session are waiting to be stored; run: memory "
                "capture flush"
            )
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, before)  # the disk may be full; a partial line must not remain
            raise
    finally:
        os.close(fd)


def size(home: str) -> int:
    """Return how many bytes are waiting to be stored."""
    return sum(status.st_size for _, status in _entries(home))


def oldest(home: str) -> float | None:
    """Return the time at which the longest-waiting file last changed, in seconds since 1970.

    Return None if no file is waiting.
    """
    return min((status.st_mtime for _, status in _entries(home)), default=None)


def names(home: str) -> list[str]:
    """Return the names of sessions with waiting events, the longest-waiting first."""
    entries = sorted((status.st_mtime, name) for name, status in _entries(home))
    return [name.removesuffix(SUFFIX) for _, name in entries]


def read(
    home: str, name: str, store: str | None = None
) -> tuple[list["dict[str, object]"], int, int]:
    """Return a session's waiting events, their size in bytes, and the number of unreadable lines.

    Args:
        home: The home folder.
        name: The session.
        store: The mark of a store, from `handler.store_mark`. Reading stops before the first event
            for another store.
    """
    path = os.path.join(home, files.INBOX, name + SUFFIX)
    try:
        fd = _open_locked(path, os.O_RDONLY, create=False)
    except FileNotFoundError:
        return [], 0, 0
    with open(fd, "rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    events: list[dict[str, object]] = []
    length = unreadable = 0
    for line in data.splitlines(keepends=True):
        try:
            event = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and event:
            if store is not None and event.get("store", "") != store:
                break
            events.append(event)
        elif event != {}:
            unreadable += 1
        length += len(line)
    return events, length, unreadable


def remove(home: str, name: str, length: int) -> None:
    """Remove events that have been stored: the first `length` bytes of a session's file."""
    path = os.path.join(home, files.INBOX, name + SUFFIX)
    fd = _open_locked(path, os.O_RDONLY, create=False)
    with open(fd, "rb") as stream:
        stream.seek(length)
        remainder = stream.read()
        if not remainder:
            os.unlink(path)
            return
        scratch = f"{path}.new"
        with open(files.open_private(scratch, os.O_WRONLY | os.O_TRUNC), "wb") as new:
            new.write(remainder)
            new.flush()
            os.fsync(new.fileno())
        os.replace(scratch, path)


def put_aside(home: str, name: str) -> str:
    """Move a session's file aside because its events can't be stored; return the new path."""
    folder = files.private_folder(home, files.INBOX, REFUSED)
    source = os.path.join(home, files.INBOX, name + SUFFIX)
    target = os.path.join(folder, f"{name}.{os.urandom(4).hex()}")
    fd = _open_locked(source, os.O_RDONLY, create=False)
    os.replace(source, target)
    os.close(fd)
    return target


def list_refused(home: str) -> list[str]:
    """List the files that `put_aside` moved away."""
    folder = os.path.join(home, files.INBOX, REFUSED)
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except FileNotFoundError:
        return []


def _open_locked(path: str, flags: int, *, create: bool = True) -> int:
    """Open a file and take its lock; closing the file releases the lock."""
    for _ in range(_ATTEMPTS):
        if create:
            fd = files.open_private(path, flags)
        else:
            fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
        try:
            files.lock(fd)
        except OSError:
            os.close(fd)
            raise
        try:
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)  # another process replaced the file while we waited
    raise OSError(f"other processes keep replacing {path}")


def _entries(home: str) -> "list[tuple[str, os.stat_result]]":
    """Return the name and status of each inbox file; the flusher may remove files at any time."""
    entries = []
    try:
        with os.scandir(os.path.join(home, files.INBOX)) as listing:
            for entry in listing:
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    try:
                        entries.append((entry.name, entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
    except FileNotFoundError:
        return []
    return entries
