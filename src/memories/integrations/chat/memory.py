"""A chat's memory: the session of a thread, the facts about a user, and recall for the model.

A session consists of LangGraph's checkpoints in a SQLite file; only the last state is kept. The
facts about a user are appended to `{user_id}.jsonl`, one JSON object per line. A line contains only
the fields in the chat agent's contract, so a files store can read the folder. A file that can't be
read is treated as empty until the chat ends. It is not written to, because a line after a broken
one would be lost.
"""

import hashlib
import importlib
import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.core import disk
from memories.core.times import to_iso
from memories.errors import ConfigError, InvalidInput, StoreDamaged
from memories.guard.validate import content as valid
from memories.integrations.chat.settings import Settings

if TYPE_CHECKING:
    from memories.guard.redactor import Redactor

FILE = "checkpoints.sqlite"
_BUSY_MS = 30_000
_SAFE = (3, 51, 3)  # earlier versions of SQLite can lose a write when the log is reset


class ShortTerm:
    """A thread's session, in a file that several chats may share."""

    def __init__(self, path: Path, thread: str) -> None:
        """Open the file; if it is missing, create it with mode 0600.

        Args:
            path: The file.
            thread: The thread's name.

        Raises:
            StoreDamaged: The file is damaged, or not a SQLite file.
            ConfigError: A package is missing.
        """
        self.path, self.thread = path, thread
        disk.make_folder(path.parent)
        os.close(os.open(path, disk.CREATING | os.O_RDWR, 0o600))
        path.chmod(0o600)
        sqlite3 = _sqlite()
        saver_class = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        serde = importlib.import_module("langgraph.checkpoint.serde.jsonplus").JsonPlusSerializer
        try:
            self.connection = sqlite3.connect(
                path, check_same_thread=False, timeout=_BUSY_MS / 1000
            )
            self.connection.execute("PRAGMA secure_delete = ON")
            self.connection.execute("PRAGMA synchronous = FULL")
            # A checkpoint may create only messages, even if someone tampered with the file.
            self.saver = saver_class(self.connection, serde=serde(allowed_msgpack_modules=None))
            self.saver.setup()
        except sqlite3.DatabaseError as exc:
            raise StoreDamaged(
                f"cannot read the session file {path} ({exc}); move it away to start a new one"
            ) from exc

    @property
    def config(self) -> dict[str, Any]:
        """The session's key in LangGraph."""
        return {"configurable": {"thread_id": self.thread}}

    def keep_last(self) -> None:
        """Delete all states of the session except the last, since each contains the entire
        conversation.
        """
        self._delete(
            "checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = :thread)"
        )

    def drop_after(self, checkpoint_id: str | None) -> None:
        """Delete all states after a checkpoint; all states if it is None."""
        self._delete("checkpoint_id > :last", last=checkpoint_id or "")

    def clear(self) -> bool:
        """Delete the session, so that the file contains no byte of it; return whether there was
        one.
        """
        row = self.connection.execute(
            "SELECT 1 FROM checkpoints WHERE thread_id = ?", (self.thread,)
        ).fetchone()
        self._delete("TRUE")
        self.connection.execute("VACUUM")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return row is not None

    def last_id(self) -> str | None:
        """Return the last state's id; None if there is no state."""
        query = "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?"
        row: tuple[str | None] = self.connection.execute(query, (self.thread,)).fetchone()
        return row[0]

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _delete(self, condition: str, **values: str) -> None:
        parameters = {"thread": self.thread, **values}
        with self.saver.lock, self.connection:
            # `writes` first, because its condition reads `checkpoints`.
            for table in ("writes", "checkpoints"):
                self.connection.execute(
                    f"DELETE FROM {table} WHERE thread_id = :thread AND {condition}",  # noqa: S608
                    parameters,
                )


def _sqlite() -> Any:
    """Return the module that LangGraph uses as `sqlite3`.

    Python's own module is often linked to a SQLite that can lose acknowledged writes when a log is
    reset.

    Raises:
        ConfigError: No safe version is installed.
    """
    if "sqlite3" not in sys.modules and find_spec("pysqlite3") is not None:
        sys.modules["sqlite3"] = importlib.import_module("pysqlite3")
    module = importlib.import_module("sqlite3")
    if module.sqlite_version_info < _SAFE:
        from memories.core.installation import install_command

        raise ConfigError(
            f"SQLite {module.sqlite_version} can lose acknowledged writes; "
            f"run: {install_command('chat')}"
        )
    return module


KNOWN = 3  # maximum number of facts that the model is shown
MAX_CHARACTERS = 1_000  # maximum length of a fact
KINDS = ("fact", "preference", "constraint")
_REQUIRED = ("id", "user_id", "content", "kind", "created_at", "updated_at")
_IDS = uuid.UUID("7d6a3c1e-5a55-4c55-9d0b-6f1a1d0f3b52")
_log = logging.getLogger("memories.chat")


class Fact(NamedTuple):
    """A fact about a user, and its line in the file."""

    id: str
    content: str
    kind: str
    updated_at: str
    source_turn_id: str | None = None
    line: str = ""


class StoredFact(NamedTuple):
    """The result of storing a fact: its id, or the reason why it was not stored."""

    id: str | None
    why: str = ""


