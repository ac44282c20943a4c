"""Requests to a folder, by the local mode of Qdrant's own client: for one process at a time, and
small stores.
"""

import atexit
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.core.disk import ForkGuard, read_file, replacing, try_lock
from memories.core.trust import others_may_write
from memories.errors import ConfigError, StoreBusy, StoreDamaged, StoreError
from memories.stores.qdrant.driver import Body, NoCollection, Verb
from memories.stores.qdrant.local import LocalCollection, keep_as_json

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

BUSY_SECONDS = 10.0  # that another process may keep the folder
_META, _LOCK, _PENDING = "meta.json", ".memories.lock", ".memories.pending"
_SEVERAL = (Verb.UPSERT, Verb.SET_PAYLOAD, Verb.DELETE)  # may write more than one point
_WRITING = (*_SEVERAL, Verb.CREATE, Verb.INDEX)


class FolderTransport:
    """Implements `Transport` by carrying out the requests for a server in this process.

    - One process holds the folder from its first request until it closes the store; another one
      waits for `BUSY_SECONDS` and then gets `StoreBusy`. Threads and stores of one process share
      it; a forked process counts as another one.
    - Local mode reads all collections into memory when it opens, and compares a query with every
      vector: use it for up to some ten thousand records. Importing it takes some 1.5 s.
    - It writes each point separately. So that a request is done completely or not at all, it is
      noted in the folder first, and one that a crash interrupted is repeated when the folder is
      opened next.
    - Points are JSON, not the pickled objects that the client would write, so opening a folder runs
      no code of it.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare; nothing is opened yet.

        Args:
            folder: Where the collections are, or will be.
        """
        self._folder = folder
        self.url = f"qdrant:///{folder}"
        self._shared: _Held | None = None
        self._lock = threading.Lock()

    @property
    def remains(self) -> tuple[str, ...]:
        """See `Transport.remains`; nowhere if SQLite is built to overwrite what it deletes."""
        return () if _overwrites() else (f"the files in {self._folder}",)

    def ask(self, verb: Verb, collection: str = "", body: Body | None = None) -> Any:
        """See `Transport.ask`."""
        if verb is Verb.VERSION:
            return {"title": "qdrant", "version": "1.17.0"}  # what local mode can do
        with self._lock:
            if self._shared is not None and self._shared.guard.forked:
                self._shared = None  # the parent's
            if self._shared is None:
                if verb not in _WRITING and not (self._folder / _META).exists():
                    if verb is Verb.COLLECTIONS:
                        return {"collections": []}
                    raise NoCollection(f"{self.url} does not exist")
                self._shared = _hold(self._folder)
            shared = self._shared
        return shared.ask(verb, collection, body or {})

    def close(self) -> None:
        """See `Transport.close`; the last store of a process that closes a folder leaves it to
        others.
        """
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None and not shared.guard.forked:
            _release(shared)


