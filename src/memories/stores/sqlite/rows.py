"""Reads, adds and deletes rows of the SQLite file, and converts records to and from rows."""

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from memories.core.times import from_millis, to_millis
from memories.errors import Conflict
from memories.stores.records import Collection, Record, Ref

_MISMATCH = "it does not match its checksum"
SCALE_BYTES = 4
COMPACT_BITS = 5

# --- tables

VECTORS = {Collection.MEMORY: "vector", Collection.HISTORY: "turn_vector"}
STAGED = {Collection.MEMORY: "staged_vector", Collection.HISTORY: "staged_turn_vector"}
BLOCKS = {Collection.MEMORY: "block", Collection.HISTORY: "turn_block"}
WORDS = {Collection.MEMORY: "words", Collection.HISTORY: "turn_words"}
WORDS_ENDED = "words_ended"
WORD_TABLES = (*WORDS.values(), WORDS_ENDED)
WORDS_EPOCH = "words_epoch"  # the key in `meta` for how often the word index was rebuilt

# Creates or recreates a table of the word index. The settings are rewritten first, because if FTS5
# can't read them, it can't even drop the table.
RECREATE_WORDS = """
CREATE TABLE IF NOT EXISTS {table}_config (k PRIMARY KEY, v) WITHOUT ROWID;
DELETE FROM {table}_config;
INSERT INTO {table}_config VALUES ('version', 4);
DROP TABLE IF EXISTS {table};
DROP TABLE IF EXISTS {table}_data;
DROP TABLE IF EXISTS {table}_idx;
DROP TABLE IF EXISTS {table}_docsize;
DROP TABLE IF EXISTS {table}_config;
CREATE VIRTUAL TABLE {table} USING fts5 (text, content = '', tokenize = 'ascii');
INSERT INTO {table} ({table}, rank) VALUES ('secure-delete', 1);  -- erases removed words from pages
"""

# The condition that a counter in `meta` is undamaged.
COUNTED = "typeof(value) = 'integer' AND value BETWEEN 0 AND 1000000000000"
# A damaged counter gets a random value, because the new value only has to differ from the old one.
_COUNT_ONE = f"""
INSERT INTO meta (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE
SET value = iif({COUNTED}, value + 1, abs(random() % 1000000000000))
"""


def advance_epoch(db: apsw.Connection, name: str) -> None:
    """Change a counter in `meta`, which invalidates the caches that depend on it.

    Call this after a change other than an addition.
    """
    db.execute(_COUNT_ONE, (name,))


def view_of(table: str, kind: str) -> str:
    """Return the name of FTS5's view of a word index.

    Args:
        table: The index.
        kind: `instance` for a view with a row per occurrence of a token, or `row` for a view with a
            row per token.
    """
    return f"temp.{table}_{kind}"


def prefix_tokens(pool: int, tokens: Sequence[str]) -> str:
    """Return tokens as the word index stores them: each is prefixed with its namespace's id."""
    return " ".join([f"{pool}z{token}" for token in tokens])


