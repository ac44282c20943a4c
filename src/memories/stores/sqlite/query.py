"""Turns filters into SQL conditions, and reads and counts the matching records.

Damage in one record doesn't affect others: if a row can't be decoded or doesn't match its checksum,
it is left out of the result, and the damage is noted.
"""

import json
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import apsw

from memories.stores.damage import UNKNOWN, UNREADABLE, Damaged, damaged_record, find_problem
from memories.stores.records import Collection, Filter, Record, Ref, plain_conditions
from memories.stores.sqlite.errors import NEVER_WRITTEN
from memories.stores.sqlite.rows import (
    VECTORS,
    decode_group,
    describe_damage,
    encode_group,
    fetch,
    fetch_value,
    record_of,
)

_Name = TypeVar("_Name")
_Value = TypeVar("_Value")
_ignored_changes: weakref.WeakKeyDictionary[apsw.Connection, int] = weakref.WeakKeyDictionary()


class ReadCache(Generic[_Name, _Value]):
    """Per-connection cache of read values, invalidated by any commit.

    SQLite's `data_version` changes when another connection commits; the count of changes grows when
    this connection writes.
    """

    def __init__(self, max_values: int) -> None:
        """Create a cache for about `max_values` values per connection."""
        self._max_values = max_values
        self._lock = threading.Lock()
        self._cached: weakref.WeakKeyDictionary[apsw.Connection, tuple[Any, dict[_Name, _Value]]]
        self._cached = weakref.WeakKeyDictionary()

    def current(self, db: apsw.Connection) -> dict[_Name, _Value]:
        """Return the cached values that are valid in a connection's transaction.

        The caller adds new values to this dict. A transaction that may write gets an empty dict
        that isn't cached, because its changes may be rolled back.
        """
        if may_write(db):
            return {}
        changes = db.total_changes() - _ignored_changes.get(db, 0)
        state = db.execute("PRAGMA data_version").fetchall(), changes
        with self._lock:
            cached = self._cached.get(db)
            if cached is None or cached[0] != state or len(cached[1]) > self._max_values:
                cached = self._cached[db] = state, {}
            return cached[1]


def ignore_changes(db: apsw.Connection, count: int) -> None:
    """Keep a connection's caches valid after changes to rows that the caches don't contain."""
    _ignored_changes[db] = _ignored_changes.get(db, 0) + count


def may_write(db: apsw.Connection) -> bool:
    """Return whether a connection's transaction holds the write lock."""
    return db.txn_state("main") == apsw.SQLITE_TXN_WRITE


_COLUMNS = """
SELECT r.seq, p.collection, p.namespace, r.grp, r.position, r.created_at, r.ended_at, r.ended_by,
       r.key, r.labels, r.fields, r.crc, r.text, coalesce(a.count, 0), r.session, r.state_crc
"""
READ = f"{_COLUMNS} FROM record r JOIN pool p ON p.id = r.pool LEFT JOIN access a ON a.seq = r.seq"
# Unlike `READ`, this also returns rows whose namespace is damaged.
READ_ANY = READ.replace("JOIN pool", "LEFT JOIN pool", 1)
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
# Stands for the group of a record whose group or namespace is damaged, so that a command can name
# the record.
_STAND_IN = re.compile(rf"{UNREADABLE}(\d{{1,18}})")
_LABELLED = "r.seq IN (SELECT seq FROM record_label WHERE label = {})"
# A search starts at a label if the namespaces have this many times as many records as the label.
_RARER = 4
_LABELS: ReadCache[str, tuple[str, str]] = ReadCache(4_000)
_PAGE = 500
_LOWEST_UUID = "00000000-0000-0000-0000-000000000000"
_HIGHEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


# --- reading


def seq_of(db: apsw.Connection, ref: Ref) -> int | None:
    """Return a record's `seq`; None if the record doesn't exist."""
    values = (ref.collection, ref.namespace, encode_group(ref.group), ref.position)
    seq = fetch_value(db, _FIND, values)
    if seq is not None:
        return int(seq)
    stand_in = find_stand_in(db, Filter(ref.collection, (ref.namespace,), group=ref.group))
    if stand_in is None:
        return None
    return int(stand_in.group.rpartition("-")[2])


