"""What is wrong in the file of a SQLite store, and mending what is derived: it can be made again
from the records.

Checksums tell damage in a record and in its vectors; all else is compared with what the records
say. What SQLite can't tell is a page that an older one of the same file replaced as a whole, for
every checksum in it fits.

To have a table checked and mended that holds nothing but what the records say, add it to `DERIVED`.
"""

import contextlib
import dataclasses
import functools
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from memories.errors import StoreDamaged
from memories.stores.damage import Damaged
from memories.stores.records import Collection, Finding
from memories.stores.sqlite import counts, schema, spaces
from memories.stores.sqlite import words as index
from memories.stores.sqlite.engine import scratch
from memories.stores.sqlite.errors import FIX, SALVAGE
from memories.stores.sqlite.query import READ_ANY, fetch, fetch_value, records_of
from memories.stores.sqlite.schema import code_bytes
from memories.stores.sqlite.words import tokens_in

if TYPE_CHECKING:
    from memories.stores.sqlite.vectors import VectorIndex

SMALL = 400  # records; of a larger store the cheap check looks at
SOME = 200  # of them, some milliseconds' worth
SMALL_BYTES = 2_097_152  # a larger file is read as a whole only by a deep check
_UNREADABLE = (
    apsw.CorruptError,
    apsw.SQLError,
    apsw.ConstraintError,
    StoreDamaged,
    *schema.NEVER_WRITTEN,
)
_PAGE = 500  # records that are in memory at once
_ALL = 2**62
_LABELS = "json_each(CASE WHEN json_valid('[' || r.labels || ']') THEN '[' || r.labels || ']' ELSE '[]' END) l"


class Derived(NamedTuple):
    """A table whose rows follow from those of `record`.

    Attributes:
        what: What it holds, for people.
        table: Its name.
        columns: Those that are compared.
        expected: A query for the rows that it should have.
    """

    what: str
    table: str
    columns: str
    expected: str


DERIVED = (
    Derived(
        "the list of records of each label",
        "record_label",
        "label, seq",
        f"SELECT value, r.seq FROM record r, {_LABELS}",
    ),
    Derived(
        "the list of labels of each namespace",
        "label_pool",
        "label, pool",
        f"SELECT DISTINCT value, r.pool FROM record r, {_LABELS}",
    ),
)


@dataclasses.dataclass
class Look:
    """A look at a store.

    Attributes:
        db: A connection inside a transaction.
        damaged: The seqs of damaged records, of which nothing can be derived.
        vectors: Returns what reads and writes vectors of the model in use.
        whole: Whether all records were read; of some alone nothing can be derived.
        words_told: Whether it was told that the index of words is damaged, which is made again as a
            whole.
    """

    db: apsw.Connection
    damaged: set[int]
    vectors: "Callable[[Collection], VectorIndex]"
    whole: bool = False
    words_told: bool = False


def check(
    db: apsw.Connection, vectors: "Callable[[Collection], VectorIndex]", *, deep: bool
) -> list[Finding]:
    """Return what is wrong; see `Store.check`.

    Args:
        db: A connection inside a transaction.
        vectors: Returns what reads and writes vectors of the model in use.
        deep: Look at everything; else at everything in a small store, and at some records of a
            large one.
    """
    count = int(
        fetch_value(db, "SELECT count(*) FROM (SELECT 1 FROM record LIMIT ?)", (SMALL + 1,))
    )
    size = int(db.pragma("page_count")) * int(db.pragma("page_size"))
    found = (
        list(_guarded("the file", lambda: _pages(db, deep=deep)))
        if deep or size <= SMALL_BYTES
        else []
    )
    noted, look = Damaged(_ALL), Look(db, set(), vectors)
    if not deep and count > SMALL:
        found += _guarded("the index of words", lambda: _unusable_words(look))
        return [*found, *_guarded("records", lambda: _some_records(db))]
    found += _guarded("records", lambda: _all_records(look, noted))
    for part in PARTS if look.whole else ():
        if deep or part.cheap:
            found += _guarded(part.what, functools.partial(part.check, look), derived=True)
    return found


