"""The tables of the SQLite store, the numbered migrations that create them, and records as rows.

A migration is a script, or a function of the connection if it has to compute rows. It runs in the
transaction that also writes its number to `user_version`. Released migrations never change; to
change the schema, add one.
"""

import contextlib
import functools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from memories.core.times import from_millis, to_millis
from memories.stores.records import SPEAKER, Collection, Record, Ref
from memories.stores.sqlite import counts
from memories.stores.sqlite.sidefile import Marker

# kibibytes of pages in memory, because searches read rows from all over the file
_CACHE_KIB = 16_384
_MISMATCH = "it does not match its checksum"
APPLICATION_ID = 0x4D656D73  # "Mems", in the header of every store file

_FIRST = """
-- What the store has to remember about itself: model, dimension, blocks_epoch, erasing.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- A namespace of a collection. Records name it by a small number.
CREATE TABLE pool (
  id INTEGER PRIMARY KEY,
  collection TEXT NOT NULL,
  namespace TEXT NOT NULL,
  UNIQUE (collection, namespace)
);

-- A version of a memory, or a turn of a conversation. Only ended_at, ended_by and fields ever change.
CREATE TABLE record (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of writing; never used twice
  pool INTEGER NOT NULL REFERENCES pool,
  grp BLOB NOT NULL,                      -- memory or conversation; a UUID as its 16 bytes, else text
  position INTEGER NOT NULL,              -- version or turn index
  created_at INTEGER NOT NULL,            -- milliseconds since 1970
  ended_at INTEGER,                       -- likewise; NULL while live
  ended_by TEXT,
  key TEXT,
  labels TEXT,                            -- ids of its labels, '3,17'
  fields TEXT,                            -- JSON
  crc INTEGER NOT NULL,                   -- of what never changes: SQLite alone does not notice bit rot
  text TEXT NOT NULL
);
CREATE UNIQUE INDEX record_position ON record (pool, grp, position);
CREATE UNIQUE INDEX record_key ON record (pool, key) WHERE key IS NOT NULL AND ended_at IS NULL;

CREATE TABLE label (id INTEGER PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (key, value));
CREATE TABLE record_label (label INTEGER, seq INTEGER, PRIMARY KEY (label, seq)) WITHOUT ROWID;

-- Apart from the record, so that counting a read does not rewrite a text.
CREATE TABLE access (seq INTEGER PRIMARY KEY, count INTEGER NOT NULL);

-- The words of languages.text.index_text(text), of live records and of ended ones. Contentless: the text is in the
-- record, once.
CREATE VIRTUAL TABLE words USING fts5 (
  text, content = '', contentless_delete = 1,
  tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* Co So M*'"
);
CREATE VIRTUAL TABLE words_ended USING fts5 (
  text, content = '', contentless_delete = 1,
  tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* Co So M*'"
);

-- One or more int8 codes of memories.stores.quantize, one for each window of the text.
CREATE TABLE vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL);

-- The bit codes of the vectors up to seq `hi`, about 1,024 in a block. Derived from `vector`; can be made again.
CREATE TABLE block (
  hi INTEGER PRIMARY KEY,
  seqs BLOB NOT NULL,                     -- int64, one for each window; empty for an unbroken row up to hi
  bits BLOB NOT NULL                      -- uint64, word by word
);
"""

_TURNS = """
-- For a turn, the position at which its session begins.
ALTER TABLE record ADD COLUMN session INTEGER;
CREATE INDEX record_said ON record (pool, created_at) WHERE session IS NOT NULL;

-- Words and vectors of turns, apart from those of memories, which stay as rare and as fast to search as they are.
-- What has ended is in words_ended, whatever it is.
CREATE VIRTUAL TABLE turn_words USING fts5 (
  text, content = '', contentless_delete = 1,
  tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* Co So M*'"
);
CREATE TABLE turn_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL);
CREATE TABLE turn_block (hi INTEGER PRIMARY KEY, seqs BLOB NOT NULL, bits BLOB NOT NULL);

-- Which labels a namespace of a collection has had, so that its speakers are known without a look at its turns.
CREATE TABLE label_pool (label INTEGER, pool INTEGER, PRIMARY KEY (label, pool)) WITHOUT ROWID;
INSERT INTO label_pool SELECT DISTINCT m.label, r.pool FROM record_label m JOIN record r ON r.seq = m.seq;
"""

_STAGED = """
-- Vectors of the model that meta names as staged_model, until a switch puts them in the place of those in use.
CREATE TABLE staged_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL);
CREATE TABLE staged_turn_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL);
"""

_COUNTED = """
-- One row: a random id of the store, and how many commits it has had, in digits of a fixed width. `log` finds both in
-- the pages of a log by the form of this row.
CREATE TABLE store (id TEXT NOT NULL, commits TEXT NOT NULL);
INSERT INTO store VALUES (lower(hex(randomblob(16))), printf('%020d', 0));
"""

