"""Runs requests against a folder, using the local mode of Qdrant's client.

Only one process at a time can use a folder, and stores should be small.
"""

import atexit
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memories.core.disk import ForkGuard, others_may_write, read_file, replacing, try_lock
from memories.errors import ConfigError, StoreBusy, StoreDamaged, StoreError
from memories.stores.qdrant.driver import Body, NoCollection, Verb
from memories.stores.qdrant.local import LocalCollection, keep_as_json

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

BUSY_SECONDS = 10.0  # how long to wait for another process that uses the folder
_META, _LOCK, _PENDING = "meta.json", ".memories.lock", ".memories.pending"
_WRITING_POINTS = (Verb.UPSERT, Verb.SET_PAYLOAD, Verb.DELETE)  # they may write several points
_WRITING = (*_WRITING_POINTS, Verb.CREATE, Verb.INDEX)


class FolderTransport:
    """Implements `Transport` by running requests in this process.

    - One process holds the folder from its first request until it closes the store. Another process
      waits for `BUSY_SECONDS` and then gets `StoreBusy`. Threads and stores of one process share
      the folder; a forked process counts as another process.
    - Local mode reads all collections into memory when the folder is opened, and compares a query
      with every vector. Use it for up to about ten thousand records. Importing the client takes
      about 1.5 s.
    - Local mode writes each point separately. So a request is first written to a file in the
      folder. If a crash interrupts the request, it is repeated when the folder is opened again.
    - Points are stored as JSON instead of the client's pickled objects, so opening a folder can't
      run code.
    """

    def __init__(self, folder: Path) -> None:
        """Initialize; nothing is opened yet.

        Args:
            folder: The folder for the collections; the first write creates it.
        """
        self._folder = folder
        self.url = f"qdrant:///{folder}"
        self._open_folder: _OpenFolder | None = None
        self._lock = threading.Lock()

    @property
    def remains(self) -> tuple[str, ...]:
        """See `Transport.remains`; empty if SQLite is built to overwrite deleted data."""
        return () if _overwrites_deleted() else (f"the files in {self._folder}",)

    def ask(self, verb: Verb, collection: str = "", body: Body | None = None) -> Any:
        """See `Transport.ask`."""
        if verb is Verb.VERSION:
            return {"title": "qdrant", "version": "1.17.0"}  # local mode supports all its requests
        with self._lock:
            if self._open_folder is not None and self._open_folder.guard.forked:
                self._open_folder = None  # the folder belongs to the parent process
            if self._open_folder is None:
                if verb not in _WRITING and not (self._folder / _META).exists():
                    if verb is Verb.COLLECTIONS:
                        return {"collections": []}
                    raise NoCollection(f"{self.url} does not exist")
                self._open_folder = _acquire(self._folder)
            open_folder = self._open_folder
        return open_folder.ask(verb, collection, body or {})

    def close(self) -> None:
        """See `Transport.close`; the last store to close lets other processes open the folder."""
        with self._lock:
            open_folder, self._open_folder = self._open_folder, None
        if open_folder is not None and not open_folder.guard.forked:
            _release(open_folder)


