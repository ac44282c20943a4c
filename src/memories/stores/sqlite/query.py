"""Filters as SQL conditions, reading records, and the cache of what a connection has read.

One damaged record costs one record: what can't be decoded or does not match its checksum is left
out and noted.
"""

import contextlib
import json
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import apsw

from memories.errors import StoreDamaged
from memories.stores.damage import UNKNOWN, UNREADABLE, Damaged, damaged_record, find_problem
from memories.stores.records import Collection, Filter, Record, Ref, plain_conditions
from memories.stores.sqlite.schema import NEVER_WRITTEN, decode_group, encode_group, record_of, why

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")
_OVERLOOKED: weakref.WeakKeyDictionary[apsw.Connection, int] = weakref.WeakKeyDictionary()


class Kept(Generic[_Name, _Value]):
    """Per-connection cache of what was read, dropped by any commit.

    `data_version` changes with commits by others, the count of changes with those by the connection
    itself.
    """

    def __init__(self, most: int) -> None:
        """Prepare to keep about so many values for each connection."""
        self._most = most
        self._lock = threading.Lock()
        self._known: weakref.WeakKeyDictionary[apsw.Connection, tuple[Any, dict[_Name, _Value]]]
        self._known = weakref.WeakKeyDictionary()

    def of(self, db: apsw.Connection) -> dict[_Name, _Value]:
        """Return what is known in the transaction that a connection is in, to look it up and to add
        to it.

        What a connection sees while it writes may be undone, so then it is a dict that nobody
        keeps.
        """
        if writes(db):
            return {}
        state = (
            db.execute("PRAGMA data_version").fetchall(),
            db.total_changes() - _OVERLOOKED.get(db, 0),
        )
        with self._lock:
            known = self._known.get(db)
            if known is None or known[0] != state or len(known[1]) > self._most:
                known = self._known[db] = state, {}
            return known[1]


def overlook(db: apsw.Connection, changes: int) -> None:
    """Go on with what is kept though a connection itself made these changes: they concern nothing
    that is kept.
    """
    _OVERLOOKED[db] = _OVERLOOKED.get(db, 0) + changes


def writes(db: apsw.Connection) -> bool:
    """Return whether a connection is in a transaction that has written."""
    return db.txn_state("main") == apsw.SQLITE_TXN_WRITE


_COLUMNS = """
SELECT r.seq, p.collection, p.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by, r.key, r.labels,
       r.fields, r.crc, r.text, coalesce(a.count, 0), r.session, r.state_crc
"""
READ = f"{_COLUMNS} FROM record r JOIN pool p ON p.id = r.pool LEFT JOIN access a ON a.seq = r.seq"
READ_ANY = READ.replace("JOIN pool", "LEFT JOIN pool", 1)  # also where the namespace is damaged
_AT_REFS = """
json_each(?) wanted
CROSS JOIN pool p ON p.collection = wanted.value ->> 0 AND p.namespace = wanted.value ->> 1
CROSS JOIN record r ON r.pool = p.id AND r.position = wanted.value ->> 2
  AND r.grp = iif(wanted.value ->> 4, unhex(wanted.value ->> 3), wanted.value ->> 3)
"""
READ_REFS = f"{_COLUMNS} FROM {_AT_REFS} LEFT JOIN access a ON a.seq = r.seq"
CODES_OF_REFS = (
    f"SELECT wanted.key, v.codes, v.crc FROM {_AT_REFS} CROSS JOIN {{table}} v ON v.seq = r.seq"
)
_FIND = """
SELECT r.seq FROM pool p JOIN record r ON r.pool = p.id
WHERE p.collection = ? AND p.namespace = ? AND r.grp = ? AND r.position = ?
"""
# Stands for the group of a record whose own can't be written, because of damage in it or in its
# namespace.
_UNWRITABLE = re.compile(rf"{UNREADABLE}(\d{{1,18}})")
_LABELLED = "r.seq IN (SELECT seq FROM record_label WHERE label = {})"
_RARER = 4  # times: from there on it is faster to begin at the label than at the namespaces
_LABELS: Kept[str, tuple[str, str]] = Kept(4_000)
_LOWEST_UUID = "00000000-0000-0000-0000-000000000000"
_HIGHEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- reading
# ---------------------------------------------------------------------------------------------------------