_OWN_WORDS = """
-- The words of a namespace are its own. A row has the tokens of memories.stores.words, each after the id of its
-- namespace and a z: '3zapple 3zpie' (see `own_tokens`). So what a word finds, and the time it takes, depend on the
-- namespaces that are read alone. The tokens are ready, so FTS5 only splits them.
DROP TABLE words;
DROP TABLE words_ended;
DROP TABLE turn_words;
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', contentless_delete = 1, tokenize = 'ascii');
CREATE VIRTUAL TABLE words_ended USING fts5 (text, content = '', contentless_delete = 1, tokenize = 'ascii');
CREATE VIRTUAL TABLE turn_words USING fts5 (text, content = '', contentless_delete = 1, tokenize = 'ascii');

-- How many live records a namespace has in those tables, or ended ones, and how many tokens these have.
CREATE TABLE corpus (
  pool INTEGER, ended INTEGER, documents INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (pool, ended)
) WITHOUT ROWID;

-- The namespace of each window of a block: uint8, or uint16 or uint32 where an id is larger.
ALTER TABLE block ADD COLUMN pools BLOB NOT NULL DEFAULT x'';
ALTER TABLE turn_block ADD COLUMN pools BLOB NOT NULL DEFAULT x'';
"""

VECTORS = {Collection.MEMORY: "vector", Collection.HISTORY: "turn_vector"}
STAGED = {Collection.MEMORY: "staged_vector", Collection.HISTORY: "staged_turn_vector"}
BLOCKS = {Collection.MEMORY: "block", Collection.HISTORY: "turn_block"}
WORDS = {Collection.MEMORY: "words", Collection.HISTORY: "turn_words"}
WORDS_ENDED = "words_ended"
# Recreates one of these tables. FTS5 can't even drop a table whose settings it can't read, so they
# are rewritten first.
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
INSERT INTO {table} ({table}, rank) VALUES ('secure-delete', 1);  -- a removed word goes out of its page at once
"""
WORDS_EPOCH = "words_epoch"  # the key in `meta` for how often the word index was rebuilt


def _make_words_erasable(db: apsw.Connection) -> None:
    """Rebuild the word index so that FTS5 can erase a word without rewriting all of it."""
    for table in (*WORDS.values(), WORDS_ENDED):
        db.execute(RECREATE_WORDS.format(table=table))
    db.execute("DELETE FROM corpus")
    _index_words(db)


def _index_words(db: apsw.Connection) -> None:
    """Fill the empty word index and its counts, as far as damaged records can be read."""
    from memories.stores.words import tokens  # as in `words.insert`

    sql = "SELECT id, value FROM label WHERE key = ?"
    speakers = {str(label): name for label, name in db.execute(sql, (SPEAKER,))}
    documents: Counter[tuple[int, bool]] = Counter()
    lengths: Counter[tuple[int, bool]] = Counter()

    def rows(condition: str) -> Iterator[tuple[int, str]]:
        sql = (
            "SELECT r.seq, r.pool, r.ended_at IS NOT NULL, CAST(r.text AS BLOB), p.collection, "
            "r.labels FROM record r JOIN pool p ON p.id = r.pool "
            f"WHERE {condition} ORDER BY r.seq"
        )
        for seq, pool, ended, text, collection, labels in db.execute(sql):
            content = text.decode("utf-8", "replace")
            if collection == Collection.HISTORY:
                ids = (labels or "").split(",")
                names = [speakers[label] for label in ids if label in speakers]
                if names:
                    content = f"{names[0]}: {content}"
            content_tokens = tokens(content)
            documents[pool, ended] += 1
            lengths[pool, ended] += len(content_tokens)
            yield seq, own_tokens(pool, content_tokens)

    conditions = {WORDS_ENDED: "r.ended_at IS NOT NULL"}
    for collection, table in WORDS.items():
        conditions[table] = f"p.collection = '{collection}' AND r.ended_at IS NULL"
    for table, condition in conditions.items():
        db.executemany(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", rows(condition))
    counts_by_corpus = [(*corpus, documents[corpus], lengths[corpus]) for corpus in documents]
    sql = "INSERT INTO corpus (pool, ended, documents, tokens) VALUES (?, ?, ?, ?)"
    db.executemany(sql, counts_by_corpus)


def _note_pools(db: apsw.Connection, table: str) -> None:
    """Write each window's namespace into a table's blocks."""
    import struct

    rows: list[Any] = db.execute(
        "SELECT hi, seqs, length(bits) / (8 * ((value + 63) / 64)) "
        f"FROM {table} CROSS JOIN meta WHERE name = 'dimension'"
    ).fetchall()
    for hi, packed, count in rows:
        seqs: Sequence[int] = range(hi - count + 1, hi + 1)
        if packed:
            seqs = struct.unpack(f"<{len(packed) // 8}q", packed)
        sql = "SELECT seq, pool FROM record WHERE seq BETWEEN ? AND ?"
        pool_rows: list[Any] = db.execute(sql, (seqs[0], hi)).fetchall()
        pool_of = dict(pool_rows)
        pools = [pool_of.get(seq, 0) for seq in seqs]
        width = "I"
        if max(pools) < 2**8:
            width = "B"
        elif max(pools) < 2**16:
            width = "H"
        packed_pools = struct.pack(f"<{len(pools)}{width}", *pools)
        db.execute(f"UPDATE {table} SET pools = ? WHERE hi = ?", (packed_pools, hi))


# Marks a file in which every deletion since the first write has been overwritten; see
# `SQLiteFile.erase_free_pages`.
SECURE = "INSERT INTO meta (name, value) VALUES ('secure', 1)"


def _add_checksums(db: apsw.Connection) -> None:
    """Add checksums for the changing parts of records and for vector codes, also to old rows."""

    def codes_crc(*columns: Any) -> int:
        [codes] = columns
        return zlib.crc32(codes if isinstance(codes, bytes) else str(codes).encode())

    db.create_scalar_function("state_crc", _state_crc_of_bytes, 5, deterministic=True)
    db.create_scalar_function("codes_crc", codes_crc, 1, deterministic=True)
    try:
        db.execute("""
            ALTER TABLE record ADD COLUMN state_crc INTEGER;  -- of the changing parts: see `state_crc`
            UPDATE record SET state_crc =
              state_crc(crc, ended_at, CAST(ended_by AS BLOB), CAST(fields AS BLOB), session);
        """)
        for table in (*VECTORS.values(), *STAGED.values()):
            db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
            db.execute(f"UPDATE {table} SET crc = codes_crc(codes)")
    finally:
        db.create_scalar_function("state_crc", None, 5)
        db.create_scalar_function("codes_crc", None, 1)
    if not db.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'record'").fetchall():
        db.execute(SECURE)  # a new file


def _add_counts_and_checksums(db: apsw.Connection) -> None:
    _add_checksums(db)
    db.execute(_COUNTED)
    # Index each namespace's words separately, and note the namespaces in blocks.
    db.execute(_OWN_WORDS)
    _index_words(db)
    for table in BLOCKS.values():
        _note_pools(db, table)
    db.execute(counts.MIGRATION)  # last, since its triggers are dropped together with a table


Migration = str | Callable[[apsw.Connection], None]
MIGRATIONS: tuple[Migration, ...] = (
    _FIRST,
    _TURNS,
    _STAGED,
    _add_counts_and_checksums,
    _make_words_erasable,
)

# Faster than calling the enum.
_COLLECTIONS: Mapping[Any, Collection] = {kind.value: kind for kind in Collection}

ROW = (
    "pool, grp, position, created_at, ended_at, ended_by, key, labels, fields, crc, text, session, "
    "state_crc"
)


def migrate(db: apsw.Connection, version: int) -> None:
    """Migrate a store from the previous version to this one, inside a transaction."""
    migration = MIGRATIONS[version - 1]
    if isinstance(migration, str):
        db.execute(migration)
    else:
        migration(db)


def build(db: apsw.Connection) -> apsw.Connection:
    """Create all tables of the newest schema in an empty database; return it."""
    for version in range(1, len(MIGRATIONS) + 1):
        migrate(db, version)
    return db


def empty() -> apsw.Connection:
    """Return an empty in-memory store with the newest schema and its own id."""
    db = apsw.Connection(":memory:")
    db.deserialize("main", _empty_file())
    db.execute("UPDATE store SET id = ?", (os.urandom(16).hex(),))
    return db


@functools.cache
def _empty_file() -> bytes:
    """Return the bytes of an empty store; cached, because the migrations take 8 ms."""
    db = apsw.Connection(":memory:")
    db.pragma("secure_delete", 1)
    return build(db).serialize("main")


def state(db: apsw.Connection) -> tuple[Marker, bool]:
    """Return a store's state, and whether it is a restored backup without later writes."""
    sql = "SELECT id, commits, EXISTS (SELECT 1 FROM meta WHERE name = 'backup') FROM store"
    rows = db.execute(sql).fetchall()
    if len(rows) != 1 or not str(rows[0][1]).isdigit():
        raise apsw.CorruptError("the commit count is missing")
    store, commits, backup = rows[0]
    return Marker(str(store), int(str(commits))), bool(backup)


