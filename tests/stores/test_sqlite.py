import pytest
pytest.register_assert_rewrite("contract")
from contract import *
from contract import StoreContract
from memories.stores.sqlite import SQLiteStore

class TestSQLite(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path):
        opened = []
        def open_one(space):
            opened.append(SQLiteStore(tmp_path / "memories.db", space))
            return opened[-1]
        yield open_one
        for s in opened: s.close()
