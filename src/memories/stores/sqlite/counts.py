"""Row counts for the SQLite store, which make tags and status equally fast in stores of any size.

Triggers update the counts in the transaction of each change, even if another program makes the
change. They count live records by namespace, label and label key, deleted records, and live records
without a vector. All counts can be rebuilt from the records.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from memories.stores.records import Filter, Finding

_VECTORS = ("vector", "turn_vector")
_TRIGGERS = (
    "record_added",
    "record_ended",
    "record_removed",
    "vector_added",
    "vector_removed",
    "turn_vector_added",
    "turn_vector_removed",
)

_COLUMNS = """
-- Live records, those that were deleted, and live ones without a vector.
ALTER TABLE pool ADD COLUMN live INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pool ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pool ADD COLUMN without_vector INTEGER NOT NULL DEFAULT 0;
ALTER TABLE label_pool ADD COLUMN live INTEGER NOT NULL DEFAULT 0;

-- How many live records, and how many at all, have a label with this key.
CREATE TABLE key_pool (
  key TEXT, pool INTEGER, live INTEGER NOT NULL, total INTEGER NOT NULL, PRIMARY KEY (key, pool)
) WITHOUT ROWID;

CREATE INDEX record_deleted ON record (pool, grp, position) WHERE ended_by = 'delete';
"""

# The ids of a record's labels, '3,17', as rows; no rows for damaged labels, so that the record can
# be removed.
_LABELS = (
    "json_each(iif(json_valid('[' || {row}.labels || ']'), '[' || {row}.labels || ']', '[]')) j"
)
_KEYS = "{labels} JOIN label l ON l.id = j.value"
_LIVE = "({row}.ended_at IS NULL)"
_DELETED = "({row}.ended_at IS NOT NULL AND {row}.ended_by IS 'delete')"
_NO_VECTOR = (
    "NOT EXISTS (SELECT 1 FROM vector WHERE seq = {row}.seq)"
    " AND NOT EXISTS (SELECT 1 FROM turn_vector WHERE seq = {row}.seq)"
    " AND (SELECT collection FROM pool WHERE id = {row}.pool) <> 'log'"  # records without vectors
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
    # BEFORE, because a row that replaces another one isn't new.
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


# Stores compare their triggers with this text, so it must never change, not even in its whitespace.
_CREATE = "".join(
    (
        _make_added_trigger(),
        _make_ended_trigger(),
        _make_removed_trigger(),
        *map(_make_vector_triggers, _VECTORS),
    )
)
_DROP = "".join(f"DROP TRIGGER IF EXISTS {name};\n" for name in _TRIGGERS)

# The correct counts, for comparing with the stored ones and for rebuilding them.
_POOLS = f"""
SELECT p.id, count(r.seq) FILTER (WHERE {_LIVE}), count(r.seq) FILTER (WHERE {_DELETED}),
       count(r.seq) FILTER (WHERE {_LIVE} AND {_NO_VECTOR})
FROM pool p LEFT JOIN record r ON r.pool = p.id GROUP BY p.id
""".format(row="r")
_LABEL_POOLS = """
SELECT m.label, r.pool, count(*) FILTER (WHERE r.ended_at IS NULL)
FROM record_label m JOIN record r ON r.seq = m.seq GROUP BY 1, 2
"""
_KEY_POOLS = """
SELECT l.key, r.pool, count(*) FILTER (WHERE r.ended_at IS NULL), count(*)
FROM record_label m JOIN record r ON r.seq = m.seq JOIN label l ON l.id = m.label GROUP BY 1, 2
"""
_RECOUNT = f"""
UPDATE pool SET (live, deleted, without_vector) = (t.live, t.deleted, t.without_vector)
  FROM (WITH t (id, live, deleted, without_vector) AS ({_POOLS}) SELECT * FROM t) t WHERE t.id = pool.id;
