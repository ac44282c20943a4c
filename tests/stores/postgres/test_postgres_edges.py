"""Connections to a PostgreSQL server, and the errors if they fail."""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from contract import SPACE, pool, record
from psycopg import conninfo

from memories import Memories
from memories.context.gateway import MemoryGateway
from memories.errors import (
    ConfigError,
    MemoriesError,
    StoreDamaged,
    StoreError,
    StoreUnreachable,
)
from memories.stores.postgres import connection as postgres_server
from memories.stores.postgres import errors as postgres_errors
from memories.stores.postgres.store import PostgresStore
from memories.stores.postgres.url import parse_url
from postgres_node import Node

Opened = Callable[..., PostgresStore]

# --- URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql:///db?host=/var/run/postgresql",
            {"dbname": "db", "host": "/var/run/postgresql"},
        ),
        ("postgres:///db?host=/tmp&schema=team", {"dbname": "db", "host": "/tmp"}),
        (
            "postgresql://me@/db?host=%2Ftmp&partitions=2",
            {"user": "me", "dbname": "db", "host": "/tmp"},
        ),
        (
            "postgresql://me@%2Fvar%2Frun%2Fpostgresql/db",
            {"user": "me", "host": "/var/run/postgresql", "dbname": "db"},
        ),
        ("postgresql://", {}),
        ("postgresql:///", {}),
        ("postgresql:///db", {"dbname": "db"}),
        ("postgresql://?dbname=db&user=me", {"dbname": "db", "user": "me"}),
        (
            "postgresql://h1:1,h2:2/db?target_session_attrs=any",
            {"host": "h1,h2", "port": "1,2", "dbname": "db"},
        ),
        ("postgresql://[::1]:5433/db", {"host": "::1", "port": "5433"}),
        ("postgresql://h1,[::1]:5/db", {"host": "h1,::1"}),
        ("postgresql://me:a%2Fb%3Fc@h/db", {"password": "a/b?c", "host": "h"}),
        ("postgresql://me:a?b@h/db", {"password": "a?b", "host": "h"}),
        ("postgresql://h/db?password=a+b%2Bc%20d", {"password": "a+b+c d"}),
        ("postgresql://h/db?options=-c%20work_mem%3D1MB", {"options": "-c work_mem=1MB"}),
        (
            "postgresql://h/db?connect_timeout=3&sslmode=verify-full",
            {"connect_timeout": "3", "sslmode": "verify-full"},
        ),
    ],
)
def test_every_form_of_url_reaches_the_driver_unchanged(url: str, expected: dict[str, str]) -> None:
    given = conninfo.conninfo_to_dict(parse_url(url).full)
    assert {name: given.get(name) for name in expected} == expected
    assert given["fallback_application_name"] == "memories"
    assert {"schema", "partitions"}.isdisjoint(given)


def test_a_password_is_found_anywhere_in_a_url() -> None:
    assert parse_url("postgresql://me:a%2Fb@h/db").password == "a/b"
    assert parse_url("postgresql:///db?password=a%20b").password == "a b"
    for url in ("postgresql://me:secret@h/db", "postgresql:///db?host=/tmp&password=secret"):
        assert "secret" not in parse_url(url).masked_url


@pytest.mark.parametrize(
    "options", ["partitions=-1", "partitions=1.5", "partitions=%C2%B2", "schema=a%20b", "schema="]
)
def test_our_own_options_are_checked(options: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(f"postgresql://h/db?{options}")


def test_a_store_is_reached_through_a_socket(opened: Opened) -> None:
    node = Node()
    node.settings["unix_socket_directories"] = str(node.folder)
    try:
        node.initialise().start()
        store = opened(f"postgresql:///postgres?host={node.folder}&port={node.port}&user=postgres")
        store.append([record("m")])
        other = opened(
            f"postgresql://postgres@{str(node.folder).replace('/', '%2F')}:{node.port}/postgres"
        )
        assert other.count(pool()) == 1
        assert store.info(pool()).url.startswith("postgresql:///postgres?host=/")
        store.close()
        other.close()
    finally:
        node.stop()


# --- the server's messages


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is in recovery mode",
        (
            "FATAL:  the database system is not yet accepting connections\n"
            "DETAIL:  Consistent recovery state has not been"
        ),
        "FATAL:  the database system is not accepting connections",
        "FATAL:  the database system is shutting down",
        (
            "server closed the connection unexpectedly\n"
            "\tThis probably means the server terminated abnormally"
        ),
        "FATAL:  too many connections for role \"me\"",
        "FATAL:  too many connections for database \"db\"",
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "FATAL:  remaining connection slots are reserved for non-replication superuser connections",
        "FATAL:  no more connections allowed (max_client_conn)",
        "FATAL:  terminating connection due to administrator command",
        "could not receive data from server: Connection reset by peer",
        "SSL SYSCALL error: EOF detected",
        (
            "Connection refused\n"
            "\tIs the server running on that host and accepting TCP/IP connections?"
        ),
        "No route to host",
        "Network is unreachable",
        "Connection timed out",
        "connection timeout expired",
        "could not translate host name \"db\" to address: Temporary failure in name resolution",
        "FATAL:  query_wait_timeout",
        "FATAL:  server login has been failing, try again later (server_login_retry)",
        (
            "connection to h1 failed: Connection refused\n"
            "connection to h2 failed: session is read-only"
        ),
    ],
)  # fmt: skip
def test_a_server_that_may_return_soon_counts_as_unreachable(said: str) -> None:
    error = postgres_errors.refusal(
        psycopg.OperationalError(f"connection failed: {said}"), "postgresql://h/d", ""
    )
    assert isinstance(error, StoreUnreachable)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  password authentication failed for user "me"',
        'FATAL:  database "d" does not exist',
        'FATAL:  no pg_hba.conf entry for host "1.2.3.4"',
        "session is read-only",
        "FATAL:  unsupported startup parameter: options",
        "SSL error: certificate verify failed",
    ],
)
def test_permanent_failures_do_not_count_as_unreachable(said: str) -> None:
    error = postgres_errors.refusal(
        psycopg.OperationalError(f"connection failed: {said}"), "postgresql://h/d", ""
    )
    assert type(error) is StoreError


