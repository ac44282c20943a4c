"""Tables of the PostgreSQL store are replaced during use, to erase records and to change the
partitions.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from contract import (
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    at,
    embed,
    embed_other,
    everything,
    pool,
    record,
    search,
    stage_all,
    turn,
    unit_vectors,
)

from memories.errors import ConfigError, Conflict, MemoriesError, StoreBusy, StoreError
from memories.stores.postgres import rewrite
from memories.stores.postgres.query import Transaction
from memories.stores.postgres.store import PostgresStore
from memories.stores.records import Patch, Ref
from postgres_node import Node, on_disk

Opened = Callable[..., PostgresStore]


def assert_counts_match(store: PostgresStore) -> None:
    """Check that the stored counts match the records."""
    with store._server.read() as db:
        used = db.meta.used
        has = "false"
        if used is not None:
            has = (
                f"EXISTS (SELECT 1 FROM {used.table} v "
                "WHERE v.namespace = r.namespace AND v.seq = r.seq)"
            )
        assert db.rows(
            "SELECT namespace, collection, ended, documents, tokens, embedded, deleted FROM corpus "
            "WHERE documents > 0 ORDER BY 1, 2, 3"
        ) == db.rows(
            "SELECT namespace, collection, ended_at IS NOT NULL, count(*), sum(length)::bigint, "
            f"count(*) FILTER (WHERE {has}), "
            "count(*) FILTER (WHERE ended_at IS NOT NULL AND ended_by = 'delete') "
            "FROM record r GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        assert db.rows(
            "SELECT namespace, collection, key, value, live, ended FROM label "
            "WHERE live + ended <> 0 ORDER BY 1, 2, 3, 4"
        ) == db.rows(
            'SELECT r.namespace, r.collection, l.key COLLATE "C", l.value COLLATE "C", '
            "count(*) FILTER (WHERE ended_at IS NULL), "
            "count(*) FILTER (WHERE ended_at IS NOT NULL) "
            "FROM record r CROSS JOIN jsonb_each_text(r.labels) l "
            "GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        )


@contextlib.contextmanager
def writers(open_store: OpenStore) -> Iterator[tuple[list[str], list[MemoriesError]]]:
    """Write and change records in two threads during the block; yield the names that they wrote,
    and their errors.
    """
    ending = threading.Event()
    written: list[str] = []
    failures: list[MemoriesError] = []

    def write(number: int) -> None:
        own, made = open_store(SPACE), 0
        try:
            while not ending.is_set():
                group, made = f"w{number}-{made:05}", made + 1
                own.append([record(group, text=f"note {group}", labels={"n": str(made % 3)})])
                if made % 3 == 0:
                    own.patch(
                        [Patch(Ref(MEMORY, "ann", group, 1), at(made), "delete", {"x": made})]
                    )
                written.append(group)
        except MemoriesError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield written, failures
    finally:
        ending.set()
        for thread in threads:
            thread.join(300)


@pytest.mark.parametrize("partitions", [1, 2])
def test_other_writers_can_write_during_an_erasure(
    server: Node, url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The copy waits until they have written many times, and contains what they wrote meanwhile."""
    store = opened(f"{url}&partitions={partitions}")
    old = {f"m{number:03}" for number in range(300)}
    store.append([record(group, text=f"plain {group}") for group in sorted(old)])
    store.append([record("gone", text="zanzibarian secrecy", vectors=unit_vectors(1, seed=77))])
    make = rewrite._make_indexes
    meanwhile: list[int] = []

    def make_later(db: Transaction, one: str, other: str) -> None:
        before, deadline = len(written), time.monotonic() + 300
        while len(written) < before + 10 and not failures and time.monotonic() < deadline:
            time.sleep(0.01)
        meanwhile.append(len(written) - before)
        make(db, one, other)

    with writers(lambda space: opened(f"{url}&partitions={partitions}", space)) as (
        written,
        failures,
    ):
        monkeypatch.setattr(rewrite, "_make_indexes", make_later)
        assert store.remove([Ref(MEMORY, "ann", "gone", 1)]) == ()
    assert failures == []
    assert len(meanwhile) >= 2  # tables
    assert min(meanwhile) >= 10
    assert on_disk(server, b"zanzibarian") == []
    assert {entry.ref.group for entry in everything(store, pool(state="any"), limit=100_000)} == {
        *written,
        *old,
    }
    assert_counts_match(store)
    store.append([record("late", text="banana bread")])
    assert search(store, "banana bread")["late"].similarity == pytest.approx(1.0, abs=0.01)