def counts_commits(db: apsw.Connection) -> bool:
    """Return whether a store's schema includes the commit count."""
    return bool(db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'store'").fetchall())


def set_state(db: apsw.Connection, marker: Marker) -> None:
    """Write the state after the current transaction."""
    db.execute("UPDATE store SET id = ?, commits = ?", (marker.store, f"{marker.commits:020d}"))


# A condition for an undamaged counter row in `meta`.
COUNTED = "typeof(value) = 'integer' AND value BETWEEN 0 AND 1000000000000"
# A damaged number may continue anywhere; it only has to differ from the previous one.
COUNT_ONE = f"""
INSERT INTO meta (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE
SET value = iif({COUNTED}, value + 1, abs(random() % 1000000000000))
"""


def count_epoch(db: apsw.Connection, name: str) -> None:
    """Invalidate the connections' caches after a change other than an addition."""
    db.execute(COUNT_ONE, (name,))


def view_of(table: str, kind: str) -> str:
    """Return the name of FTS5's view of a word index.

    Args:
        table: The index.
        kind: `instance` for one row per occurrence of a token, or `row` for one row per token.
    """
    return f"temp.{table}_{kind}"


def _create_views(db: apsw.Connection) -> None:
    # Undo data of statements is kept in memory: 16 pages of a file for each added memory. The
    # pragma comes first, because it drops temporary tables.
    db.execute("PRAGMA temp_store=MEMORY")
    for table in (*WORDS.values(), WORDS_ENDED):
        for kind in ("instance", "row"):
            name = view_of(table, kind)
            db.execute(f"CREATE VIRTUAL TABLE {name} USING fts5vocab (main, {table}, {kind})")


def rewrite(db: apsw.Connection) -> None:
    """Rewrite a file from before deletions were overwritten."""
    db.execute("PRAGMA temp_store=FILE")  # the copy may be too large for memory
    try:
        db.execute("VACUUM")
    finally:
        _create_views(db)
    db.execute(SECURE)


def prepare(db: apsw.Connection) -> None:
    """Give a new connection its page cache, and the views and functions that count words."""
    db.pragma("cache_size", -_CACHE_KIB)
    _create_views(db)

    def occurrences(row: apsw.FTS5ExtensionApi, *_: object) -> int:
        return row.inst_count

    def frequencies(row: apsw.FTS5ExtensionApi, *arguments: Any) -> bytes:
        """Return how often each of a search's first phrases occurs, one byte for each.

        The only argument is the number of phrases.
        """
        counts = [len(row.phrase_column_offsets(phrase, 0)) for phrase in range(*arguments)]
        return bytes([min(255, count) for count in counts])

    db.register_fts5_function("occurrences", occurrences)
    db.register_fts5_function("frequencies", frequencies)


# --- a record as a row


def row_of(record: Record, pool: int, labels: Sequence[int]) -> tuple[Any, ...]:
    """Return a record's columns for `ROW`, given the ids of its namespace and labels."""
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


def own_tokens(pool: int, tokens: Sequence[str]) -> str:
    """Return tokens as the word index stores them, each with its namespace's id."""
    return " ".join([f"{pool}z{token}" for token in tokens])


def record_of(row: Sequence[Any], labels: Mapping[str, tuple[str, str]]) -> Record:
    """Return the record of a row of `query.READ`, given the labels by id.

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
    """Return why a record can't be read, given the exception raised while decoding it."""
    if type(error) is ValueError:
        return str(error)
    return "it contains values that were never written"


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
    """Return the checksum of a record's changing columns, bound to the others by `crc`."""
    content = f"{crc}\0{ended_at}\0{ended_by}\0{fields}\0{session}"
    return zlib.crc32(content.encode("utf-8", "surrogateescape"))


def _state_crc_of_bytes(*columns: Any) -> int:
    """Return `state_crc` for texts given as bytes, because invalid UTF-8 must not stop a
    migration.
    """
    crc, ended_at, ended_by, fields, session = columns
    return state_crc(crc, ended_at, _decode(ended_by), _decode(fields), session)


def _decode(text: bytes | None) -> str | None:
    if text is None:
        return None
    return text.decode("utf-8", "surrogateescape")


def _crc(record: Record, created_at: int) -> int:
    """Return the checksum of a record's constant parts."""
    ref = record.ref
    parts = [ref.namespace, ref.group, str(ref.position), str(created_at), record.key or ""]
    for pair in record.labels.items():
        parts += pair
    parts.append(record.text)
    return zlib.crc32("\0".join(parts).encode())


SCALE_BYTES = 4
COMPACT_BITS = 5


def code_bytes(dimension: int, *, compact: bool) -> int:
    """Return the length of a vector's code."""
    return SCALE_BYTES + (COMPACT_BITS * -(-dimension // 8) if compact else dimension)
