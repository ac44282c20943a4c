"""The tables of the SQLite store, and the numbered migrations that change them.

A migration is a SQL script or, if it has to compute rows, a function that takes the connection. It
runs in the transaction that also writes its number to `user_version`. Released migrations never
change; to change the schema, add a migration, and raise `engine.SCHEMA_VERSION`.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator

import apsw

from memories.stores.sqlite import words
from memories.stores.sqlite.rows import RECREATE_WORDS, VECTORS, WORD_TABLES

# Schema 4, the first that was released, without its triggers and its word index.
_FIRST_RELEASED = """
-- The store's settings and state: model, dimension, blocks_epoch, erasing and others.
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row: a random id of the store, and its number of commits as digits of a fixed width. `wal` recognizes this row
-- by its form in the pages of a log.
CREATE TABLE store (id TEXT NOT NULL, commits TEXT NOT NULL);
INSERT INTO store VALUES (lower(hex(randomblob(16))), printf('%020d', 0));

-- A namespace of a collection. Records refer to it by a small number.
CREATE TABLE pool (
  id INTEGER PRIMARY KEY,
  collection TEXT NOT NULL,
  namespace TEXT NOT NULL,
  -- How many records are live, are deleted, and are live without a vector.
  live INTEGER NOT NULL DEFAULT 0,
  deleted INTEGER NOT NULL DEFAULT 0,
  without_vector INTEGER NOT NULL DEFAULT 0,
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
  text TEXT NOT NULL,
  session INTEGER,                        -- for a turn, the position at which its session begins
  state_crc INTEGER                       -- of the changing parts: see `rows.state_crc`
);
CREATE UNIQUE INDEX record_position ON record (pool, grp, position);
CREATE UNIQUE INDEX record_key ON record (pool, key) WHERE key IS NOT NULL AND ended_at IS NULL;
CREATE INDEX record_said ON record (pool, created_at) WHERE session IS NOT NULL;
CREATE INDEX record_deleted ON record (pool, grp, position) WHERE ended_by = 'delete';

CREATE TABLE label (id INTEGER PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL, UNIQUE (key, value));
CREATE TABLE record_label (label INTEGER, seq INTEGER, PRIMARY KEY (label, seq)) WITHOUT ROWID;

-- The labels that a namespace of a collection has had, so that its speakers can be listed without reading its turns.
CREATE TABLE label_pool (
  label INTEGER, pool INTEGER, live INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (label, pool)
) WITHOUT ROWID;

-- How many live records, and how many records in total, have a label with this key.
CREATE TABLE key_pool (
  key TEXT, pool INTEGER, live INTEGER NOT NULL, total INTEGER NOT NULL, PRIMARY KEY (key, pool)
) WITHOUT ROWID;

-- In a table of its own, so that counting an access does not rewrite the text.
CREATE TABLE access (seq INTEGER PRIMARY KEY, count INTEGER NOT NULL);

-- Each namespace has its own words. A row of a word index contains the tokens from memories.stores.words, each prefixed
-- with its namespace's id and a z: '3zapple 3zpie' (see `prefix_tokens`). So the results and the duration of a search
-- depend only on the namespaces that are read. The words of turns are separate from those of memories, so that turns
-- don't make the words of memories more common or their searches slower. Ended records of both kinds are in
-- words_ended. This table contains the number of records in each index, and of their tokens.
CREATE TABLE corpus (
  pool INTEGER, ended INTEGER, documents INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (pool, ended)
) WITHOUT ROWID;

-- The int8 codes from `quantize`, one for each window of the text, with their checksum.
CREATE TABLE vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER);
CREATE TABLE turn_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER);

-- Vectors from the model in the row `staged_model` of `meta`, until a switch replaces the vectors in use with them.
CREATE TABLE staged_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER);
CREATE TABLE staged_turn_vector (seq INTEGER PRIMARY KEY, codes BLOB NOT NULL, crc INTEGER);

