"""The SQLite store reports damage, works without the damaged parts, and rebuilds derived ones."""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from contract import (
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    by_words,
    embed,
    embed_other,
    everything,
    matching,
    pool,
    record,
    refs_of,
    search,
    stage_all,
    turn,
    turns,
)
from sqlite_uses import all_uses

from memories.errors import MemoriesError, StoreDamaged
from memories.stores.records import Filter, Patch, Ref
from memories.stores.sqlite import vectors as sqlite_vectors
from memories.stores.sqlite.backup import records_in
from memories.stores.sqlite.engine import connect_frozen
from memories.stores.sqlite.query import labels_of
from memories.stores.sqlite.store import SQLiteStore


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the vector blocks so small that a few records fill several."""
    monkeypatch.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
    monkeypatch.setattr(sqlite_vectors, "EXACT_ROWS", 20)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store file with memories of two namespaces, some with several versions, and two
    conversations.
    """
    path = tmp_path_factory.mktemp("sound") / "memories.db"
    store = SQLiteStore(path, SPACE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite_vectors, "BLOCK_ROWS", 16)
        patched.setattr(sqlite_vectors, "_LOOK_EVERY", 1)
        for number in range(40):
            group = f"0199aaaa-0000-7000-8000-0000000000{number:02}"
            store.append(
                [record(group, text=f"word{number} of every note", labels={"n": str(number % 4)})]
            )
            store.append(
                [turn(number, text=f"said{number} of every turn", labels={"speaker": "Zoë"})]
            )
    for number in range(3):
        ref = Ref(MEMORY, "ann", f"0199aaaa-0000-7000-8000-0000000000{number:02}", 1)
        store.patch([Patch(ref, record("x", 9).created_at, "update", {"mark": number})])
        store.append([record(ref.group, 2, text=f"word{number} of every note again", accesses=2)])
    store.append([record("b", namespace="bob", text="a note of bob", labels={"n": "1"})])
    stage_all(store, OTHER)
    store.close()
    return path


@pytest.fixture
def path(tmp_path: Path, sound: Path) -> Path:
    """A copy of the intact store."""
    path = tmp_path / "memories.db"
    shutil.copy(sound, path)
    path.chmod(0o600)
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    """The open store of that copy."""
    store = SQLiteStore(path, SPACE)
    yield store
    store.close()


def run(path: Path, sql: str, *values: Any) -> None:
    """Change a closed file behind the store's back."""
    db = apsw.Connection(str(path))
    db.execute(sql, values)
    db.close()


M7 = Ref(MEMORY, "ann", "0199aaaa-0000-7000-8000-000000000007", 1)
SEQ7 = 15  # the row of this memory

IN_A_RECORD = [
    "UPDATE record SET text = 'word7 of every mote' WHERE seq = 15",
    "UPDATE record SET text = CAST(x'776f726437ff' AS TEXT) WHERE seq = 15",
    "UPDATE record SET fields = '{' WHERE seq = 15",
    "UPDATE record SET session = 3 WHERE seq = 15",
    "UPDATE record SET ended_by = 'delete' WHERE seq = 15",
    "UPDATE record SET created_at = 'x' WHERE seq = 15",
    "UPDATE record SET labels = '1' WHERE seq = 15",
    "UPDATE record SET labels = '3,x' WHERE seq = 15",
    "UPDATE record SET state_crc = NULL WHERE seq = 15",
]
IN_A_RECORD_TOO = [
    "UPDATE record SET fields = '{\"confidence\":0.4}' WHERE seq = 15",
    "UPDATE record SET created_at = created_at + 1 WHERE seq = 15",
    "UPDATE record SET labels = '3,999' WHERE seq = 15",
    "UPDATE record SET labels = CAST(x'33ff' AS TEXT) WHERE seq = 15",
    "UPDATE record SET key = 'k' WHERE seq = 15",
    "UPDATE record SET crc = crc + 1 WHERE seq = 15",
]


