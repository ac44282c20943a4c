"""How the SQLite store asks: fetching rows, filters as SQL conditions, names of groups as bytes."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.records import Collection, Filter
from memories.times import to_millis


def fetch(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Return all rows, each a tuple."""
    try:
        return db.execute(sql, values).fetchall()
    except UnicodeDecodeError as exc:
        raise _damaged(exc) from exc


@contextlib.contextmanager
def damage_noticed() -> Iterator[None]:
    """Take it for damage when stored values are not what was written; around nothing but their reading."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as exc:
        raise _damaged(exc) from exc


def _damaged(exc: Exception) -> StoreDamaged:
    return StoreDamaged(f"the store is damaged: it holds what was never written ({exc}); restore a backup")


def fetch_value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row, None if there is no row."""
    found = fetch(db, sql, values)
    return found[0][0] if found else None


_LOWEST_UUID = "00000000-0000-0000-0000-000000000000"
_HIGHEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class Condition(NamedTuple):
    """A filter as conditions on `record r`.

    Attributes:
        find: The condition for finding all records that are meant: it begins at the rarest thing.
        check: The same for looking at given records one by one.
        values: The values of the question marks of either.
        bounds: Queries that an index alone answers, each for at least the records that are meant.
        broad: Whether most records of the namespaces are meant.
        bounded: Whether `bounds` say everything that narrows it.
        collection: Memories or turns.
        also_ended: Whether records that ended are meant as well.
    """

    find: str
    check: str
    values: tuple[Any, ...]
    bounds: tuple[str, ...]
    broad: bool
    bounded: bool
    collection: Collection
    also_ended: bool


def pools(db: apsw.Connection, where: Filter) -> list[int]:
    sql = "SELECT id FROM pool WHERE collection = ? AND namespace IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [row[0] for row in fetch(db, sql, (where.collection, json.dumps(where.namespaces)))]


def condition(db: apsw.Connection, where: Filter, among: Sequence[int]) -> Condition:
    """Return the filter as conditions on `record r` in these pools."""
    in_pools = f"r.pool IN ({','.join(map(str, among))})"
    conditions = [in_pools]
    values: list[Any] = []

    def add(sql: str, *given: Any) -> None:
        conditions.append(sql)
        values.extend(given)

    add(*_liveness(where))
    if where.ended_by is not None:
        add("r.ended_by = ?", where.ended_by)
    for moment, sql in ((where.since, "r.created_at >= ?"), (where.until, "r.created_at <= ?")):
        if moment is not None:
            add(sql, to_millis(moment))
    if where.key is not None:
        add("r.key = ? AND r.ended_at IS NULL", where.key)
    if where.group is not None and where.prefix:
        add(*_beginning(where.group))
    elif where.group is not None:
        add("r.grp = ?", encode_group(where.group))
    labels = [_label_id(db, pair) for pair in where.labels.items()]
    rows = [f"SELECT seq FROM record_label WHERE label = {label}" for label in labels]
    return Condition(
        find=" AND ".join([*conditions, *(f"r.seq IN ({labelled})" for labelled in rows)]),
        check=" AND ".join([*conditions, *(f"EXISTS ({labelled} AND seq = r.seq)" for labelled in rows)]),
        values=tuple(values),
        bounds=(f"SELECT 1 FROM record r WHERE {in_pools}", *rows),
        broad=len(conditions) == 2 and not labels and where.state == "live",
        bounded=len(conditions) == 2,
        collection=where.collection,
        also_ended=where.as_of is not None or where.state != "live",
    )


def _label_id(db: apsw.Connection, pair: tuple[str, str]) -> int:
    """Return the number of a label; 0, which none has, if there is no such label."""
    return int(fetch_value(db, "SELECT id FROM label WHERE key = ? AND value = ?", pair) or 0)


def _liveness(where: Filter) -> tuple[Any, ...]:
    """Return the condition on when a record was current, followed by its values."""
    if where.as_of is not None:
        moment = to_millis(where.as_of)
        return "r.created_at <= ? AND (r.ended_at IS NULL OR r.ended_at > ?)", moment, moment
    return ({"live": "r.ended_at IS NULL", "ended": "r.ended_at IS NOT NULL", "any": "1"}[where.state],)


def _beginning(prefix: str) -> tuple[Any, ...]:
    """Return the condition that a group's name begins so, followed by its values."""
    texts = "r.grp >= ? AND r.grp < x'' AND substr(r.grp, 1, ?) = ?", prefix, len(prefix), prefix
    lowest, highest = (prefix + bound[len(prefix) :] for bound in (_LOWEST_UUID, _HIGHEST_UUID))
    first, last = encode_group(lowest), encode_group(highest)
    if isinstance(first, str) or isinstance(last, str):
        return texts  # no UUID begins so
    return f"(r.grp BETWEEN ? AND ? OR ({texts[0]}))", first, last, *texts[1:]


def encode_group(group: str) -> bytes | str:
    """Return a UUID as its 16 bytes, in the same order as its text, and any other name as it is."""
    if len(group) == 36 and group.count("-") == 4:
        with contextlib.suppress(ValueError):
            packed = bytes.fromhex(group.replace("-", ""))
            if decode_group(packed) == group:
                return packed
    return group


def decode_group(group: bytes | str) -> str:
    if isinstance(group, str):
        return group
    digits = group.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def order_key(group: bytes | str, position: int, namespace: str) -> tuple[bool, bytes | str, int, str]:
    """Return what orders rows as SQLite does: texts before bytes."""
    return isinstance(group, bytes), group, position, namespace
