"""Checks and repairs the parts of the SQLite file that are derived from its records.

For the word index, see `check`.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apsw

from memories.guard.validate import amount
from memories.stores.records import Collection, Finding
from memories.stores.sqlite import schema
from memories.stores.sqlite.errors import FIX
from memories.stores.sqlite.rows import (
    BLOCKS,
    COMPACT_BITS,
    COUNTED,
    SCALE_BYTES,
    STAGED,
    VECTORS,
    WORDS_EPOCH,
    advance_epoch,
    code_bytes,
    fetch,
    fetch_value,
)
from memories.stores.sqlite.spaces import (
    IN_USE,
    NO_MODEL,
    REEMBED,
    STAGED_PREFIX,
    StoredSpace,
    StoredVectors,
    names_of,
    read_space,
    write_form,
)

_TABLES: tuple[tuple[str, Mapping[Collection, str]], ...] = (
    (IN_USE, VECTORS),
    (STAGED_PREFIX, STAGED),
)
# The names of the rows of `meta` that contain counts.
_COUNTS = ("erasing", WORDS_EPOCH, *(f"{table}s_epoch" for table in BLOCKS.values()))
_LABELS = (
    "json_each(CASE WHEN json_valid('[' || r.labels || ']') THEN '[' || r.labels || ']' "
    "ELSE '[]' END) l"
)


class Inspection:
    """The data that the steps of a check or repair share.

    Attributes:
        db: A connection inside a transaction.
        damaged: The `seq` of each damaged record, from which nothing can be derived.
        vectors: The store's vectors.
        is_complete: Whether all records were read; if not, the derived parts can't be checked.
        has_bad_words: Whether the word index was reported as damaged, or was rebuilt. If so, its
            words aren't checked.
    """

    def __init__(self, db: apsw.Connection, vectors: StoredVectors) -> None:
        self.db, self.vectors = db, vectors
        self.damaged: set[int] = set()
        self.is_complete = self.has_bad_words = False


def derived_finding(what: str) -> Finding:
    """Return a finding about a derived part of the file, which `repair` can rebuild."""
    return Finding(what, FIX, derived=True)


def _count_differences(db: apsw.Connection, expected: str, stored: str) -> int:
    sql = (
        f"SELECT * FROM (SELECT * FROM ({expected}) EXCEPT SELECT * FROM ({stored})) "
        f"UNION ALL SELECT * FROM (SELECT * FROM ({stored}) EXCEPT SELECT * FROM ({expected}))"
    )
    return int(fetch_value(db, f"SELECT count(*) FROM ({sql})"))


# --- tables of labels and accesses, and the number of the last record


class DerivedTable(NamedTuple):
    """A table derived from the rows of `record`.

    Attributes:
        what: Its contents, for users.
        table: Its name.
        columns: The columns to compare.
        expected: A query for the rows that it should contain.
    """

    what: str
    table: str
    columns: str
    expected: str

    def check(self, inspection: Inspection) -> Iterator[Finding]:
        """Yield a finding if the table differs from the records."""
        stored = f"SELECT {self.columns} FROM {self.table}"
        count = _count_differences(inspection.db, self.expected, stored)
        if count:
            places = amount(count, "place", "places")
            yield derived_finding(f"{self.what} differs from the records in {places}")

    def rebuild(self, inspection: Inspection) -> None:
        """Replace the table's rows with those derived from the records."""
        inspection.db.execute(f"DELETE FROM {self.table}")
        inspection.db.execute(f"INSERT INTO {self.table} ({self.columns}) {self.expected}")


DERIVED_TABLES = (
    DerivedTable(
        "the list of records of each label",
        "record_label",
        "label, seq",
        f"SELECT value, r.seq FROM record r, {_LABELS}",
    ),
    DerivedTable(
        "the list of labels of each namespace",
        "label_pool",
        "label, pool",
        f"SELECT DISTINCT value, r.pool FROM record r, {_LABELS}",
    ),
)


def find_orphaned_accesses(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding if there are access counts of records that do not exist."""
    sql = "SELECT count(*) FROM access WHERE seq NOT IN (SELECT seq FROM record)"
    count = int(fetch_value(inspection.db, sql))
    if count:
        rows = amount(count, "row", "rows")
        yield derived_finding(f"access contains {rows} for records that do not exist")


def drop_orphaned_accesses(inspection: Inspection) -> None:
    """Remove the access counts of records that do not exist."""
    inspection.db.execute("DELETE FROM access WHERE seq NOT IN (SELECT seq FROM record)")


def find_wrong_last_seq(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding if the stored number of the last record is too low."""
    db = inspection.db
    newest = int(fetch_value(db, "SELECT coalesce(max(seq), 0) FROM record"))
    last = fetch_value(db, "SELECT max(seq) FROM sqlite_sequence WHERE name = 'record'")
    if newest and (type(last) is not int or last < newest):
        yield derived_finding(
            f"the number of the last record is {last}, but record {newest} exists"
        )


def rebuild_last_seq(inspection: Inspection) -> None:
    """Set the number of the last record to the highest one in use."""
    db = inspection.db
    db.execute("DELETE FROM sqlite_sequence WHERE name = 'record'")
    db.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'record', coalesce(max(seq), 0) FROM record"
    )


