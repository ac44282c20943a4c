"""The inbox: events as hooks were told them, one JSON object a line, a file for each session.

A line is there as a whole or not at all, and it is on the disk before the hook says that it ran.
Who adds a line, and who takes lines away, holds the lock of the file; a file that was taken away
meanwhile is opened anew.
"""

import json
import os

from memories.hooks import place

try:
    import fcntl
except ImportError:  # Windows: lines are added in one write, and that is all
    fcntl = None  # type: ignore[assignment]

MAX_TEXT = 200_000  # characters of one text
MAX_FILE_BYTES = 16 * 1_048_576
MAX_BYTES = 64 * 1_048_576  # of all files
SUFFIX, REFUSED = ".jsonl", "refused"
_ATTEMPTS = 100


class Full(OSError):
    """The inbox takes no more: nothing was stored for long."""


def add(home: str, name: str, event: "dict[str, object]") -> None:
    """Add an event to the file of its session.

    Raises:
        Full: The inbox has no room for it.
        OSError: It can't be written; nothing was added.
    """
    folder = place.private(home, place.INBOX)
    line = json.dumps(event).encode() + b"\n"
    if size(home) + len(line) > MAX_BYTES:
        raise Full(
            f"the inbox has {MAX_BYTES >> 20} MiB that were not stored; run: memory capture flush"
        )
    fd = _locked(os.path.join(folder, name + SUFFIX), os.O_WRONLY | os.O_APPEND)
    try:
        before = os.fstat(fd).st_size
        if before + len(line) > MAX_FILE_BYTES:
            raise Full(
                f"the inbox has {MAX_FILE_BYTES >> 20} MiB of this session; run: memory capture flush"
            )
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, before)  # a disk that is full keeps no half of a line
            raise
    finally:
        os.close(fd)


def size(home: str) -> int:
    """Return how many bytes wait."""
    return sum(found.st_size for _, found in _entries(home))


def oldest(home: str) -> float | None:
    """Return when something was last added to what waits longest, in seconds since 1970; None if
    nothing waits.
    """
    return min((found.st_mtime for _, found in _entries(home)), default=None)


def names(home: str) -> list[str]:
    """Return the names of the sessions of which something waits, the one that waits longest
    first.
    """
    found = sorted((each.st_mtime, name) for name, each in _entries(home))
    return [name.removesuffix(SUFFIX) for _, name in found]


def read(
    home: str, name: str, store: str | None = None
) -> tuple[list["dict[str, object]"], int, int]:
    """Return the events that wait of a session, how many bytes they are, and how many lines nobody
    can read.

    Args:
        home: The home.
        name: The session.
        store: The mark of a store: only what comes before the first event that is for another one.
    """
    try:
        fd = _locked(os.path.join(home, place.INBOX, name + SUFFIX), os.O_RDONLY, make=False)
    except FileNotFoundError:
        return [], 0, 0
    with open(fd, "rb") as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    events, length, unread = [], 0, 0
    for line in data.splitlines(keepends=True):
        try:
            found = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and found:
            if store is not None and found.get("store", "") != store:
                break
            events.append(found)
        elif found != {}:
            unread += 1
        length += len(line)
    return events, length, unread


def remove(home: str, name: str, length: int) -> None:
    """Remove the first bytes of the file of a session: what they say was stored."""
    path = os.path.join(home, place.INBOX, name + SUFFIX)
    fd = _locked(path, os.O_RDONLY, make=False)
    with open(fd, "rb") as stream:
        stream.seek(length)
        rest = stream.read()
        if not rest:
            os.unlink(path)
            return
        scratch = f"{path}.new"
        with open(place.opened(scratch, os.O_WRONLY | os.O_TRUNC), "wb") as new:
            new.write(rest)
            new.flush()
            os.fsync(new.fileno())
        os.replace(scratch, path)


def put_aside(home: str, name: str) -> str:
    """Move what waits of a session out of the way, since it can't be stored; return where it is
    now.
    """
    folder = place.private(home, place.INBOX, REFUSED)
    source, target = (
        os.path.join(home, place.INBOX, name + SUFFIX),
        os.path.join(folder, f"{name}.{os.urandom(4).hex()}"),
    )
    fd = _locked(source, os.O_RDONLY, make=False)
    os.replace(source, target)
    os.close(fd)
    return target


def refused(home: str) -> list[str]:
    """Return the files that were put aside."""
    try:
        folder = os.path.join(home, place.INBOX, REFUSED)
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except FileNotFoundError:
        return []


def _locked(path: str, flags: int, *, make: bool = True) -> int:
    """Open a file and take its lock, which is free again once it is closed."""
    for _ in range(_ATTEMPTS):
        fd = (
            place.opened(path, flags)
            if make
            else os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
        )
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError:
                os.close(fd)
                raise
        if _is_there(fd, path):
            return fd
        os.close(fd)  # it was taken away while we waited
    raise OSError(f"{path} is replaced again and again")


def _is_there(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _entries(home: str) -> "list[tuple[str, os.stat_result]]":
    """Return the files, each with what it is; the flusher may take one away just now."""
    found = []
    try:
        with os.scandir(os.path.join(home, place.INBOX)) as entries:
            for each in entries:
                if each.name.endswith(SUFFIX) and each.is_file(follow_symlinks=False):
                    try:
                        found.append((each.name, each.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
    except FileNotFoundError:
        return []
    return found
