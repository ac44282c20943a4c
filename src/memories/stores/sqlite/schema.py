"""The tables of the SQLite store and the numbered steps that lead to them.

A migration is a script that runs in the transaction that also writes its number to `user_version`. Released scripts
never change; to change the schema, add one.
"""

from memories.stores.records import Collection

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

-- The words of memories.text.index_text(text), of live records and of ended ones. Contentless: the text is in the
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

VECTORS = {Collection.MEMORY: "vector", Collection.HISTORY: "turn_vector"}
STAGED = {Collection.MEMORY: "staged_vector", Collection.HISTORY: "staged_turn_vector"}
BLOCKS = {Collection.MEMORY: "block", Collection.HISTORY: "turn_block"}

MIGRATIONS: tuple[str, ...] = (_FIRST, _TURNS, _STAGED)