# --- counts


def find_wrong_counts(inspection: Inspection) -> list[Finding]:
    """Return findings about counts that differ from the records; change nothing."""
    comparisons = (
        (
            "the counts of a namespace",
            schema.POOL_COUNTS,
            "SELECT id, live, deleted, without_vector FROM pool",
        ),
        (
            "the counts of memories by tag",
            schema.LABEL_COUNTS,
            "SELECT label, pool, live FROM label_pool",
        ),
        (
            "the counts of memories by tag key",
            schema.KEY_COUNTS,
            "SELECT key, pool, live, total FROM key_pool",
        ),
    )
    findings: list[Finding] = []
    for name, expected, stored in comparisons:
        count = _count_differences(inspection.db, expected, stored)
        if count:
            rows = amount(count, "row", "rows")
            findings.append(_wrong_count(f"{name} differ from the records ({rows})"))
    return findings


def find_wrong_triggers(inspection: Inspection) -> list[Finding]:
    """Return findings about missing or changed triggers, which maintain the counts."""
    expected: dict[str, str] = {}
    for statement in schema.CREATE_TRIGGERS.replace("END;", "END\0").split("\0"):
        sql = statement.strip()
        if sql:
            expected[sql.split(None, 3)[2]] = sql
    stored = _read_triggers(inspection.db)
    problems: dict[str, str] = {}
    for name in expected.keys() | stored.keys():
        if name not in stored:
            problems[name] = "missing"
        elif stored[name] != expected.get(name):
            problems[name] = "damaged"
    return [
        _wrong_count(f"the trigger {name}, which maintains counts, is {problem}")
        for name, problem in sorted(problems.items())
    ]


def _read_triggers(db: apsw.Connection) -> dict[str, str]:
    """Return the SQL of each trigger in the file, keyed by name; invalid UTF-8 is replaced."""
    sql = "SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'trigger'"
    rows: list[Any] = db.execute(sql).fetchall()
    return {
        name.decode(errors="replace"): (text or b"").decode(errors="replace").strip()
        for name, text in rows
    }


def _wrong_count(problem: str) -> Finding:
    return Finding(problem, "run memory doctor --fix, which counts again", derived=True)


def recreate_triggers(inspection: Inspection) -> None:
    """Replace all triggers with intact ones, inside a transaction."""
    db = inspection.db
    for name in _read_triggers(db):
        quoted = name.replace('"', '""')
        db.execute(f'DROP TRIGGER "{quoted}"')
    db.execute(schema.CREATE_TRIGGERS)


def recount(inspection: Inspection) -> None:
    """Recreate the triggers and all counts, inside a transaction."""
    recreate_triggers(inspection)
    inspection.db.execute(schema.RECOUNT)


# --- damage to the rows that describe vectors


def find_wrong_descriptions(inspection: Inspection) -> list[Finding]:
    """Return findings about damaged rows of `meta`: descriptions of vectors, and counters."""
    db = inspection.db
    names = ", ".join("?" * len(_COUNTS))
    sql = f"SELECT name FROM meta WHERE name IN ({names}) AND NOT ({COUNTED}) ORDER BY 1"
    findings = [
        derived_finding(f"the counter {name} is damaged") for (name,) in fetch(db, sql, _COUNTS)
    ]
    for prefix, tables in _TABLES:
        space, form = read_space(db, prefix), _detect_form(db, prefix, tables)
        if space is None or (space.model and form == space.form):
            continue
        if prefix or form != space.form:
            which = "the staged vectors" if prefix else "the vectors"
            what = f"the description of {which} does not match their codes"
            findings.append(derived_finding(what))
        if not prefix and not space.model and form is not None:
            findings.append(Finding(NO_MODEL, REEMBED))
    return findings


def repair_descriptions(inspection: Inspection) -> None:
    """Repair the rows of `meta` that describe vectors or contain counts.

    If the format of the vectors can't be detected, drop them.
    """
    db = inspection.db
    for (name,) in fetch(db, f"SELECT name FROM meta WHERE NOT ({COUNTED})"):
        if name in _COUNTS:
            advance_epoch(db, name)
    for prefix, tables in _TABLES:
        space, form = read_space(db, prefix), _detect_form(db, prefix, tables)
        if space is None or (form == space.form and (space.model or not prefix)):
            continue
        if form is None or prefix:
            for table in tables.values():
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM meta WHERE name IN (?, ?, ?)", names_of(prefix))
        else:
            write_form(db, prefix, form)


