"""The PostgreSQL store passes the contract on a real server; also tests of PostgreSQL alone."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from postgres_node import Node, free_port, on_disk

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    HISTORY,
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_words,
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

from memories import Memories  # noqa: E402
from memories.errors import (  # noqa: E402
    ConfigError,
    Conflict,
    EmbedderMismatch,
    ErasureUnfinished,
    MemoriesError,
    NotFound,
    SchemaTooNew,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from memories.stores import words as store_words  # noqa: E402
from memories.stores.postgres import connection as postgres_server  # noqa: E402
from memories.stores.postgres import counts as postgres_counts  # noqa: E402
from memories.stores.postgres import errors as postgres_errors  # noqa: E402
from memories.stores.postgres import rewrite as postgres_rewrite  # noqa: E402
from memories.stores.postgres import schema as postgres_schema  # noqa: E402
from memories.stores.postgres import search as postgres_search  # noqa: E402
from memories.stores.postgres import vectors as postgres_vectors  # noqa: E402
from memories.stores.postgres.query import Transaction  # noqa: E402
from memories.stores.postgres.store import PostgresStore  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Patch,
    Ref,
    TurnQuery,
)

RunPython = Callable[..., subprocess.CompletedProcess[str]]


class TestPostgres(StoreContract):
    """The contract on a PostgreSQL server."""


@pytest.mark.slow
class TestPostgresByIndex(StoreContract):
    """The same with limits so low that HNSW and the rarest words decide, as with many records."""

    sequences = 50

    @pytest.fixture
    def open_store(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
        monkeypatch.setattr(postgres_counts, "MANY_VECTORS", 1)
        monkeypatch.setattr(postgres_vectors, "EXACT_ROWS", 0)
        monkeypatch.setattr(postgres_search, "_RANK_ALL", 0)
        return open_store


# --- wrong servers


def refusal(store: PostgresStore) -> str:
    """Return the error of a store that can't be read; it is one line without the password."""
    with pytest.raises(StoreError) as caught:
        store.count(pool())
    assert type(caught.value) in (StoreError, StoreUnreachable)
    message = str(caught.value)
    assert "\n" not in message
    assert "secret" not in message
    return message


def test_a_wrong_password_is_refused_and_never_shown(
    server: Node, opened: Callable[..., PostgresStore]
) -> None:
    server.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        for written in ("secret", "secret%2F%3A", ""):
            url = server.url(user=f"guarded:{written}")
            assert "***" in refusal(opened(url)) or not written
        assert "check both" in refusal(opened(server.url(user="guarded:secret")))
        assert "check both" in refusal(
            opened(server.url(user="guarded", options="password=secret"))
        )
        assert "requires a password" in refusal(opened(server.url(user="guarded")))
        store = opened(server.url(user="guarded:right"))
        assert store.count(pool()) == 0
        assert "right" not in store.info(pool()).url
    finally:
        server.sql("DROP ROLE guarded")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"host": "no-such-host.invalid"}, "host is unknown"),
        ({"port": 0}, "nothing is listening"),
        ({"database": "missing"}, "does not have this database"),
        ({"user": "nobody-known"}, "does not have this user"),
        ({"user": "nobody-known:secret"}, "does not have this user"),
    ],
    ids=str,
)
def test_each_connection_failure_has_its_own_message(
    server: Node, opened: Callable[..., PostgresStore], change: dict[str, Any], expected: str
) -> None:
    parts = {
        "user": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": "postgres",
        **change,
    }
    parts["port"] = parts["port"] or free_port()
    store = opened("postgresql://{user}@{host}:{port}/{database}?connect_timeout=5".format(**parts))
    assert expected in refusal(store)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@h/d?schema=Bad-Name",
        "postgresql://me:secret@h/d?schema=pg_catalog",
        "postgresql://me:secret@h/d?partitions=0",
        "postgresql://me:secret@h/d?partitions=many",
        "postgresql://me:secret@[h/d",
    ],
)
def test_an_unacceptable_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresStore(url, None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("options", ["nonsense=secret", "sslmode=secret"])
def test_an_option_unknown_to_libpq_is_refused_on_connecting(server: Node, options: str) -> None:
    with pytest.raises((ConfigError, StoreError)) as caught:
        PostgresStore(server.url(user="postgres:secret", options=options), None).count(pool())
    assert "postgres:secret" not in str(caught.value)


def test_an_older_server_is_refused(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "OLDEST", 990_000)
    assert "99 or newer" in refusal(store)


def test_a_database_with_another_encoding_is_refused(
    server: Node, opened: Callable[..., PostgresStore]
) -> None:
    server.sql("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    store = opened(server.url("ascii"))
    assert "SQL_ASCII" in refusal(store)
    store.close()


def test_a_server_without_fsync_is_only_read(
    server: Node, store: PostgresStore, opened: Callable[..., PostgresStore], url: str
) -> None:
    store.append([record("m")])
    server.sql("ALTER SYSTEM SET fsync = off")
    server.sql("SELECT pg_reload_conf()")
    try:
        deadline = time.monotonic() + 300
        while server.sql("SHOW fsync") != [("off",)] and time.monotonic() < deadline:
            time.sleep(0.05)
        late = opened(url)
        assert late.count(pool()) == 1
        with pytest.raises(StoreError, match="fsync is off"):
            late.append([record("n")])
        late.touch([Ref(MEMORY, "ann", "m", 1)])
        assert late.count(pool()) == 1
    finally:
        server.sql("ALTER SYSTEM RESET fsync")
        server.sql("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    ("setting", "expected"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
def test_a_commit_waits_for_the_disk_regardless_of_role_settings(
    server: Node, store: PostgresStore, setting: str, expected: str
) -> None:
    server.sql(f"ALTER ROLE postgres SET synchronous_commit = {setting}")
    try:
        with store._server.write() as db:
            assert db.value("SHOW synchronous_commit") == expected
    finally:
        server.sql("ALTER ROLE postgres RESET synchronous_commit")


@pytest.fixture
def guest(server: Node) -> Iterator[Node]:
    """A server with a role that owns a schema in a database where it may make nothing else."""
    server.sql("CREATE ROLE guest LOGIN")
    server.sql("CREATE DATABASE plain")
    server.sql("CREATE SCHEMA mine AUTHORIZATION guest", database="plain")
    yield server
    server.sql("DROP DATABASE plain WITH (FORCE)")
    server.sql("DROP ROLE guest")


def test_a_user_without_the_right_to_create_a_schema_gets_an_error(
    guest: Node, opened: Callable[..., PostgresStore]
) -> None:
    store = opened(guest.url("plain", user="guest", options="schema=other"), None)
    assert store.count(pool()) == 0
    with pytest.raises(StoreError, match="may not do this"):
        store.append([record("m", vectors=None)])


def test_without_the_extension_only_words_work_and_the_error_names_the_remedy(
    guest: Node, opened: Callable[..., PostgresStore]
) -> None:
    store = opened(guest.url("plain", user="guest", options="schema=mine"))
    store.append([record("m", text="apple", vectors=None)])
    assert set(search(store, "apple")) == {"m"}
    with pytest.raises(StoreError, match="must run CREATE EXTENSION vector"):
        store.append([record("n", text="apple")])
    assert store.count(pool()) == 1
    guest.sql("CREATE EXTENSION vector", database="plain")
    store.append([record("n", text="apple")])
    assert search(store, "apple")["n"].similarity == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("name", "oldest", "expected"), [("nothing", (0, 8), "install it"), ("vector", (9, 0), "0.8")]
)
def test_missing_and_outdated_pgvector_have_different_errors(
    store: PostgresStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    oldest: tuple[int, int],
    expected: str,
) -> None:
    monkeypatch.setattr(
        postgres_vectors, "_EXTENSION", postgres_vectors._EXTENSION.replace("vector", name)
    )
    monkeypatch.setattr(postgres_vectors, "_OLDEST", oldest)
    with pytest.raises(StoreError, match=expected):
        store.append([record("m")])
    assert store.count(pool()) == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", StoreFull),
        *((code, StoreError) for code in ("53200", "25006", "42883")),
        *((code, StoreBusy) for code in ("57014", "40P01", "40001", "55P03")),
        *((code, StoreDamaged) for code in ("XX001", "XX002")),
        ("57P01", postgres_errors.Interrupted),
        ("23505", Conflict),
    ],
)
def test_each_error_code_of_the_server_is_translated(code: str, kind: type[MemoriesError]) -> None:
    from psycopg import errors

    translation = postgres_errors.translation(
        errors.lookup(code)("it failed\nDETAIL: more"), "postgresql://h/d"
    )
    assert type(translation) is kind
    assert "\n" not in str(translation)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=ascii)
