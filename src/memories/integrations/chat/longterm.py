"""What is known about a user: `{user_id}.jsonl`, one JSON object a line, only ever appended to.

A line has the fields of the chat agent's contract and no others, so a files store reads the folder as it is. A file
that can't be read counts as empty until the chat ends and is left as it is: a line behind a broken one would be lost.
"""

import hashlib
import json
import logging
import os
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core import disk
from memories.errors import InvalidInput
from memories.guard.validate import content as valid

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

KNOWN = 3  # facts that stand before a model
MAX_CHARACTERS = 1_000  # of a fact
KINDS = ("fact", "preference", "constraint")
_REQUIRED = ("id", "user_id", "content", "kind", "created_at", "updated_at")
_IDS = uuid.UUID("7d6a3c1e-5a55-4c55-9d0b-6f1a1d0f3b52")
_log = logging.getLogger("memories.chat")


class Fact(NamedTuple):
    """A fact about a user, and the line that it stands in."""

    id: str
    content: str
    kind: str
    updated_at: str
    source_turn_id: str | None = None
    line: str = ""


class Stored(NamedTuple):
    """What became of a fact: its id if it is stored, or else why it is not, a sentence."""

    id: str | None
    why: str = ""


class LongTerm:
    """The facts about one user. Several processes may append to one file."""

    def __init__(self, folder: Path, user_id: str, redactor: "Redactor | None" = None) -> None:
        """Prepare; nothing is written before the first fact.

        Args:
            folder: Where the files are.
            user_id: The user.
            redactor: Takes secrets out of what is stored.
        """
        self.folder, self.user_id = folder, user_id
        self.path = folder / f"{user_id}.jsonl"
        self._redactor = redactor
        self._lock = threading.Lock()
        self._unreadable = ""

    def all(self) -> list[Fact]:
        """Return the facts, oldest first; none if the file is not there or can't be read, which is logged once."""
        if self._unreadable:
            return []
        try:
            return self._read()
        except (OSError, ValueError) as exc:
            self._unreadable = f"{self.path} can't be read ({exc})"
            _log.warning("%s; nothing is remembered until it is mended", self._unreadable)
            return []

    def latest(self, count: int = KNOWN) -> list[Fact]:
        """Return the last facts, newest first."""
        return newest(self.all(), count)

    def add(self, content: str, kind: str, turn_id: str) -> Stored:
        """Append a fact; at most one for each turn, and doing it again is nothing.

        Args:
            content: One sentence.
            kind: `fact`, `preference` or `constraint`.
            turn_id: The turn that it comes from.

        Raises:
            OSError: It can't be written; nothing was stored.
        """
        try:
            content = self._checked(content)
        except InvalidInput as exc:
            return Stored(None, str(exc))
        with self._lock, disk.locked(self.folder / f".{self.user_id}.lock"):
            known = self.all()
            if self._unreadable:
                return Stored(None, "the file of what is known is damaged, so nothing was stored")
            for fact in known:
                if fact.source_turn_id == turn_id:
                    if fact.content == content:
                        return Stored(fact.id)
                    return Stored(None, "a turn stores one fact, and this one has stored another")
            made = self._line(content, kind if kind in KINDS else KINDS[0], turn_id)
            self._append(made)
            return Stored(made["id"])

    def clear(self) -> bool:
        """Remove the file; return whether there was one. A file that could not be read goes too."""
        with self._lock, disk.locked(self.folder / f".{self.user_id}.lock"):
            self._unreadable = ""
            try:
                with self.path.open("r+b") as stream:  # its blocks may be read again from the disk
                    size = stream.seek(0, os.SEEK_END)
                    stream.seek(0)
                    stream.write(b"\0" * size)
                    stream.flush()
                    os.fsync(stream.fileno())
                self.path.unlink()
            except FileNotFoundError:
                return False
            disk.flush_folder(self.folder)
            return True

    def _checked(self, content: str) -> str:
        text = " ".join(valid(content).split())
        if self._redactor is not None:
            text = self._redactor.text(text).text
        if len(text) > MAX_CHARACTERS:
            raise InvalidInput(f"a fact has at most {MAX_CHARACTERS} characters; say it in one sentence")
        return text

    def _line(self, content: str, kind: str, turn_id: str) -> dict[str, str]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        digest = hashlib.sha256(content.encode()).hexdigest()
        return {
            "id": str(uuid.uuid5(_IDS, f"{self.user_id} {turn_id} {digest}")),
            "user_id": self.user_id,
            "content": content,
            "kind": kind,
            "created_at": now,
            "updated_at": now,
            "source_turn_id": turn_id,
        }

    def _append(self, line: dict[str, str]) -> None:
        new = not self.path.exists()
        fd = os.open(self.path, disk.CREATING | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            size = os.fstat(fd).st_size
            whole = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
            disk.write_all(fd, f"{'' if whole else chr(10)}{json.dumps(line, ensure_ascii=False)}\n".encode())
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)  # half a line would make the next one unreadable
            raise
        finally:
            os.close(fd)
        if new:
            disk.flush_folder(self.folder)

    def _read(self) -> list[Fact]:
        try:
            text = disk.read_file(self.path).decode("utf-8-sig")
        except FileNotFoundError:
            return []
        return [_fact(number, line, self.user_id) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _fact(number: int, line: str, user_id: str) -> Fact:
    try:
        shape: Any = json.loads(line)
    except RecursionError:
        shape = None
    except ValueError:
        raise ValueError(f"line {number} is no JSON") from None
    if not isinstance(shape, dict) or not all(isinstance(shape.get(name), str) for name in _REQUIRED):
        raise ValueError(f"line {number} lacks one of {', '.join(_REQUIRED)}")
    if shape["user_id"] != user_id:
        raise ValueError(f"line {number} belongs to another user")
    turn = shape.get("source_turn_id")
    return Fact(
        shape["id"],
        shape["content"],
        shape["kind"],
        shape["updated_at"],
        source_turn_id=None if turn is None else str(turn),
        line=line.strip(),
    )


def newest(facts: Sequence[Fact], count: int) -> list[Fact]:
    """Return the last of some facts, newest first; of those of one time, the one that was appended later."""
    in_order = sorted(enumerate(facts), key=lambda each: (each[1].updated_at, each[0]), reverse=True)
    return [fact for _, fact in in_order[:count]]