def repair(db: apsw.Connection, vectors: "Callable[[Collection], VectorIndex]") -> list[str]:
    """Make again what is derived and wrong, inside a transaction that writes; return what was
    mended.

    Raises:
        StoreDamaged: SQLite can't read the records.
    """
    look = Look(db, set(), vectors)
    found = list(_guarded("records", lambda: _all_records(look, Damaged(_ALL))))
    if not look.whole:
        raise StoreDamaged(f"nothing was made again: {found[0].what}; {SALVAGE}")
    mended: list[str] = []
    messages = _messages(db, "integrity_check")
    if any(map(_is_of_index, messages)) and _tried(db, lambda: db.execute("REINDEX")):
        mended.append("the indexes of the tables")
    for part in PARTS:
        told = any(_is_of(part, message) for message in messages)
        wrong = told or list(_guarded(part.what, functools.partial(part.check, look)))
        if wrong and _tried(db, functools.partial(part.mend, look)):
            mended.append(part.what)
    return mended


def _tried(db: apsw.Connection, mend: Callable[[], object]) -> bool:
    """Mend something, and return whether that was done; what can't be mended must not keep the rest
    from it.
    """
    db.execute("SAVEPOINT mending")
    try:
        mend()
    except _UNREADABLE:
        db.execute("ROLLBACK TO mending")
        return False
    finally:
        db.execute("RELEASE mending")
    return True


def _guarded(
    what: str, look: Callable[[], Iterable[Finding]], *, derived: bool = False
) -> Iterator[Finding]:
    """Yield what is found; a part that can't be read at all is a finding too."""
    try:
        yield from look()
    except _UNREADABLE as exc:
        derived = derived and not isinstance(
            exc, apsw.SQLError
        )  # of a table that is not as it was made
        yield Finding(f"{what} can't be read ({exc})", FIX if derived else SALVAGE, derived=derived)


# --- the file and its records
# ----------------------------------------------------------------------------------------


def _pages(db: apsw.Connection, *, deep: bool) -> Iterator[Finding]:
    """Yield what SQLite finds in its pages and indexes."""
    for message in _messages(db, f"{'integrity' if deep else 'quick'}_check"):
        if _WORDS_PART.search(message) and not index.is_of_pages(message):
            continue  # see `_unusable_words`
        if message.startswith("NULL value in record."):
            continue  # its checksum tells
        derived = _is_of_index(message) or any(_is_of(part, message) for part in PARTS)
        yield Finding(
            f"the file is damaged: {message}", FIX if derived else SALVAGE, derived=derived
        )


def _messages(db: apsw.Connection, check: str) -> list[str]:
    """Return what a check by SQLite finds; where it can't open an index of words, what it finds in
    other tables.
    """
    index.broken(
        db, None
    )  # so that SQLite looks at the index again, which another process may have made anew
    try:
        rows: list[Any] = db.execute(f"PRAGMA {check}").fetchall()
    except apsw.SQLError:
        rows = []
        for (name,) in fetch(
            db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        ):
            try:
                rows += db.execute(f"PRAGMA {check}({name})").fetchall()
            except apsw.CorruptError as exc:
                rows.append((f"Tree of {name}: {exc}",))
    return [str(message) for (message,) in rows if message != "ok"]


def _is_of_index(message: str) -> bool:
    return "index" in message and not _WORDS_PART.search(message)


def _is_of(part: "Part", message: str) -> bool:
    """Return whether a check by SQLite says that rows of a part are wrong."""
    return bool(part.rows and re.search(part.rows, message)) and not index.is_of_pages(message)


def _records(
    db: apsw.Connection, noted: Damaged, condition: str = "true", *values: Any
) -> Iterator[dict[int, Any]]:
    """Yield the sound records by seq, page by page; the seq of a damaged one stands for it."""
    behind = -(2**62)
    while True:
        sql = f"{READ_ANY} WHERE r.seq > ? AND {condition} ORDER BY r.seq LIMIT ?"
        rows = fetch(db, sql, (behind, *values, _PAGE))
        if not rows:
            return
        behind = rows[-1][0]
        yield dict.fromkeys(row[0] for row in rows) | dict(records_of(db, rows, noted))


def _all_records(look: Look, noted: Damaged) -> Iterator[Finding]:
    for page in _records(look.db, noted):
        look.damaged.update(seq for seq, record in page.items() if record is None)
    look.whole = True
    yield from noted.since()


