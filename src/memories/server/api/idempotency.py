"""Idempotency keys: a retried write is applied once, even if the server was killed in between.

Servers of one store share the record of requests: in the store's own table (`stores.claims`) or in a file. It holds no
content and no keys. An answer that is no longer in memory is rebuilt from ids, or the write runs again, which is safe
because it recognizes what it has stored.
"""

import contextlib
import fcntl
import glob
import hashlib
import json
import logging
import os
import threading
import time
from binascii import crc32
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import CREATING, make_folder, replacing, write_all
from memories.core.urls import local_path
from memories.errors import RequestError, StoreError
from memories.server.api.problems import Refused
from memories.settings import Config
from memories.stores import claims
from memories.stores.claims import Claim, Claims, Taken


def file_of(config: Config) -> Path:
    """Return the file of a store: beside the one of SQLite, whichever folder a server has; else in its own folder."""
    path = local_path(config.store)
    if path is not None and config.store.startswith("sqlite:"):
        path = path.resolve()
        return path.with_name(f"{path.name}-requests")
    where = config.store if path is None else str(path.resolve())
    return config.home / f"requests-{crc32(where.encode('utf-8', 'surrogateescape')):08x}"


class _Entry(NamedTuple):
    """A request with a key.

    Attributes:
        digest: Of what was asked.
        at: When it was begun first.
        told: What is to be known of its answer; None while it is not done.
        by: Who is doing it: the end of the name of a file that is locked for as long.
    """

    digest: str
    at: float
    told: dict[str, Any] | None = None
    by: str | None = None