@pytest.mark.parametrize(
    "sql",
    [*IN_A_RECORD, *(pytest.param(sql, marks=pytest.mark.thorough) for sql in IN_A_RECORD_TOO)],
)
def test_a_damaged_record_affects_no_other_record(path: Path, sql: str) -> None:
    run(path, sql)
    store = SQLiteStore(path, SPACE)
    assert M7 not in {entry.ref for entry in everything(store, pool(state="any"))}
    assert len(store.scan(pool(), limit=1_000)) == 39
    assert [finding.ref for finding in store.damaged.since()] == [M7]
    mark = store.damaged.mark()
    assert M7.group not in search(store, "word7 of every note", k=50)
    assert [finding.ref for finding in store.damaged.since(mark)] == [M7]
    assert len(store.scan(pool(), limit=10)) == 10
    assert store.read([M7]) == []
    for deep in (False, True):
        assert {finding.ref for finding in store.check(deep=deep) if not finding.derived} == {M7}
    with pytest.raises(StoreDamaged, match="forget"):
        store.patch([Patch(M7, None, None, {"x": 1})])
    store.remove([M7])
    assert store.damaged.since() == ()
    store.repair()
    assert list(store.check(deep=True)) == []
    assert len(store.scan(pool(), limit=1_000)) == 39
    store.close()


def test_a_check_reports_an_end_that_was_never_written(path: Path) -> None:
    """The end hides the record from reads of current records, so no read finds the damage."""
    run(path, "UPDATE record SET ended_at = 1763700000000, ended_by = 'delete' WHERE seq = 15")
    store = SQLiteStore(path, SPACE)
    assert len(store.scan(pool(), limit=1_000)) == 39
    assert M7 in {finding.ref for finding in store.check(deep=False)}
    assert len(store.scan(pool(state="any"), limit=1_000)) == 42
    assert [finding.ref for finding in store.damaged.since()] == [M7]
    store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE record SET grp = x'0102' WHERE seq = 15",
        "UPDATE record SET grp = CAST(x'ff41' AS TEXT) WHERE seq = 15",
        "UPDATE record SET grp = 7 WHERE seq = 15",
        "UPDATE record SET pool = 99 WHERE seq = 15",
        "UPDATE record SET pool = 'x' WHERE seq = 15",
        "UPDATE record SET position = 'x' WHERE seq = 15",
    ],
)
def test_a_record_without_an_address_can_still_be_removed(path: Path, sql: str) -> None:
    run(path, "PRAGMA foreign_keys = OFF")
    run(path, sql)
    store = SQLiteStore(path, SPACE)
    assert len(everything(store, pool())) == 42
    assert store.groups(pool(), limit=1_000)
    refs = {finding.ref for finding in store.check(deep=True)} - {None}
    assert len(refs) == 1
    [ref] = refs
    assert ref is not None
    where = Filter(MEMORY, ("ann",), group=ref.group, state="any")
    assert [namespace for namespace, _ in store.groups(where, limit=2)] == ["ann"]
    [result] = store.refs(where)
    store.remove([result])
    store.repair()
    assert list(store.check(deep=True)) == []
    assert len(everything(store, pool(state="any"))) == 42
    store.close()


def test_a_conversation_with_the_name_of_a_damaged_record_is_ordinary(store: SQLiteStore) -> None:
    store.append([turn(0, group="damaged-15"), turn(4, group="damaged-15")])
    assert [ref.position for ref in store.refs(turns(group="damaged-15"))] == [0, 4]
    assert store.refs(turns(group="damaged-16")) == []
    store.remove([Ref(HISTORY, "ann", "damaged-15", 7), Ref(MEMORY, "ann", "damaged-15", 0)])
    assert store.read([M7])
    assert len(store.refs(turns(group="damaged-15"))) == 2