def _some_records(db: apsw.Connection) -> Iterator[Finding]:
    """Yield what is damaged among the newest records and among others that are drawn by chance."""
    noted = Damaged(_ALL)
    newest = int(fetch_value(db, "SELECT max(seq) FROM record"))
    oldest = int(fetch_value(db, "SELECT min(seq) FROM record"))
    half = SOME // 2
    drawn = random.randint(oldest, max(oldest, newest - half))  # noqa: S311 - so that each look sees others
    for first in (newest - half, drawn):
        for _ in _records(db, noted, "r.seq BETWEEN ? AND ?", first, first + half):
            pass
    yield from noted.since()


# --- what is derived
# -------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Something that is derived from the records.

    Attributes:
        what: What it is, for people.
        check: Yields what is wrong with it.
        mend: Makes it again.
        cheap: Whether the cheap check of a small store includes it.
        rows: What in a message of SQLite's check names its rows.
    """

    what: str
    check: Callable[[Look], Iterable[Finding]]
    mend: Callable[[Look], object]
    cheap: bool = True
    rows: str = ""


def _differing(look: Look, derived: Derived) -> Iterator[Finding]:
    rows = f"SELECT {derived.columns} FROM {derived.table}"
    sql = " UNION ALL ".join(
        f"SELECT * FROM (SELECT * FROM ({one}) EXCEPT SELECT * FROM ({other}))"
        for one, other in ((derived.expected, rows), (rows, derived.expected))
    )
    count = fetch_value(look.db, f"SELECT count(*) FROM ({sql})")
    if count:
        yield Finding(
            f"{derived.what} does not say what the records say, in {count} places",
            FIX,
            derived=True,
        )


def _made_again(look: Look, derived: Derived) -> None:
    look.db.execute(f"DELETE FROM {derived.table}")
    look.db.execute(f"INSERT INTO {derived.table} ({derived.columns}) {derived.expected}")


def _surplus(table: str, among: str = "record") -> Callable[[Look], Iterator[Finding]]:
    sql = f"SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM {among})"

    def surplus(look: Look) -> Iterator[Finding]:
        count = int(fetch_value(look.db, sql))
        if count:
            yield Finding(
                f"{table} has {count} rows of records that do not exist", FIX, derived=True
            )

    return surplus


def _without_surplus(table: str) -> Callable[[Look], object]:
    return lambda look: look.db.execute(
        f"DELETE FROM {table} WHERE seq NOT IN (SELECT seq FROM record)"
    )


def _last_number(look: Look) -> Iterator[Finding]:
    newest = int(fetch_value(look.db, "SELECT coalesce(max(seq), 0) FROM record"))
    last = fetch_value(look.db, "SELECT max(seq) FROM sqlite_sequence WHERE name = 'record'")
    if newest and (type(last) is not int or last < newest):
        what = f"the number of the last record is {last}, and there is one of {newest}"
        yield Finding(what, FIX, derived=True)


def _number_again(look: Look) -> None:
    look.db.execute("DELETE FROM sqlite_sequence WHERE name = 'record'")
    look.db.execute(
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'record', coalesce(max(seq), 0) FROM record"
    )


# --- words
# -----------------------------------------------------------------------------------------------------------

_TABLE_OF_WORDS = "CASE WHEN r.ended_at IS NOT NULL THEN 'ended' ELSE p.collection END"
_WORDS_PART = re.compile(
    r"fts5|inverted index|\b(turn_words|words_ended|words)(_data|_idx|_docsize|_config)?\b", re.I
)
_WORDS = {**{str(kind): table for kind, table in schema.WORDS.items()}, "ended": schema.WORDS_ENDED}
_CORPUS = "SELECT pool, ended, documents, tokens FROM corpus WHERE documents > 0"


def _unusable_words(look: Look, check: str | None = None) -> Iterator[Finding]:
    """Yield why the index of words can't be used, if that is so."""
    why = index.broken(look.db, check)
    if why is not None:
        yield Finding(f"the index of words is damaged: {why}", FIX, derived=True)