def test_a_record_removed_while_its_table_is_copied_is_erased_too(
    server: Node, store: PostgresStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(
        [record("first", text="quixoticness"), record("second", text="zanzibarian"), record("kept")]
    )
    make, second = rewrite._make_indexes, open_store(SPACE)
    failures: list[MemoriesError] = []
    threads: list[threading.Thread] = []

    def remove() -> None:
        try:
            second.remove([Ref(MEMORY, "ann", "second", 1)])
        except MemoriesError as exc:
            failures.append(exc)

    def make_later(db: Transaction, one: str, other: str) -> None:
        if not threads:
            threads.append(threading.Thread(target=remove))
            threads[0].start()
            deadline = time.monotonic() + 300
            while store.count(pool()) != 1 and time.monotonic() < deadline:
                time.sleep(0.01)
        make(db, one, other)

    monkeypatch.setattr(rewrite, "_make_indexes", make_later)
    assert store.remove([Ref(MEMORY, "ann", "first", 1)]) == ()
    threads[0].join(300)
    assert failures == []
    assert [needle for needle in (b"quixotic", b"zanzibar") if on_disk(server, needle)] == []
    assert not store.info(pool()).erasing
    assert_counts_match(store)


def test_an_older_transaction_does_not_keep_removed_records(
    server: Node, store: PostgresStore
) -> None:
    """The transaction could still see the rows, and so could a VACUUM or ANALYZE of a table."""
    store.append([record(f"m{number}", text="plain") for number in range(5)])
    store.append([record("gone", text="zanzibarian secrecy")])
    with psycopg.connect(server.url()) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1 FROM pg_class")
        assert store.remove([Ref(MEMORY, "ann", "gone", 1)]) == ()
        assert on_disk(server, b"zanzibarian") == []
        assert store.count(pool()) == 5
    assert not store.info(pool()).erasing


def test_erasing_waits_for_other_transactions_before_giving_up(
    server: Node, store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can write in the meantime, and the attempt leaves only the removal."""
    store.append([record(f"m{number}") for number in range(5)])
    monkeypatch.setattr(rewrite, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(rewrite, "PATIENCE_SECONDS", 1.0)
    with psycopg.connect(server.url()) as reader:
        reader.execute(f"SELECT 1 FROM {schema}.record")
        with pytest.raises(StoreBusy, match="another transaction"):
            store.remove([Ref(MEMORY, "ann", "m3", 1)])
        assert store.count(pool()) == 4
        assert store.info(pool()).erasing
        store.append([record("m3")])
    assert store.remove([]) == ()
    assert not store.info(pool()).erasing
    assert store.count(pool()) == 5
    assert server.sql(f"SELECT count(*) FROM {schema}.change") == [(0,)]


def test_a_reader_that_began_before_a_table_is_replaced_sees_its_rows(
    store: PostgresStore, open_store: OpenStore
) -> None:
    store.append([record(f"m{number}") for number in range(5)])
    reader, done = open_store(SPACE), threading.Event()

    def remove() -> None:
        store.remove([Ref(MEMORY, "ann", "m1", 1)])
        done.set()

    thread = threading.Thread(target=remove)
    with reader._server.read(("ann",)) as db:
        thread.start()
        assert not done.wait(1)
        assert int(db.value("SELECT count(*) FROM record")) == 5
        assert int(db.value("SELECT count(*) FROM vector_a")) == 5
    thread.join(300)
    assert done.is_set()
    assert reader.count(pool()) == 4


def test_grants_survive_an_erasure(server: Node, url: str, opened: Opened, schema: str) -> None:
    store = opened(f"{url}&partitions=1")
    store.append([record("m"), record("n", labels={"a": "b"})])
    server.sql("CREATE ROLE reader LOGIN")
    server.sql(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    server.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
    try:
        reader = opened(server.url(user="reader", options=f"schema={schema}"))
        store.remove([Ref(MEMORY, "ann", "n", 1)])
        assert reader.count(pool()) == 1
        assert search(reader, "note").keys() == {"m"}
        reader.close()
    finally:
        server.sql("DROP OWNED BY reader")
        server.sql("DROP ROLE reader")


# --- another number of partitions


@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 5), (4, 1)])
def test_a_store_can_be_repartitioned_while_others_write(
    server: Node, schema: str, url: str, opened: Opened, before: int, after: int
) -> None:
    store = opened(f"{url}&partitions={before}")
    names = [f"ns{number}" for number in range(9)]
    store.append([record("m", namespace=name, text=f"apple of {name}", key="k") for name in names])
    store.stage(OTHER, {Ref(MEMORY, "ns1", "m", 1): embed_other("apple")})
    store.remove([Ref(MEMORY, "ns7", "m", 1)])
    with writers(lambda space: opened(url, space)) as (written, failures):
        assert store.repartition(after) == before
    assert failures == []
    assert store.repartition(after) == after
    assert store.count(pool(*names)) == 8
    assert store.count(pool(state="any")) == len(written)
    with pytest.raises(Conflict):
        store.append([record("n", namespace="ns3", key="k")])
    indexes = (
        "SELECT count(*) FROM pg_indexes "
        f"WHERE schemaname = '{schema}' AND tablename ~ '^(record|vector)'"
    )
    assert server.sql(indexes) == [((6 + 1 + 1) * after,)]
    found = server.sql(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass(%s)", (f"{schema}.record",)
    )
    assert found == [(0 if after == 1 else after,)]
    assert_counts_match(store)
    assert store.remove([Ref(MEMORY, "ns3", "m", 1)]) == ()
    later = opened(f"{url}&partitions={after}")
    found_by_words = later.candidates(
        pool(*names), vector=embed("apple of ns8")[0], terms=["apple"], k=20
    )
    assert {found.record.ref.namespace for found in found_by_words} == {*names} - {"ns3", "ns7"}
    stage_all(later)
    later.switch(OTHER)
    assert_counts_match(later)


def test_a_failed_repartition_changes_nothing(
    store: PostgresStore, server: Node, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([record("m"), record("m", namespace="bob")])
    monkeypatch.setattr(rewrite, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(rewrite, "PATIENCE_SECONDS", 0.5)
    parts = (
        "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass(%s)",
        (f"{schema}.record",),
    )
    with psycopg.connect(server.url()) as reader:
        reader.execute(f"SELECT 1 FROM {schema}.record")
        with pytest.raises(StoreBusy):
            store.repartition(5)
    assert server.sql(*parts) == [(2,)]
    assert store.count(pool("ann", "bob")) == 2
    with pytest.raises(ConfigError):
        store.repartition(65)
    assert store.repartition(3) == 2
    assert server.sql(*parts) == [(3,)]
    assert store.count(pool("ann", "bob")) == 2


def test_a_missing_store_is_not_repartitioned(store: PostgresStore) -> None:
    assert store.repartition(3) == 0
    assert store.info(pool()).schema_version is None


def test_a_url_with_more_partitions_names_the_command(
    url: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened(url).append([record("m")])
    assert opened(f"{url}&partitions=1").count(pool()) == 1
    assert caplog.text == ""
    assert opened(f"{url}&partitions=9").count(pool()) == 1
    assert "memory migrate --partitions 9" in caplog.text


# --- counts


def test_counts_match_the_records_after_any_change(store: PostgresStore) -> None:
    refs = [Ref(MEMORY, "ann", f"m{number}", 1) for number in range(6)]
    store.append([record(f"m{number}", labels={"n": str(number % 2)}) for number in range(4)])
    store.append(
        [record(f"m{number}", labels={"n": str(number % 2)}, vectors=None) for number in (4, 5)]
    )
    store.append([turn(number, labels={"speaker": "Ann"}) for number in range(3)])
    assert_counts_match(store)
    store.patch([Patch(refs[0], at(9), "delete", {}), Patch(refs[1], at(9), "update", {})])
    store.patch(
        [Patch(refs[4], at(9), "delete", {}), Patch(refs[4], at(9), "delete (restored)", {})]
    )
    assert_counts_match(store)
    deleted = pool(state="ended", ended_by="delete")
    assert store.count(deleted) == 1
    store.patch([Patch(refs[0], None, None, {})])
    assert store.count(deleted) == 0
    with pytest.raises(StoreError), store.transaction():
        store.append([record("x", labels={"n": "x"})])
        raise StoreError("undone")
    assert_counts_match(store)
    assert store.info(pool(state="any")).without_vector_count == 2
    store.stage(SPACE, {refs[5]: embed("note")})
    assert_counts_match(store)
    store.stage(SPACE, {refs[5]: embed("note again")})
    assert_counts_match(store)
    assert store.info(pool(state="any")).without_vector_count == 1
    store.remove([refs[1], refs[5], refs[4]])
    assert_counts_match(store)
    stage_all(store)
    assert_counts_match(store)
    store.switch(OTHER)
    assert_counts_match(store)
    assert store.labels(pool(), None) == {"n": 3}
    assert store.labels(pool(), "n") == {"0": 2, "1": 1}
    assert store.values(MEMORY, ["ann"], "n") == ["0", "1"]


def test_status_and_tags_do_not_read_the_records(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([record(f"m{number}", labels={"n": str(number)}) for number in range(5)])
    rows, asked = Transaction.rows, []

    def note(self: Transaction, sql: str, values: object = (), *, binary: bool = False) -> object:
        asked.append(sql)
        return rows(self, sql, values, binary=binary)  # type: ignore[arg-type]

    monkeypatch.setattr(Transaction, "rows", note)
    assert store.count(pool()) == 5
    assert store.count(pool(), at_most=3) == 3
    assert store.count(pool(state="ended", ended_by="delete")) == 0
    assert len(store.labels(pool(), "n")) == 5
    assert store.info(pool()).without_vector_count == 0
    assert asked
    assert [sql for sql in asked if "record r" in sql] == []


def test_a_store_from_before_the_first_release_is_refused(
    url: str, opened: Opened, server: Node, schema: str
) -> None:
    opened(url).append([record("m")])
    server.sql(f"UPDATE {schema}.meta SET value = 2 WHERE name = 'schema'")
    later = opened(url)
    for use in (lambda: later.count(pool()), lambda: later.append([record("n")])):
        with pytest.raises(StoreError, match="has schema 2, from before the first release; export"):
            use()
    server.sql(f"UPDATE {schema}.meta SET value = 3 WHERE name = 'schema'")
    assert opened(url).count(pool()) == 1


def test_statistics_contain_nothing_from_a_record(
    server: Node, store: PostgresStore, schema: str
) -> None:
    store.append(
        [
            record(
                f"m{number}",
                text="zanzibarian",
                labels={"colour": "ultramarinish"},
                fields={"x": "quixotical"},
            )
            for number in range(200)
        ]
    )
    store.append([record(f"k{number}", key=f"subjectible/{number}") for number in range(200)])
    server.sql("ANALYZE")
    words = ("zanzibar", "ultramarin", "quixotic", "subjectible")
    rows = [
        str(row)
        for row in server.sql("SELECT s::text FROM pg_stats s WHERE schemaname = %s", (schema,))
    ]
    assert rows
    assert [word for word in words if any(word in row for row in rows)] == []
    assert (
        store.remove([Ref(MEMORY, "ann", f"{kind}{n}", 1) for n in range(200) for kind in "mk"])
        == ()
    )
    assert [word for word in words if on_disk(server, word.encode())] == []


def test_a_load_is_searchable_before_and_after_indexing(
    server: Node, schema: str, url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.stores.postgres import counts, vectors

    monkeypatch.setattr(counts, "MANY_VECTORS", 150)
    monkeypatch.setattr(vectors, "EXACT_ROWS", 100)
    made = (
        "SELECT count(*) FROM pg_indexes "
        f"WHERE schemaname = '{schema}' AND indexdef LIKE '%%hnsw%%'"
    )
    drawn = unit_vectors(400, seed=9)
    store = opened(f"{url}&partitions=1")
    for start in (0, 200):
        numbers = range(start, start + 200)
        store.append(
            [record(f"m{number:03}", vectors=drawn[number : number + 1]) for number in numbers]
        )
    assert server.sql(made) == [(0,)]

    def nearest(asked: PostgresStore) -> set[str]:
        found = asked.candidates(pool(), vector=drawn[7], terms=[], k=10)
        return {candidate.record.ref.group for candidate in found}

    exact = nearest(store)
    assert "m007" in exact
    store.close()  # ends the load
    assert server.sql(made) == [(1,)]
    later = opened(url)
    assert nearest(later) == exact
    server.sql(
        "UPDATE pg_index SET indisvalid = false "
        f"WHERE indexrelid = '{schema}.vector_a_memory'::regclass"
    )
    later.append([record("one more")])  # as after a kill of the process that built it
    whole = (
        f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{schema}.vector_a_memory'::regclass"
    )
    assert server.sql(whole) == [(True,)]
    assert nearest(later) == exact
