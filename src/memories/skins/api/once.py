"""Idempotency keys: a write that is sent again with its key is not done again, also after the server was killed.

The file beside the store tells which requests were begun and done. It holds no content and no key: after a restart an
answer is made again from the ids in it, or the write, which can tell by itself what is there already, is run again.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memories.disk import make_folder, replacing, write_all
from memories.errors import RequestError
from memories.skins.api.problems import Refused

KEPT_SECONDS = 86_400
MAX_KEPT = 10_000
_MAX_KEY = 255
_MAX_BYTES = 33_554_432  # of answers in memory
_FILE = "requests.jsonl"


class _Entry(NamedTuple):
    """A request with a key.

    Attributes:
        digest: Of what was asked.
        at: When it was begun.
        told: What the file says of its answer; None while it is not done.
        answer: The answer itself, while it is in memory.
        size: Of the answer, in bytes.
    """

    digest: str
    at: float
    told: dict[str, Any] | None = None
    answer: Any = None
    size: int = 0


class Work(NamedTuple):
    """A write that is done once.

    Attributes:
        run: Does it. It is told when it may have been done before, if that is not known, else None.
        brief: Returns what is written down of its answer; None if a retry is to be run again, as it failed.
        revive: Makes the answer again from that; None if it has to be run again, which does no harm.
        size: Returns the size of an answer.
    """

    run: Callable[[datetime | None], Any]
    brief: Callable[[Any], dict[str, Any] | None]
    revive: Callable[[dict[str, Any]], Any | None]
    size: Callable[[Any], int]


class Once:
    """The keys that were used in the last day."""

    def __init__(self, home: Path) -> None:
        """Read what an earlier server did.

        Args:
            home: Where the file is.
        """
        make_folder(home)
        self._lock = threading.Lock()
        self._file = home / _FILE
        self._entries = _read(self._file)
        self._fd = self._rewritten()
        self._running: set[str] = set()
        self._bytes = 0

    def _rewritten(self) -> int:
        """Write the file anew, without what is old and without a line that was cut off; open it."""
        with replacing(self._file) as stream:
            stream.writelines(_line(name, entry) for name, entry in self._entries.items())
        self._lines = len(self._entries)
        return os.open(self._file, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))

    def _write(self, name: str, entry: _Entry | None) -> None:
        """Add a line to the file; one that has grown to many times what counts is written anew."""
        self._lines += 1
        if self._lines > 4 * MAX_KEPT:
            old, self._fd = self._fd, self._rewritten()
            os.close(old)
        else:
            write_all(self._fd, _line(name, entry))

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
        before = self._begin(name, digest, sync=sync)
        try:
            if before is not None and before.told is not None:
                answer = before.answer if before.answer is not None else work.revive(before.told)
                if answer is not None:
                    return answer
            answer = work.run(None if before is None else datetime.fromtimestamp(before.at, UTC))
        except (RequestError, Refused):  # it changed nothing; of other errors that is not known
            if before is None:
                self._drop(name)
            raise
        else:
            self._end(name, _Entry(digest, before.at if before else time.time(), work.brief(answer), answer), work)
            return answer
        finally:
            with self._lock:
                self._running.discard(name)

    def _begin(self, name: str, digest: str, *, sync: bool) -> _Entry | None:
        """Return what is known of a request; if that is nothing, write down that it is begun."""
        with self._lock:
            if name in self._running:
                raise Refused(409, "the same request is being done; ask again", headers={"retry-after": "1"})
            before = self._entries.get(name)
            if before is not None and before.at + KEPT_SECONDS < time.time():
                self._bytes -= self._entries.pop(name).size
                before = None
            if before is not None and before.digest != digest:
                raise Refused(422, "this Idempotency-Key was used for another request; make a new one for each")
            if before is None:
                self._put(name, _Entry(digest, time.time()))
            self._running.add(name)
            fd = os.dup(self._fd) if before is None and sync else None  # of its own, should the file be written anew
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return before

    def _end(self, name: str, entry: _Entry, work: Work) -> None:
        if entry.told is None:
            self._drop(name)
            return
        with self._lock:
            self._put(name, entry._replace(size=work.size(entry.answer)))

    def _drop(self, name: str) -> None:
        """Forget a request that changed nothing."""
        with self._lock:
            self._entries.pop(name, None)
            self._write(name, None)

    def _put(self, name: str, entry: _Entry) -> None:
        before = self._entries.get(name)
        self._bytes += entry.size - (before.size if before is not None else 0)
        self._entries[name] = entry
        self._entries.move_to_end(name)
        self._write(name, entry)
        while len(self._entries) > MAX_KEPT:
            _, old = self._entries.popitem(last=False)
            self._bytes -= old.size
        for each, old in list(self._entries.items()) if self._bytes > _MAX_BYTES else ():
            if self._bytes <= _MAX_BYTES // 2:
                break
            self._bytes -= old.size
            self._entries[each] = old._replace(answer=None, size=0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _line(name: str, entry: _Entry | None) -> bytes:
    shape: dict[str, Any] = {"request": name}
    if entry is not None:
        shape |= {"digest": entry.digest, "at": entry.at} | ({} if entry.told is None else {"done": entry.told})
    return json.dumps(shape).encode() + b"\n"


def _read(file: Path) -> "OrderedDict[str, _Entry]":
    """Return what a file tells, without what is older than a day; a last line that was cut off is none."""
    found: OrderedDict[str, _Entry] = OrderedDict()
    with contextlib.suppress(FileNotFoundError), file.open("rb") as stream:
        for line in stream:
            try:
                shape = json.loads(line)
                if "digest" in shape:
                    found[shape["request"]] = _Entry(shape["digest"], float(shape["at"]), shape.get("done"))
                else:
                    found.pop(shape["request"], None)
            except (ValueError, KeyError, TypeError):
                continue
    oldest = time.time() - KEPT_SECONDS
    kept = [(name, entry) for name, entry in found.items() if entry.at > oldest]
    return OrderedDict(kept[-MAX_KEPT:])
