"""Idempotency keys: a retried write is applied once, even if the server was killed in between.

All servers of a store share a table of requests. It is in the store if the store supports that (see
`stores.claims`), else in a small SQLite file. The table contains neither content nor keys. If a
response is no longer in memory, it is rebuilt from ids, or the write runs again. Running it again
is safe, because a write recognizes records that it has already stored.
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

import apsw

from memories.core.disk import CREATING, make_folder
from memories.core.urls import local_path
from memories.errors import NotFound, RequestError, StoreDamaged, StoreError
from memories.memories import Memories
from memories.server.api.problems import Refused
from memories.settings import Config
from memories.stores import claims
from memories.stores.claims import Claim, Claims, Taken
from memories.stores.sqlite.errors import filesystem_errors, sqlite_errors

SWEEP_EVERY = 500  # old rows are deleted once per this many requests
_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_BUSY_MS = 10_000  # other processes lock the file for less than a millisecond
_SCHEMA = """
CREATE TABLE IF NOT EXISTS request (
  name TEXT PRIMARY KEY,    -- hash of the sender and the key
  digest TEXT NOT NULL,     -- hash of the method, the path and the body
  begun_at REAL NOT NULL,   -- seconds since 1970
  holder TEXT,              -- the process that handles the request; NULL when the request has ended
  summary TEXT              -- the ids and counts of the answer, as JSON; NULL until there is one
) WITHOUT ROWID
"""
_SELECT = "SELECT digest, begun_at, holder, summary FROM request WHERE name = ?"
_INSERT = "INSERT OR IGNORE INTO request VALUES (?, ?, ?, ?, NULL) RETURNING name"
_REPLACE = "INSERT OR REPLACE INTO request VALUES (?, ?, ?, ?, ?)"
_SETTLE = "UPDATE request SET holder = NULL, summary = coalesce(?, summary) WHERE name = ?"
_DROP = "DELETE FROM request WHERE name = ?"
_SWEEP = """
DELETE FROM request WHERE begun_at < ? OR name IN (
  SELECT name FROM request ORDER BY begun_at DESC LIMIT -1 OFFSET ?
)
"""


def file_of(config: Config) -> Path:
    """Return the path of the file that records a store's requests. For a SQLite store, it is next
    to the store, so that all servers share it; for other stores, it is in the server's home.
    """
    path = local_path(config.store)
    if path is not None and config.store.startswith("sqlite:"):
        path = path.resolve()
        return path.with_name(f"{path.name}{claims.FILE_SUFFIX}")
    where = config.store if path is None else str(path.resolve())
    return config.home / f"requests-{crc32(where.encode('utf-8', 'surrogateescape')):08x}"


def _use_log(database: apsw.Connection) -> None:
    """Switch a file to a write-ahead log.

    SQLite doesn't wait if two connections switch a new file at once, so this function tries again.
    """
    deadline = time.monotonic() + _BUSY_MS / 1000
    is_switched = False
    while not is_switched:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            is_switched = True
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class FileClaims:
    """Implements `Claims` in a SQLite file.

    The requests are in a separate file, because two more commits per key would make the store wait
    for the disk. Each process also keeps a lock file locked until it exits. The lock file's name
    ends with the process's random id, which is the `holder` of the requests that the process is
    handling.
    """

    def __init__(self, file: Path) -> None:
        """Open the file, or create it if it is missing.

        Args:
            file: The file; see `file_of`.
        """
        make_folder(file.parent)
        self._file = file
        self._lock = threading.Lock()
        self._holder = os.urandom(8).hex()
        self._count = 0
        with filesystem_errors(file):
            os.close(os.open(file, CREATING | os.O_RDWR, 0o600))
            for path in file.parent.glob(f"{glob.escape(file.name)}.*"):
                # Deletes the lock file if its process was killed.
                self._is_alive(path.suffix[1:])
            # Lock the file before giving it its final name; otherwise another process might think
            # that this one has exited.
            unnamed = file.with_name(f"{file.name}-{self._holder}")
            self._life = os.open(unnamed, CREATING | os.O_RDWR, 0o600)
            fcntl.flock(self._life, fcntl.LOCK_EX)
            unnamed.rename(self._life_file(self._holder))
        try:
            self._database = self._open()
        except StoreDamaged:  # losing a day's keys is better than refusing every write
            for suffix in ("", "-wal", "-shm"):
                file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
            self._database = self._open()
        with filesystem_errors(file):
            self._log = os.open(file.with_name(f"{file.name}-wal"), os.O_RDONLY | _ON_EXEC)

    def _open(self) -> apsw.Connection:
        with sqlite_errors(self._file):
            database = apsw.Connection(str(self._file))
            database.set_busy_timeout(_BUSY_MS)
            database.execute("PRAGMA page_size = 1024")  # a small row writes fewer bytes
            _use_log(database)
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_SCHEMA)
            database.execute("PRAGMA user_version = 1")  # this write creates the write-ahead log
        return database

    @contextlib.contextmanager
    def _access(self) -> Iterator[apsw.Connection]:
        """Yield the locked connection; its statements and transactions don't wait for the disk."""
        with self._lock, sqlite_errors(self._file):
            yield self._database

    def claim(self, name: str, digest: str, *, sync: bool) -> Claim:
        """See `Claims.claim`."""
        now = time.time()
        with self._access() as database:
            if self._count % SWEEP_EVERY == 0:
                database.execute(_SWEEP, (now - claims.KEPT_SECONDS, claims.MAX_KEPT))
            self._count += 1
            if database.execute(_INSERT, (name, digest, now, self._holder)).fetchall():
                claim = Claim(name, 1, now)
            else:
                claim = self._take_over(database, name, digest, now)
        if sync and claim.number == 1:
            os.fsync(self._log)  # outside the lock, so that several threads can wait at once
        return claim

    def _take_over(self, database: apsw.Connection, name: str, digest: str, now: float) -> Claim:
        """Claim a request that is in the table.

        Raises:
            Taken: A server is handling the request, or the key belongs to a different request.
        """
        database.execute("BEGIN IMMEDIATE")
        try:
            row = database.execute(_SELECT, (name,)).fetchone()
            old_digest, begun_at, holder, summary = row or (digest, now, None, None)
            if holder is not None and self._is_alive(holder):
                raise Taken(other=old_digest != digest)
            if row is None or begun_at < now - claims.KEPT_SECONDS:
                claim = Claim(name, 1, now)
            elif old_digest != digest:
                raise Taken(other=True)
            else:
                claim = Claim(name, 2, begun_at, None if summary is None else json.loads(summary))
            values = (name, digest, claim.begun_at, self._holder, _json(claim.summary))
            database.execute(_REPLACE, values)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return claim

    def settle(self, claim: Claim, summary: dict[str, Any] | None) -> None:
        """See `Claims.settle`."""
        with self._access() as database:
            database.execute(_SETTLE, (_json(summary), claim.name))

    def drop(self, claim: Claim) -> None:
        """See `Claims.drop`."""
        with self._access() as database:
            database.execute(_DROP, (claim.name,))

    def close(self) -> None:
        """See `Claims.close`."""
        with self._lock:
            self._database.close()
            os.close(self._log)
        self._life_file(self._holder).unlink(missing_ok=True)
        os.close(self._life)

    def _life_file(self, holder: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{holder}")

    def _is_alive(self, holder: str) -> bool:
        """Return whether a process is alive. When a process exits, the system unlocks its lock
        file.
        """
        if holder == self._holder:
            return True
        if not holder.isalnum():  # the holder becomes part of a file name
            return False
        try:
            fd = os.open(self._life_file(holder), os.O_RDWR | _ON_EXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            self._life_file(holder).unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)


def _json(summary: dict[str, Any] | None) -> str | None:
    return None if summary is None else json.dumps(summary)


_MAX_KEY = 255
_MAX_BYTES = 33_554_432  # maximum total size of the responses kept in memory
_MAX_ANSWERS = 10_000
_logger = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """A response that this process gave.

    Attributes:
        begun_at: When the request began; this distinguishes it from an earlier request with the
            same key.
        size: The response's size in bytes.
    """

    begun_at: float
    answer: Any
    size: int


class Keyed:
    """A write with a key, in progress.

    Attributes:
        begun_at: When the write first began.
        again: Whether an earlier attempt may have made the change: its server was stopped, or its
            response can't be rebuilt.
        answer: The response, if this process still has it.
        summary: A summary of the response, if there already is one; see `end`.
    """

    def __init__(self, claim: Claim, answer: Any | None) -> None:
        # with the precision of times in a store
        self.begun_at = datetime.fromtimestamp(int(claim.begun_at * 1_000) / 1_000, UTC)
        self.again = claim.number > 1
        self.answer = answer
        self.summary = claim.summary
        self.new_summary: dict[str, Any] | None = None
        self.failed = False
        self.size = 0

    def end(self, answer: Any, summary: dict[str, Any] | None, size: int) -> None:
        """Set the response.

        Args:
            answer: The response.
            summary: The part of the response to save, without content; None if the write failed and
                a retry should run it again.
            size: The response's size in bytes.
        """
        self.answer, self.new_summary, self.size = answer, summary, size
        self.failed = summary is None


class Once:
    """Runs each write with an idempotency key only once."""

    def __init__(self, open_claims: Callable[[], Claims]) -> None:
        """Initialize; the table is opened when the first key arrives.

        Args:
            open_claims: Opens the table of requests.
        """
        self._open_claims = open_claims
        self._lock = threading.Lock()
        self._claims: Claims | None = None
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    @contextlib.contextmanager
    def begin(self, key: str, sender: str, request: Any, *, sync: bool) -> Iterator[Keyed]:
        """Begin a write; when the context ends, record how the write ended.

        Args:
            key: The idempotency key of the request.
            sender: The sender's id; each sender has its own keys.
            request: The request as JSON.
            sync: Whether the table's entry for the write is flushed to disk first, so that it
                survives a power failure.

        Raises:
            Refused: 400, the key is invalid; 409, the same request is in progress; 422, the key was
                used for a different request.
        """
        if not (1 <= len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
            raise Refused(
                400, f"Idempotency-Key must be 1 to {_MAX_KEY} printable ASCII characters"
            )
        name = hashlib.sha256(f"{sender}\0{key}".encode()).hexdigest()
        text = json.dumps(request, sort_keys=True).encode("utf-8", "backslashreplace")
        claim = self._claim(name, hashlib.sha256(text).hexdigest(), sync=sync)
        keyed = Keyed(claim, self._find_answer(claim))
        try:
            yield keyed
            if keyed.new_summary is not None:
                self._save_answer(claim, keyed.answer, keyed.size)
        except (RequestError, Refused):  # nothing was changed
            keyed.failed = claim.number == 1
            raise
        finally:
            self._end(claim, keyed.new_summary, changed_nothing=keyed.failed)

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
                    "this Idempotency-Key was used for a different request; use a new key for each "
                    "request",
                ) from None
            raise Refused(
                409,
                "the same request is in progress; try again later",
                retry_after="1",
            ) from None

    def _end(self, claim: Claim, summary: dict[str, Any] | None, *, changed_nothing: bool) -> None:
        """Record how a write ended. If that fails, a retry is treated as if this server had been
        killed.
        """
        assert self._claims is not None
        try:
            if changed_nothing:
                self._claims.drop(claim)
            else:
                self._claims.settle(claim, summary)
        except (StoreError, OSError) as exc:  # the write itself is not affected
            _logger.warning("cannot record the end of a request with an idempotency key: %s", exc)

    def _find_answer(self, claim: Claim) -> Any | None:
        if claim.summary is None:
            return None
        with self._lock:
            cached = self._answers.get(claim.name)
        if cached is None or cached.begun_at != claim.begun_at:
            return None
        return cached.answer

    def _save_answer(self, claim: Claim, answer: Any, size: int) -> None:
        with self._lock:
            before = self._answers.pop(claim.name, None)
            if before is not None:
                self._bytes -= before.size
            self._answers[claim.name] = _Answer(claim.begun_at, answer, size)
            self._bytes += size
            while self._bytes > _MAX_BYTES or len(self._answers) > _MAX_ANSWERS:
                _, oldest = self._answers.popitem(last=False)
                self._bytes -= oldest.size

    def close(self) -> None:
        """Close the table of requests."""
        if self._claims is not None:
            self._claims.close()


def shows_erased(memories: Memories, shape: Any) -> bool:
    """Return whether a response contains a memory or turn that is no longer in the namespace."""
    if isinstance(shape, list):
        return any(shows_erased(memories, member) for member in shape)
    if not isinstance(shape, dict):
        return False
    name = shape.get("id") or ""
    conversation, _, index = name.rpartition("#")
    try:
        if conversation:
            turns = memories.turns(conversation, start=int(index), limit=1)
            if [turn.id for turn in turns] != [name]:
                return True
        elif name:
            memories.history(name)
    except NotFound:
        return True
    return shows_erased(memories, [*shape.values()])
