"""The tables of the PostgreSQL store and the numbered steps that lead to them.

A migration is a function that returns a script; it runs in the transaction that also writes its number into `meta`.
Released ones never change; to change the schema, add one.

Records and vectors are partitioned by a hash of the namespace. Every index is one of a partition, not of the whole
table, and every unique one begins with the namespace: so a partition may lie on another node, as a foreign table, which
PostgreSQL allows only where the whole table has no unique index.
"""

from collections.abc import Callable

from memories.stores.records import Collection

# The words that a record is found by: its tokens, each behind six digits that tell its namespace, its collection and
# whether it ended. So a word of one namespace is looked up without a look at another's.
POOL_DIGITS = 6
_POOL = (
    "left(md5({r}namespace || '/' || {r}collection || CASE WHEN {r}ended_at IS NULL THEN '/live' ELSE '/ended' END), "
    f"{POOL_DIGITS}) || '/'"
)
_WORDS = "array_to_tsvector(string_to_array({pool} || replace(btrim({r}tokens), '  ', '  ' || {pool}), '  '))"


def words(alias: str = "") -> str:
    """Return the expression that is indexed for the words of a record, for a table under an alias such as `r.`."""
    return _WORDS.format(r=alias, pool=_POOL.format(r=alias))


_FIRST = """
-- A version of a memory, or a turn of a conversation. Only ended_at, ended_by and fields ever change.
CREATE SEQUENCE record_order;
CREATE TABLE record (
  namespace text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,                   -- of record_order; never used twice
  collection text COLLATE "C" NOT NULL,
  grp text COLLATE "C" NOT NULL,         -- memory or conversation
  position bigint NOT NULL,              -- version or turn index
  created_at bigint NOT NULL,            -- milliseconds since 1970
  ended_at bigint,                       -- likewise; NULL while live
  ended_by text,
  key text COLLATE "C",
  session bigint,                        -- for a turn, the position at which its session begins
  length integer NOT NULL,               -- how many tokens
  labels jsonb NOT NULL,
  fields jsonb NOT NULL,
  text text NOT NULL,
  tokens text COLLATE "C" NOT NULL       -- in order, a space before and behind each; see stores.bm25
) {partitioned};

-- How many records there are, and how many tokens they have: what BM25 has to know of them all.
CREATE TABLE corpus (
  namespace text COLLATE "C" NOT NULL,
  collection text COLLATE "C" NOT NULL,
  ended boolean NOT NULL,
  documents bigint NOT NULL,
  tokens bigint NOT NULL,
  PRIMARY KEY (namespace, collection, ended)
);

-- Which labels a namespace of a collection has had, so that its speakers are known without a look at its turns.
CREATE TABLE label (
  namespace text COLLATE "C" NOT NULL,
  collection text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  PRIMARY KEY (namespace, collection, key, value)
);

-- Apart from the record, so that counting a read does not rewrite it.
CREATE TABLE access (
  namespace text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  count bigint NOT NULL,
  PRIMARY KEY (namespace, seq)
);
"""

# Statistics would keep samples of texts and words where no removal reaches them.
_UNSAMPLED = "ALTER TABLE {part} ALTER COLUMN text SET STATISTICS 0, ALTER COLUMN tokens SET STATISTICS 0;\n"
_RECORD_PART = f"""{_UNSAMPLED}
CREATE UNIQUE INDEX {{part}}_position ON {{part}} (namespace, collection, grp, position);
CREATE UNIQUE INDEX {{part}}_seq ON {{part}} (namespace, seq);
CREATE UNIQUE INDEX {{part}}_key ON {{part}} (namespace, collection, key) WHERE key IS NOT NULL AND ended_at IS NULL;
CREATE INDEX {{part}}_said ON {{part}} (namespace, collection, created_at) WHERE session IS NOT NULL;
CREATE INDEX {{part}}_labels ON {{part}} USING gin (labels jsonb_path_ops);
CREATE INDEX {{part}}_words ON {{part}} USING gin (({words()})) WITH (fastupdate = off);
ALTER INDEX {{part}}_words ALTER COLUMN 1 SET STATISTICS 0;
"""

_VECTOR = """
-- One row for each window of a text. `live` repeats what the record says.
CREATE TABLE {table} (
  namespace text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  win integer NOT NULL,
  collection text COLLATE "C" NOT NULL,
  live boolean NOT NULL,
  embedding halfvec({dimension}) NOT NULL
) {partitioned};
ALTER TABLE {table} ALTER COLUMN embedding SET STATISTICS 0;
"""
_VECTOR_PART = """
ALTER TABLE {part} ALTER COLUMN embedding SET STATISTICS 0;
CREATE UNIQUE INDEX {part}_seq ON {part} (namespace, seq, win);
"""
_STORAGE_PLAIN = "ALTER TABLE {part} ALTER COLUMN embedding SET STORAGE PLAIN;"
_HNSW = """
CREATE INDEX {part}_{collection} ON {part} USING hnsw (embedding halfvec_cosine_ops)
  WITH (m = 16, ef_construction = 128) WHERE live AND collection = '{collection}';
"""
_PLAIN_DIMENSIONS = 3_500  # of two bytes each: with more, a row would not fit into a page
_HNSW_DIMENSIONS = 4_000  # more are not indexed by pgvector, and scored one by one


def _parts(table: str, partitions: int) -> list[str]:
    """Return the tables that hold the rows: the partitions, or the table itself where there are none."""
    return [f"{table}_p{number}" for number in range(partitions)] if partitions > 1 else [table]


def _partitioned(partitions: int) -> str:
    return "PARTITION BY HASH (namespace)" if partitions > 1 else ""


def _make_parts(table: str, partitions: int, script: str) -> str:
    """Return the script that makes the partitions of a table, each with its indexes."""
    made: list[str] = []
    for number, part in enumerate(_parts(table, partitions)):
        if partitions > 1:
            made.append(
                f"CREATE TABLE {part} PARTITION OF {table} FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number});"
            )
        made.append(script.format(part=part))
    return "\n".join(made)


def _first(partitions: int) -> str:
    tables = _FIRST.format(partitioned=_partitioned(partitions)) + _UNSAMPLED.format(part="record")
    return tables + _make_parts("record", partitions, _RECORD_PART)


def vector_script(table: str, dimension: int, partitions: int) -> str:
    """Return the script that makes the tables of vectors of one space."""
    part = _VECTOR_PART
    if dimension <= _PLAIN_DIMENSIONS:
        part += _STORAGE_PLAIN
    if dimension <= _HNSW_DIMENSIONS:
        part += "".join(_HNSW.replace("{collection}", known) for known in Collection)
    return _VECTOR.format(table=table, dimension=dimension, partitioned=_partitioned(partitions)) + _make_parts(
        table, partitions, part
    )


# What the store has to remember about itself: schema, partitions, model, dimension, vectors, and so on; see Meta.
META = "CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL)"

MIGRATIONS: tuple[Callable[[int], str], ...] = (_first,)