def test_a_text_that_postgresql_cannot_hold_is_refused(store: PostgresStore, text: str) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="can't store"):
        store.append([record("n", text=text, vectors=None)])
    assert store.count(pool()) == 1


@pytest.mark.parametrize(
    "unfit", ["a\0b", "a\ud800b", float("nan"), -float("inf"), {"in": ["a\0b"]}], ids=ascii
)
@pytest.mark.parametrize("by", ["append", "patch"])
def test_a_field_that_postgresql_cannot_hold_is_refused(
    store: PostgresStore, unfit: Any, by: str
) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="can't store") as caught:
        if by == "append":
            store.append([record("n", fields={"x": 1}), record("o", fields={"x": unfit})])
        else:
            store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(1), "delete", {"x": unfit})])
    assert "\n" not in str(caught.value)
    assert [
        (entry.ref.group, entry.ended_at, entry.fields) for entry in everything(store, pool())
    ] == [("m", None, {})]


def test_a_label_with_a_nul_is_refused(store: PostgresStore) -> None:
    with pytest.raises(StoreError, match="NUL"):
        store.append([record("m", labels={"a\0": "b"})])
    assert store.count(pool()) == 0


def test_numbers_keep_their_types(store: PostgresStore) -> None:
    large = [1e15, 1e16, 1e20, -1.5e300, 123456789012345680.0]
    fields = {
        **{f"f{number}": value for number, value in enumerate([*large, 0.1, 1e-7, 5e-324, 2.0])},
        "whole": 10**20,
        "true": True,
        "text": "1e20",
        "written": '"\\u00001.0" and \\',
    }
    store.append([record("m", fields=fields), record("n")])
    store.patch([Patch(Ref(MEMORY, "ann", "n", 1), None, None, {**fields, "absent": None})])
    store.patch([Patch(Ref(MEMORY, "ann", "m", 1), None, None, {"whole": None})])
    found = {entry.ref.group: entry.fields for entry in everything(store, pool())}
    assert repr(sorted(found["n"].items())) == repr(sorted(fields.items()))
    del fields["whole"]
    assert repr(sorted(found["m"].items())) == repr(sorted(fields.items()))


def test_a_role_with_other_transaction_defaults_can_write(
    server: Node, opened: Callable[..., PostgresStore]
) -> None:
    server.sql("CREATE ROLE careful LOGIN SUPERUSER")
    server.sql("ALTER ROLE careful SET default_transaction_read_only = on")
    server.sql("ALTER ROLE careful SET default_transaction_isolation = 'serializable'")
    store = opened(server.url(user="careful", options="schema=careful&partitions=1"))
    try:
        store.append([record("m"), record("n")])
        store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(1), "delete", {})])
        assert store.remove([Ref(MEMORY, "ann", "m", 1)]) == ()
        with store._server.write() as db:
            assert db.value("SHOW transaction_isolation") == "read committed"
        assert store.count(pool(state="any")) == 1
    finally:
        store.close()
        server.sql("SET client_min_messages = error; DROP SCHEMA IF EXISTS careful CASCADE")
        server.sql("DROP ROLE careful")


# --- servers that stop


