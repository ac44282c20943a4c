"""Adding records to the SQLite store and removing them, with their labels and words; vectors are
`vectors`'.

A statement for many rows costs a third of one for each.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw

from memories.errors import Conflict
from memories.stores.damage import Damaged
from memories.stores.records import Record
from memories.stores.sqlite import schema, spaces
from memories.stores.sqlite import words as index
from memories.stores.sqlite.query import READ, fetch, fetch_value, records_of

_FORGET_LABELS = """
DELETE FROM label WHERE id NOT IN (SELECT label FROM record_label);
DELETE FROM label_pool WHERE NOT EXISTS (
  SELECT 1 FROM record_label m JOIN record r ON r.seq = m.seq
  WHERE m.label = label_pool.label AND r.pool = label_pool.pool
);
UPDATE pool SET namespace = '~' || id WHERE NOT EXISTS (SELECT 1 FROM record r WHERE r.pool = pool.id)
"""
_INSERT = (
    f"INSERT INTO record ({schema.ROW}) VALUES ({', '.join('?' * len(schema.ROW.split(',')))})"
)


def add(db: apsw.Connection, records: Sequence[Record]) -> Sequence[int]:
    """Add records with their labels and words, in order; return their seqs.

    Raises:
        Conflict: The position or the key of one is taken.
    """
    interned: dict[tuple[str, str, str], int] = {}

    def number(table: str, names: tuple[str, str], values: tuple[str, str]) -> int:
        found = interned.get((table, *values))
        if found is None:
            found = interned[table, *values] = _interned(db, table, names, values)
        return found

    pools, labels = [], []
    for record in records:
        pools.append(
            number(
                "pool", ("collection", "namespace"), (record.ref.collection, record.ref.namespace)
            )
        )
        labels.append([number("label", ("key", "value"), label) for label in record.labels.items()])
    _insert(
        db, records, [schema.row_of(*each) for each in zip(records, pools, labels, strict=True)]
    )
    # AUTOINCREMENT gives each row the number after the highest there ever was, and nobody else
    # writes meanwhile.
    last = db.last_insert_rowid()
    seqs = range(last - len(records) + 1, last + 1)
    pairs = [(label, seq) for seq, some in zip(seqs, labels, strict=True) for label in some]
    db.executemany("INSERT INTO record_label (label, seq) VALUES (?, ?)", pairs)
    read = [
        (seq, record.accesses) for seq, record in zip(seqs, records, strict=True) if record.accesses
    ]
    db.executemany("INSERT INTO access (seq, count) VALUES (?, ?)", read)
    index.insert(db, list(zip(seqs, pools, records, strict=True)))
    return seqs


def _insert(
    db: apsw.Connection, records: Sequence[Record], rows: Sequence[tuple[Any, ...]]
) -> None:
    refused = None

    def one_by_one() -> Iterator[tuple[Any, ...]]:
        nonlocal refused
        for record, row in zip(records, rows, strict=True):
            refused = record.ref
            yield row

    try:
        db.executemany(_INSERT, one_by_one())
    except apsw.ConstraintError as exc:
        assert refused is not None  # a row was asked for before one could be refused
        what = f"version {refused.position} of {refused.group}"
        raise Conflict(
            f"{what} or its key was written by somebody else first; read it again"
        ) from exc


def _interned(
    db: apsw.Connection, table: str, names: tuple[str, str], values: tuple[str, str]
) -> int:
    """Return the id of a pair; mostly it is there already."""
    found = fetch_value(
        db, f"SELECT id FROM {table} WHERE {names[0]} = ? AND {names[1]} = ?", values
    )
    if found is None:
        db.execute(f"INSERT INTO {table} ({names[0]}, {names[1]}) VALUES (?, ?)", values)
        return db.last_insert_rowid()
    return int(found)


def drop(db: apsw.Connection, seqs: Iterable[int]) -> None:
    """Delete records."""
    ordered = sorted(seqs)
    rows = fetch(
        db, f"{READ} WHERE r.seq IN (SELECT value FROM json_each(?))", (json.dumps(ordered),)
    )
    sound = records_of(db, rows, Damaged())
    index.remove(db, ((seq, sound.get(seq)) for seq in ordered))
    spaces.drop_staged(db, ordered)
    for table in ("record_label", "access", "record"):
        db.executemany(f"DELETE FROM {table} WHERE seq = ?", ((seq,) for seq in ordered))
    db.execute(_FORGET_LABELS)