-- The bit codes of the vectors up to seq `hi`, about 1,024 per block. They can be rebuilt from `vector`.
CREATE TABLE block (
  hi INTEGER PRIMARY KEY,
  seqs BLOB NOT NULL,                     -- int64, one for each window; empty for an unbroken row up to hi
  bits BLOB NOT NULL,                     -- uint64, word by word
  pools BLOB NOT NULL                     -- each window's namespace: uint8, or uint16 or uint32 if an id is larger
);
CREATE TABLE turn_block (hi INTEGER PRIMARY KEY, seqs BLOB NOT NULL, bits BLOB NOT NULL, pools BLOB NOT NULL);
"""

# --- row counts
# With these counts, `memory tags` and `memory status` are as fast in a large store as in a small
# one. Triggers update the counts in the transaction of each change, even if another program makes
# the change. They count the live records of each namespace, label and label key, and also each
# namespace's deleted records and live records without a vector. All counts can be rebuilt from the
# records.

# Turns the ids of a record's labels, which are stored like '3,17', into rows. Damaged ids produce
# no rows, so that the record can still be removed.
_LABELS = (
    "json_each(iif(json_valid('[' || {row}.labels || ']'), '[' || {row}.labels || ']', '[]')) j"
)
_KEYS = "{labels} JOIN label l ON l.id = j.value"
_LIVE = "({row}.ended_at IS NULL)"
_DELETED = "({row}.ended_at IS NOT NULL AND {row}.ended_by IS 'delete')"
_NO_VECTOR = (
    "NOT EXISTS (SELECT 1 FROM vector WHERE seq = {row}.seq)"
    " AND NOT EXISTS (SELECT 1 FROM turn_vector WHERE seq = {row}.seq)"
    " AND (SELECT collection FROM pool WHERE id = {row}.pool) <> 'log'"  # the log has no vectors
)


def _fill(row: str, *templates: str) -> tuple[str, ...]:
    labels = _LABELS.format(row=row)
    return tuple(template.format(row=row, labels=labels) for template in templates)


def _make_added_trigger() -> str:
    live, deleted, no_vector, labels, keys = _fill(
        "new", _LIVE, _DELETED, _NO_VECTOR, _LABELS, _KEYS
    )
    return f"""
CREATE TRIGGER record_added AFTER INSERT ON record BEGIN
  UPDATE pool SET live = live + {live}, deleted = deleted + {deleted},
    without_vector = without_vector + ({live} AND {no_vector}) WHERE id = new.pool;
  INSERT INTO label_pool (label, pool, live) SELECT j.value, new.pool, {live} FROM {labels} WHERE true
    ON CONFLICT (label, pool) DO UPDATE SET live = live + excluded.live;
  INSERT INTO key_pool (key, pool, live, total) SELECT l.key, new.pool, {live}, 1 FROM {keys} WHERE true
    ON CONFLICT (key, pool) DO UPDATE SET live = live + excluded.live, total = total + 1;
END;
"""


def _make_ended_trigger() -> str:
    live, deleted, no_vector, labels, keys = _fill(
        "new", _LIVE, _DELETED, _NO_VECTOR, _LABELS, _KEYS
    )
    before, deleted_before = _fill("old", _LIVE, _DELETED)
    return f"""
CREATE TRIGGER record_ended AFTER UPDATE OF ended_at, ended_by ON record
WHEN {live} <> {before} OR {deleted} <> {deleted_before} BEGIN
  UPDATE pool SET live = live + {live} - {before}, deleted = deleted + {deleted} - {deleted_before},
    without_vector = without_vector + ({live} - {before}) * ({no_vector}) WHERE id = new.pool;
  UPDATE label_pool SET live = live + {live} - {before}
    WHERE pool = new.pool AND label IN (SELECT j.value FROM {labels});
  UPDATE key_pool SET live = live + {live} - {before}
    WHERE pool = new.pool AND key IN (SELECT l.key FROM {keys});
END;
"""


def _make_removed_trigger() -> str:
    live, deleted, no_vector, labels, keys = _fill(
        "old", _LIVE, _DELETED, _NO_VECTOR, _LABELS, _KEYS
    )
    return f"""
CREATE TRIGGER record_removed AFTER DELETE ON record BEGIN
  UPDATE pool SET live = live - {live}, deleted = deleted - {deleted},
    without_vector = without_vector - ({live} AND {no_vector}) WHERE id = old.pool;
  UPDATE label_pool SET live = live - {live} WHERE pool = old.pool AND label IN (SELECT j.value FROM {labels});
  UPDATE key_pool SET live = live - {live}, total = total - 1
    WHERE pool = old.pool AND key IN (SELECT l.key FROM {keys});
  DELETE FROM key_pool WHERE pool = old.pool AND total = 0;
END;
"""


def _make_vector_triggers(table: str) -> str:
    # Only a BEFORE trigger can see whether the new row replaces another one.
    return f"""