@pytest.fixture
def stop_sessions(server: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Stop the processes that serve stores, as on a machine that hangs, with short deadlines."""
    monkeypatch.setattr(postgres_server, "READ_SECONDS", 0.5)
    monkeypatch.setattr(postgres_server, "WRITE_SECONDS", 1.0)
    stopped: list[int] = []

    def stop() -> None:
        rows = server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'memories'")
        assert rows
        for (pid,) in rows:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("by", ["count", "append", "a long text", "transaction", "remove"])
def test_waiting_for_a_stopped_server_ends_at_the_deadline(
    store: PostgresStore, stop_sessions: Callable[[], None], by: str
) -> None:
    def inside() -> None:
        with store.transaction():
            store.append([record("n")])
            stop_sessions()
            long = (
                {"long": "x" * 20_000_000} if by == "a long text" else {}
            )  # more than fits into the buffers between the two
            store.append([record("o", fields=long, vectors=None)])

    store.append([record("m")])
    ask: dict[str, Callable[[], object]] = {
        "count": lambda: store.count(pool()),
        "append": lambda: store.append([record("n")]),
        "remove": lambda: store.remove([]),
    }
    if by in ask:
        stop_sessions()
    with pytest.raises(
        StoreUnreachable, match=r"has not answered for \d seconds|was lost"
    ) as caught:
        ask.get(by, inside)()  # the server continues only after this test
    assert "\n" not in str(caught.value)
    assert {entry.ref.group for entry in everything(store, pool())} == {"m"}  # reconnected


def test_a_commit_interrupted_by_a_server_stop_is_in_doubt(
    store: PostgresStore, stop_sessions: Callable[[], None]
) -> None:
    store.append([record("m")])
    with pytest.raises(StoreUnreachable, match="may or may not be stored"), store.transaction():
        store.append([record("n")])
        stop_sessions()
    assert store.count(pool()) == 1


def test_an_erasure_can_take_longer_than_the_deadline(
    server: Node, store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    store.append([record("m"), record("n")])
    monkeypatch.setattr(postgres_server, "WRITE_SECONDS", 0.5)
    with psycopg.connect(server.url()) as reader:
        for number in range(2):
            reader.execute(f"LOCK TABLE {schema}.record_p{number} IN ACCESS SHARE MODE")
        timer = threading.Timer(2, reader.rollback)
        timer.start()
        assert store.remove([Ref(MEMORY, "ann", "m", 1)]) == ()  # the removal waits for the reader
        timer.join()
    assert not store.info(pool()).erasing


# --- connections


def end_sessions(server: Node) -> None:
    """End the sessions of stores on the server, as an administrator or a restart would."""
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'memories'"
    )


def forget_and_lose(
    store: PostgresStore, number: int, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Forget a memory and lose the connection before a statement after the commit; return the
    message of `ErasureUnfinished`, if it is raised.
    """
    import psycopg

    memories = Memories(store, embedder="none")
    made = memories.create(f"the quixotrumpel {number}", force=True).memory
    assert made is not None
    state, execute = {"deleted": False, "committed": False, "seen": 0}, psycopg.Connection.execute

    def losing(connection: Any, query: Any, *args: Any, **given: Any) -> Any:
        sql = str(query)
        if state["committed"]:
            state["seen"] += 1
            if state["seen"] == number:
                state["committed"] = False
                lose()
        state["deleted"] |= sql.startswith("DELETE FROM record ")
        done = execute(connection, query, *args, **given)
        state["committed"] |= state["deleted"] and state["seen"] == 0 and sql.endswith("COMMIT")
        return done

    try:
        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "execute", losing)
            memories.forget(made.id)
    except ErasureUnfinished as exc:
        assert made.id not in {found.id for found in memories.list().memories}
        with contextlib.suppress(NotFound):  # it was erased, but the client didn't learn it
            memories.forget(made.id)
        return str(exc)
    assert made.id not in {found.id for found in memories.list().memories}
    return "" if state["seen"] < number else "it went on"


