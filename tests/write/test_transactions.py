"""A change reads its memory while it excludes other writers, so none can write in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from memories import Memories
from memories.read.lookup import Lookup
from memories.transfer.export import export
from memories.transfer.importing import _Importer, import_
from memories.write import bulk

pytestmark = pytest.mark.usefixtures("home")

FACT = "Deploys happen on Tuesdays"


def import_again(memories: Memories, memory_id: str) -> None:
    """Export all, forget a memory, and import it."""
    lines: list[str] = []
    export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    memories.forget(memory_id)
    import_(memories._store, [line.encode() for line in lines], None, namespaces=None)


@pytest.mark.parametrize(
    ("owner", "reads", "change"),
    [
        pytest.param(Lookup, "find_live", lambda m, one: m.reinforce(one), id="reinforce"),
        pytest.param(
            Lookup, "find_live", lambda m, one: m.update(one, "Deploys are over"), id="update"
        ),
        pytest.param(Lookup, "find_own", lambda m, one: m.delete(one), id="delete"),
        pytest.param(
            bulk,
            "_read_again",
            lambda m, one: m.tag_where("kind = note", tags={"kind": "fact"}),
            id="tag many",
        ),
        pytest.param(
            bulk, "_read_again", lambda m, one: m.delete_where("kind = note"), id="delete many"
        ),
        pytest.param(_Importer, "_select_new", import_again, id="import"),
    ],
)
def test_no_other_writer_can_write_between_read_and_change(
    memories: Memories,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    reads: str,
    change: Callable[[Memories, str], object],
) -> None:
    one = memories.create(FACT, decay="reinforceable", tags={"kind": "note"}).id
    assert one is not None
    other = apsw.Connection(f"{tmp_path}/m.db")
    other.set_busy_timeout(0)
    alone: list[bool] = []
    read = getattr(owner, reads)

    def reading(*given: Any, **named: Any) -> Any:
        try:
            other.execute("BEGIN IMMEDIATE; ROLLBACK")
            alone.append(False)
        except apsw.BusyError:
            alone.append(True)
        return read(*given, **named)

    monkeypatch.setattr(owner, reads, reading)
    change(memories, one)
    other.close()
    assert alone[-1:] == [True]  # only the last read must exclude others
