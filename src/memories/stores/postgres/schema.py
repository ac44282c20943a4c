"""The tables of the PostgreSQL store, the migrations that create them, and records as rows.

A migration is a function that returns a script; it runs in the transaction that also writes its
number into `meta`. Released migrations never change; to change the schema, add a migration.

Records and vectors are partitioned by a hash of the namespace. Every index belongs to a partition,
not to the entire table, and every unique index begins with the namespace. So a partition may be on
another node as a foreign table, which PostgreSQL allows only if the entire table has no unique
index.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.core.times import from_millis, to_millis
from memories.errors import StoreError
from memories.stores.records import Collection, Record, Ref

if TYPE_CHECKING:
    from psycopg.types.json import Jsonb

# The words by which a record is found are its tokens. Each is prefixed with six digits that stand
# for the record's namespace, its collection, and whether it has ended. So looking up a word reads
# only the entries of the selected namespaces.
PREFIX_DIGITS = 6
_PREFIX = (
    "left(md5({r}namespace || '/' || {r}collection || CASE WHEN {r}ended_at IS NULL THEN '/live' ELSE '/ended' END), "
    f"{PREFIX_DIGITS}) || '/'"
)
_WORDS = "array_to_tsvector(string_to_array({prefix} || replace(btrim({r}tokens), '  ', '  ' || {prefix}), '  '))"


def words(alias: str = "") -> str:
    """Return the indexed SQL expression for a record's words; `alias` is a prefix like `r.`."""
    return _WORDS.format(r=alias, prefix=_PREFIX.format(r=alias))


_TABLES = """
-- A version of a memory, or a turn of a conversation. Only ended_at, ended_by and fields ever change.
CREATE SEQUENCE record_order;
CREATE TABLE record (
  namespace text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,                   -- from record_order; never used twice
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
  tokens text COLLATE "C" NOT NULL       -- in order, each between two spaces; see stores.words
) {partitioned};

-- The numbers of records and tokens, which BM25 needs; of records with searchable vectors; and of deleted records.
CREATE TABLE corpus (
  namespace text COLLATE "C" NOT NULL,
  collection text COLLATE "C" NOT NULL,
  ended boolean NOT NULL,
  documents bigint NOT NULL,
  tokens bigint NOT NULL,
  embedded bigint NOT NULL DEFAULT 0,
  deleted bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, collection, ended)
);

-- The labels that a namespace of a collection has had, and how many records have each, so that speakers and tags can
-- be listed without reading the records.
CREATE TABLE label (
  namespace text COLLATE "C" NOT NULL,
  collection text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  live bigint NOT NULL DEFAULT 0,
  ended bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (namespace, collection, key, value)
);
ALTER TABLE label ALTER COLUMN key SET STATISTICS 0, ALTER COLUMN value SET STATISTICS 0;

-- In a table of its own, so that counting an access does not rewrite the record.
CREATE TABLE access (
  namespace text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  count bigint NOT NULL,
  PRIMARY KEY (namespace, seq)
);
"""
_OTHER_TABLES = """
-- Rows that changed while a table is being replaced with a copy; see `rewrite`. For a label, only the namespace.
CREATE TABLE change (part text COLLATE "C" NOT NULL, namespace text COLLATE "C" NOT NULL, seq bigint);
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_TABLE_NAME = 'label' THEN
    INSERT INTO change VALUES (TG_TABLE_NAME, CASE TG_OP WHEN 'DELETE' THEN OLD.namespace ELSE NEW.namespace END, NULL);
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO change VALUES (TG_TABLE_NAME, OLD.namespace, OLD.seq);
  ELSE
    INSERT INTO change VALUES (TG_TABLE_NAME, NEW.namespace, NEW.seq);
  END IF;
  RETURN NULL;
END $$;
DO $$ BEGIN EXECUTE format('ALTER FUNCTION note_change() SET search_path = %I, pg_temp', current_schema()); END $$;

-- Requests with an idempotency key; see `stores.claims`. The key is hashed, and no content is stored.
CREATE TABLE request (
  name text COLLATE "C" PRIMARY KEY,
  digest text COLLATE "C" NOT NULL,      -- of the request
  at double precision NOT NULL,          -- when it was first started: seconds since 1970
  number integer NOT NULL,               -- how many times it was started
  session integer,                       -- session of the server that is processing it; NULL if none is
  until timestamptz,                     -- when that server counts as gone, unless it renews this
  told json                              -- summary of the answer; NULL until the request has ended
);
CREATE INDEX request_at ON request (at);
"""

# PostgreSQL keeps no statistics of these columns, because they would contain samples of texts,
# words, labels and names that a removal can't erase.
_UNSAMPLED = "ALTER TABLE {part} " + ", ".join(
    f"ALTER COLUMN {column} SET STATISTICS 0"
    for column in ("text", "tokens", "labels", "fields", "key", "grp")
)
_RECORD_PART = f"""{_UNSAMPLED};
CREATE UNIQUE INDEX {{part}}_position ON {{part}} (namespace, collection, grp, position);
CREATE UNIQUE INDEX {{part}}_seq ON {{part}} (namespace, seq);
CREATE UNIQUE INDEX {{part}}_key ON {{part}} (namespace, collection, key) WHERE key IS NOT NULL AND ended_at IS NULL;
CREATE INDEX {{part}}_said ON {{part}} (namespace, collection, created_at) WHERE session IS NOT NULL;
CREATE INDEX {{part}}_labels ON {{part}} USING gin (labels jsonb_path_ops);
CREATE INDEX {{part}}_words ON {{part}} USING gin (({words()})) WITH (fastupdate = off);
ALTER INDEX {{part}}_words ALTER COLUMN 1 SET STATISTICS 0;
"""