def _rows_of_words(look: Look) -> Iterator[Finding]:
    """Yield words of records that do not exist or are in another table, and records without
    words.
    """
    for unusable in _unusable_words(look, "quick_check"):
        look.words_told = True
        yield unusable
    counted: Counter[tuple[Any, bool]] = Counter()
    tokens: Counter[tuple[Any, bool]] = Counter()
    for kind, table in () if look.words_told else _WORDS.items():
        sql = f"SELECT r.seq, r.pool FROM record r JOIN pool p ON p.id = r.pool WHERE {_TABLE_OF_WORDS} = ?"
        expected = dict(fetch(look.db, sql, (kind,)))
        there = dict(fetch(look.db, f"SELECT id, sz FROM {table}_docsize"))
        wrong = (expected.keys() ^ there.keys()) | {
            seq for seq, size in there.items() if not _is_size(size)
        }
        count = len(wrong - look.damaged)
        if count:
            look.words_told = True
            yield Finding(
                f"the index of words and the records differ in {count} records", FIX, derived=True
            )
        for seq in expected.keys() & there.keys():
            corpus = expected[seq], kind == "ended"
            counted[corpus] += 1
            tokens[corpus] += tokens_in(there[seq])
    if not look.words_told and not look.damaged:
        sums = {(*corpus, count, tokens[corpus]) for corpus, count in counted.items()}
        if sums != {*fetch(look.db, _CORPUS)}:
            yield Finding("the counts of words of a namespace are wrong", FIX, derived=True)


def _is_size(size: Any) -> bool:
    return type(size) is bytes and len(size) > 0


def _words(look: Look) -> Iterator[Finding]:
    """Yield an index of words that is broken, or that has other words than the texts."""
    if look.words_told:
        return  # by `_rows_of_words`
    unusable = list(_unusable_words(look, "integrity_check"))
    yield from unusable or _other_words(look)


def _other_words(look: Look) -> Iterator[Finding]:
    """Yield records whose words in the index are not those of their text; the index is made anew to
    compare.
    """
    with contextlib.closing(scratch()) as fresh, fresh:
        for table in _WORDS.values():
            fresh.execute(schema.WORDS_AGAIN.format(table=table))
        fresh.execute(fetch_value(look.db, "SELECT sql FROM sqlite_schema WHERE name = 'corpus'"))
        _insert_words(look.db, fresh)
        wrong: set[int] = set()
        for table in _WORDS.values():
            sizes = f"SELECT id, sz FROM {table}_docsize"
            for of in (
                lambda db, table=table: _hashes(db, table),
                lambda db, sql=sizes: dict(fetch(db, sql)),
            ):
                ours, theirs = of(look.db), of(fresh)
                wrong.update(
                    seq for seq in ours.keys() | theirs.keys() if ours.get(seq) != theirs.get(seq)
                )
    count = len(wrong - look.damaged)
    if count:
        yield Finding(
            f"the index has other words than the text of {count} records", FIX, derived=True
        )


def _insert_words(db: apsw.Connection, target: apsw.Connection) -> None:
    """Index the words of all sound records of a store."""
    pools = {
        tuple(named): pool
        for pool, *named in fetch(db, "SELECT id, collection, namespace FROM pool")
    }
    for page in _records(db, Damaged()):
        for seq, record in page.items():
            if record is not None:
                index.insert(
                    target, [(seq, pools[record.ref.collection, record.ref.namespace], record)]
                )


def _hashes(db: apsw.Connection, table: str) -> dict[Any, int]:
    """Return for each row of an index of words a number that its terms and their places come to."""
    found: dict[int, int] = {}
    name = f"instances_{table}"
    db.execute(f"CREATE VIRTUAL TABLE temp.{name} USING fts5vocab('main', '{table}', 'instance')")
    try:
        for term, seq, place in db.execute(f"SELECT term, doc, offset FROM temp.{name}"):
            found[seq] = found.get(seq, 0) + zlib.crc32(f"{place} {term}".encode())
    finally:
        db.execute(f"DROP TABLE temp.{name}")
    return found


def _index_words(look: Look) -> None:
    look.words_told = True  # SQLite may still see what it knew of the index before
    index.make_again(look.db)
    _insert_words(look.db, look.db)
    schema.count_epoch(look.db, schema.WORDS_EPOCH)


# --- vectors
# ---------------------------------------------------------------------------------------------------------