def fetch(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Return all rows, each a tuple. A text that is not UTF-8, which none was when it was written,
    is its bytes.
    """
    try:
        return db.execute(sql, values).fetchall()
    except UnicodeDecodeError:
        return _fetch_bytes(db, sql, values)


def _fetch_bytes(db: apsw.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    columns = 0

    def count(cursor: apsw.Cursor, _sql: str, _values: Any) -> bool:
        nonlocal columns
        columns = len(cursor.get_description())
        return False  # it is not run again

    cursor = db.cursor()
    cursor.exec_trace = count
    with contextlib.suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, values)
    names = [f"c{number}" for number in range(columns)]
    texts = {name: f"typeof({name}) = 'text'" for name in names}
    parts = ", ".join(
        f"{is_text}, iif({is_text}, CAST({name} AS BLOB), {name})"
        for name, is_text in texts.items()
    )
    rows = db.execute(
        f"WITH found ({', '.join(names)}) AS ({sql}) SELECT {parts} FROM found", values
    ).fetchall()
    return [tuple(_text(*pair) for pair in zip(row[::2], row[1::2], strict=True)) for row in rows]


def _text(is_text: Any, value: Any) -> Any:
    if is_text:
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value


def fetch_value(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first value of the first row, None if there is no row."""
    found = fetch(db, sql, values)
    return found[0][0] if found else None


@contextlib.contextmanager
def damage_noticed(file: str = "the store") -> Iterator[None]:
    """Report values that can't have been written as damage; to be put around nothing but their
    decoding.
    """
    try:
        yield
    except NEVER_WRITTEN as exc:
        raise _damaged(file, exc) from exc


def _damaged(file: str, exc: Exception) -> StoreDamaged:
    return StoreDamaged(
        f"{file} is damaged: it holds what was never written ({exc}); restore a backup"
    )


def seq_of(db: apsw.Connection, ref: Ref) -> int | None:
    """Return the seq of a record, if it exists."""
    found = fetch_value(
        db, _FIND, (ref.collection, ref.namespace, encode_group(ref.group), ref.position)
    )
    if found is None:
        unwritable = unwritable_ref(db, Filter(ref.collection, (ref.namespace,), group=ref.group))
        return None if unwritable is None else int(unwritable.group.rpartition("-")[2])
    return int(found)


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


def records_of(
    db: apsw.Connection, rows: Sequence[tuple[Any, ...]], damaged: Damaged
) -> dict[int, Record]:
    """Return the records of rows of `READ` by their seq, in the same order; what is damaged is left
    out and noted.
    """
    names = labels_of(db, [row[9] for row in rows])
    found: dict[int, Record] = {}
    for row in rows:
        try:
            record = record_of(row, names)
        except NEVER_WRITTEN as exc:
            damaged.note(damaged_record(ref_of(db, row), why(exc)))
            continue
        if wrong := find_problem(record):
            damaged.note(damaged_record(record.ref, f"it {wrong}"))
        else:
            found[row[0]] = record
    return found


def ref_of(db: apsw.Connection, row: Sequence[Any]) -> Ref:
    """Return the address of a row that begins as those of `READ` do, by which it is found although
    it is damaged.
    """
    seq, collection, namespace, group, position = row[:5]
    kind = Collection.HISTORY if collection == Collection.HISTORY else Collection.MEMORY
    if isinstance(group, bytes | str) and isinstance(namespace, str) and isinstance(position, int):
        ref = Ref(kind, namespace, decode_group(group), position)
        if fetch_value(db, _FIND, (kind, namespace, encode_group(ref.group), position)) == seq:
            return ref
    return Ref(kind, namespace if isinstance(namespace, str) else UNKNOWN, f"{UNREADABLE}{seq}", 0)


def unwritable_ref(db: apsw.Connection, where: Filter) -> Ref | None:
    """Return the record that the group of a filter stands for because its own can't be written, if
    there is one.

    One whose namespace can't be read either belongs to every namespace.
    """
    named = _UNWRITABLE.fullmatch(where.group or "")
    if not named or where.prefix:
        return None
    rows = fetch(db, f"{READ_ANY} WHERE r.seq = ?", (int(named[1]),))
    ref = ref_of(db, rows[0]) if rows else None
    if ref is None or ref.group != where.group or ref.position or rows[0][3] == ref.group:
        return None
    if ref.namespace == UNKNOWN:
        return ref._replace(collection=where.collection, namespace=where.namespaces[0])
    return ref if ref.collection is where.collection and ref.namespace in where.namespaces else None


def labels_of(db: apsw.Connection, sets: Iterable[Any]) -> Mapping[str, tuple[str, str]]:
    """Return what the ids in these sets of labels stand for, and maybe others; a set is written as
    '3,17'.

    Damaged ones are left out.
    """
    known = _LABELS.of(db)
    new = {
        label
        for each in {*sets}
        if type(each) is str
        for label in each.split(",")
        if label not in known
    }
    ids = [int(label) for label in new if label.isascii() and label.isdigit() and len(label) < 19]
    if ids:
        sql = "SELECT id, key, value FROM label WHERE id IN (SELECT value FROM json_each(?))"
        found = fetch(db, sql, (json.dumps(ids),))
        known |= {
            str(label): (key, value)
            for label, key, value in found
            if type(key) is str and type(value) is str
        }
    return known


# --- filters
# ---------------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """A filter as conditions on `record r`.

    Attributes:
        find: The condition for finding all matching records: it starts at what is rarest.
        check: The same for checking given records one by one.
        values: The values of the question marks of either.
        labels: The ids of the labels, and how many live records of the namespaces have each, the
            rarest first.
        live: How many live records the namespaces have.
        pools: The ids of the namespaces.
        broad: Whether most records of the namespaces match.
        plain: Whether namespaces, labels and being live are the only conditions.
        collection: Memories or turns.
        also_ended: Whether records that ended match as well.
    """

    find: str
    check: str
    values: tuple[Any, ...]
    labels: tuple[tuple[int, int], ...]
    live: int
    pools: tuple[int, ...]
    broad: bool
    plain: bool
    collection: Collection
    also_ended: bool

    @property
    def rarest(self) -> int:
        """How many live records match at most."""
        return self.labels[0][1] if self.labels else self.live

    def in_order(self, count: int) -> str:
        """Return the condition for finding the first `count` records in the order of the index of
        namespaces.

        Where many records have the label, walking along that index is faster than sorting what the
        label has.
        """
        return self.check if count * self.live < self.rarest**2 else self.find


def namespace_ids(db: apsw.Connection, where: Filter) -> list[int]:
    """Return the ids of the namespaces of a filter, as far as they exist."""
    sql = "SELECT id FROM pool WHERE collection = ? AND namespace IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [row[0] for row in fetch(db, sql, (where.collection, json.dumps(where.namespaces)))]


def selection(db: apsw.Connection, where: Filter, among: Sequence[int] | None = None) -> Selection:
    """Return a filter as conditions on `record r`, for all of its namespaces or for those with
    these ids.
    """
    ids = namespace_ids(db, where) if among is None else among
    in_namespaces = f"r.pool IN ({','.join(map(str, ids))})"
    plain = plain_conditions(where)
    if where.group is not None:
        plain.append(
            _prefix(where.group) if where.prefix else ("r.grp = ?", (encode_group(where.group),))
        )
    if (
        where.ended_by == "delete"
    ):  # as a literal, since only that makes SQLite use the index `record_deleted`
        plain.append(("r.ended_by = 'delete'", ()))
    conditions = [sql for sql, _ in plain]
    live, labels = _counts(db, ids, where)
    having = [
        f"EXISTS (SELECT 1 FROM record_label WHERE label = {label} AND seq = r.seq)"
        for label, _ in labels
    ]
    # The index of the namespaces is left out of it (by the plus) where a label is rarer.
    rare = bool(labels) and labels[0][1] * _RARER < live
    first = (
        [f"+{in_namespaces}", _LABELLED.format(labels[0][0])]
        if rare
        else [in_namespaces, *having[:1]]
    )
    return Selection(
        find=" AND ".join([*first, *conditions, *having[1:]]),
        check=" AND ".join([in_namespaces, *conditions, *having]),
        values=tuple(value for _, given in plain for value in given),
        labels=tuple(labels),
        live=live,
        pools=tuple(ids),
        broad=len(conditions) == 1 and not labels and where.state == "live",
        plain=len(conditions) == 1 and where.state == "live" and where.as_of is None,
        collection=where.collection,
        also_ended=where.as_of is not None or where.state != "live",
    )


def matching(db: apsw.Connection, selected: Selection, seqs: Iterable[int]) -> list[int]:
    """Return which of these records are selected, in the same order."""
    sql = f"SELECT r.seq FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value WHERE {selected.check}"
    return [seq for (seq,) in fetch(db, sql, (json.dumps(list(seqs)), *selected.values))]


def _counts(
    db: apsw.Connection, pools: Sequence[int], where: Filter
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many live records some namespaces have, and of each label of a filter its id and
    how many have it.
    """
    among = ",".join(map(str, pools))
    live = int(fetch_value(db, f"SELECT coalesce(sum(live), 0) FROM pool WHERE id IN ({among})"))
    sql = (
        f"SELECT l.id, (SELECT coalesce(sum(live), 0) FROM label_pool WHERE label = l.id AND pool IN ({among})) "
        "FROM label l WHERE l.key = ? AND l.value = ?"
    )
    found = [fetch(db, sql, pair) for pair in where.labels.items()]
    labels = [
        (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0) for rows in found
    ]  # no label has the id 0
    return live, sorted(labels, key=lambda label: label[1])


def _prefix(prefix: str) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a group's name begins with a prefix, and its values."""
    texts, values = (
        "r.grp >= ? AND r.grp < x'' AND substr(r.grp, 1, ?) = ?",
        (prefix, len(prefix), prefix),
    )
    first, last = (
        encode_group(prefix + bound[len(prefix) :]) for bound in (_LOWEST_UUID, _HIGHEST_UUID)
    )
    if isinstance(first, str) or isinstance(last, str):
        return texts, values  # no UUID begins with it
    return f"(r.grp BETWEEN ? AND ? OR ({texts}))", (first, last, *values)