class _OpenFolder:
    """A folder that this process has open. All stores in the folder share this object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guard = ForkGuard()
        self.users = 0
        self._opened: dict[str, LocalCollection] = {}
        self._lock = threading.RLock()
        self._unlock = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            # Take our lock first: the client checks its own only after reading the whole folder.
            with _translate_errors(folder):
                if folder.exists() and (doubt := others_may_write(folder)):
                    raise StoreError(f"{folder} {doubt}")
                is_locked = stack.enter_context(try_lock(folder / _LOCK, BUSY_SECONDS))
            if not is_locked:
                raise _busy_error(folder)
            self._client = _open_client(folder)
            try:
                self._repeat_interrupted()
            except BaseException:
                self._client.close()
                raise
            self._unlock = stack.pop_all()

    def ask(self, verb: Verb, collection: str, body: Body) -> Any:
        with self._lock, _translate_errors(self.folder):
            if collection and verb is not Verb.CREATE and not self._has(collection):
                if verb is Verb.REMOVE:
                    return False
                raise NoCollection(f"{self.folder} has no collection {collection}")
            if verb not in _WRITING_POINTS:
                return self._run(verb, collection, body)
            self._repeat_interrupted()
            pending = self.folder / _PENDING
            with replacing(pending, pending.with_suffix(".part")) as file:
                file.write(json.dumps([verb, collection, body]).encode())
            try:
                result = self._run(verb, collection, body)
            except ValueError:  # the client refused the request, and wrote nothing
                pending.unlink()
                raise
            pending.unlink()
            return result

    def close(self) -> None:
        with self._lock, _translate_errors(self.folder), self._unlock:
            self._client.close()

    def _repeat_interrupted(self) -> None:
        """Repeat a request that a crash or a full disk interrupted; repeating it is harmless."""
        pending = self.folder / _PENDING
        with _translate_errors(self.folder):
            if pending.exists():
                verb, collection, body = json.loads(read_file(pending))
                if self._has(collection):
                    self._run(Verb(verb), collection, body)
                pending.unlink()

    def _has(self, collection: str) -> bool:
        return self._client.collection_exists(collection)

    def _run(self, verb: Verb, collection: str, body: Body) -> Any:
        if verb is Verb.COLLECTIONS:
            collections = self._client.get_collections().collections
            return {"collections": [{"name": entry.name} for entry in collections]}
        if verb is Verb.CREATE:
            self._create(collection, body)
            return True
        if verb is Verb.REMOVE:
            self._opened.pop(collection, None)
            return self._client.delete_collection(collection)
        if collection not in self._opened:
            self._opened[collection] = LocalCollection(self._client, collection)
        return self._opened[collection].ask(verb, body)

    def _create(self, collection: str, body: Body) -> None:
        from qdrant_client import models

        request = models.CreateCollection.model_validate(body)
        if self._has(collection):
            return
        self._client.create_collection(
            collection, vectors_config=request.vectors, metadata=request.metadata
        )
        for path in self.folder.rglob("*"):  # the client would leave permissions to the umask
            path.chmod(0o700 if path.is_dir() else 0o600)


_open_folders: dict[Path, _OpenFolder] = {}
# In a forked process, the folders that the parent has opened. They stay open here, since closing a
# client would unlock its folder.
_inherited: list[_OpenFolder] = []
_acquiring = threading.Lock()


def _acquire(folder: Path) -> _OpenFolder:
    with _acquiring:
        for open_folder in list(_open_folders.values()):
            if open_folder.guard.forked:
                open_folder._unlock.close()  # only the parent may hold the lock
                _inherited.append(_open_folders.pop(open_folder.folder))
        if folder not in _open_folders:
            _open_folders[folder] = _OpenFolder(folder)
            atexit.unregister(_close_all)  # the function must be registered only once
            atexit.register(_close_all)
        _open_folders[folder].users += 1
        return _open_folders[folder]


def _release(open_folder: _OpenFolder) -> None:
    with _acquiring:
        open_folder.users -= 1
        if open_folder.users == 0:
            _open_folders.pop(open_folder.folder, None)
            open_folder.close()


def _close_all() -> None:
    """Close folders that are still open at exit; otherwise the client would print warnings."""
    for open_folder in list(_open_folders.values()):
        if not open_folder.guard.forked:
            open_folder.close()


def _open_client(folder: Path) -> "QdrantClient":
    try:
        from qdrant_client import QdrantClient
    except ImportError as exc:
        from memories.core.installation import install_command

        raise ConfigError(
            f"qdrant:///folder needs qdrant-client; run: {install_command('qdrant')}"
        ) from exc
    keep_as_json(folder)
    with _translate_errors(folder):
        return QdrantClient(path=str(folder), force_disable_check_same_thread=True)


def _overwrites_deleted() -> bool:
    """Return whether the client's SQLite overwrites deleted data; False if SQLite isn't loaded."""
    module = sys.modules.get("sqlite3")
    if module is None:
        return False
    with contextlib.closing(module.connect(":memory:")) as db:
        return bool(db.execute("PRAGMA secure_delete").fetchone()[0])


def _busy_error(folder: Path) -> StoreBusy:
    return StoreBusy(
        f"another process has qdrant:///{folder} open, and only one process at a time can use it; "
        "close it in that process, or use a Qdrant server"
    )


@contextlib.contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except json.JSONDecodeError as exc:
        raise _damage_error(folder) from exc
    except _database_error("OperationalError") as exc:
        raise StoreError(
            f"cannot write {folder}: {exc}; check whether its disk is full or read-only"
        ) from exc
    except _database_error("DatabaseError") as exc:
        raise _damage_error(folder) from exc
    except OSError as exc:
        raise StoreError(
            f"{folder} can't be used: {exc.strerror or exc}; check its permissions"
        ) from exc
    except RuntimeError as exc:
        if "already accessed" in str(exc):
            raise _busy_error(folder) from exc
        raise


def _database_error(name: str) -> tuple[type[Exception], ...]:
    """Return sqlite3's exception class with this name; empty if the module isn't loaded."""
    module = sys.modules.get("sqlite3")
    return () if module is None else (getattr(module, name),)


def _damage_error(folder: Path) -> StoreDamaged:
    return StoreDamaged(f"cannot read the files in {folder}; restore a copy of the folder")