def _damaged_vectors(look: Look, collection: Collection, table: str) -> list[int]:
    """Return the seqs of vectors that do not match their checksum or have no record."""
    sql = (
        f"SELECT v.seq, v.codes, v.crc, p.collection FROM {table} v LEFT JOIN record r ON r.seq = v.seq "
        "LEFT JOIN pool p ON p.id = r.pool"
    )
    used = spaces.known(look.db)
    size = code_bytes(used[1], compact=used[2]) if used and table in schema.VECTORS.values() else 1
    return [
        seq
        for seq, codes, crc, kind in fetch(look.db, sql)
        if kind != collection
        or type(codes) is not bytes
        or len(codes) % size
        or zlib.crc32(codes) != crc
    ]


def _vectors(look: Look) -> Iterator[Finding]:
    used = spaces.known(look.db)
    if used is not None and not used[1]:
        return  # see `spaces.wrong`
    for tables in (schema.VECTORS, schema.STAGED):
        for collection, table in tables.items():
            if used is None:
                count = int(fetch_value(look.db, f"SELECT count(*) FROM {table}"))
            else:
                count = len(_damaged_vectors(look, collection, table))
            if count:
                remedy = f"{FIX}, then: memory reembed"
                yield Finding(f"{count} vectors in {table} are damaged", remedy, derived=True)


def _drop_vectors(look: Look) -> None:
    """Remove damaged vectors; the records are found by words until they are embedded again."""
    for tables in (schema.VECTORS, schema.STAGED):
        for collection, table in tables.items():
            seqs = _damaged_vectors(look, collection, table) if spaces.known(look.db) else None
            if seqs is None:
                look.db.execute(f"DELETE FROM {table}")
            else:
                look.db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])
    _seal(look)


def _blocks(look: Look) -> Iterator[Finding]:
    """Yield blocks that are not what their vectors come to."""
    for collection, table in schema.BLOCKS.items():
        rows = fetch(look.db, f"SELECT hi, seqs, bits, pools FROM {table} ORDER BY hi")
        used = spaces.known(look.db)
        if used is not None and not used[1]:
            return  # see `spaces.wrong`
        if rows and used is None:
            yield Finding(f"{table} has blocks of vectors that do not exist", FIX, derived=True)
            continue
        below, wrong = 0, 0
        for hi, *block in rows:
            within = f"SELECT seq, codes FROM {schema.VECTORS[collection]} WHERE seq > ? AND seq <= ? ORDER BY seq"
            wrong += tuple(block) != look.vectors(collection).packed(
                look.db, fetch(look.db, within, (below, hi))
            )
            below = hi
        if wrong:
            yield Finding(
                f"{wrong} blocks in {table} are not those of their vectors", FIX, derived=True
            )


def _seal(look: Look) -> None:
    for collection, table in schema.BLOCKS.items():
        look.db.execute(f"DELETE FROM {table}")
        if spaces.known(look.db) is not None:
            look.vectors(collection).seal_all(look.db)


PARTS = (
    # First, since what is mended below sets them off.
    Part(
        "triggers that count",
        lambda it: counts.triggers_differ(it.db),
        lambda it: counts.make_triggers(it.db),
    ),
    Part("the number of the last record", _last_number, _number_again),
    Part(
        "what is noted of the vectors",
        lambda look: spaces.wrong(look.db),
        lambda look: spaces.mend(look.db),
    ),
    *(
        Part(
            derived.what,
            functools.partial(_differing, derived=derived),
            functools.partial(_made_again, derived=derived),
            rows=rf"\b{derived.table}\b",
        )
        for derived in DERIVED
    ),
    Part("counts of reads", _surplus("access"), _without_surplus("access")),
    Part(
        "the index of words",
        _rows_of_words,
        _index_words,
        rows=rf"{_WORDS_PART.pattern}|\bcorpus\b",
    ),
    Part("the words in the index", _words, _index_words, cheap=False),
    Part("vectors", _vectors, _drop_vectors, rows=r"\b(staged_)?(turn_)?vector\b"),
    Part("blocks of vectors", _blocks, _seal, cheap=False, rows=r"\b(turn_)?block\b"),
    # Last, since they count what is above.
    Part(
        "the counts of a namespace",
        lambda look: counts.miscounted(look.db),
        lambda look: counts.repair(look.db),
        rows=r"\bkey_pool\b|\bpool\.(live|deleted|without_vector)\b",
    ),
)