def test_a_page_of_only_damaged_records_does_not_end_a_scan(path: Path) -> None:
    run(path, "UPDATE record SET crc = crc + 1 WHERE seq BETWEEN 10 AND 60")
    store = SQLiteStore(path, SPACE)
    results = []
    after = None
    while page := store.scan(pool(), limit=3, after=after):
        results += page
        after = (page[-1].ref.group, page[-1].ref.position)
    assert len(results) == 40 - 25
    newest = store.scan(pool(), limit=3, newest_first=True)
    assert [entry.text for entry in newest] == [
        f"word{number} of every note" for number in (39, 38, 37)
    ]
    store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE record SET text = CAST(x'ff' AS TEXT) WHERE seq = 16",
        "UPDATE record SET labels = '77' WHERE seq = 16",
        "UPDATE record SET session = 'x' WHERE seq = 16",
        "UPDATE record SET created_at = x'00' WHERE seq = 16",
        "UPDATE turn_vector SET codes = x'00' WHERE seq = 16",
        "UPDATE turn_vector SET codes = 'text' WHERE seq = 16",
    ],
)
def test_a_search_leaves_out_a_damaged_turn(path: Path, sql: str) -> None:
    run(path, sql)
    for exact in (20, 4_096):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sqlite_vectors, "EXACT_ROWS", exact)
            patched.setattr(sqlite_vectors, "BLOCK_ROWS", max(16, exact // 4))
            store = SQLiteStore(path, SPACE)
            for _ in range(2):
                matches = refs_of(matching(store, "said20 of every turn"))
                assert Ref(HISTORY, "ann", "talk", 20) in matches
            store.close()


DERIVED = [
    "DELETE FROM words_docsize WHERE id = 15",
    "INSERT INTO words (rowid, text) VALUES (500, 'a word of nobody')",
    "INSERT INTO words (words, rowid, text) VALUES ('delete', 15, 'x'); INSERT INTO words (rowid, text) VALUES (15, 'y')",  # noqa: E501, RUF100
    "DELETE FROM turn_words_docsize",
    "INSERT INTO words (words) VALUES ('delete-all')",
    ("UPDATE words_data SET block = CAST(replace(block, 'again', 'agaim') AS BLOB) "
    "WHERE instr(block, 'again')"),
    "UPDATE words_data SET id = 8202 WHERE id = 10",
    "UPDATE turn_words_data SET block = x'00' WHERE id = 10",
    "UPDATE words_data SET block = NULL WHERE id = 1",
    "DELETE FROM words_ended_data",
    "UPDATE words_config SET k = 'versioo' WHERE k = 'version'",
    "UPDATE turn_words_config SET v = 20",
    "DROP TABLE words_config",
    ("PRAGMA writable_schema=ON; "
    "UPDATE sqlite_schema SET sql = replace(sql, 'ascii', 'asciy') WHERE name = 'words'"),
    "UPDATE OR IGNORE words_idx SET segid = segid + 1",
    "UPDATE words_docsize SET sz = x'ffffffffffffffffff' WHERE id = 15",
    "UPDATE corpus SET tokens = tokens + 1",
    "UPDATE meta SET value = NULL WHERE name = 'dimension'",
    "INSERT INTO meta VALUES ('compact', 1)",
    "UPDATE meta SET value = 'x' WHERE name = 'staged_dimension'",
    "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'record'",
    ("DROP TRIGGER record_added; "
    "CREATE TRIGGER record_added AFTER INSERT ON record BEGIN SELECT 1; END"),
    "CREATE TRIGGER other AFTER INSERT ON record BEGIN SELECT absent FROM record; END",
    "DELETE FROM record_label WHERE seq = 15",
    "INSERT INTO record_label VALUES (1, 5)",
    "DELETE FROM label_pool",
    "INSERT INTO label_pool (label, pool) VALUES (1, 77)",
    "INSERT INTO access VALUES (900, 4)",
    "UPDATE vector SET codes = zeroblob(length(codes)) WHERE seq = 15",
    "UPDATE turn_vector SET codes = x'0102' WHERE seq = 16",
    "UPDATE vector SET crc = NULL WHERE seq = 15",
    "INSERT INTO vector SELECT 900, codes, crc FROM vector WHERE seq = 15",
    "UPDATE staged_vector SET codes = zeroblob(length(codes)) WHERE seq = 15",
    "UPDATE block SET bits = zeroblob(length(bits)) WHERE hi = (SELECT min(hi) FROM block)",
    "DELETE FROM block WHERE hi = (SELECT min(hi) FROM block)",
    "UPDATE turn_block SET seqs = substr(seqs, 9)",
]  # fmt: skip
DERIVED_TOO = [  # the same in other rows and columns
    "UPDATE words_data SET block = NULL WHERE id > 1000",
    "UPDATE words_data SET id = id + 256 WHERE id > 1000",
    "UPDATE turn_words_data SET block = x'0203' WHERE id = 1",
    "DROP TABLE words_docsize",
    "UPDATE words_ended_config SET v = NULL",
    "UPDATE words_docsize SET sz = NULL",
    "UPDATE words_docsize SET sz = x'30' WHERE id = 15",
    "UPDATE turn_words_docsize SET sz = 'text'",
    "UPDATE corpus SET documents = -1",
    "DELETE FROM corpus",
    "UPDATE meta SET value = 'x' WHERE name = 'dimension'",
    "UPDATE meta SET value = value + 8 WHERE name = 'dimension'",
    "UPDATE meta SET name = 'dimensioo' WHERE name = 'dimension'",
    "INSERT INTO meta VALUES ('words_epoch', NULL)",
    "INSERT OR REPLACE INTO meta VALUES ('blocks_epoch', 'x')",
    "UPDATE meta SET value = NULL WHERE name = 'staged_model'",
    "UPDATE sqlite_sequence SET seq = 'x' WHERE name = 'record'",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(sound: Path) -> Iterator[SQLiteStore]:
    """The intact store, which no test changes."""
    with contextlib.closing(SQLiteStore(sound, SPACE)) as store:
        yield store


@pytest.mark.parametrize(
    "sql", [*DERIVED, *(pytest.param(sql, marks=pytest.mark.thorough) for sql in DERIVED_TOO)]
)
def test_damaged_derived_parts_are_reported_and_rebuilt(
    path: Path, whole: SQLiteStore, sql: str
) -> None:
    run(path, sql)
    store = SQLiteStore(path, SPACE)
    findings = list(store.check(deep=True))
    assert findings
    assert all(finding.derived and finding.ref is None for finding in findings)
    assert store.repair()
    assert list(store.check(deep=True)) == []
    assert everything(store, pool(state="any")) == everything(whole, pool(state="any"))
    assert by_words(store, ["word7", "every"]) == pytest.approx(by_words(whole, ["word7", "every"]))
    assert store.labels(pool(), "n") == whole.labels(pool(), "n")
    if "vector" not in sql:
        assert search(store, "word7 of every note", k=5) == search(
            whole, "word7 of every note", k=5
        )
    store.close()


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("INSERT INTO access VALUES (900, 4)", "1 row"),
        ("INSERT INTO access VALUES (900, 4), (901, 4)", "2 rows"),
    ],
)
def test_surplus_rows_are_counted(path: Path, sql: str, count: str) -> None:
    run(path, sql)
    with contextlib.closing(SQLiteStore(path, SPACE)) as store:
        [finding] = store.check(deep=True)
    assert finding.what == f"access contains {count} for records that do not exist"


UNUSABLE = [
    (
        "UPDATE words_data SET block = NULL WHERE id > 1000; "
        "UPDATE turn_words_data SET block = NULL WHERE id > 1000"
    ),
    "UPDATE words_config SET v = NULL; UPDATE turn_words_config SET k = 'x' WHERE k = 'version'",
    "DELETE FROM words_data; DELETE FROM turn_words_data",
]


@pytest.mark.parametrize("sql", UNUSABLE)
def test_vectors_are_searched_if_the_word_index_is_damaged(path: Path, sql: str) -> None:
    run(path, sql)
    for exact in (20, 4_096):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sqlite_vectors, "EXACT_ROWS", exact)
            patched.setattr(sqlite_vectors, "BLOCK_ROWS", max(16, exact // 4))
            store = SQLiteStore(path, SPACE)
            for ask, text in ((search, "word7 of every note"), (matching, "said20 of every turn")):
                mark = store.damaged.mark()
                assert ask(store, text)
                [told] = store.damaged.since(mark)
                assert (told.ref, told.derived, told.remedy) == (
                    None,
                    True,
                    "run: memory doctor --fix",
                )
            with pytest.raises(StoreDamaged, match=r"word index .* memory doctor --fix"):
                by_words(store, ["word7"])
            assert [finding.derived for finding in store.check(deep=False)] == [True]
            store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE words_config SET v = NULL",
        "UPDATE words_data SET id = 8202 WHERE id = 10",
        "UPDATE words_ended_data SET block = x'ffffffffffffffffffff' WHERE id = 10",
        "UPDATE OR IGNORE words_idx SET segid = segid + 1",
    ],
)
def test_a_write_refused_by_a_damaged_word_index_names_the_remedy(path: Path, sql: str) -> None:
    run(path, sql)
    store, other = SQLiteStore(path, SPACE), SQLiteStore(path, SPACE)
    other.check(deep=False)  # it has already found the damaged index

    def write() -> None:
        with store.transaction():
            store.append([record("new", text="a thing that is new")])
            store.patch(
                [Patch(Ref(MEMORY, "ann", "new", 1), record("x", 9).created_at, "update", {})]
            )
        store.remove([M7])

    with pytest.raises(StoreDamaged, match=r"word index .* memory doctor --fix"):
        write()
    assert other.repair() == ["the word index"]
    assert list(store.check(deep=True)) == []
    write()
    assert by_words(store, ["again"])
    assert by_words(store, ["again"]) == by_words(other, ["again"])
    assert list(other.check(deep=True)) == []
    store.close()
    other.close()