def refs_json(refs: Iterable[Ref]) -> str:
    """Return refs in the format for `READ_REFS` and `CODES_OF_REFS`."""
    rows: list[tuple[Any, ...]] = []
    for ref in refs:
        group = encode_group(ref.group)
        is_packed = isinstance(group, bytes)
        text = group.hex() if isinstance(group, bytes) else group
        rows.append((ref.collection, ref.namespace, ref.position, text, is_packed))
    return json.dumps(rows)


def records_of(
    db: apsw.Connection, rows: Sequence[tuple[Any, ...]], damaged: Damaged
) -> dict[int, Record]:
    """Convert rows of `READ` to records, keyed by `seq` and in the order of the rows.

    Damaged records are left out and noted in `damaged`.
    """
    labels = labels_of(db, [row[9] for row in rows])
    records: dict[int, Record] = {}
    for row in rows:
        try:
            record = record_of(row, labels)
        except NEVER_WRITTEN as exc:
            damaged.note(damaged_record(ref_of(db, row), describe_damage(exc)))
            continue
        problem = find_problem(record)
        if problem:
            damaged.note(damaged_record(record.ref, f"it {problem}"))
        else:
            records[row[0]] = record
    return records


def read_pages(
    db: apsw.Connection, damaged: Damaged, condition: str = "true", *values: Any
) -> Iterator[dict[int, Any]]:
    """Yield pages of records keyed by `seq`, in ascending order; a damaged record is None."""
    sql = f"{READ_ANY} WHERE r.seq > ? AND {condition} ORDER BY r.seq LIMIT ?"
    after = -(2**62)
    while rows := fetch(db, sql, (after, *values, _PAGE)):
        after = rows[-1][0]
        records: dict[int, Any] = dict.fromkeys(row[0] for row in rows)
        records.update(records_of(db, rows, damaged))
        yield records


def ref_of(db: apsw.Connection, row: Sequence[Any]) -> Ref:
    """Return the ref under which a damaged row's record can be found."""
    seq, collection, namespace, group, position = row[:5]
    kind = Collection.HISTORY if collection == Collection.HISTORY else Collection.MEMORY
    is_named = isinstance(namespace, str)
    if is_named and isinstance(group, bytes | str) and isinstance(position, int):
        ref = Ref(kind, namespace, decode_group(group), position)
        if fetch_value(db, _FIND, (kind, namespace, encode_group(ref.group), position)) == seq:
            return ref
    return Ref(kind, namespace if is_named else UNKNOWN, f"{UNREADABLE}{seq}", 0)


