"""Idempotency keys: a retried write is applied once, even if the server was killed in between.

Servers of one store share the record of requests: in the store's own table (`stores.claims`) or in
a file. It holds no content and no keys. An answer that is no longer in memory is rebuilt from ids,
or the write runs again, which is safe because it recognizes what it has stored.
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
    """Return the file for a store: beside a SQLite store, so that all servers share it, else in the
    server's home.
    """
    path = local_path(config.store)
    if path is not None and config.store.startswith("sqlite:"):
        path = path.resolve()
        return path.with_name(f"{path.name}-requests")
    where = config.store if path is None else str(path.resolve())
    return config.home / f"requests-{crc32(where.encode('utf-8', 'surrogateescape')):08x}"


class _Entry(NamedTuple):
    """A request with a key.

    Attributes:
        digest: Digest of the request.
        at: When it was first begun.
        told: Summary of the answer; None until there is one.
        by: The process that is doing it: the suffix of a file that it keeps locked meanwhile.
    """

    digest: str
    at: float
    told: dict[str, Any] | None = None
    by: str | None = None


class FileClaims:
    """Implements `Claims` in a file of JSON lines, read and extended by each process under the lock
    of the file.

    A request has one line when it begins and another when it ends; the last line counts.
    """

    def __init__(self, file: Path) -> None:
        """Open the file, or create it.

        Args:
            file: The file; see `file_of`.
        """
        make_folder(file.parent)
        self._file = file
        self._lock = threading.Lock()
        self._by = os.urandom(8).hex()
        self._open()
        self._take_lock()
        for leftover in file.parent.glob(f"{glob.escape(file.name)}.*"):
            self._is_alive(leftover.suffix[1:])  # removes the file of a process that was killed
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
            fd = (
                os.dup(self._fd) if before is None and sync else None
            )  # survives a rewrite of the file
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
            if entry is not None:  # else it was dropped because too many came after it
                self._add(
                    claim.name, entry._replace(told=entry.told if told is None else told, by=None)
                )

    def drop(self, claim: Claim) -> None:
        """See `Claims.drop`."""
        with self._shared():
            self._add(claim.name, None)

    def close(self) -> None:
        """See `Claims.close`."""
        self._life(self._by).unlink(missing_ok=True)
        os.close(self._alive)
        os.close(self._fd)

    def _life(self, by: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{by}")

    def _is_alive(self, by: str) -> bool:
        """Return whether a process is alive: the system unlocks its file when it ends."""
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

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Lock the file while inside, with its new lines read."""
        with self._lock:
            size = self._take_lock()
            try:
                if size != self._end:
                    self._read(size)
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take_lock(self) -> int:
        """Lock the file, or the one that replaced it; return its size."""
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            status = os.fstat(self._fd)
            if status.st_nlink and status.st_size >= self._end:
                return status.st_size
            os.close(self._fd)
            self._open()

    def _open(self) -> None:
        self._fd = os.open(self._file, CREATING | os.O_RDWR | os.O_APPEND, 0o600)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._end = self._lines = 0

    def _read(self, size: int) -> None:
        """Read the lines that were added since the last time; a line that was cut off does not
        count.
        """
        data = os.pread(self._fd, size - self._end, self._end)
        if data and not data.endswith(b"\n"):
            write_all(self._fd, b"\n")
            data += b"\n"
        self._end += len(data)
        for line in data.splitlines():
            self._parse(line)

    def _parse(self, line: bytes) -> None:
        self._lines += 1
        with contextlib.suppress(ValueError, KeyError, TypeError):
            shape = json.loads(line)
            entry = None
            if "digest" in shape:
                by = shape.get("by")
                is_valid = (
                    isinstance(by, str) and by.isalnum()
                )  # since it becomes part of a file's name
                entry = _Entry(
                    shape["digest"], float(shape["at"]), shape.get("done"), by if is_valid else None
                )
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
        """Add a line to the file; rewrite a file in which most lines are obsolete."""
        line = _line(name, entry)
        self._put(name, entry)
        if self._lines < 4 * claims.MAX_KEPT:
            write_all(self._fd, line)
            self._end += len(line)
            self._lines += 1
            return
        oldest = time.time() - claims.KEPT_SECONDS
        with replacing(self._file) as stream:
            stream.writelines(
                _line(name, entry) for name, entry in self._entries.items() if entry.at > oldest
            )
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
        run: Does it. The arguments: when it was first begun, and whether it may have been done
            before, because a server was stopped or the answer can't be rebuilt.
        brief: Returns the summary of an answer to save; None if it failed and a retry should run
            again.
        revive: Rebuilds the answer from its summary; None if the write has to run again, which is
            harmless.
        size: Returns the size of an answer.
    """

    run: Callable[[datetime, bool], Any]
    brief: Callable[[Any], dict[str, Any] | None]
    revive: Callable[[dict[str, Any]], Any | None]
    size: Callable[[Any], int]


class _Answer(NamedTuple):
    """An answer of this process.

    Attributes:
        at: When its request was begun, which distinguishes it from an earlier one with the same
            key.
        size: Its size in bytes.
    """

    at: float
    answer: Any
    size: int


class Once:
    """Does each write with a key once."""

    def __init__(self, open_claims: Callable[[], Claims]) -> None:
        """Prepare; nothing is opened before the first key arrives.

        Args:
            open_claims: Opens the record of requests.
        """
        self._open_claims = open_claims
        self._lock = threading.Lock()
        self._claims: Claims | None = None
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    def do(self, key: str, sender: str, request: Any, work: Work, *, sync: bool) -> Any:
        """Return the answer to a write, doing it now unless it was done before.

        Args:
            key: The idempotency key of the request.
            sender: Id of the sender; each has keys of its own.
            request: The request as JSON.
            work: The write.
            sync: Flush the record of the beginning to disk, to survive a power cut.

        Raises:
            Refused: 400, the key is not acceptable; 409, the same request is being done; 422, the
                key was used for another request.
        """
        if not (1 <= len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(
                400, f"Idempotency-Key must be 1 to {_MAX_KEY} printable ASCII characters"
            )
        name = hashlib.sha256(f"{sender}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(
            json.dumps(request, sort_keys=True).encode("utf-8", "backslashreplace")
        ).hexdigest()
        claim = self._claim(name, digest, sync=sync)
        summary, changed_nothing = None, False
        try:
            if claim.told is not None:
                answer = self._cached(claim) or work.revive(claim.told)
                if answer is not None:
                    return answer
            begun_at = datetime.fromtimestamp(
                int(claim.at * 1_000) / 1_000, UTC
            )  # as exact as times in a store
            answer = work.run(begun_at, claim.number > 1)
            summary = work.brief(answer)
            changed_nothing = summary is None
            if summary is not None:
                self._cache(claim, answer, work.size(answer))
        except (RequestError, Refused):  # it changed nothing; other errors leave that unknown
            changed_nothing = claim.number == 1
            raise
        else:
            return answer
        finally:
            self._end(claim, summary, changed_nothing=changed_nothing)

    def _claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        with self._lock:
            if self._claims is None:
                self._claims = self._open_claims()
        try:
            return self._claims.claim(name, digest, sync=sync)
        except Taken as exc:
            if exc.other:
                raise Refused(
                    422,
                    "this Idempotency-Key was used for another request; make a new one for each",
                ) from None
            raise Refused(
                409, "the same request is being done; ask again", headers={"retry-after": "1"}
            ) from None

    def _end(self, claim: Claim, summary: dict[str, Any] | None, *, changed_nothing: bool) -> None:
        """Record how a write ended; if that fails, a retry is treated as if this server had been
        killed.
        """
        assert self._claims is not None
        try:
            if changed_nothing:
                self._claims.drop(claim)
            else:
                self._claims.settle(claim, summary)
        except (
            StoreError,
            OSError,
        ) as exc:  # the write is done all the same, and its answer says so
            _logger.warning("how a request with a key ended could not be written down: %s", exc)

    def _cached(self, claim: Claim) -> Any | None:
        with self._lock:
            entry = self._answers.get(claim.name)
        return entry.answer if entry is not None and entry.at == claim.at else None

    def _cache(self, claim: Claim, answer: Any, size: int) -> None:
        with self._lock:
            before = self._answers.pop(claim.name, None)
            self._bytes += size - (before.size if before is not None else 0)
            self._answers[claim.name] = _Answer(claim.at, answer, size)
            while self._bytes > _MAX_BYTES or len(self._answers) > _MAX_ANSWERS:
                _, old = self._answers.popitem(last=False)
                self._bytes -= old.size

    def close(self) -> None:
        """Close the record of requests."""
        if self._claims is not None:
            self._claims.close()