@pytest.mark.parametrize(
    "sql", ["value = NULL WHERE name = 'model'", "name = 'modem' WHERE name = 'model'"]
)
def test_vectors_with_an_unreadable_model_are_replaced(path: Path, sql: str) -> None:
    run(path, f"UPDATE meta SET {sql}")
    store = SQLiteStore(path, SPACE)
    assert store.info(pool()).model is None
    for use in (
        lambda: search(store, "word7"),
        lambda: store.append([record("new", text="a new thing")]),
    ):
        with pytest.raises(StoreDamaged, match="memory reembed"):
            use()
    [finding] = store.check(deep=False)
    assert (finding.derived, "memory reembed" in finding.remedy) == (False, True)
    assert by_words(store, ["word7"])
    store.remove([M7])
    stage_all(store, SPACE)
    store.switch(SPACE)
    assert list(store.check(deep=True)) == []
    assert search(store, "word8 of every note")
    store.close()


def test_an_unreadable_dimension_is_reported(path: Path) -> None:
    run(path, "UPDATE meta SET value = NULL WHERE name = 'dimension'")
    store = SQLiteStore(path, SPACE)
    for use in (
        lambda: search(store, "word7"),
        lambda: store.append([record("new", text="a new thing")]),
        lambda: store.remove([M7]),
    ):
        with pytest.raises(StoreDamaged, match="memory doctor --fix"):
            use()
    assert store.repair()
    store.remove([M7])
    assert store.info(pool()).erasing is False
    store.close()