def _detect_form(
    db: apsw.Connection, prefix: str, tables: Mapping[Collection, str]
) -> tuple[int, bool] | None:
    """Return the format of most vectors: their dimension, and whether they are compact.

    The format in `meta` is tried first. Return None if no format fits.
    """
    space = read_space(db, prefix)
    if space is None:
        return None
    lengths = _count_code_lengths(db, tables)
    if not lengths:
        return space.form if space.model and space.dimension else None
    for dimension, compact in _possible_forms(space, lengths):
        if dimension <= 0:
            continue
        size = code_bytes(dimension, compact=compact)
        fitting = sum(count for length, count in lengths.items() if length % size == 0)
        if 2 * fitting > lengths.total():
            return dimension, compact
    return None


def _count_code_lengths(db: apsw.Connection, tables: Mapping[Collection, str]) -> Counter[int]:
    lengths: Counter[int] = Counter()
    for table in tables.values():
        sql = (
            f"SELECT length(codes), count(*) FROM {table} "
            "WHERE typeof(codes) = 'blob' AND length(codes) > 0 GROUP BY 1"
        )
        lengths.update(dict(fetch(db, sql)))
    return lengths


def _possible_forms(space: StoredSpace, lengths: Counter[int]) -> list[tuple[int, bool]]:
    """Return the formats of vectors with these lengths in bytes; that in `meta` comes first."""
    forms: list[tuple[int, bool]] = []
    if space.dimension:
        forms += [space.form, (space.dimension, not space.compact)]
    [(usual, _)] = lengths.most_common(1)
    for length in (math.gcd(*lengths) - SCALE_BYTES, usual - SCALE_BYTES):
        if space.compact:
            forms.append((8 * (length // COMPACT_BITS), True))
        forms.append((length, False))
    return forms


# --- damage to vectors and blocks


def find_damaged_vectors(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for each table in which vectors are damaged or belong to no record."""
    db = inspection.db
    space = read_space(db)
    if space is not None and not space.dimension:
        return  # see `find_wrong_descriptions`
    for collection, table in _vector_tables():
        if space is None:
            count = int(fetch_value(db, f"SELECT count(*) FROM {table}"))
        else:
            count = len(_damaged_seqs(db, space, collection, table))
        if count:
            remedy = f"{FIX}, then: memory reembed"
            vectors = amount(count, "vector is", "vectors are")
            yield Finding(f"{vectors} damaged in {table}", remedy, derived=True)


def drop_damaged_vectors(inspection: Inspection) -> None:
    """Remove damaged vectors; until their records are embedded again, only words find them."""
    db = inspection.db
    space = read_space(db)
    for collection, table in _vector_tables():
        if space is None:
            db.execute(f"DELETE FROM {table}")
        else:
            seqs = _damaged_seqs(db, space, collection, table)
            db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])
    rebuild_blocks(inspection)


def _vector_tables() -> Iterator[tuple[Collection, str]]:
    yield from VECTORS.items()
    yield from STAGED.items()


def _damaged_seqs(
    db: apsw.Connection, space: StoredSpace, collection: Collection, table: str
) -> list[int]:
    # Staged vectors may have a different dimension.
    size = 1
    if table in VECTORS.values():
        size = code_bytes(space.dimension, compact=space.compact)
    sql = (
        f"SELECT v.seq, v.codes, v.crc, p.collection FROM {table} v "
        "LEFT JOIN record r ON r.seq = v.seq LEFT JOIN pool p ON p.id = r.pool"
    )
    damaged: list[int] = []
    for seq, codes, crc, kind in fetch(db, sql):
        is_whole = type(codes) is bytes and len(codes) % size == 0
        if kind != collection or not is_whole or zlib.crc32(codes) != crc:
            damaged.append(seq)
    return damaged


def find_wrong_blocks(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for each table of blocks (see `vectors`) that doesn't match the vectors."""
    db = inspection.db
    space = read_space(db)
    if space is not None and not space.dimension:
        return  # see `find_wrong_descriptions`
    for collection, table in BLOCKS.items():
        blocks = fetch(db, f"SELECT hi, seqs, bits, pools FROM {table} ORDER BY hi")
        if blocks and space is None:
            yield derived_finding(f"{table} contains blocks of vectors that do not exist")
            continue
        sql = (
            f"SELECT seq, codes FROM {VECTORS[collection]} WHERE seq > ? AND seq <= ? ORDER BY seq"
        )
        previous, wrong = 0, 0
        for hi, *block in blocks:
            rows = fetch(db, sql, (previous, hi))
            if tuple(block) != inspection.vectors.index(db, collection).pack_block(db, rows):
                wrong += 1
            previous = hi
        if wrong:
            count = amount(wrong, "block does", "blocks do")
            yield derived_finding(f"{count} not match the vectors in {table}")


def rebuild_blocks(inspection: Inspection) -> None:
    """Rebuild all blocks of sign bits from the vectors."""
    db = inspection.db
    for collection, table in BLOCKS.items():
        db.execute(f"DELETE FROM {table}")
        if read_space(db) is not None:
            inspection.vectors.index(db, collection).seal_all(db)
