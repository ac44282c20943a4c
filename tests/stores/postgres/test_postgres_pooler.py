"""The PostgreSQL store behind a pooler, which may run each transaction in another session."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract import MEMORY, OTHER, at, embed_other, everything, pool, record, search, unit_vectors

import postgres_pooler
from memories.errors import MemoriesError, StoreError
from memories.stores.postgres import counts
from memories.stores.postgres.store import PostgresStore
from memories.stores.records import Patch, Ref
from postgres_node import Node

Opened = Callable[..., PostgresStore]


@pytest.fixture(params=["pgbouncer", "small_pooler"])
def pooler(request: pytest.FixtureRequest, server: Node) -> Iterator[str]:
    """The URL of a pooler that shares one session of the server among all clients."""
    server.sql("CREATE EXTENSION IF NOT EXISTS vector")
    with getattr(postgres_pooler, request.param)(server) as url:
        yield url
    server.sql(
        "SET client_min_messages = error; DROP SCHEMA IF EXISTS teama CASCADE; "
        "DROP SCHEMA IF EXISTS teamb CASCADE"
    )


def test_stores_in_two_schemas_can_share_a_session(pooler: str, opened: Opened) -> None:
    one, two = (
        opened(f"{pooler}?schema=teama&partitions=1"),
        opened(f"{pooler}?schema=teamb&partitions=2", OTHER),
    )
    for number in range(12):  # often enough that the driver would prepare the statements
        one.append([record(f"a{number}", text=f"apple {number}")])
        two.append(
            [record(f"b{number}", text=f"banana {number}", vectors=embed_other(f"banana {number}"))]
        )
        one.touch([Ref(MEMORY, "ann", f"a{number}", 1)])
        assert {entry.ref.group[0] for entry in everything(one, pool())} == {"a"}
        assert {entry.ref.group[0] for entry in everything(two, pool())} == {"b"}
        assert f"a{number}" in search(one, f"apple {number}")
    one.patch([Patch(Ref(MEMORY, "ann", "a1", 1), at(99), "delete", {})])
    assert (one.count(pool()), two.count(pool())) == (11, 12)
    assert one.remove([Ref(MEMORY, "ann", "a2", 1)]) == ()
    assert two.repartition(3) == 2
    assert (one.count(pool()), two.count(pool())) == (10, 12)
    assert one.info(pool()).model != two.info(pool()).model


def test_concurrent_writers_of_two_schemas_write_into_their_own_schema(
    pooler: str, opened: Opened
) -> None:
    stores = {name: opened(f"{pooler}?schema=team{name}&partitions=1") for name in "ab"}
    failures: list[MemoriesError] = []

    def write(name: str, thread: int) -> None:
        try:
            for number in range(15):
                stores[name].append([record(f"{name}{thread}-{number}")])
        except MemoriesError as exc:
            failures.append(exc)

    threads = [
        threading.Thread(target=write, args=(name, number)) for name in "ab" for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert failures == []
    for name, store in stores.items():
        assert store.count(pool()) == 45
        assert {entry.ref.group[0] for entry in everything(store, pool())} == {name}


def test_settings_of_a_transaction_do_not_reach_the_next_client(
    pooler: str, opened: Opened
) -> None:
    import psycopg

    def settings() -> list[Any]:
        names = (
            "search_path lock_timeout enable_seqscan jit synchronous_commit "
            "idle_in_transaction_session_timeout"
        )
        with psycopg.connect(pooler, autocommit=True, prepare_threshold=None) as other:
            found = [other.execute(f"SHOW {name}").fetchone() for name in names.split()]
            return [
                *found,
                other.execute(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                ).fetchone(),
            ]

    before = settings()
    store = opened(f"{pooler}?schema=teama")
    store.append([record("m"), record("n")])
    search(store, "note")
    store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert settings() == before


def test_the_vector_index_is_created_through_a_pooler(
    pooler: str, opened: Opened, server: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MANY_VECTORS", 5)
    store = opened(f"{pooler}?schema=teama&partitions=1")
    vectors = unit_vectors(8, seed=3)
    for number in range(8):
        store.append([record(f"m{number}", vectors=vectors[number : number + 1])])
    assert server.sql(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'teama.vector_a_memory'::regclass"
    ) == [(True,)]
    found = store.candidates(pool(), vector=vectors[3], terms=[], k=1)
    assert [candidate.record.ref.group for candidate in found] == ["m3"]
    assert np.isclose(found[0].similarity or 0, 1, atol=0.01)


def test_the_error_names_options_that_a_pooler_refuses(server: Node, opened: Opened) -> None:
    with (
        postgres_pooler.pgbouncer(server) as url,
        pytest.raises(StoreError, match="its connection pooler refuses"),
    ):
        opened(f"{url}?options=-csearch_path%3Dother").count(pool())