def test_nothing_is_rebuilt_from_unreadable_records(path: Path) -> None:
    """A page of the records is lost, and the word index is damaged too."""
    run(path, "UPDATE words_config SET v = NULL")
    db = apsw.Connection(str(path))
    [(root,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'record'").fetchall()
    db.close()
    content = bytearray(path.read_bytes())
    content[4_096 * (root - 1)] = 0
    path.write_bytes(bytes(content))
    store = SQLiteStore(path, SPACE)
    findings = list(store.check(deep=True))
    assert findings
    assert all("--salvage" in finding.remedy for finding in findings)
    with pytest.raises(StoreDamaged, match="--salvage"):
        store.repair()
    store.close()


def test_a_check_changes_nothing_and_needs_no_lock(store: SQLiteStore, path: Path) -> None:
    assert list(store.check(deep=True)) == []
    before = path.read_bytes(), store._file._connection().total_changes()
    assert list(store.check(deep=True)) == []
    assert (path.read_bytes(), store._file._connection().total_changes()) == before


def test_damaged_vectors_are_not_copied(path: Path) -> None:
    run(path, "UPDATE vector SET codes = zeroblob(length(codes)) WHERE seq = 15")
    store = SQLiteStore(path, SPACE)
    vectors = store.vectors([M7, M7._replace(group=M7.group[:-1] + "8")])
    assert list(vectors) == [M7._replace(group=M7.group[:-1] + "8")]
    store.close()


def test_changing_the_embedder_leaves_out_a_damaged_record(path: Path) -> None:
    run(
        path,
        "UPDATE record SET text = 'x' WHERE seq = 15; DELETE FROM staged_vector WHERE seq = 15",
    )
    store = SQLiteStore(path, SPACE)
    assert store.unstaged(OTHER, MEMORY, limit=5) == []
    store.switch(OTHER)
    store.close()
    store = SQLiteStore(path, OTHER)
    assert store.candidates(pool(), vector=embed_other("word8 of every note")[0], terms=[], k=1)
    assert [finding.ref for finding in store.check(deep=True)] == [M7]
    store.close()


def test_a_quick_check_reads_part_of_a_large_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.stores.sqlite import check

    monkeypatch.setattr(check, "SMALL", 20)
    monkeypatch.setattr(check, "SOME", 20)
    run(path, "UPDATE record SET crc = crc + 1 WHERE seq IN (5, 45, 83)")
    store = SQLiteStore(path, SPACE)
    # The first row of the part beside the newest rows is drawn from 1 to 74; ten rows precede the
    # newest.
    for number, findings in ((0, 2), (36, 2), (73, 1), (74, 2)):
        monkeypatch.setattr(
            check, "os", SimpleNamespace(urandom=partial(number.to_bytes, byteorder="big"))
        )
        assert len(list(store.check(deep=False))) == findings
    assert len(list(store.check(deep=True))) == 3
    store.close()


def test_a_quick_check_reads_few_records_of_any_store(tmp_path: Path) -> None:
    """This keeps `memory status` fast."""
    store = SQLiteStore(tmp_path / "large.db", SPACE)
    store.append([record(f"m{number}", text="of many", vectors=None) for number in range(2_100)])
    read: list[str] = []
    with store._file.read() as db:
        db.trace_v2(apsw.SQLITE_TRACE_ROW, lambda event: read.append("row"))
        assert store.check(deep=False) == []
        db.trace_v2(0, None)
    assert len(read) < 1_000
    store.close()


def test_vectors_of_a_damaged_block_are_scored_one_by_one(path: Path) -> None:
    run(path, "UPDATE block SET bits = substr(bits, 2)")
    store = SQLiteStore(path, SPACE)
    [result] = store.candidates(pool(), vector=embed("word30 of every note")[0], terms=[], k=1)
    assert result.record.text == "word30 of every note"
    store.close()


# --- forgetting


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_forgetting_random_records_leaves_no_bytes(tmp_path: Path, seed: int) -> None:
    """Texts of all lengths, keys, labels and fields are forgotten among updates that split and
    merge the pages of the file.
    """
    drawn = random.Random(seed)
    path = tmp_path / "memories.db"
    store = SQLiteStore(path, SPACE)
    needles: dict[Ref, list[str]] = {}

    def word() -> str:
        return "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=12))

    for number in range(120):
        ref = Ref(MEMORY, "ann", f"{word()}{number}", 1)
        words = [word() for _ in range(drawn.choice((2, 8, 30, 300)))]
        others = [word() for _ in range(4)]
        entry = record(
            ref.group,
            text=" ".join(words),
            key=others[0],
            labels={others[1]: others[2]},
            fields={"f": others[3]},
        )
        store.append([entry])
        needles[ref] = [each[2:] for each in words] + others + [ref.group]
        if drawn.random() < 0.3:
            mark = word()
            changed = drawn.choice(sorted(needles))
            store.patch([Patch(changed, entry.created_at, "update", {"g": mark})])
            needles[changed].append(mark)
    gone = drawn.sample(sorted(needles), 12)
    for some in (gone[:6], gone[6:]):
        store.remove(some)
    store.close()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert [needle for ref in gone for needle in needles[ref] if needle.encode() in content] == []
    assert sum(needle.encode() in content for needle in needles[max(needles.keys() - gone)]) > 0


# --- bits that flip


def test_a_flipped_byte_in_a_text_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "flipped.db"
    store = SQLiteStore(path, SPACE)
    store.append(
        [record(f"m{number}", text="common words", labels={"who": "ann"}) for number in range(3)]
    )
    store.close()
    content = path.read_bytes()
    places = [place for place in range(len(content)) if content.startswith(b"common words", place)]
    assert len(places) == 3
    for flip in (0x01, 0x20, 0x80):  # the last one makes the text invalid UTF-8
        damaged = bytearray(content)
        damaged[places[1] + 3] ^= flip
        path.write_bytes(damaged)
        store = SQLiteStore(path, SPACE)
        assert [entry.ref.group for entry in store.scan(pool(), limit=9)] == ["m0", "m2"]
        [finding] = store.damaged.since()
        assert finding.ref == Ref(MEMORY, "ann", "m1", 1)
        assert "restore a backup" in finding.remedy
        store.close()


def test_damage_causes_neither_a_wrong_text_nor_a_driver_error(tmp_path: Path) -> None:
    """After each of 90 single-bit flips anywhere in the file, every read returns texts that were
    written, or raises one of our errors.
    """
    path = tmp_path / "flipped.db"
    store = SQLiteStore(path, SPACE)
    texts = {f"text number {number} of the store, with some more words" for number in range(40)}
    store.append(
        [
            record(f"m{at}", text=text, labels={"n": str(at % 3)})
            for at, text in enumerate(sorted(texts))
        ]
    )
    store.patch(
        [Patch(Ref(MEMORY, "ann", f"m{number}", 1), None, None, {"a": 1}) for number in range(40)]
    )
    store.close()
    content = path.read_bytes()
    drawn = random.Random(11)
    query = embed("text number 7")[0]
    refused = 0
    for _ in range(90):
        damaged = bytearray(content)
        damaged[drawn.randrange(len(damaged))] ^= 1 << drawn.randrange(8)
        path.write_bytes(damaged)
        store = SQLiteStore(path, SPACE)
        for use in (
            lambda: store.scan(pool(), limit=99),  # noqa: B023 - called within this iteration
            lambda: [
                found.record
                for found in store.candidates(pool(), vector=query, terms=["text"], k=50)  # noqa: B023
            ],
            lambda: [use() for use in (*all_uses(store)[1:4], all_uses(store)[5])][:0],  # noqa: B023
        ):
            try:
                assert {entry.text for entry in use()} <= texts
            except MemoriesError:
                refused += 1
        store.close()
    assert refused > 4


def answers(store: SQLiteStore) -> list[Callable[[], Any]]:
    """Return functions that query a store, for an intact store and a damaged one."""
    return [
        lambda: store.scan(pool(), limit=1_000),
        lambda: store.scan(pool("ann", "bob", state="any"), limit=1_000, newest_first=True),
        lambda: store.scan(turns(), limit=1_000),
        lambda: sorted(store.groups(pool(state="any"), limit=1_000)),
        lambda: store.count(pool()),
        lambda: store.count(pool(labels={"n": "1"})),
        lambda: store.labels(pool(), "n"),
        lambda: store.values(HISTORY, ["ann"], "speaker"),
        lambda: sorted(by_words(store, ["word7", "every"], k=100).items()),
        lambda: sorted(
            (entry.record.ref, entry.similarity, entry.word_score) for entry in candidates(store)
        ),
        lambda: list(matching(store, "said20 of every turn").similarity),
        lambda: sorted(
            (ref, rows.tolist()) for ref, rows in store.vectors(store.refs(pool())).items()
        ),
        lambda: store.info(pool()).without_vector_count,
    ]


def candidates(store: SQLiteStore) -> list[Any]:
    """Search by word and by vector."""
    return store.candidates(pool(), vector=embed("word30 of every note")[0], terms=["word30"], k=10)


def effect_of(path: Path, expected: list[Any]) -> str:
    """Return the effect of damage: `harmless`, `reported` by a read or `checked`; or the
    failure.
    """
    store = SQLiteStore(path, SPACE)
    reported, wrong = False, []
    try:
        for number, ask in enumerate(answers(store)):
            try:
                same = ask() == expected[number]
            except MemoriesError:
                reported = True
            else:
                wrong += [] if same else [number]
        if reported or store.damaged.since():
            return "reported"
        try:
            findings = list(store.check(deep=True))
        except MemoriesError:
            return "checked"
        return "checked" if findings else f"silently wrong: {wrong}" if wrong else "harmless"
    finally:
        with contextlib.suppress(MemoriesError):
            store.close()


def campaign(path: Path, flips: int, cuts: int, zeroed: int) -> Counter[str]:
    """Damage the sound file in many ways; return how often the damage was harmless, reported or
    checked.
    """
    store = SQLiteStore(path, SPACE)
    expected = [ask() for ask in answers(store)]
    store.close()
    content, drawn, results = path.read_bytes(), random.Random(17), Counter[str]()
    for number in range(flips + cuts + zeroed):
        damaged = bytearray(content)
        place = drawn.randrange(len(content))
        if number < flips:
            damaged[place] ^= 1 << drawn.randrange(8)
        elif number < flips + cuts:
            del damaged[place:]
        else:
            page = place // 4096 * 4096
            damaged[page : page + 4096] = bytes(4096)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(damaged)
        results[effect_of(path, expected)] += 1
    return results


def test_damage_in_a_few_places_is_reported_or_harmless(path: Path) -> None:
    results = campaign(path, flips=18, cuts=4, zeroed=2)
    assert set(results) <= {"harmless", "reported", "checked"}, results
    assert results["reported"] >= 4


@pytest.mark.slow
@pytest.mark.torture
def test_damage_in_many_places_is_reported_or_harmless(
    path: Path, size: Callable[[int, int], int], figures: dict[str, Any]
) -> None:
    """Some damage can't be found. Read counts have no checksum, and a page can be replaced with its
    own older version. By SQLite's rules, a log that is cut or changed ends at the damage; a store
    could only compare the number of the last record.
    """
    results = campaign(path, flips=size(60, 200), cuts=size(15, 50), zeroed=size(8, 25))
    figures |= results
    assert set(results) <= {"harmless", "reported", "checked"}, results


def test_a_record_without_a_namespace_makes_a_copy_unsound(path: Path, store: SQLiteStore) -> None:
    store.append([record("m"), record("n")])
    store.close()
    assert records_in(path) > 0
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET pool = 99 WHERE grp = 'n'")
    db.close()
    with pytest.raises(StoreDamaged, match="some records belong to no namespace"):
        records_in(path)


def test_a_damaged_record_is_found_only_in_its_namespace_and_collection(path: Path) -> None:
    run(path, "UPDATE record SET grp = x'0102' WHERE seq = 15")
    store = SQLiteStore(path, SPACE)
    places = [(MEMORY, "ann"), (MEMORY, "bob"), (HISTORY, "ann"), (HISTORY, "bob")]
    found = [
        store.refs(Filter(collection, (namespace,), group="damaged-15", state="any"))
        for collection, namespace in places
    ]
    assert found == [[Ref(MEMORY, "ann", "damaged-15", 0)], [], [], []]
    store.close()


def test_only_numbers_are_read_as_label_ids(path: Path) -> None:
    db = connect_frozen(path)
    sets = ["1,x", "٣", "9" * 19, "", "-1", "²", None, 7, b"1"]
    assert set(labels_of(db, sets)) >= {"1"}
    assert {"x", "٣", "9" * 19, "", "-1", "²"}.isdisjoint(labels_of(db, sets))
    db.close()