def sort_key(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a key by which rows of `READ` sort as in SQLite: numbers, then texts, then bytes."""
    namespace, group, position = row[2:5]
    kind = 0
    if isinstance(group, str):
        kind = 1
    elif isinstance(group, bytes):
        kind = 2
    return kind, group, position, str(namespace)


def is_group(group: Any) -> bool:
    """Return whether a stored group is a valid name, by which its records can be requested."""
    return isinstance(group, str) or (isinstance(group, bytes) and len(group) == 16)


def find_stand_in(db: apsw.Connection, where: Filter) -> Ref | None:
    """If a filter's group is a stand-in such as `damaged-17`, return the damaged record's ref.

    A record whose namespace can't be read belongs to every namespace.
    """
    match = _STAND_IN.fullmatch(where.group or "")
    if not match or where.prefix:
        return None
    rows = fetch(db, f"{READ_ANY} WHERE r.seq = ?", (int(match[1]),))
    ref = ref_of(db, rows[0]) if rows else None
    if ref is None or ref.group != where.group:
        return None
    is_real_name = ref.position != 0 or rows[0][3] == ref.group
    if is_real_name:
        return None
    if ref.namespace == UNKNOWN:
        return ref._replace(collection=where.collection, namespace=where.namespaces[0])
    is_selected = ref.collection is where.collection and ref.namespace in where.namespaces
    return ref if is_selected else None


def labels_of(db: apsw.Connection, label_sets: Iterable[Any]) -> Mapping[str, tuple[str, str]]:
    """Return the key and value of each label, keyed by the label's id as text.

    The result may also contain other labels. Damaged labels are left out.

    Args:
        db: The connection.
        label_sets: Ids separated by commas, such as "3,17", as a row of `record` stores them.
    """
    labels = _LABELS.current(db)
    new_ids: set[int] = set()
    for label_set in {*label_sets}:
        if type(label_set) is not str:
            continue
        for label in label_set.split(","):
            if label not in labels and label.isascii() and label.isdigit() and len(label) < 19:
                new_ids.add(int(label))
    if new_ids:
        sql = "SELECT id, key, value FROM label WHERE id IN (SELECT value FROM json_each(?))"
        for label_id, key, value in fetch(db, sql, (json.dumps([*new_ids]),)):
            if type(key) is str and type(value) is str:
                labels[str(label_id)] = key, value
    return labels


# --- filters


class Selection(NamedTuple):
    """A filter as SQL conditions on `record r`.

    Attributes:
        find: The condition for finding all matching records; it starts at a rare label if possible.
        check: The same condition, for checking whether a given record matches.
        values: The SQL values for either condition.
        labels: For each label in the filter, its id and its number of live records in the
            namespaces; the rarest label comes first.
        live: The number of live records in the namespaces.
        pools: The namespaces' ids.
        is_broad: Whether most records in the namespaces match.
        is_plain: Whether the filter selects live records only by their namespaces and labels.
        collection: Memories or turns.
        includes_ended: Whether ended records match as well.
    """

    find: str
    check: str
    values: tuple[Any, ...]
    labels: tuple[tuple[int, int], ...]
    live: int
    pools: tuple[int, ...]
    is_broad: bool
    is_plain: bool
    collection: Collection
    includes_ended: bool

    @property
    def rarest(self) -> int:
        """The number of live records with the rarest label; at most this many can match."""
        if self.labels:
            return self.labels[0][1]
        return self.live

    def in_order(self, count: int) -> str:
        """Return the condition for finding the first `count` records in index order.

        If many records have the rarest label, reading the namespace index is faster than sorting
        the label's records.
        """
        if count * self.live < self.rarest**2:
            return self.check
        return self.find


def namespace_ids(db: apsw.Connection, where: Filter) -> list[int]:
    """Return the ids of a filter's existing namespaces."""
    sql = (
        "SELECT id FROM pool WHERE collection = ? "
        "AND namespace IN (SELECT value FROM json_each(?)) ORDER BY id"
    )
    return [row[0] for row in fetch(db, sql, (where.collection, json.dumps(where.namespaces)))]


def selection(db: apsw.Connection, where: Filter, pools: Sequence[int] | None = None) -> Selection:
    """Return a filter as SQL conditions on `record r`.

    Args:
        db: A connection inside a transaction.
        where: The filter.
        pools: The ids of the namespaces to select from; by default the filter's.
    """
    ids = namespace_ids(db, where) if pools is None else pools
    in_namespaces = f"r.pool IN ({','.join(map(str, ids))})"
    plain = plain_conditions(where)
    if where.group is not None:
        plain.append(_group_condition(where.group, is_prefix=where.prefix))
    if where.ended_by == "delete":
        # This is a literal because for a parameter, SQLite wouldn't use the index `record_deleted`.
        plain.append(("r.ended_by = 'delete'", ()))
    conditions: list[str] = []
    values: list[Any] = []
    for condition, condition_values in plain:
        conditions.append(condition)
        values += condition_values
    live, labels = _count_live(db, ids, where)
    having = [
        f"EXISTS (SELECT 1 FROM record_label WHERE label = {label} AND seq = r.seq)"
        for label, _ in labels
    ]
    if labels and labels[0][1] * _RARER < live:
        # The plus keeps SQLite from using the namespace index.
        find = [f"+{in_namespaces}", _LABELLED.format(labels[0][0]), *conditions, *having[1:]]
    else:
        find = [in_namespaces, *having[:1], *conditions, *having[1:]]
    is_live_only = where.state == "live" and len(conditions) == 1
    return Selection(
        find=" AND ".join(find),
        check=" AND ".join([in_namespaces, *conditions, *having]),
        values=tuple(values),
        labels=tuple(labels),
        live=live,
        pools=tuple(ids),
        is_broad=is_live_only and not labels,
        is_plain=is_live_only and where.as_of is None,
        collection=where.collection,
        includes_ended=where.as_of is not None or where.state != "live",
    )


def select_seqs(db: apsw.Connection, selected: Selection, seqs: Iterable[int]) -> list[int]:
    """Return the `seqs` whose records the filter selects, in the given order."""
    sql = (
        "SELECT r.seq FROM json_each(?) wanted CROSS JOIN record r ON r.seq = wanted.value "
        f"WHERE {selected.check}"
    )
    return [seq for (seq,) in fetch(db, sql, (json.dumps(list(seqs)), *selected.values))]


def _count_live(
    db: apsw.Connection, pools: Sequence[int], where: Filter
) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of live records in the namespaces, and the filter's labels with counts.

    Each label is returned as its id and its number of live records; the rarest label comes first.
    """
    ids = ",".join(map(str, pools))
    live = _total(db, pools, "live")
    sql = (
        "SELECT l.id, (SELECT coalesce(sum(live), 0) FROM label_pool "
        f"WHERE label = l.id AND pool IN ({ids})) FROM label l WHERE l.key = ? AND l.value = ?"
    )
    labels: list[tuple[int, int]] = []
    for pair in where.labels.items():
        rows = fetch(db, sql, pair) or [(0, 0)]  # no label has id 0
        labels += [(int(label), int(count)) for label, count in rows]
    return live, sorted(labels, key=lambda label: label[1])


def _group_condition(group: str, *, is_prefix: bool) -> tuple[str, tuple[Any, ...]]:
    if not is_prefix:
        return "r.grp = ?", (encode_group(group),)
    text_condition = "r.grp >= ? AND r.grp < x'' AND substr(r.grp, 1, ?) = ?"
    text_values = (group, len(group), group)
    first = encode_group(group + _LOWEST_UUID[len(group) :])
    last = encode_group(group + _HIGHEST_UUID[len(group) :])
    if isinstance(first, str) or isinstance(last, str):
        return text_condition, text_values  # no UUID starts with this text
    return f"(r.grp BETWEEN ? AND ? OR ({text_condition}))", (first, last, *text_values)


# --- counting, based on the counts that triggers maintain: see `schema`


def live_labels(db: apsw.Connection, pools: Sequence[int], key: str | None) -> dict[str, int]:
    """Return how many live records have each label key or, given a key, each of its values."""
    condition = f"pool IN ({','.join(map(str, pools))}) AND live > 0 GROUP BY 1 ORDER BY 1"
    if key is None:
        sql = f"SELECT key, sum(live) FROM key_pool WHERE {condition}"
        rows: list[Any] = db.execute(sql).fetchall()
    else:
        sql = "SELECT l.value, sum(m.live) FROM label l JOIN label_pool m ON m.label = l.id"
        rows = db.execute(f"{sql} WHERE l.key = ? AND {condition}", (key,)).fetchall()
    return dict(rows)


def count_matching(db: apsw.Connection, where: Filter, at_most: int | None) -> int:
    """Return how many records match a filter; counting stops at `at_most`."""
    everything = Filter(where.collection, where.namespaces)
    selected = selection(db, where)
    count: int | None = None
    if where == everything._replace(state="ended", ended_by="delete"):
        count = _total(db, selected.pools, "deleted")
    elif selected.is_plain and len(selected.labels) < 2:
        count = selected.rarest
    if count is not None:
        return count if at_most is None else min(count, at_most)
    limit = -1 if at_most is None else at_most
    sql = f"SELECT count(*) FROM (SELECT 1 FROM record r WHERE {selected.find} LIMIT ?)"
    return int(fetch_value(db, sql, (*selected.values, limit)))


def count_without_vector(db: apsw.Connection, where: Filter) -> int:
    """Return how many of the records that match a filter have no vector."""
    if where == Filter(where.collection, where.namespaces):
        return _total(db, namespace_ids(db, where), "without_vector")
    selected = selection(db, where)
    sql = (
        f"SELECT count(*) FROM record r WHERE {selected.find} "
        f"AND r.seq NOT IN (SELECT seq FROM {VECTORS[where.collection]})"
    )
    return int(fetch_value(db, sql, selected.values))


def _total(db: apsw.Connection, pools: Sequence[int], column: str) -> int:
    ids = ",".join(map(str, pools))
    return int(fetch_value(db, f"SELECT coalesce(sum({column}), 0) FROM pool WHERE id IN ({ids})"))