@pytest.mark.parametrize(
    "numbers", [[2, 9], pytest.param(range(1, 200), marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_an_erasure_that_loses_its_connection_is_reported_as_unfinished(
    server: Node, store: PostgresStore, numbers: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for number in numbers:
        told = forget_and_lose(store, number, lambda: end_sessions(server), monkeypatch)
        if not told:
            break
        said.append(told)
    assert len(said) > 1
    assert all(each == "it went on" or each.endswith("; forget it again") for each in said), said
    assert not any("nothing was" in each for each in said)
    assert any("is gone, but some of its bytes may still be on the disk" in each for each in said)
    assert not store.info(pool()).erasing


def test_a_closed_connection_is_reopened(server: Node, store: PostgresStore, schema: str) -> None:
    store.append([record("m")])
    end_sessions(server)
    assert store.count(pool()) == 1
    end_sessions(server)
    store.append([record("n")])
    end_sessions(server)
    with store.transaction():
        assert store.count(pool()) == 2


def test_a_read_that_loses_its_connection_is_repeated_once(
    server: Node, store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([record("m", text="apple")])
    plain, losses = Transaction.rows, iter([True, False, True, True])

    def rows(self: Transaction, sql: str, values: Any = (), *, binary: bool = False) -> Any:
        if "record r" in sql and next(losses, False):
            end_sessions(server)
        return plain(self, sql, values, binary=binary)

    monkeypatch.setattr(Transaction, "rows", rows)
    assert [entry.text for entry in store.scan(pool(), limit=5)] == ["apple"]
    with pytest.raises(StoreError, match="lost"):
        store.scan(pool(), limit=5)
    assert store.count(pool()) == 1


def test_a_transaction_that_loses_its_connection_writes_nothing(
    server: Node, store: PostgresStore, schema: str
) -> None:
    store.append([record("m")])
    with pytest.raises(StoreError, match="nothing was written"), store.transaction():
        store.append([record("n")])
        end_sessions(server)
        store.append([record("o")])
    assert {entry.ref.group for entry in everything(store, pool())} == {"m"}
    store.append([record("p")])


def test_a_swallowed_failure_inside_a_transaction_is_raised_at_its_end(
    store: PostgresStore,
) -> None:
    """The server then turns the commit into a rollback, and mentions that only in the command
    tag.
    """
    store.append([record("m")])
    with pytest.raises(StoreError, match="nothing was written"), store.transaction():
        store.append([record("n")])
        with pytest.raises(StoreError), store._server.read() as db:
            db.rows("SELECT 1 / 0")
    assert store.count(pool()) == 1
    with store.transaction():
        with pytest.raises(StoreError), store._server.write() as db:
            db.rows("SELECT 1 / 0")
        store.append([record("n")])
    assert store.count(pool()) == 2


def test_closing_a_store_during_a_read_leaves_no_connection_open(
    server: Node, store: PostgresStore
) -> None:
    with store._server.read():
        store.close()
    assert store._server._idle == []


def test_without_its_driver_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"run: .* install .*\[postgres\]"):
        PostgresStore("postgresql://h/d", None)


def test_a_driver_that_cannot_be_loaded_is_a_one_line_error(run_python: RunPython) -> None:
    script = """
import os
os.environ["PSYCOPG_IMPL"] = "missing"  # it then finds no libpq either
from memories.errors import ConfigError
from memories.stores.records import Collection, Filter, Ref
from memories.stores.postgres.store import PostgresStore
store, said = PostgresStore("postgresql://me:secret@h/d", None), []
where = Filter(Collection.MEMORY, ("ann",))
for ask in (
    lambda: store.count(where),
    lambda: store.touch([Ref(Collection.MEMORY, "ann", "m", 1)]),
    lambda: store.remove([]),
):
    try:
        ask()
    except ConfigError as exc:
        said.append(str(exc))
assert len(said) == 3 and len(set(said)) == 1
print(said[0])
"""
    (said,) = run_python(script).stdout.splitlines()
    assert "can't be loaded" in said
    assert "[postgres]" in said.partition("run: ")[2]
    assert "secret" not in said


@pytest.mark.parametrize(
    ("by", "kind", "expected"),
    [
        ("terminate", StoreUnreachable, "may or may not be stored"),
        ("cancel", StoreError, "not on its replicas"),
    ],
)
def test_a_commit_in_doubt_is_reported_and_not_repeated(
    server: Node, store: PostgresStore, by: str, kind: type[StoreError], expected: str
) -> None:
    """The server waits for a missing replica until the session, or only the wait, is ended."""
    store.append([record("m")])
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'")
    server.sql("SELECT pg_reload_conf()")
    caught: list[BaseException] = []

    written: list[str] = []

    def write() -> None:
        try:
            for number in range(10_000):  # it takes a moment until the server waits
                written.append(f"n{number}")
                store.append([record(written[-1])])
        except MemoriesError as exc:
            caught.append(exc)

    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event = 'SyncRep' AND application_name = 'memories'"
    )
    try:
        thread = threading.Thread(target=write)
        thread.start()
        deadline = time.monotonic() + 300
        while server.sql(waiting) != [(1,)] and time.monotonic() < deadline:
            time.sleep(0.05)
        server.sql(
            f"SELECT pg_{by}_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        thread.join(300)
        assert not thread.is_alive()
    finally:
        server.sql("ALTER SYSTEM RESET synchronous_standby_names")
        server.sql("SELECT pg_reload_conf()")
    assert [type(error) for error in caught] == [kind]
    assert expected in str(caught[0])
    assert {entry.ref.group for entry in everything(store, pool())} == {"m", *written}


def test_more_threads_than_connections_wait_for_each_other(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([record("m")])
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.count(pool())))
        for _ in range(3 * postgres_server.MAX_CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == [1] * len(threads)
    assert len(store._server._idle) <= postgres_server.MAX_CONNECTIONS


def test_a_forked_process_opens_its_own_connections(url: str, run_python: RunPython) -> None:
    script = """
import os, sys
from datetime import UTC, datetime
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1], None)
mine = Filter(Collection.MEMORY, ("ann",))
def add(group):
    store.append([Record(Ref(Collection.MEMORY, "ann", group, 1), "text", datetime.now(UTC))])
add("parent")
for number in range(3):
    child = os.fork()
    if not child:
        add(f"child{number}")
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
add("again")
print(store.count(mine))
store.close()
"""
    assert run_python(script, url).stdout.split() == ["5"]


def test_many_processes_can_create_the_store_simultaneously(
    url: str, opened: Callable[..., PostgresStore]
) -> None:
    script = """
import sys
from datetime import UTC, datetime
from memories.embedders.fake import FakeEmbedder
from memories.stores.records import Collection, Record, Ref
from memories.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1], FakeEmbedder.space)
sys.stdin.readline()
for number in range(5):
    ref = Ref(Collection.MEMORY, f"ns{int(sys.argv[2]) % 3}", f"{sys.argv[2]}-{number}", 1)
    store.append([Record(ref, "text", datetime.now(UTC), vectors=FakeEmbedder().embed("text"))])
store.close()
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, url, str(number)], stdin=subprocess.PIPE, text=True
        )
        for number in range(6)
    ]
    for process in processes:
        process.communicate("go\n", timeout=300)
    assert [process.returncode for process in processes] == [0] * 6
    assert opened(url).count(pool("ns0", "ns1", "ns2")) == 30


# --- locks


def test_writers_of_different_namespaces_do_not_wait_for_each_other(store: PostgresStore) -> None:
    store.append([record("m"), record("m", namespace="bob")])
    done = threading.Event()

    def write() -> None:
        store.append([record("n", namespace="bob")])
        done.set()

    with store.transaction():
        store.append([record("n")])
        thread = threading.Thread(target=write)
        thread.start()
        assert done.wait(300)
    thread.join(300)


def test_a_writer_that_waits_too_long_gets_an_error(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "BUSY_SECONDS", 0.3)
    first, second = open_store(SPACE), open_store(SPACE)
    first.append([record("m")])
    failures: list[BaseException] = []

    def write() -> None:
        try:
            second.append([record("o")])
        except MemoriesError as exc:
            failures.append(exc)

    with first.transaction():
        assert first.count(pool()) == 1  # others can't change what the transaction has read
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(300)
    assert [type(failure) for failure in failures] == [StoreBusy]
    assert first.count(pool()) == 1


def test_two_deadlocked_transactions_end_with_an_error(open_store: OpenStore) -> None:
    one, two = open_store(SPACE), open_store(SPACE)
    one.append([record("m"), record("m", namespace="bob")])
    met = threading.Barrier(2, timeout=300)
    failures: list[BaseException] = []

    def write(store: Any, first: str, second: str) -> None:
        try:
            with store.transaction():
                store.append([record(f"by-{first}", namespace=first)])
                met.wait(300)
                store.append([record(f"by-{first}", namespace=second)])
        except MemoriesError as exc:
            failures.append(exc)

    threads = [
        threading.Thread(target=write, args=arguments)
        for arguments in ((one, "ann", "bob"), (two, "bob", "ann"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [type(failure) for failure in failures] == [StoreBusy]
    assert one.count(pool("ann", "bob")) == 4


def test_counting_an_access_does_not_wait_for_a_writer(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "BUSY_SECONDS", 3600)
    writer, reader = open_store(SPACE), open_store(SPACE)
    writer.append([record("m")])
    ref = Ref(MEMORY, "ann", "m", 1)
    with writer.transaction():
        writer.touch([ref])
        thread = threading.Thread(target=reader.touch, args=([ref],), daemon=True)
        thread.start()
        thread.join(100)
        assert not thread.is_alive()  # a write would wait for an hour
    assert reader.scan(pool(), limit=1)[0].accesses in (1, 2)


@pytest.mark.parametrize("by", ["unstaged", "namespaces"])
def test_a_read_of_the_whole_store_excludes_writers(open_store: OpenStore, by: str) -> None:
    first, second, other = open_store(SPACE), open_store(SPACE), open_store(OTHER)
    first.append([record("m")])
    stage_all(first)
    done, failures = threading.Event(), []

    def write() -> None:
        try:
            second.append([record("n", namespace="bob")])
        except MemoriesError as exc:
            failures.append(exc)
        done.set()

    with other.transaction():
        if by == "unstaged":
            assert other.unstaged(OTHER, MEMORY, limit=9) == []
        else:
            assert other.namespaces(MEMORY) == ["ann"]
        thread = threading.Thread(target=write)
        thread.start()
        assert not done.wait(0.7)
        assert other.namespaces(MEMORY) == ["ann"]
        other.switch(OTHER)
    thread.join(300)
    assert [type(failure) for failure in failures] == [EmbedderMismatch]
    assert other.namespaces(MEMORY) == ["ann"]


def test_the_embedder_can_be_changed_while_others_write(open_store: OpenStore) -> None:
    """Each of them succeeds, or gets the error about the change. They write half as many records as
    the embedder embeds, so that it catches up even on a slow machine.
    """
    from memories.embedders.fake import FakeEmbedder
    from memories.transfer.migrate import reembed

    writers = 4
    allowed, embedded = threading.Semaphore(writers), itertools.count(1)

    class Other(FakeEmbedder):
        space = OTHER

        def embed(self, text: str) -> Any:
            if next(embedded) % 2 == 0:
                allowed.release()
            return embed_other(text)

    store = open_store(SPACE)
    store.append([record(f"m{number}", namespace=f"n{number % 4}") for number in range(40)])
    ending, failures, added = threading.Event(), [], []

    def write(number: int) -> None:
        own = open_store(SPACE)
        for turn_of in itertools.count():
            allowed.acquire()
            if ending.is_set():
                return
            try:
                own.append([record(f"w{number}-{turn_of}", namespace=f"n{turn_of % 4}")])
            except EmbedderMismatch:
                return
            except MemoriesError as exc:
                failures.append(exc)
                return
            added.append(f"w{number}-{turn_of}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        later = open_store(OTHER)
        done = reembed(later, Other(), progress=lambda *_: None)
    finally:
        ending.set()
        allowed.release(writers)
        for thread in threads:
            thread.join(300)
    assert failures == []
    where = pool("n0", "n1", "n2", "n3")
    assert later.count(where) == 40 + len(added) >= done.embedded
    assert later.count(where) == 40 + len(added) >= done.embedded
    assert next(embedded) > done.embedded  # writers got a turn before each text
    assert later.info(where).model == OTHER.model
    assert later.info(where).without_vector_count == 0


def test_a_record_that_ends_during_staging_stays_ended_after_the_switch(
    open_store: OpenStore, server: Node, schema: str
) -> None:
    first, second = open_store(SPACE), open_store(SPACE)
    first.append([record("m"), record("n")])
    ref = Ref(MEMORY, "ann", "m", 1)
    thread = threading.Thread(target=second.patch, args=([Patch(ref, at(1), "delete", {})],))
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event = 'advisory' AND application_name = 'memories'"
    )
    with first.transaction():
        stage_all(first)
        thread.start()
        deadline = time.monotonic() + 300
        while server.sql(waiting) != [(1,)] and time.monotonic() < deadline:
            time.sleep(0.05)
    thread.join(300)
    first.switch(OTHER)
    assert server.sql(f"SELECT count(*) FROM {schema}.vector_b WHERE live") == [(1,)]
    found = open_store(OTHER).candidates(pool(), vector=embed_other("note m 1")[0], terms=[], k=9)
    assert {candidate.record.ref.group for candidate in found} == {"n"}


def test_a_switch_to_the_current_space_changes_nothing(store: PostgresStore) -> None:
    store.append([record("m", text="apple"), record("n", vectors=None)])
    store.switch(SPACE)
    assert [entry.ref.group for entry in store.unstaged(SPACE, MEMORY, limit=9)] == ["n"]
    assert search(store, "apple")["m"].similarity == pytest.approx(1.0, abs=0.01)


# --- the schema


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make this program a newer one, whose schema has one more step."""

    def upgrade() -> None:
        more = (
            *postgres_schema.MIGRATIONS,
            lambda _: "CREATE TABLE added (x int); INSERT INTO added VALUES (1)",
        )
        monkeypatch.setattr(postgres_schema, "MIGRATIONS", more)

    return upgrade


@pytest.mark.parametrize("by", ["reading", "writing"])
def test_an_older_schema_is_upgraded_once(
    open_store: OpenStore, server: Node, schema: str, newer: Callable[[], None], by: str
) -> None:
    open_store(SPACE).append([record("m", text="apple")])
    newer()
    later = open_store(SPACE)
    for number in range(2):
        if by == "reading":
            assert later.count(pool()) == 1
        else:
            later.append([record(f"n{number}")])
    assert later.info(pool()).schema_version == len(postgres_schema.MIGRATIONS)
    assert server.sql(f"SELECT x FROM {schema}.added") == [(1,)]
    assert search(later, "apple")["m"].similarity == pytest.approx(1.0, abs=0.01)


def test_a_failed_step_leaves_the_schema_unchanged(
    open_store: OpenStore, server: Node, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(SPACE).append([record("m")])
    known = postgres_schema.MIGRATIONS
    monkeypatch.setattr(
        postgres_schema,
        "MIGRATIONS",
        (*known, lambda _: "CREATE TABLE added (x int); SELECT 1 / 0"),
    )
    with pytest.raises(StoreError):
        open_store(SPACE).append([record("n")])
    assert server.sql("SELECT to_regclass(%s)", (f"{schema}.added",)) == [(None,)]
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", known)
    assert open_store(SPACE).count(pool()) == 1


def test_a_newer_schema_is_refused_and_not_changed(
    open_store: OpenStore, newer: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = open_store(SPACE)
    early.append([record("m")])
    with monkeypatch.context() as later:
        later.setattr(
            postgres_schema,
            "MIGRATIONS",
            (*postgres_schema.MIGRATIONS, lambda _: "CREATE TABLE added (x int)"),
        )
        open_store(SPACE).append([record("n")])
    for old in (early, open_store(SPACE)):
        with pytest.raises(SchemaTooNew, match="upgrade memoriae"):
            old.count(pool())
        with pytest.raises(SchemaTooNew):
            old.append([record("o")])
        with pytest.raises(SchemaTooNew):
            old.remove([Ref(MEMORY, "ann", "m", 1)])
    newer()
    assert open_store(SPACE).count(pool()) == 2


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_number_of_partitions_is_chosen_at_creation(
    url: str, opened: Callable[..., PostgresStore], server: Node, schema: str, partitions: int
) -> None:
    store = opened(f"{url}&partitions={partitions}")
    names = [f"ns{number}" for number in range(12)]
    store.append([record("m", namespace=name, text=f"apple of {name}", key="k") for name in names])
    with pytest.raises(Conflict):
        store.append([record("n", namespace="ns3", key="k")])
    store.patch([Patch(Ref(MEMORY, name, "m", 1), at(5), "delete", {"x": 1}) for name in names[:6]])
    store.remove([Ref(MEMORY, "ns7", "m", 1)])
    other = opened(url)  # the number is fixed at creation; later URLs don't change it
    assert other.count(pool(*names)) == 5
    assert {found.record.ref.namespace for found in other.candidates(
        pool(*names), vector=embed("apple of ns8")[0], terms=["apple"], k=20
    )} == {"ns6", "ns8", "ns9", "ns10", "ns11"}  # fmt: skip
    found = server.sql(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass(%s)", (f"{schema}.record",)
    )
    assert found == [(0 if partitions == 1 else partitions,)]


def test_a_search_reads_only_the_partition_of_its_namespace(store: PostgresStore) -> None:
    store.append([record("m", namespace=f"ns{number}") for number in range(8)])
    plan = "EXPLAIN SELECT seq FROM record WHERE namespace = %s"
    with store._server.read() as db:
        touched = {line for (line,) in db.rows(plan, ("ns1",)) if " on record_p" in line}
    assert len(touched) == 1


# --- words and vectors of many records

WORDS = "apple banana cherry date elder fig grape hazel iris juniper kiwi lemon mango".split()


@pytest.fixture
def texts(store: PostgresStore) -> list[str]:
    """The texts of 400 memories in the store, some of them in another namespace."""
    drawn = np.random.default_rng(5)
    chosen = [
        " ".join(drawn.choice(WORDS, size=int(drawn.integers(1, 25)), p=np.arange(1, 14) / 91))
        for _ in range(400)
    ]
    store.append(
        [record(f"m{number:03}", text=text, vectors=None) for number, text in enumerate(chosen)]
    )
    store.append(
        [
            record(f"b{number}", namespace="bob", text="apple kiwi", vectors=None)
            for number in range(50)
        ]
    )
    return chosen


@pytest.mark.parametrize(
    "terms", [["apple"], ["apple", "kiwi"], ["mango lemon", "app*", "fig"], ["nothing", "*"]]
)
def test_word_scores_follow_bm25(store: PostgresStore, texts: list[str], terms: list[str]) -> None:
    expected = store_words.score([store_words.tokens(text) for text in texts], terms).scores
    found = by_words(store, terms, k=400)
    assert found == pytest.approx(
        {f"m{number:03}": score for number, score in enumerate(expected) if score > 0}
    )


@pytest.mark.parametrize("terms", [["apple"], ["mango"], ["apple", "mango"], ["mango lemon"]])
@pytest.mark.parametrize("conditions", [{}, {"since": at(0)}, {"group": "m1", "prefix": True}])
def test_the_rarest_words_decide_among_very_many_records(
    store: PostgresStore,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    terms: list[str],
    conditions: dict[str, Any],
) -> None:
    where, rarest = (
        pool(**conditions),
        min(terms, key=lambda term: sum(term in text for text in texts)),
    )
    every = by_words(store, [rarest], where, k=400)
    monkeypatch.setattr(postgres_search, "_RANK_ALL", 10)
    monkeypatch.setattr(postgres_search, "_RANK_AT_MOST", 40)
    found = by_words(store, terms, where, k=8)
    assert len(found) == 8
    assert found.keys() <= every.keys()
    if terms == [rarest]:  # exactly the best, with their scores among all records
        assert found == pytest.approx({group: every[group] for group in found})
        assert sorted(found.values()) == pytest.approx(sorted(every.values())[-8:])


@pytest.mark.parametrize("among", [10_000, 10], ids=["few", "many"])
@pytest.mark.parametrize("terms", [["apple"], ["apple", "mango"]], ids=str)
def test_a_hit_by_vector_has_its_word_score(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, among: int, terms: list[str]
) -> None:
    monkeypatch.setattr(postgres_search, "_RANK_ALL", among)
    store.append([record(f"m{number:02}", text="apple pie", vectors=None) for number in range(60)])
    store.append(
        [
            record(
                "far",
                text="apple among very many other words that are of no use here, in a long text",
            )
        ]
    )
    store.append([record("other", text="cherry", vectors=None)])
    expected = by_words(store, terms, k=400)
    monkeypatch.setattr(postgres_search, "_RANK_AT_MOST", 20)
    found = {
        candidate.record.ref.group: candidate
        for candidate in store.candidates(pool(), vector=unit_vectors(1)[0], terms=terms, k=1)
    }
    assert len(found) == 2
    assert found["far"].similarity is not None
    assert found["far"].word_score == pytest.approx(expected["far"])
    assert expected["far"] > 0


def test_a_text_with_too_many_words_for_the_index_is_stored_and_found(store: PostgresStore) -> None:
    many = " ".join(f"word{number}x" for number in range(90_000))
    store.append(
        [record("many", text=many, vectors=None), record("long", text="y" * 300_000, vectors=None)]
    )
    assert {entry.ref.group: entry.text for entry in everything(store, pool())} == {
        "many": many,
        "long": "y" * 300_000,
    }
    assert set(by_words(store, ["word17x"])) == {"many"}
    assert set(by_words(store, ["y" * 300_000])) == {"long"}
    assert by_words(store, ["y" * 299_999]) == {}


def clustered(count: int, seed: int) -> Any:
    """Return unit vectors around a few centres, like those of texts, shape (count, dimension)."""
    drawn = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((20, SPACE.dimension))
    made = centres[drawn.integers(0, 20, count)] + 0.7 * drawn.standard_normal(
        (count, SPACE.dimension)
    )
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("conditions", [{}, {"labels": {"half": "0"}}, {"since": at(0)}], ids=str)
def test_the_index_finds_nearly_all_of_the_ten_best(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, conditions: dict[str, Any]
) -> None:
    vectors, queries = clustered(3_000, 1), clustered(60, 2)
    store.append(
        [
            record(
                f"{number:05}",
                text="x",
                vectors=vectors[[number]],
                labels={"half": str(number % 2)},
            )
            for number in range(3_000)
        ]
    )
    store.append(
        [
            record(f"b{number}", namespace="bob", text="x", vectors=queries[[number]])
            for number in range(60)
        ]
    )
    monkeypatch.setattr(postgres_vectors, "EXACT_ROWS", 10)
    rows = np.arange(0, 3_000, 2 if "labels" in conditions else 1)
    share = []
    for query in queries:
        best = {f"{rows[at]:05}" for at in np.argsort(-(vectors[rows] @ query))[:10]}
        found = store.candidates(pool(**conditions), vector=query, terms=[], k=50)
        assert len(found) == 50
        nearest = sorted(found, key=lambda candidate: -(candidate.similarity or 0))[:10]
        share.append(len(best & {candidate.record.ref.group for candidate in nearest}) / 10)
    assert np.mean(share) >= 0.99


def test_ended_records_do_not_crowd_out_live_ones(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_vectors, "EXACT_ROWS", 10)
    near, other = unit_vectors(2)
    store.append(
        [record(f"m{number:03}", text="x", vectors=near[np.newaxis]) for number in range(600)]
    )
    store.append([record("live", text="x", vectors=other[np.newaxis])])
    store.patch(
        [
            Patch(Ref(MEMORY, "ann", f"m{number:03}", 1), at(9), "delete", {})
            for number in range(600)
        ]
    )
    store.append(
        [record(f"n{number}", text="x", vectors=-near[np.newaxis]) for number in range(20)]
    )
    (found,) = store.candidates(pool(), vector=near, terms=[], k=1)
    assert found.record.ref.group == "live"
    store.patch([Patch(Ref(MEMORY, "ann", "m007", 1), None, None, {})])
    (found,) = store.candidates(pool(), vector=near, terms=[], k=1)
    assert found.record.ref.group == "m007"


def test_a_vector_of_many_dimensions_is_stored_and_found(
    opened: Callable[..., PostgresStore], url: str
) -> None:
    for dimension in (3_600, 4_100):  # too wide for a page; too wide for the index
        store = opened(
            url.replace("store_", f"store_d{dimension}_"), SPACE._replace(dimension=dimension)
        )
        vectors = np.random.default_rng(3).standard_normal((3, dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        store.append(
            [record(f"m{number}", text="x", vectors=vectors[[number]]) for number in range(3)]
        )
        (found,) = store.candidates(pool(), vector=vectors[1], terms=[], k=1)
        assert (found.record.ref.group, round(found.similarity or 0, 2)) == ("m1", 1.0)


def test_among_many_turns_matches_include_neighbours_and_turns_of_the_day(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.stores.postgres import search

    monkeypatch.setattr(search, "_RETURN_ALL", 20)
    store.append(
        [turn(number, text=f"word{number}", created_at=at(1000 * number)) for number in range(200)]
    )
    matches = store.matches(
        pool(collection=HISTORY),
        TurnQuery(embed("word50")[0], ["word50"], 3, [(at(149_500), at(152_500))]),
    )
    found = set(matches.position.tolist())
    assert {48, 49, 50, 51, 52, 150, 151, 152} <= found
    assert len(found) < 40
    assert not np.isnan(matches.similarity).any()
    assert matches.searched == 200


@pytest.mark.thorough
def test_tables_that_grew_in_a_load_are_analyzed_once(
    opened: Callable[..., PostgresStore], url: str, server: Node, schema: str
) -> None:
    store = opened(f"{url}&partitions=1")
    server.sql("ALTER SYSTEM SET autovacuum = off")
    server.sql("SELECT pg_reload_conf()")

    def load(batch: int, count: int) -> None:
        text = " ".join(f"word{number}" for number in range(80))
        store.append(
            [record(f"{batch}-{number}", text=text, vectors=None) for number in range(count)]
        )

    def known() -> float:
        ((rows,),) = server.sql(
            f"SELECT reltuples FROM pg_class WHERE oid = '{schema}.record'::regclass"
        )
        return float(rows)

    try:
        load(0, 99)
        assert known() == -1
        with store.transaction():
            load(1, 700)
            load(2, 701)
        assert known() == 1_500
        load(3, 200)
        assert known() == 1_500
        load(4, 2_000)
        assert known() == 3_700
    finally:
        server.sql("ALTER SYSTEM RESET autovacuum")
        server.sql("SELECT pg_reload_conf()")


def test_a_load_is_stored_even_if_analyzing_fails(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_server.schema, "GROWN", "SELECT 1 / 0")
    store.append([record(f"m{number:03}", vectors=None) for number in range(200)])
    assert store.count(pool()) == 200
    assert "cannot update the planner's statistics" in caplog.text


# --- removal


def test_a_removed_record_leaves_no_bytes_in_the_table_files(
    server: Node, store: PostgresStore
) -> None:
    ref = Ref(MEMORY, "ann", "gone", 1)
    text = "zanzibarian secrecy " + "quixoticness " * 3
    vector = unit_vectors(1, seed=77)
    store.append([record(f"m{number}", text=f"plain note {number}") for number in range(40)])
    store.append([record("gone", text=text, vectors=vector, labels={"colour": "ultramarinish"})])
    store.append([turn(1, text="a quixoticness that is kept")])
    code = vector.astype("<f2").tobytes()
    needles = (b"zanzibarian", b"zanzibarian", b"secrecy quix", b"ultramarinish", code)
    server.sql("ANALYZE")
    assert all(on_disk(server, needle) for needle in needles)
    stage_all(store)
    staged = embed_other(text).astype("<f2").tobytes()
    assert on_disk(server, staged)
    assert store.remove([ref]) == ()
    for needle in (*needles, staged):
        assert on_disk(server, needle) == []
    assert on_disk(server, b"quixot")
    assert not store.info(pool()).erasing
    store.switch(OTHER)


def test_two_concurrent_removals_both_erase_their_records(
    server: Node, open_store: OpenStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second removal begins before the first ends, in another partition."""
    stores = open_store(SPACE), open_store(SPACE)
    names = [f"n{number}" for number in range(9)]
    stores[0].append([record("m", namespace=name) for name in names])
    parts = dict(
        server.sql(f"SELECT namespace, right(tableoid::regclass::text, 3) FROM {schema}.record")
    )
    chosen = [next(name for name in names if parts[name] == part) for part in ("_p0", "_p1")]
    met, remove = threading.Barrier(2, timeout=300), postgres_rewrite.remove

    def both(db: Transaction, refs: Any) -> None:
        met.wait(300)
        remove(db, refs)
        if refs[0].namespace == chosen[0]:
            time.sleep(0.5)

    monkeypatch.setattr(postgres_rewrite, "remove", both)
    monkeypatch.setattr(postgres_rewrite, "erase", lambda _: ())
    threads = [
        threading.Thread(target=store.remove, args=([Ref(MEMORY, name, "m", 1)],))
        for store, name in zip(stores, chosen, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    ((erasing,),) = server.sql(f"SELECT value FROM {schema}.meta WHERE name = 'erasing'")
    assert erasing.split() == ["record_p0", "record_p1", "vector_a_p0", "vector_a_p1"]


def test_statistics_never_contain_words(server: Node, store: PostgresStore, schema: str) -> None:
    store.append([record(f"m{number}", text="zanzibarian zanzibarian") for number in range(200)])
    server.sql("ANALYZE")
    assert server.sql("SELECT count(*) > 5 FROM pg_stats WHERE schemaname = %s", (schema,)) == [
        (True,)
    ]
    rows = server.sql("SELECT s::text FROM pg_stats s WHERE schemaname = %s", (schema,))
    assert not [row for row in rows if "zanzibar" in row[0]]


def test_only_the_owner_of_the_tables_can_erase(
    server: Node, store: PostgresStore, opened: Callable[..., PostgresStore], schema: str
) -> None:
    store.append([record("m"), record("n")])
    server.sql("CREATE ROLE helper LOGIN")
    server.sql(f"GRANT USAGE ON SCHEMA {schema} TO helper")
    server.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO helper")
    server.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO helper")
    helper = opened(server.url(user="helper", options=f"schema={schema}"))
    try:
        helper.append([record("o")])
        with pytest.raises(StoreError, match="only the owner"):
            helper.remove([Ref(MEMORY, "ann", "m", 1)])
        assert helper.info(pool()).erasing
        assert store.remove([]) == ()
        assert not helper.info(pool()).erasing
        assert helper.count(pool()) == 2
    finally:
        helper.close()
        server.sql("DROP OWNED BY helper")
        server.sql("DROP ROLE helper")


# --- the cost of a command


def test_reading_by_words_loads_no_numpy(url: str, run_python: RunPython) -> None:
    script = """
import sys
from datetime import UTC, datetime
import memories.stores.postgres.store
assert "psycopg" not in sys.modules
from memories.stores.records import Collection, Filter, Record, Ref
store = memories.stores.postgres.store.PostgresStore(sys.argv[1], None)
assert "psycopg" not in sys.modules
where = Filter(Collection.MEMORY, ("ann",))
store.append([Record(Ref(Collection.MEMORY, "ann", "m", 1), "apple", datetime.now(UTC))])
assert len(store.candidates(where, vector=None, terms=["apple"], k=5)) == 1
assert store.scan(where, limit=5) and store.info(where).schema_version > 1
store.close()
assert "numpy" not in sys.modules
"""
    run_python(script, url)


def test_acknowledged_writes_of_a_killed_process_are_kept(
    url: str, opened: Callable[..., PostgresStore]
) -> None:
    script = """
import sys
from datetime import UTC, datetime
from memories.stores.records import Collection, Record, Ref
from memories.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1], None)
number = 0
while True:
    ref = Ref(Collection.MEMORY, "ann", f"{number:05}", 1)
    store.append([Record(ref, "text", datetime.now(UTC))])
    print(number, flush=True)
    number += 1
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(20)]
    process.kill()
    rest, _ = process.communicate(timeout=300)
    acknowledged += [int(line) for line in rest.splitlines() if line]
    store = opened(url, None)
    found = {int(entry.ref.group) for entry in everything(store, pool())}
    assert found >= set(acknowledged)
    assert len(found) <= len(acknowledged) + 1