class LongTerm:
    """The facts about one user. Several processes may append to the file."""

    def __init__(self, folder: Path, user_id: str, redactor: "Redactor | None" = None) -> None:
        """Initialize; the first fact creates the file.

        Args:
            folder: The folder that contains the files.
            user_id: The user.
            redactor: Removes secrets from facts.
        """
        self.folder, self.user_id = folder, user_id
        self.path = folder / f"{user_id}.jsonl"
        self._redactor = redactor
        self._lock = threading.Lock()
        self._unreadable = ""

    def all(self) -> list[Fact]:
        """Return the facts, oldest first; none if the file is missing or can't be read. An
        unreadable file is logged once.
        """
        if self._unreadable:
            return []
        try:
            return self._read()
        except (OSError, ValueError) as exc:
            self._unreadable = f"cannot read {self.path} ({exc})"
            _log.warning("%s; nothing is remembered until the file is repaired", self._unreadable)
            return []

    def latest(self) -> list[Fact]:
        """Return the newest facts, newest first; if two have the same time, the one appended later
        comes first.
        """
        facts = self.all()
        facts.reverse()  # facts with equal times keep their order when sorted
        facts.sort(key=attrgetter("updated_at"), reverse=True)
        return facts[:KNOWN]

    def add(self, content: str, kind: str, turn_id: str) -> StoredFact:
        """Append a fact, at most one per turn; repeating it changes nothing.

        Args:
            content: One sentence.
            kind: `fact`, `preference` or `constraint`.
            turn_id: The turn in which the user stated it.

        Raises:
            OSError: The file can't be written; nothing was stored.
        """
        try:
            content = self._clean(content)
        except InvalidInput as exc:
            return StoredFact(None, str(exc))
        with self._lock, disk.locked(self.folder / f".{self.user_id}.lock"):
            facts = self.all()
            if self._unreadable:
                return StoredFact(None, "the fact file is damaged, so nothing was stored")
            for fact in facts:
                if fact.source_turn_id == turn_id:
                    if fact.content == content:
                        return StoredFact(fact.id)
                    return StoredFact(
                        None,
                        "a turn can store only one fact, and this turn has already stored another",
                    )
            line = self._line(content, kind if kind in KINDS else KINDS[0], turn_id)
            self._append(line)
            return StoredFact(line["id"])

    def clear(self) -> bool:
        """Delete the file, even if it can't be read; return whether it existed."""
        with self._lock, disk.locked(self.folder / f".{self.user_id}.lock"):
            self._unreadable = ""
            try:
                with self.path.open(
                    "r+b"
                ) as stream:  # `unlink` alone would leave bytes on the disk
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

    def _clean(self, content: str) -> str:
        text = " ".join(valid(content).split())
        if self._redactor is not None:
            text = self._redactor.text(text).text
        if len(text) > MAX_CHARACTERS:
            raise InvalidInput(
                f"a fact can have at most {MAX_CHARACTERS} characters; say it in one sentence"
            )
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
        is_new = not self.path.exists()
        fd = os.open(self.path, disk.CREATING | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            size = os.fstat(fd).st_size
            data = f"{json.dumps(line, ensure_ascii=False)}\n".encode()
            os.lseek(fd, max(0, size - 1), os.SEEK_SET)  # Windows has no pread
            if os.read(fd, 1) not in (b"", b"\n"):
                data = b"\n" + data
            disk.write_all(fd, data)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)  # an incomplete line would make the next one unreadable
            raise
        finally:
            os.close(fd)
        if is_new:
            disk.flush_folder(self.folder)

    def _read(self) -> list[Fact]:
        try:
            text = disk.read_file(self.path).decode("utf-8-sig")
        except FileNotFoundError:
            return []
        return [
            _fact(number, line, self.user_id)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]


def _fact(number: int, line: str, user_id: str) -> Fact:
    try:
        shape: Any = json.loads(line)
    except RecursionError:
        shape = None
    except ValueError:
        raise ValueError(f"line {number} is not JSON") from None
    is_object = isinstance(shape, dict)
    if not is_object or not all(isinstance(shape.get(name), str) for name in _REQUIRED):
        raise ValueError(f"line {number} must have the texts {', '.join(_REQUIRED)}")
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


_MAX_QUERY = 4_000


def recall_of(settings: Settings, memory: LongTerm) -> Callable[[str], list[Fact]]:
    """Return a function that finds the facts for a message: the latest ones, or a search's hits."""
    if settings.recall == "recency":

        def recall_latest(_: str) -> list[Fact]:
            return memory.latest()

        return recall_latest
    from memories.config import load_config
    from memories.memories import Memories

    config = load_config({"store": f"files:///{memory.folder}", "namespace": settings.user_id})
    memories = Memories(config=config, shared=False)

    def search(message: str) -> list[Fact]:
        if not memory.all():  # there are no facts, or the file can't be read
            return []
        facts = []
        for hit in memories.search(message[:_MAX_QUERY], limit=KNOWN, min_confidence=0.0):
            fact = hit.memory
            kind, updated_at = fact.tags.get("type", "fact"), to_iso(fact.updated_at)
            facts.append(Fact(fact.id, fact.content, kind, updated_at))
        return facts

    return search