CREATE TRIGGER {table}_added BEFORE INSERT ON {table}
WHEN NOT EXISTS (SELECT 1 FROM {table} WHERE seq = new.seq) BEGIN
  UPDATE pool SET without_vector = without_vector - 1
    WHERE id = (SELECT pool FROM record WHERE seq = new.seq AND ended_at IS NULL);
END;
CREATE TRIGGER {table}_removed AFTER DELETE ON {table} BEGIN
  UPDATE pool SET without_vector = without_vector + 1
    WHERE id = (SELECT pool FROM record WHERE seq = old.seq AND ended_at IS NULL);
END;
"""


# The triggers in a store are compared with this text, so even its whitespace must never change.
CREATE_TRIGGERS = "".join(
    (
        _make_added_trigger(),
        _make_ended_trigger(),
        _make_removed_trigger(),
        *map(_make_vector_triggers, VECTORS.values()),
    )
)
_TRIGGERS = re.findall(r"CREATE TRIGGER (\w+)", CREATE_TRIGGERS)
_DROP = "".join(f"DROP TRIGGER IF EXISTS {name};\n" for name in _TRIGGERS)

# Queries for the correct counts, by which the stored counts are checked or rebuilt.
POOL_COUNTS = f"""
SELECT p.id, count(r.seq) FILTER (WHERE {_LIVE}), count(r.seq) FILTER (WHERE {_DELETED}),
       count(r.seq) FILTER (WHERE {_LIVE} AND {_NO_VECTOR})
FROM pool p LEFT JOIN record r ON r.pool = p.id GROUP BY p.id
""".format(row="r")
LABEL_COUNTS = """
SELECT m.label, r.pool, count(*) FILTER (WHERE r.ended_at IS NULL)
FROM record_label m JOIN record r ON r.seq = m.seq GROUP BY 1, 2
"""
KEY_COUNTS = """
SELECT l.key, r.pool, count(*) FILTER (WHERE r.ended_at IS NULL), count(*)
FROM record_label m JOIN record r ON r.seq = m.seq JOIN label l ON l.id = m.label GROUP BY 1, 2
"""
RECOUNT = f"""
UPDATE pool SET (live, deleted, without_vector) = (t.live, t.deleted, t.without_vector)
  FROM (WITH t (id, live, deleted, without_vector) AS ({POOL_COUNTS}) SELECT * FROM t) t WHERE t.id = pool.id;
DELETE FROM label_pool;
INSERT INTO label_pool (label, pool, live) {LABEL_COUNTS};
DELETE FROM key_pool;
INSERT INTO key_pool (key, pool, live, total) {KEY_COUNTS};
"""


@contextlib.contextmanager
def suspend_counts(db: apsw.Connection) -> Iterator[None]:
    """Suspend counting while a transaction replaces vector tables, then correct the counts."""
    db.execute(_DROP)
    yield
    count = f"SELECT count(*) FROM record r WHERE r.pool = pool.id AND {_LIVE} AND {_NO_VECTOR}"
    db.execute(f"{CREATE_TRIGGERS} UPDATE pool SET without_vector = ({count.format(row='r')})")


# --- migrations


def _make_words_erasable(db: apsw.Connection) -> None:
    """Rebuild the word index so that FTS5 can erase a word without rewriting the entire index."""
    for table in WORD_TABLES:
        db.execute(RECREATE_WORDS.format(table=table))
    db.execute("DELETE FROM corpus")
    words.insert_all(db, db)


Migration = str | Callable[[apsw.Connection], None]
MIGRATIONS: dict[int, Migration] = {5: _make_words_erasable}


def migrate(db: apsw.Connection, version: int) -> None:
    """Migrate a store from the version before this one, inside a transaction."""
    migration = MIGRATIONS[version]
    if isinstance(migration, str):
        db.execute(migration)
    else:
        migration(db)


def empty() -> apsw.Connection:
    """Return an empty store in memory, with the newest schema and an id of its own."""
    db = apsw.Connection(":memory:")
    db.deserialize("main", _empty_file())
    db.execute("UPDATE store SET id = ?", (os.urandom(16).hex(),))
    return db


@functools.cache
def _empty_file() -> bytes:
    """Return the bytes of an empty store. Cached, because creating one takes a few milliseconds."""
    db = apsw.Connection(":memory:")
    db.pragma("secure_delete", 1)
    db.execute(_FIRST_RELEASED + CREATE_TRIGGERS)
    for version in MIGRATIONS:
        migrate(db, version)
    return db.serialize("main")