@pytest.mark.parametrize(
    "code", ["57P01", "57P02", "57P03", "57P05", "08006", "08P01", "08001", "53300", "25P03"]
)
def test_a_terminated_session_counts_as_unreachable(code: str) -> None:
    made = psycopg.errors.lookup(code)("it was ended")
    assert isinstance(postgres_errors.translation(made, "postgresql://h/d"), StoreUnreachable)


@pytest.fixture
def limited(server: Node) -> Iterator[str]:
    """The URL of a role that is limited to two connections."""
    server.sql("CREATE ROLE limited LOGIN SUPERUSER")
    server.sql("ALTER ROLE limited NOSUPERUSER CONNECTION LIMIT 2")
    server.sql("CREATE SCHEMA limited AUTHORIZATION limited")
    yield server.url(user="limited", options="schema=limited&partitions=1")
    server.sql("SET client_min_messages = error; DROP SCHEMA limited CASCADE")
    server.sql("DROP ROLE limited")


def test_more_threads_than_connections_of_the_role_wait_for_each_other(
    limited: str, opened: Opened
) -> None:
    store = opened(limited, None)
    store.append([record("first", vectors=None)])
    failures: list[MemoriesError] = []

    def write(number: int) -> None:
        try:
            for part in range(5):
                store.append([record(f"m{number}-{part}", namespace=f"n{number}", vectors=None)])
        except MemoriesError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    assert store.count(pool(*(f"n{number}" for number in range(8)))) == 40
    store.close()


def test_waiting_for_a_full_server_ends_at_the_deadline(
    limited: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "BUSY_SECONDS", 0.3)
    plain = limited.partition("?")[0]
    with (
        psycopg.connect(plain),
        psycopg.connect(plain),
        pytest.raises(StoreUnreachable, match="no free connection"),
    ):
        opened(limited, None).count(pool())


def test_other_warnings_do_not_count_as_a_missing_replica(
    server: Node, opened: Opened, url: str
) -> None:
    """Only a wait for a replica that an administrator ended does."""
    store = opened(url)
    store.append([record("m")])
    schema = url.partition("schema=")[2].partition("&")[0]
    server.sql(
        f"CREATE FUNCTION {schema}.warn() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE WARNING 'anything'; RETURN NULL; END $$"
    )
    server.sql(
        f"CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON {schema}.corpus "
        f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.warn()"
    )
    store.append([record("n", namespace="bob")])
    assert store.count(pool("ann", "bob")) == 2


def test_a_session_that_ends_during_a_query_prints_nothing_to_stderr(
    server: Node,
    opened: Opened,
    url: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = opened(url)
    store.append([record("m")])
    ending = threading.Event()

    def end() -> None:
        while not ending.is_set():
            server.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'memories'"
            )

    thread = threading.Thread(target=end)
    thread.start()
    failed = 0
    deadline = time.monotonic() + 300
    while failed < 20 and time.monotonic() < deadline:
        try:
            store.append([record(f"n{time.monotonic_ns()}")])
        except StoreError:
            failed += 1
    ending.set()
    thread.join(300)
    assert failed == 20
    assert "psycopg" not in caplog.text
    assert capfd.readouterr().err == ""


# --- a gateway queues turns that a server can't store now