_VECTOR = """
-- One row for each window of a text. `live` is false if its record has ended.
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
CREATE INDEX CONCURRENTLY IF NOT EXISTS {part}_{collection} ON {schema}.{part}
  USING hnsw (embedding {vector}.halfvec_cosine_ops)
  WITH (m = 16, ef_construction = 128) WHERE live AND collection = '{collection}'
"""
_PLAIN_DIMENSIONS = 3_500  # more numbers of two bytes each would not fit into a page
HNSW_DIMENSIONS = 4_000  # pgvector's limit; longer vectors are scored individually


def _tables(script: str, table: str, partitions: int, part_script: str) -> str:
    """Return the script for a table, for its partitions if it has several, and for its indexes."""
    if partitions == 1:
        return script.format(partitioned="") + part_script.format(part=table)
    scripts = [script.format(partitioned="PARTITION BY HASH (namespace)")]
    for number in range(partitions):
        bounds = f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number})"
        scripts.append(f"CREATE TABLE {table}_p{number} PARTITION OF {table} {bounds};")
        scripts.append(part_script.format(part=f"{table}_p{number}"))
    return "\n".join(scripts)


def _all_tables(partitions: int) -> str:
    script = f"{_TABLES}{_UNSAMPLED.format(part='record')};\n"
    return _tables(script, "record", partitions, _RECORD_PART) + _OTHER_TABLES


def vector_script(table: str, dimension: int, partitions: int) -> str:
    """Return the script that creates the tables for a space's vectors, without vector indexes."""
    part = _VECTOR_PART
    if dimension <= _PLAIN_DIMENSIONS:
        part += _STORAGE_PLAIN
    script = _VECTOR.replace("{table}", table).replace("{dimension}", str(dimension))
    return _tables(script, table, partitions, part)


def hnsw_script(schema: str, part: str, collection: Collection, extension: str) -> str:
    """Return the statement that creates a vector index without blocking readers or writers.

    Args:
        schema: The schema that contains the tables.
        part: The table, or one of its partitions.
        collection: Memories or turns.
        extension: The schema that contains pgvector.
    """
    return _HNSW.format(
        schema=f'"{schema}"', part=part, collection=collection, vector=f'"{extension}"'
    )


def _nothing(_: int) -> str:
    return ""


# The table with the settings of the store; see `query.Meta`.
META = "CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL)"

# Tables of more than a megabyte that have doubled since they were last analyzed. Autovacuum may
# analyze them a minute after a load, or never; until then a search may take ten times as long.
GROWN = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
AND pg_has_role(relowner, 'USAGE')
AND pg_relation_size(oid) / current_setting('block_size')::int > 2 * greatest(relpages, 64)
"""

FIRST_RELEASED = 3  # stores with an older schema are refused
MIGRATIONS: tuple[Callable[[int], str], ...] = (_nothing, _nothing, _all_tables)

# --- a record as a row

ROW = (
    "namespace, seq, collection, grp, position, created_at, ended_at, ended_by, key, session, length, labels, fields, "
    "text, tokens"
)
ROW_TYPES = "text int8 text text int8 int8 int8 text text int8 int4 jsonb jsonb text text".split()

# From this value on, Python writes a float with an exponent, and PostgreSQL returns it without a
# decimal point, so it would become an int.
_MIN_EXPONENT = 1e16
_MARKED = re.compile(r'"\\u0000(-?\d+\.0)"')


def row_of(record: Record, seq: int, length: int, tokens: str) -> tuple[Any, ...]:
    """Return a record's values for the columns in `ROW`, given its row's number and its tokens."""
    ref = record.ref
    fields = {name: value for name, value in record.fields.items() if value is not None}
    return (
        ref.namespace,
        seq,
        str(ref.collection),
        ref.group,
        ref.position,
        to_millis(record.created_at),
        None if record.ended_at is None else to_millis(record.ended_at),
        record.ended_by,
        record.key,
        record.session,
        length,
        jsonb(record.labels),
        jsonb(fields),
        record.text,
        tokens,
    )


def record_of(row: Sequence[Any]) -> Record:
    """Return the record in a row that `query.RECORDS` selected."""
    (_, collection, namespace, group, position, created_at, ended_at, ended_by, key) = row[:9]
    (labels, fields, text, accesses, session) = row[9:]
    return Record(
        ref=Ref(Collection(collection), namespace, group, position),
        text=text,
        created_at=from_millis(created_at),
        ended_at=None if ended_at is None else from_millis(ended_at),
        ended_by=ended_by,
        key=key,
        labels=labels,
        fields=fields,
        accesses=accesses,
        session=session,
    )


def jsonb(value: Mapping[str, Any]) -> "Jsonb":
    """Return labels or fields as a value for a statement.

    Raises:
        StoreError: PostgreSQL can't store the value.
        UnicodeError: A string in it is not valid Unicode.
    """
    from psycopg.types.json import Jsonb

    text = json.dumps(_mark_large_floats(value), ensure_ascii=False)
    return Jsonb(_MARKED.sub(r"\1", text).encode(), dumps=bytes)


def _mark_large_floats(value: Any) -> Any:
    """Replace large floats in a value with strings that begin with NUL. No other string in it can
    begin with NUL.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise StoreError(
                "a label or a field contains a NUL character, which PostgreSQL can't store; "
                "remove it"
            )
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StoreError(
                f"a field has the value {value}, which PostgreSQL can't store; use a finite number"
            )
        return value if abs(value) < _MIN_EXPONENT else f"\0{value:.1f}"
    if isinstance(value, Mapping):
        return {_mark_large_floats(name): _mark_large_floats(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_large_floats(part) for part in value]
    return value