class FileClaims:
    """Implements `Claims`: a process reads what others have added, and adds to it, while it has locked the file."""

    def __init__(self, file: Path) -> None:
        """Open the file, or make it.

        Args:
            file: Which one; see `file_of`.
        """
        make_folder(file.parent)
        self._file = file
        self._lock = threading.Lock()
        self._by = os.urandom(8).hex()
        self._open()
        self._take_lock()
        for left in file.parent.glob(f"{glob.escape(file.name)}.*"):
            self._is_alive(left.suffix[1:])  # it removes that of one who was killed
        self._alive = os.open(self._life(self._by), CREATING | os.O_RDWR, 0o600)
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """See `Claims.claim`."""
        with self._shared():
            before = self._entries.get(name)
            if before is not None and before.by is not None and self._is_alive(before.by):
                raise Taken(other=before.digest != digest)
            if before is not None and before.at + claims.KEPT_SECONDS < time.time():
                before = None
            if before is not None and before.digest != digest:
                raise Taken(other=True)
            entry = _Entry(digest, time.time()) if before is None else before
            self._add(name, entry._replace(by=self._by))
            fd = os.dup(self._fd) if before is None and sync else None  # of its own, should the file be written anew
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return Claim(name, 1 if before is None else 2, entry.at, entry.told)

    def settle(self, claim: Claim, told: dict[str, Any] | None) -> None:
        """See `Claims.settle`."""
        with self._shared():
            entry = self._entries.get(claim.name)
            if entry is not None:  # else so many came after it that it is kept no more
                self._add(claim.name, entry._replace(told=entry.told if told is None else told, by=None))

    def drop(self, claim: Claim) -> None:
        """See `Claims.drop`."""
        with self._shared():
            self._add(claim.name, None)

    def close(self) -> None:
        """See `Claims.close`."""
        self._life(self._by).unlink(missing_ok=True)
        os.close(self._alive)
        os.close(self._fd)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _life(self, by: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{by}")

    def _is_alive(self, by: str) -> bool:
        """Return whether the process that does a request lives; the system unlocks the file of one that ended."""
        if by == self._by:
            return True
        try:
            fd = os.open(self._life(by), os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            self._life(by).unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    # --- the file ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Know all that is in the file, and keep others out while inside."""
        with self._lock:
            size = self._take_lock()
            try:
                if size != self._end:
                    self._read(size)
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take_lock(self) -> int:
        """Lock the file, or the one that has taken its place; return how large it is."""
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            found = os.fstat(self._fd)
            if found.st_nlink and found.st_size >= self._end:
                return found.st_size
            os.close(self._fd)
            self._open()

    def _open(self) -> None:
        self._fd = os.open(self._file, CREATING | os.O_RDWR | os.O_APPEND, 0o600)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._end = self._lines = 0

    def _read(self, size: int) -> None:
        """Take in what was added since the last time; a line that was cut off is none."""
        data = os.pread(self._fd, size - self._end, self._end)
        if data and not data.endswith(b"\n"):
            write_all(self._fd, b"\n")
            data += b"\n"
        self._end += len(data)
        for line in data.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        self._lines += 1
        with contextlib.suppress(ValueError, KeyError, TypeError):
            shape = json.loads(line)
            entry = None
            if "digest" in shape:
                by = shape.get("by")
                known = isinstance(by, str) and by.isalnum()  # as a part of a file's name
                entry = _Entry(shape["digest"], float(shape["at"]), shape.get("done"), by if known else None)
            self._put(shape["request"], entry)

    def _put(self, name: str, entry: _Entry | None) -> None:
        if entry is None:
            self._entries.pop(name, None)
            return
        self._entries[name] = entry
        self._entries.move_to_end(name)
        while len(self._entries) > claims.MAX_KEPT:
            self._entries.popitem(last=False)

    def _add(self, name: str, entry: _Entry | None) -> None:
        """Add a line to the file; one that has grown to many times what counts is written anew."""
        line = _line(name, entry)
        self._put(name, entry)
        if self._lines < 4 * claims.MAX_KEPT:
            write_all(self._fd, line)
            self._end += len(line)
            self._lines += 1
            return
        oldest = time.time() - claims.KEPT_SECONDS
        with replacing(self._file) as stream:
            stream.writelines(_line(name, entry) for name, entry in self._entries.items() if entry.at > oldest)
        os.close(self._fd)
        self._open()
        self._read(self._take_lock())


def _line(name: str, entry: _Entry | None) -> bytes:
    shape: dict[str, Any] = {"request": name}
    if entry is not None:
        shape |= {"digest": entry.digest, "at": entry.at}
        shape |= {} if entry.told is None else {"done": entry.told}
        shape |= {} if entry.by is None else {"by": entry.by}
    return json.dumps(shape).encode() + b"\n"


_MAX_KEY = 255
_MAX_BYTES = 33_554_432  # of answers in memory
_MAX_ANSWERS = 10_000
_logger = logging.getLogger(__name__)


class Work(NamedTuple):
    """A write that is done once.

    Attributes:
        run: Does it. It is told when it was begun first, and whether it may have been done before: the server that did
            it was stopped, or its answer can't be made again.
        brief: Returns what is written down of its answer; None if a retry is to be run again, as it failed.
        revive: Makes the answer again from that; None if it has to be run again, which does no harm.
        size: Returns the size of an answer.
    """

    run: Callable[[datetime, bool], Any]
    brief: Callable[[Any], dict[str, Any] | None]
    revive: Callable[[dict[str, Any]], Any | None]
    size: Callable[[Any], int]


class _Answer(NamedTuple):
    """An answer of this process.

    Attributes:
        at: When its request was begun, which tells it from an earlier one with its key.
        size: In bytes.
    """

    at: float
    answer: Any
    size: int


class Once:
    """Does each write with a key once."""

    def __init__(self, opened: Callable[[], Claims]) -> None:
        """Prepare; nothing is opened before the first key comes.

        Args:
            opened: Opens what keeps the requests.
        """
        self._opened = opened
        self._lock = threading.Lock()
        self._claims: Claims | None = None
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    def do(self, key: str, who: str, asked: Any, work: Work, *, sync: bool) -> Any:
        """Return the answer to a write, which is done now unless it was before.

        Args:
            key: The key that came with it.
            who: Who sent it; keys of others are no concern of theirs.
            asked: What is asked, as JSON.
            work: Does it.
            sync: Write down that it is begun so that this survives a power cut.

        Raises:
            Refused: 400, the key is not acceptable; 409, the same request is being done; 422, the key was used for
                another request.
        """
        if not (1 <= len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(400, f"Idempotency-Key must be 1 to {_MAX_KEY} printable ASCII characters")
        name = hashlib.sha256(f"{who}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()
        claim = self._claim(name, digest, sync=sync)
        told, nothing = None, False
        try:
            if claim.told is not None:
                answer = self._kept(claim) or work.revive(claim.told)
                if answer is not None:
                    return answer
            begun_at = datetime.fromtimestamp(int(claim.at * 1_000) / 1_000, UTC)  # as exact as times in a store
            answer = work.run(begun_at, claim.number > 1)
            told = work.brief(answer)
            nothing = told is None
            if told is not None:
                self._keep(claim, answer, work.size(answer))
        except (RequestError, Refused):  # it changed nothing; of other errors that is not known
            nothing = claim.number == 1
            raise
        else:
            return answer
        finally:
            self._end(claim, told, nothing=nothing)

    def _claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        with self._lock:
            if self._claims is None:
                self._claims = self._opened()
        try:
            return self._claims.claim(name, digest, sync=sync)
        except Taken as exc:
            if exc.other:
                raise Refused(
                    422, "this Idempotency-Key was used for another request; make a new one for each"
                ) from None
            raise Refused(409, "the same request is being done; ask again", headers={"retry-after": "1"}) from None

    def _end(self, claim: Claim, told: dict[str, Any] | None, *, nothing: bool) -> None:
        """Write down how it ended; if that fails, a retry is as one after this server was killed."""
        assert self._claims is not None
        try:
            if nothing:
                self._claims.drop(claim)
            else:
                self._claims.settle(claim, told)
        except (StoreError, OSError) as exc:  # it is done all the same, and its answer tells so
            _logger.warning("how a request with a key ended could not be written down: %s", exc)

    # --- answers in memory -----------------------------------------------------------------------------------------

    def _kept(self, claim: Claim) -> Any | None:
        with self._lock:
            found = self._answers.get(claim.name)
        return found.answer if found is not None and found.at == claim.at else None

    def _keep(self, claim: Claim, answer: Any, size: int) -> None:
        with self._lock:
            before = self._answers.pop(claim.name, None)
            self._bytes += size - (before.size if before is not None else 0)
            self._answers[claim.name] = _Answer(claim.at, answer, size)
            while self._bytes > _MAX_BYTES or len(self._answers) > _MAX_ANSWERS:
                _, old = self._answers.popitem(last=False)
                self._bytes -= old.size

    def close(self) -> None:
        """Close what keeps the requests."""
        if self._claims is not None:
            self._claims.close()
