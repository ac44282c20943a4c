"""The SQLite store passes the contract, even with limits so low that it keeps almost all vectors in
blocks.
"""

import shutil
from pathlib import Path

import pytest
from contract import OpenStore, StoreContract
from contract.conversations import Conversations
from contract.durability import Durability
from contract.health import Health
from contract.isolation import Isolation
from contract.log import Log
from contract.model import AsTheModelSays
from contract.moving import Moving
from contract.order import Order
from contract.origin import Origins
from contract.repetitions import Repetitions
from contract.review import Review
from contract.search import Search
from contract.undo import Undo
from contract.words import Words

from memories.stores.sqlite import quantize as sqlite_quantize
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite.store import SQLiteStore


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The closed file of an empty store: copying it takes a third of the time of creating one."""
    path = tmp_path_factory.mktemp("made") / "memories.db"
    store = SQLiteStore(path, None)
    with store.transaction():
        pass
    store.close()
    return path


class TestSQLite(StoreContract):
    @pytest.fixture
    def open_store(
        self, open_store: OpenStore, path: Path, empty_file: Path, request: pytest.FixtureRequest
    ) -> OpenStore:
        if request.function.__name__ != "test_reading_does_not_create_a_store":
            shutil.copy2(empty_file, path)
        return open_store


class ByBlocks:
    """Tests with low limits for blocks; each test creates its store."""

    @pytest.fixture
    def open_store(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
        monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
        monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
        monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)
        monkeypatch.setattr(sqlite_quantize, "_SCORED_AT_LEAST", 20)
        return open_store


class TestSQLiteByBlocks(ByBlocks, Search, Moving):
    """The parts of the contract that search and change vectors."""


@pytest.mark.thorough
class TestSQLiteByBlocksToo(
    ByBlocks,
    Durability,
    Isolation,
    Order,
    Words,
    Health,
    Log,
    Origins,
    Repetitions,
    Review,
    Undo,
    Conversations,
    AsTheModelSays,
):
    """The parts of the contract that don't depend on the place of vectors."""
