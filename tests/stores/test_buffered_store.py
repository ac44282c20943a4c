"""Records that are buffered and added together."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, everything, pool, record  # noqa: E402

from memories.stores import wrapper  # noqa: E402
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402
from memories.stores.wrapper import BufferedStore  # noqa: E402


def test_records_are_buffered_until_a_read_or_until_the_buffer_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper, "MAX_BUFFERED", 2)
    store = SQLiteStore(tmp_path / "m.db", SPACE)
    buffer = BufferedStore(store)
    buffer.append([record("a"), record("b")])
    assert everything(store, pool()) == []
    buffer.append([record("c")])
    assert len(everything(store, pool())) == 3
    buffer.append([record("d")])
    assert len(everything(store, pool())) == 3
    assert len(everything(buffer, pool())) == 4
    store.close()