class _Held:
    """A folder that this process holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guard = ForkGuard()
        self.users = 0
        self._opened: dict[str, LocalCollection] = {}
        self._lock = threading.RLock()
        self._unlock = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            # Our lock comes first: the client reads everything before it looks whether it may.
            with _translated(folder):
                if folder.exists() and (doubt := others_may_write(folder)):
                    raise StoreError(f"{folder} {doubt}")
                held = stack.enter_context(try_lock(folder / _LOCK, BUSY_SECONDS))
            if not held:
                raise _busy(folder)
            self._client = _client(folder)
            try:
                self._redo()
            except BaseException:
                self._client.close()
                raise
            self._unlock = stack.pop_all()

    def ask(self, verb: Verb, collection: str, body: Body) -> Any:
        with self._lock, _translated(self.folder):
            if collection and verb is not Verb.CREATE and not self._has(collection):
                if verb is Verb.REMOVE:
                    return False
                raise NoCollection(f"{self.folder} has no collection {collection}")
            if verb not in _SEVERAL:
                return self._do(verb, collection, body)
            self._redo()
            pending = self.folder / _PENDING
            with replacing(pending, pending.with_suffix(".part")) as file:
                file.write(json.dumps([verb, collection, body]).encode())
            try:
                result = self._do(verb, collection, body)
            except ValueError:  # the client has refused it, and written nothing
                pending.unlink()
                raise
            pending.unlink()
            return result

    def close(self) -> None:
        with self._lock, _translated(self.folder), self._unlock:
            self._client.close()

    def _redo(self) -> None:
        """Repeat what a crash or a full disk interrupted; doing it twice does no harm."""
        pending = self.folder / _PENDING
        with _translated(self.folder):
            if pending.exists():
                verb, collection, body = json.loads(read_file(pending))
                if self._has(collection):
                    self._do(Verb(verb), collection, body)
                pending.unlink()

    def _has(self, collection: str) -> bool:
        return self._client.collection_exists(collection)

    def _do(self, verb: Verb, collection: str, body: Body) -> Any:
        if verb is Verb.COLLECTIONS:
            return {
                "collections": [
                    {"name": entry.name} for entry in self._client.get_collections().collections
                ]
            }
        if verb is Verb.CREATE:
            from qdrant_client import models

            asked = models.CreateCollection.model_validate(body)
            if not self._has(collection):
                self._client.create_collection(
                    collection, vectors_config=asked.vectors, metadata=asked.metadata
                )
                for part in self.folder.rglob("*"):  # the client leaves it to the umask
                    part.chmod(0o700 if part.is_dir() else 0o600)
            return True
        if verb is Verb.REMOVE:
            self._opened.pop(collection, None)
            return self._client.delete_collection(collection)
        if collection not in self._opened:
            self._opened[collection] = LocalCollection(self._client, collection)
        return self._opened[collection].ask(verb, body)


# --- one holder for all stores of a process
# ---------------------------------------------------------------------------

_held: dict[Path, _Held] = {}
_inherited: list[
    _Held
] = []  # of the parent, in a forked process; kept, since closing a client unlocks its folder
_holding = threading.Lock()


def _hold(folder: Path) -> _Held:
    with _holding:
        for held in [held for held in _held.values() if held.guard.forked]:
            held._unlock.close()  # so that the parent can free it; the client stays as it is
            _inherited.append(_held.pop(held.folder))
        if folder not in _held:
            _held[folder] = _Held(folder)
            atexit.unregister(_close_all)  # so that it is registered once
            atexit.register(_close_all)
        _held[folder].users += 1
        return _held[folder]


def _release(held: _Held) -> None:
    with _holding:
        held.users -= 1
        if held.users == 0:
            _held.pop(held.folder, None)
            held.close()


def _close_all() -> None:
    """Close what stores have left open; the client complains when it is taken apart at the end of
    the program.
    """
    for held in list(_held.values()):
        if not held.guard.forked:
            held.close()


def _client(folder: Path) -> "QdrantClient":
    try:
        from qdrant_client import QdrantClient
    except ImportError as exc:
        raise ConfigError(
            "qdrant:///folder needs qdrant-client; run: pip install qdrant-client"
        ) from exc
    keep_as_json(folder)
    with _translated(folder):
        return QdrantClient(path=str(folder), force_disable_check_same_thread=True)


def _overwrites() -> bool:
    """Return whether the database that the client brings along overwrites what it deletes; no if it
    is not loaded.
    """
    module = sys.modules.get("sqlite3")
    if module is None:
        return False
    with contextlib.closing(module.connect(":memory:")) as db:
        return bool(db.execute("PRAGMA secure_delete").fetchone()[0])


def _busy(folder: Path) -> StoreBusy:
    return StoreBusy(
        f"another process has qdrant:///{folder} open, which only one can; close it there, or use a Qdrant server"
    )


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except json.JSONDecodeError as exc:
        raise _damaged(folder) from exc
    except _database_error("OperationalError") as exc:
        raise StoreError(
            f"{folder} can't be written: {exc}; see whether its disk is full or read-only"
        ) from exc
    except _database_error("DatabaseError") as exc:
        raise _damaged(folder) from exc
    except OSError as exc:
        raise StoreError(
            f"{folder} can't be used: {exc.strerror or exc}; check who may write there"
        ) from exc
    except RuntimeError as exc:
        if "already accessed" in str(exc):
            raise _busy(folder) from exc
        raise


def _database_error(name: str) -> tuple[type[Exception], ...]:
    """Return an exception of the database that the client brings along; none as long as it has not
    been loaded.
    """
    module = sys.modules.get("sqlite3")
    return () if module is None else (getattr(module, name),)


def _damaged(folder: Path) -> StoreDamaged:
    return StoreDamaged(f"what is in {folder} can't be read; restore a copy of the folder")