def code_bytes(dimension: int, *, compact: bool) -> int:
    """Return the length of a vector's code in bytes."""
    return SCALE_BYTES + (COMPACT_BITS * -(-dimension // 8) if compact else dimension)


# --- reading rows


def fetch(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run a query; return its rows as tuples. Text that isn't valid UTF-8 is returned as bytes."""
    try:
        return db.execute(sql, values).fetchall()
    except UnicodeDecodeError:
        return _fetch_bytes(db, sql, values)


def _fetch_bytes(db: apsw.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    """Return the rows of a query as `fetch` does, but read each text as bytes first."""
    names = [f"c{number}" for number in range(_count_columns(db, sql, values))]
    parts: list[str] = []
    for name in names:
        is_text = f"typeof({name}) = 'text'"
        parts += [is_text, f"iif({is_text}, CAST({name} AS BLOB), {name})"]
    rows: list[Any] = db.execute(
        f"WITH found ({', '.join(names)}) AS ({sql}) SELECT {', '.join(parts)} FROM found", values
    ).fetchall()
    decoded: list[Any] = []
    for row in rows:
        columns: list[Any] = []
        for is_text, column in zip(row[::2], row[1::2], strict=True):
            columns.append(column)
            if is_text:
                with contextlib.suppress(UnicodeDecodeError):
                    columns[-1] = column.decode()
        decoded.append(tuple(columns))
    return decoded


def _count_columns(db: apsw.Connection, sql: str, values: Sequence[Any]) -> int:
    columns = 0

    def count(cursor: apsw.Cursor, _sql: str, _values: Any) -> bool:
        nonlocal columns
        columns = len(cursor.get_description())
        return False  # don't run the statement

    cursor = db.cursor()
    cursor.exec_trace = count
    with contextlib.suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, values)
    return columns


def fetch_value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row; None if there is no row."""
    rows = fetch(db, sql, values)
    return rows[0][0] if rows else None


def varints_in(block: bytes) -> Iterator[int]:
    """Yield the variable-length numbers in one of FTS5's blocks.

    Each byte contains seven bits; the eighth bit is set in all bytes of a number except the last.
    """
    number = length = 0
    for byte in block:
        length += 1
        is_ninth = length == 9  # all eight bits of a ninth byte count
        number = number << 8 | byte if is_ninth else number << 7 | byte & 0x7F
        if is_ninth or byte < 0x80:
            yield number
            number = length = 0


# --- a record as a row

# Looking up a value is faster than calling the enum.
_COLLECTIONS: Mapping[Any, Collection] = {kind.value: kind for kind in Collection}

ROW = (
    "pool, grp, position, created_at, ended_at, ended_by, key, labels, fields, crc, text, session, "
    "state_crc"
)


def row_of(record: Record, pool: int, labels: Sequence[int]) -> tuple[Any, ...]:
    """Return a record's values for the columns in `ROW`, given the ids of namespace and labels."""
    created_at = to_millis(record.created_at)
    ended_at = None
    if record.ended_at is not None:
        ended_at = to_millis(record.ended_at)
    fields = fields_json(record.fields)
    crc = _crc(record, created_at)
    return (
        pool,
        encode_group(record.ref.group),
        record.ref.position,
        created_at,
        ended_at,
        record.ended_by,
        record.key,
        ",".join(map(str, labels)) or None,
        fields,
        crc,
        record.text,
        record.session,
        state_crc(crc, ended_at, record.ended_by, fields, record.session),
    )


def record_of(row: Sequence[Any], labels: Mapping[str, tuple[str, str]]) -> Record:
    """Return the record in a row that `query.READ` selected; `labels` maps ids to labels.

    Raises:
        ValueError: The row does not match its checksums.
    """
    (_, collection, namespace, group, position, created_at, ended_at, ended_by, key) = row[:9]
    (label_ids, fields, crc, text, accesses, session, state) = row[9:]
    if state_crc(crc, ended_at, ended_by, fields, session) != state:
        raise ValueError(_MISMATCH)
    record = Record(  # positional arguments are faster, and a search reads many rows
        Ref(_COLLECTIONS[collection], namespace, decode_group(group), position),
        text,
        from_millis(created_at),
        None if ended_at is None else from_millis(ended_at),
        ended_by,
        key,
        dict([labels[label] for label in label_ids.split(",")]) if label_ids else {},
        json.loads(fields) if fields else {},
        None,
        accesses,
        session,
    )
    if type(created_at) is not int or _crc(record, created_at) != crc:
        raise ValueError(_MISMATCH)
    return record


def describe_damage(error: Exception) -> str:
    """Return why a record can't be read, given the exception that decoding it raised."""
    if type(error) is ValueError:
        return str(error)
    return "it contains values that this program never writes"


def fields_json(fields: Mapping[str, Any]) -> str | None:
    """Return fields in the format of their column; None if there are none."""
    values = {name: value for name, value in fields.items() if value is not None}
    if values:
        return json.dumps(values, separators=(",", ":"))
    return None


def encode_group(group: str) -> bytes | str:
    """Encode a UUID as its 16 bytes, which sort like its text; return any other name unchanged."""
    if len(group) == 36 and group.count("-") == 4:
        with contextlib.suppress(ValueError):
            packed = bytes.fromhex(group.replace("-", ""))
            if decode_group(packed) == group:
                return packed
    return group


def decode_group(group: bytes | str) -> str:
    """Return a group's name; the inverse of `encode_group`."""
    if isinstance(group, str):
        return group
    digits = group.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def state_crc(
    crc: int, ended_at: int | None, ended_by: str | None, fields: str | None, session: int | None
) -> int:
    """Return the checksum of a record's mutable columns, and of `crc`, which covers the others."""
    content = f"{crc}\0{ended_at}\0{ended_by}\0{fields}\0{session}"
    return zlib.crc32(content.encode("utf-8", "surrogateescape"))


def _crc(record: Record, created_at: int) -> int:
    ref = record.ref
    parts = [ref.namespace, ref.group, str(ref.position), str(created_at), record.key or ""]
    for pair in record.labels.items():
        parts += pair
    parts.append(record.text)
    return zlib.crc32("\0".join(parts).encode())


# --- adding and deleting rows; one statement for many rows is three times as fast

_INSERT = f"INSERT INTO record ({ROW}) VALUES ({', '.join('?' * len(ROW.split(',')))})"
_DELETE_UNUSED = """
DELETE FROM label WHERE id NOT IN (SELECT label FROM record_label);
DELETE FROM label_pool WHERE NOT EXISTS (
  SELECT 1 FROM record_label m JOIN record r ON r.seq = m.seq
  WHERE m.label = label_pool.label AND r.pool = label_pool.pool
);
UPDATE pool SET namespace = '~' || id
  WHERE NOT EXISTS (SELECT 1 FROM record r WHERE r.pool = pool.id)
"""


class AddedRow(NamedTuple):
    """An added record, with its `seq` and the id of its namespace."""

    seq: int
    pool: int
    record: Record


def insert_rows(db: apsw.Connection, records: Sequence[Record]) -> list[AddedRow]:
    """Add records with their labels and access counts, in order.

    Raises:
        Conflict: A record's position or key is already taken.
    """
    ids: dict[tuple[str, ...], int] = {}

    def id_of(table: str, columns: tuple[str, str], values: tuple[str, str]) -> int:
        key = (table, *values)
        if key not in ids:
            ids[key] = _find_or_insert(db, table, columns, values)
        return ids[key]

    pools: list[int] = []
    labels: list[list[int]] = []
    for record in records:
        namespace = (record.ref.collection, record.ref.namespace)
        pools.append(id_of("pool", ("collection", "namespace"), namespace))
        labels.append([id_of("label", ("key", "value"), label) for label in record.labels.items()])
    rows = [row_of(*parts) for parts in zip(records, pools, labels, strict=True)]
    _insert_records(db, records, rows)
    # The new rows' numbers are consecutive: AUTOINCREMENT gives each row the number after the
    # highest one ever used, and no other connection writes in the meantime.
    last = db.last_insert_rowid()
    seqs = range(last - len(records) + 1, last + 1)
    label_rows: list[tuple[int, int]] = []
    for seq, label_ids in zip(seqs, labels, strict=True):
        label_rows += [(label, seq) for label in label_ids]
    db.executemany("INSERT INTO record_label (label, seq) VALUES (?, ?)", label_rows)
    added = [AddedRow(*parts) for parts in zip(seqs, pools, records, strict=True)]
    accesses = [(row.seq, row.record.accesses) for row in added if row.record.accesses]
    db.executemany("INSERT INTO access (seq, count) VALUES (?, ?)", accesses)
    return added


def _insert_records(
    db: apsw.Connection, records: Sequence[Record], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert rows; if one is refused, the error names its record."""
    last_ref = None

    def rows_with_refs() -> Iterator[tuple[Any, ...]]:
        """Yield rows one at a time, so that `last_ref` is always the ref of the row to insert."""
        nonlocal last_ref
        for record, row in zip(records, rows, strict=True):
            last_ref = record.ref
            yield row

    try:
        db.executemany(_INSERT, rows_with_refs())
    except apsw.ConstraintError as exc:
        assert last_ref is not None  # the record of the refused row
        raise Conflict(
            f"another writer has already written version {last_ref.position} of {last_ref.group}, "
            f"or used its key; read {last_ref.group} again"
        ) from exc


def _find_or_insert(
    db: apsw.Connection, table: str, columns: tuple[str, str], values: tuple[str, str]
) -> int:
    """Return the id of a pair of values; insert the pair if it is new."""
    first, second = columns
    sql = f"SELECT id FROM {table} WHERE {first} = ? AND {second} = ?"
    row_id = fetch_value(db, sql, values)
    if row_id is not None:
        return int(row_id)
    db.execute(f"INSERT INTO {table} ({first}, {second}) VALUES (?, ?)", values)
    return db.last_insert_rowid()


def delete_rows(db: apsw.Connection, seqs: Iterable[int]) -> None:
    """Delete records, their access counts, and labels and namespace names that only they used."""
    values = [(seq,) for seq in seqs]
    for table in ("record_label", "access", "record"):
        db.executemany(f"DELETE FROM {table} WHERE seq = ?", values)
    db.execute(_DELETE_UNUSED)