DELETE FROM label_pool;
INSERT INTO label_pool (label, pool, live) {_LABEL_POOLS};
DELETE FROM key_pool;
INSERT INTO key_pool (key, pool, live, total) {_KEY_POOLS};
"""

MIGRATION = _COLUMNS + _CREATE + _RECOUNT


def live_labels(db: apsw.Connection, pools: Sequence[int], key: str | None) -> dict[str, int]:
    """Return how many live records in some namespaces have each label key, or each value of one
    key.
    """
    condition = f"pool IN ({','.join(map(str, pools))}) AND live > 0 GROUP BY 1 ORDER BY 1"
    if key is None:
        sql = f"SELECT key, sum(live) FROM key_pool WHERE {condition}"
        rows: list[Any] = db.execute(sql).fetchall()
    else:
        sql = "SELECT l.value, sum(m.live) FROM label l JOIN label_pool m ON m.label = l.id"
        rows = db.execute(f"{sql} WHERE l.key = ? AND {condition}", (key,)).fetchall()
    return dict(rows)


def count_matching(db: apsw.Connection, pools: Sequence[int], where: Filter) -> int | None:
    """Return how many records in some namespaces match a filter; None if that isn't counted."""
    if where == Filter(where.collection, where.namespaces):
        return _total(db, pools, "live")
    if where == Filter(where.collection, where.namespaces, state="ended", ended_by="delete"):
        return _total(db, pools, "deleted")
    return None


def count_without_vector(db: apsw.Connection, pools: Sequence[int]) -> int:
    """Return how many live records in some namespaces have no vector."""
    return _total(db, pools, "without_vector")


def _total(db: apsw.Connection, pools: Sequence[int], column: str) -> int:
    ids = ",".join(map(str, pools))
    total: Any
    [(total,)] = db.execute(
        f"SELECT coalesce(sum({column}), 0) FROM pool WHERE id IN ({ids})"
    ).fetchall()
    return int(total)


@contextlib.contextmanager
def suspend(db: apsw.Connection) -> Iterator[None]:
    """Suspend counting while vector tables are exchanged, then recount; requires a transaction."""
    db.execute(_DROP)
    yield
    count = f"SELECT count(*) FROM record r WHERE r.pool = pool.id AND {_LIVE} AND {_NO_VECTOR}"
    db.execute(f"{_CREATE} UPDATE pool SET without_vector = ({count.format(row='r')})")


def find_wrong_counts(db: apsw.Connection) -> list[Finding]:
    """Yield the counts that differ from the records; change nothing."""
    comparisons = (
        ("the counts of a namespace", _POOLS, "SELECT id, live, deleted, without_vector FROM pool"),
        ("how many memories have a tag", _LABEL_POOLS, "SELECT label, pool, live FROM label_pool"),
        (
            "how many memories have a tag key",
            _KEY_POOLS,
            "SELECT key, pool, live, total FROM key_pool",
        ),
    )
    findings: list[Finding] = []
    for name, expected, stored in comparisons:
        [(count,)] = db.execute(
            f"SELECT count(*) FROM (SELECT * FROM ({expected} EXCEPT {stored}) "
            f"UNION ALL SELECT * FROM ({stored} EXCEPT {expected}))"
        ).fetchall()
        if count:
            findings.append(_derived_finding(f"{name} differ from the records ({count} rows)"))
    return findings


def find_wrong_triggers(db: apsw.Connection) -> list[Finding]:
    """Return the triggers that differ from the ones that maintain the counts."""
    expected: dict[str, str] = {}
    for statement in _CREATE.replace("END;", "END\0").split("\0"):
        sql = statement.strip()
        if sql:
            expected[sql.split(None, 3)[2]] = sql
    stored = _read_triggers(db)
    problems: dict[str, str] = {}
    for name in expected.keys() | stored.keys():
        if name not in stored:
            problems[name] = "missing"
        elif stored[name] != expected.get(name):
            problems[name] = "damaged"
    return [
        _derived_finding(f"{name}, which keeps counts, is {problem}")
        for name, problem in sorted(problems.items())
    ]


def _read_triggers(db: apsw.Connection) -> dict[str, str]:
    """Return the SQL of each trigger in the file; invalid UTF-8 is replaced."""
    sql = "SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'trigger'"
    rows: list[Any] = db.execute(sql).fetchall()
    return {
        name.decode(errors="replace"): (text or b"").decode(errors="replace").strip()
        for name, text in rows
    }


def _derived_finding(problem: str) -> Finding:
    return Finding(problem, "Run memory doctor --fix, which counts again.", derived=True)


def recreate_triggers(db: apsw.Connection) -> None:
    """Replace all triggers in the file with those that keep the counts, inside a transaction."""
    for name in _read_triggers(db):
        quoted = name.replace('"', '""')
        db.execute(f'DROP TRIGGER "{quoted}"')
    db.execute(_CREATE)


def repair(db: apsw.Connection) -> None:
    """Recreate the triggers and count again, inside a transaction."""
    recreate_triggers(db)
    db.execute(_RECOUNT)