def test_turns_wait_in_the_queue_until_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    node = Node()
    try:
        node.initialise().start()
        with MemoryGateway(node.url()) as gateway:
            say = functools.partial(
                gateway.append_history, "talk", "user", ts="2026-01-02T10:00:00Z"
            )
            say("hello", turn_index=0)
            node.kill()
            for number in (1, 2):
                with pytest.raises(ConnectionError) as caught:
                    say(f"again {number}", turn_index=number)
                assert caught.value.queued  # type: ignore[attr-defined]
            node.start()
            say("back", turn_index=3)
            assert [turn["text"] for turn in gateway.tail_history("talk", 9)] == [
                "hello",
                "again 1",
                "again 2",
                "back",
            ]
            assert not gateway.queue
    finally:
        node.stop()


@pytest.mark.parametrize(
    "said", ["the database system is in recovery mode", "too many connections for role"]
)
def test_a_turn_that_the_server_refuses_temporarily_is_queued(
    server: Node, url: str, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("EMBEDDER", "none")
    monkeypatch.setattr(postgres_server, "BUSY_SECONDS", 0.1)

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError(f"connection failed: FATAL:  {said}")

    with MemoryGateway(url) as gateway:
        with monkeypatch.context() as down:
            down.setattr("memories.stores.postgres.patience.Connection.connect", refuse)
            with pytest.raises(ConnectionError) as caught:
                gateway.append_history("talk", "user", "hello", 0, "2026-01-02T10:00:00Z")
            assert caught.value.queued  # type: ignore[attr-defined]
        assert gateway.drain() == 1
        assert [turn["text"] for turn in gateway.tail_history("talk", 9)] == ["hello"]


# --- rights


def test_a_read_only_role_can_search_and_status_reports_it(
    server: Node, opened: Opened, url: str
) -> None:
    schema = url.partition("schema=")[2].partition("&")[0]
    owner = opened(url)
    owner.append([record("m", text="apple")])
    server.sql("CREATE ROLE reader LOGIN")
    server.sql(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    server.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
    try:
        reader = opened(server.url(user="reader", options=f"schema={schema}"), SPACE)
        assert [entry.text for entry in reader.scan(pool(), limit=5)] == ["apple"]
        assert reader.info(pool()).read_only
        assert not owner.info(pool()).read_only
        with pytest.raises(StoreError, match="may not do this"):
            reader.append([record("n")])
        reader.close()
    finally:
        server.sql("DROP OWNED BY reader")
        server.sql("DROP ROLE reader")


def test_a_lost_schema_is_not_replaced_by_an_empty_store(
    server: Node, schema: str, url: str, home: Path
) -> None:
    pad = home / "shared" / "scratchpad.yaml"
    with Memories(url, embedder="none") as memories:
        memories.create("Tea is served hot")
        memories.scratchpad()
        before = pad.read_bytes()
        server.sql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")
        with pytest.raises(StoreDamaged, match="has no records, but is still mirrored by"):
            memories.list()
        with pytest.raises(StoreDamaged):
            memories.scratchpad(refresh=True)
    for change in (Memories.list, lambda memories: memories.create("Tea is served cold")):
        with Memories(url, embedder="none") as memories, pytest.raises(StoreDamaged) as raised:
            change(memories)
        assert f" has no records, but is still mirrored by {pad}; put the records back" in str(
            raised.value
        )
    assert pad.read_bytes() == before
    pad.unlink()
    with Memories(url, embedder="none") as memories:
        assert memories.create("Tea is served cold").stored


def test_another_database_does_not_count_as_lost(
    server: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sql("CREATE DATABASE another")
    url = server.url("", options="schema=store_pgdatabase&partitions=2")
    try:
        monkeypatch.setenv("PGDATABASE", "postgres")
        with Memories(url, embedder="none") as memories:
            memories.create("Tea is served hot")
            memories.scratchpad()
        monkeypatch.setenv("PGDATABASE", "another")
        with Memories(url, embedder="none") as memories:
            assert memories.list().memories == ()
            assert memories.scratchpad().entries == ()
    finally:
        server.sql("DROP DATABASE another WITH (FORCE)")
        server.sql("SET client_min_messages = error; DROP SCHEMA store_pgdatabase CASCADE")


def test_memories_move_to_another_namespace_and_back(url: str) -> None:
    with (
        Memories(url, namespace="bob", shared=False, embedder="fake") as bob,
        Memories(url, namespace="ann", shared=False, embedder="fake") as ann,
    ):
        made = bob.create("Tea is served hot", key="tea", decay="reinforceable").id
        assert made
        bob.update(made, "Tea is served cold")
        bob.reinforce(made)
        # The memory itself isn't compared, since each `get` counts a read.
        before = bob.history(made)._replace(memory=None), bob.get(made).last_reinforced_at
        assert bob.move([made], "ann").versions == 2
        assert bob.list().memories == ()
        assert ann.id_of_key("tea") == made
        assert ann.search("how is tea served?")[0].memory.id == made
        ann.move([made], "bob")
        after = bob.history(made)._replace(memory=None), bob.get(made).last_reinforced_at
        assert after == before
        assert [check.problem for check in (*bob.verify_log(), *ann.verify_log())] == [None, None]
