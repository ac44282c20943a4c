"""How the SQLite store asks: a filter as SQL conditions, and reading records."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.sql import plain_conditions
from memories.stores.sqlite.schema import encode_group, record_of

_COLUMNS = """
SELECT r.seq, p.collection, p.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, r.key, r.labels,
       r.fields, r.crc, r.text, coalesce(a.count, 0), r.session
"""
READ = f"{_COLUMNS} FROM record r JOIN pool p ON p.id = r.pool LEFT JOIN access a ON a.seq = r.seq"
_AT_REFS = """
json_each(?) wanted
CROSS JOIN pool p ON p.collection = wanted.value ->> 0 AND p.namespace = wanted.value ->> 1
CROSS JOIN record r ON r.pool = p.id AND r.position = wanted.value ->> 2
  AND r.grp = iif(wanted.value ->> 4, unhex(wanted.value ->> 3), wanted.value ->> 3)
"""
READ_REFS = f"{_COLUMNS} FROM {_AT_REFS} LEFT JOIN access a ON a.seq = r.seq"
CODES_OF_REFS = f"SELECT wanted.key, v.codes FROM {_AT_REFS} CROSS JOIN {{table}} v ON v.seq = r.seq"
_FIND = """
SELECT r.seq FROM pool p JOIN record r ON r.pool = p.id
WHERE p.collection = ? AND p.namespace = ? AND r.grp = ? AND r.position = ?
"""
_LOWEST_UUID = "00000000-0000-0000-0000-000000000000"
_HIGHEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- reading ---------------------------------------------------------------------------------------------------------


def fetch(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Return all rows, each a tuple."""
    try:
        return db.execute(sql, values).fetchall()
    except UnicodeDecodeError as exc:
        raise _damaged(db.filename, exc) from exc


def fetch_value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row, None if there is no row."""
    found = fetch(db, sql, values)
    return found[0][0] if found else None


@contextlib.contextmanager
def damage_noticed(file: str = "the store") -> Iterator[None]:
    """Report values that can't have been written as damage; to be put around nothing but their decoding."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as exc:
        raise _damaged(file, exc) from exc


def _damaged(file: str, exc: Exception) -> StoreDamaged:
    return StoreDamaged(f"{file} is damaged: it holds what was never written ({exc}); restore a backup")


def seq_of(db: apsw.Connection, ref: Ref) -> int | None:
    """Return the seq of a record, if it exists."""
    found = fetch_value(db, _FIND, (ref.collection, ref.namespace, encode_group(ref.group), ref.position))
    return None if found is None else int(found)


def refs_json(refs: Iterable[Ref]) -> str:
    """Return refs as `READ_REFS` and `CODES_OF_REFS` take them."""
    groups = ((ref, encode_group(ref.group)) for ref in refs)
    return json.dumps(
        [
            (ref.collection, ref.namespace, ref.position, group.hex(), True)
            if isinstance(group, bytes)
            else (ref.collection, ref.namespace, ref.position, group, False)
            for ref, group in groups
        ]
    )


def records_of(db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> list[Record]:
    """Return the records of rows of `READ`."""
    with damage_noticed(db.filename):
        names = {str(label): pair for label, pair in labels_of(db, [row[9] for row in rows]).items()}
        return [record_of(row, names) for row in rows]


def labels_of(db: apsw.Connection, sets: Iterable[str | None]) -> dict[int, tuple[str, str]]:
    """Return what the ids in these sets of labels stand for; a set is written as '3,17'."""
    with damage_noticed(db.filename):
        ids = sorted({int(label) for written in sets for label in (written or "").split(",") if label})
    sql = "SELECT id, key, value FROM label WHERE id IN (SELECT value FROM json_each(?))"
    return {label: (key, value) for label, key, value in fetch(db, sql, (json.dumps(ids),))}


# --- filters ---------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """A filter as conditions on `record r`.

    Attributes:
        find: The condition for finding all matching records: it starts at what is rarest.
        check: The same for checking given records one by one.
        values: The values of the question marks of either.
        bounds: Queries that an index alone answers, each for at least the matching records.
        broad: Whether most records of the namespaces match.
        bounded: Whether `bounds` cover all conditions.
        collection: Memories or turns.
        also_ended: Whether records that ended match as well.
    """

    find: str
    check: str
    values: tuple[Any, ...]
    bounds: tuple[str, ...]
    broad: bool
    bounded: bool
    collection: Collection
    also_ended: bool


def namespace_ids(db: apsw.Connection, where: Filter) -> list[int]:
    """Return the ids of the namespaces of a filter, as far as they exist."""
    sql = "SELECT id FROM pool WHERE collection = ? AND namespace IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [row[0] for row in fetch(db, sql, (where.collection, json.dumps(where.namespaces)))]


def selection(db: apsw.Connection, where: Filter, among: Sequence[int] | None = None) -> Selection:
    """Return a filter as conditions on `record r`, for all of its namespaces or for those with these ids."""
    ids = namespace_ids(db, where) if among is None else among
    in_namespaces = f"r.pool IN ({','.join(map(str, ids))})"
    plain = plain_conditions(where)
    if where.group is not None:
        plain.append(_prefix(where.group) if where.prefix else ("r.grp = ?", (encode_group(where.group),)))
    conditions = [in_namespaces, *(sql for sql, _ in plain)]
    find_label = "SELECT id FROM label WHERE key = ? AND value = ?"
    labels = [fetch_value(db, find_label, pair) or 0 for pair in where.labels.items()]  # no label has the id 0
    rows = [f"SELECT seq FROM record_label WHERE label = {int(label)}" for label in labels]
    return Selection(
        find=" AND ".join([*conditions, *(f"r.seq IN ({labelled})" for labelled in rows)]),
        check=" AND ".join([*conditions, *(f"EXISTS ({labelled} AND seq = r.seq)" for labelled in rows)]),
        values=tuple(value for _, given in plain for value in given),
        bounds=(f"SELECT 1 FROM record r WHERE {in_namespaces}", *rows),
        broad=len(conditions) == 2 and not labels and where.state == "live",
        bounded=len(conditions) == 2,
        collection=where.collection,
        also_ended=where.as_of is not None or where.state != "live",
    )


def _prefix(prefix: str) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a group's name begins with a prefix, and its values."""
    texts, values = "r.grp >= ? AND r.grp < x'' AND substr(r.grp, 1, ?) = ?", (prefix, len(prefix), prefix)
    first, last = (encode_group(prefix + bound[len(prefix) :]) for bound in (_LOWEST_UUID, _HIGHEST_UUID))
    if isinstance(first, str) or isinstance(last, str):
        return texts, values  # no UUID begins with it
    return f"(r.grp BETWEEN ? AND ? OR ({texts}))", (first, last, *values)
