"""Salvage of a damaged SQLite file, through SQLite if possible, else from its pages."""

from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from contract import HISTORY, MEMORY, SPACE, everything, pool, record, turn

from memories.errors import StoreDamaged
from memories.stores.records import Patch, Record, Ref
from memories.stores.sqlite.salvage import Lost, _value, _varint, page_rows, salvage
from memories.stores.sqlite.store import SQLiteStore
from memories.stores.sqlite.wal import continues, read_log


@pytest.fixture
def stored_records(path: Path) -> dict[Ref, Record]:
    """A closed store of two namespaces with versions, tags, reads, turns, and a text that spans
    several pages.
    """
    store = SQLiteStore(path, SPACE)
    store.append(
        [
            record(f"m{number}", text=f"note {number}", labels={"n": str(number)})
            for number in range(6)
        ]
    )
    store.append(
        [
            record(
                "b",
                namespace="bob",
                text="of bob",
                key="k",
                fields={"confidence": 0.5},
                labels={"m": "1"},
            )
        ]
    )
    store.append([record("long", text="many words " * 2_000, vectors=None)])
    store.append(
        [turn(number, text=f"said {number}", labels={"speaker": "Zoë"}) for number in range(3)]
    )
    first = Ref(MEMORY, "ann", "m0", 1)
    store.patch([Patch(first, record("m0", 2).created_at + timedelta(days=1), "update", {})])
    store.append([record("m0", 2, text="note 0 again")])
    store.touch([Ref(MEMORY, "ann", "m1", 1)])
    places = (pool("ann", "bob"), pool("ann", "bob", collection=HISTORY))
    results = {entry.ref: entry for where in places for entry in everything(store, where)}
    store.close()
    return results


def salvage_file(path: Path) -> tuple[dict[Ref, Record], list[Lost]]:
    """Salvage a file; return the records by address, and the losses."""
    results = list(salvage(path))
    lost = [entry for entry in results if isinstance(entry, Lost)]
    return {entry.ref: entry for entry in results if isinstance(entry, Record)}, lost


def run(path: Path, sql: str) -> None:
    """Run SQL on a file as another program would."""
    db = apsw.Connection(str(path))
    db.execute(sql).fetchall()
    db.close()


def test_an_intact_store_is_salvaged_completely(
    path: Path, stored_records: dict[Ref, Record]
) -> None:
    assert len(stored_records) == 12
    assert salvage_file(path) == (stored_records, [])


def test_lost_records_are_named_with_their_namespace(
    path: Path, stored_records: dict[Ref, Record]
) -> None:
    run(path, "UPDATE record SET crc = crc + 1 WHERE seq IN (2, 7)")
    left, lost = salvage_file(path)
    refs = [Ref(MEMORY, "ann", "m1", 1), Ref(MEMORY, "bob", "b", 1)]
    assert [(entry.seq, entry.ref) for entry in lost] == [(2, refs[0]), (7, refs[1])]
    assert left == {ref: entry for ref, entry in stored_records.items() if ref not in refs}


@pytest.mark.parametrize("end", [16, 100, 4096])
def test_a_file_without_its_first_page_is_read_from_the_other_pages(
    path: Path, stored_records: dict[Ref, Record], end: int
) -> None:
    run(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[:end] = bytes(end)
    path.write_bytes(data)
    left, lost = salvage_file(path)
    assert (left, lost) == (stored_records, [])


def test_a_row_missing_from_its_page_counts_as_lost(
    path: Path, stored_records: dict[Ref, Record]
) -> None:
    run(
        path, "UPDATE record SET crc = crc + 1 WHERE seq IN (2, 7); PRAGMA wal_checkpoint(TRUNCATE)"
    )
    data = path.read_bytes()
    path.write_bytes(bytes(4096) + data[4096:])
    left, lost = salvage_file(path)
    assert len(left) == len(stored_records) - 2
    assert [entry.why.partition(":")[0] for entry in lost] == [
        "2 records are lost or were removed earlier"
    ]


def test_a_file_without_records_is_reported(path: Path) -> None:
    path.write_bytes(bytes(8192))
    with pytest.raises(StoreDamaged, match="cannot read anything from"):
        list(salvage(path))


@pytest.mark.parametrize("size", [512, 1024, 4096, 8192, 32768])
def test_rows_are_read_from_pages_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "any.db"
    numbers = (0, 1, -1, 127, -128, 128, 2**15, 2**23, 2**31, 2**47, 2**63 - 1, -(2**63), 0.5)
    texts = [
        sign * length
        for sign in "xé"
        for length in (0, 1, 57, 58, 400, size - 40, size - 30, size, 3 * size)
    ]
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA page_size={size}; CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    given = {**{at + 1: (number, None) for at, number in enumerate(numbers)}}
    given |= {1_000_000 + at: (text, text.encode()) for at, text in enumerate(texts)} | {
        2**62: (None, 8),
        -5: (1, "x"),
    }
    db.executemany(
        "INSERT INTO t VALUES (?, ?, ?)", [(number, *values) for number, values in given.items()]
    )
    db.close()
    results = {number: values[1:] for number, values in page_rows(path) if len(values) == 3}
    assert results == given


def test_numbers_take_up_to_nine_bytes() -> None:
    for data, number in (
        (b"\x7f", 127),
        (b"\x81\x00", 128),
        (b"\xff" * 8 + b"\x01", 2**64 - 255),
        (b"\xff" * 9, 2**64 - 1),
    ):
        assert _varint(data, 0) == (number, len(data))
    assert _value(b"\x00\x05", 0, 2) == (5, 2)
    with pytest.raises(ValueError):
        _value(b"\x00", 0, 2)


@pytest.mark.parametrize("size", [512, 4096, 65536])
def test_a_log_is_read_in_pages_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "any.db"
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA page_size={size}; PRAGMA journal_mode=WAL; CREATE TABLE t (a)").fetchall()
    log = read_log(Path(f"{path}-wal"))
    db.close()
    assert log is not None
    assert (log.page_size, log.page_count, sorted(log.pages)) == (size, 2, [1, 2])
    assert {len(page) for page in log.pages.values()} == {size}


def test_a_log_belongs_only_to_a_readable_database(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode=WAL; CREATE TABLE t (a)").fetchall()
    log = path.rename(tmp_path / "moved.db").with_name("log")
    log.write_bytes(Path(f"{path}-wal").read_bytes())
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database" * 600)
    assert continues(log, tmp_path / "moved.db")
    assert not continues(log, other)
    assert not continues(tmp_path / "none", tmp_path / "moved.db")
    db.close()


def test_bytes_before_the_rows_of_a_page_are_not_read_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "any.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE t (a)")
    size = 4 + 4 * 2  # size of the row: its length, number, header and content
    [[page]] = db.execute("PRAGMA page_size").fetchall()
    db.execute("INSERT INTO t VALUES (?)", ((page - size).to_bytes(2, "big") * 4,))
    db.close()
    assert [row.number for row in page_rows(path)] == [
        1,
        1,
    ]  # the schema's row, the table's row
