"""Records that are collected and added together."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, everything, pool, record  # noqa: E402

from memories.stores import wrapper  # noqa: E402
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402
from memories.stores.wrapper import BatchedStore  # noqa: E402


def test_records_wait_until_a_read_or_until_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper, "MOST_COLLECTED", 2)
    store = SQLiteStore(tmp_path / "m.db", SPACE)
    batch = BatchedStore(store)
    batch.append([record("a"), record("b")])
    assert everything(store, pool()) == []
    batch.append([record("c")])
    assert len(everything(store, pool())) == 3
    batch.append([record("d")])
    assert len(everything(store, pool())) == 3
    assert len(everything(batch, pool())) == 4
    store.close()
