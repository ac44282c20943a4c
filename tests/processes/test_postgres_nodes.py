"""The PostgreSQL store on several nodes: a replica that replaces its primary, and a partition on
another node.
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from opening import opening
from postgres_node import Node

sys.path.insert(0, str(Path(__file__).parents[1] / "stores"))
pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after the rewrite of its assertions
    MEMORY,
    OTHER,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    embed,
    embed_other,
    everything,
    pool,
    record,
    search,
    unit_vectors,
)

from memories.errors import StoreError  # noqa: E402
from memories.stores.postgres.store import PostgresStore  # noqa: E402
from memories.stores.records import Ref  # noqa: E402

pytestmark = pytest.mark.slow

# Writes one memory after another, prints the name of each when it is acknowledged, and stops at the
# first error.
WRITER = """
import sys
from datetime import UTC, datetime
from memories.embedders.fake import FakeEmbedder
from memories.errors import MemoriesError
from memories.stores.records import Collection, Record, Ref
from memories.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1], FakeEmbedder.space)
vectors = FakeEmbedder().embed("a note")
for number in range(100_000):
    group = f"{sys.argv[2]}-{number:06}"
    try:
        store.append(
            [Record(Ref(Collection.MEMORY, sys.argv[2], group, 1), "a note", datetime.now(UTC), vectors=vectors)]
        )
    except MemoriesError as exc:
        print(exc, file=sys.stderr)
        break
    print(group, flush=True)
"""
NAMESPACES = ("ann", "bob", "cid")
COUNT = 6_000


def wait_until(node: Node, statement: str) -> None:
    """Wait until the result of a query is true."""
    deadline = time.monotonic() + 300
    while node.sql(statement) != [(True,)]:
        assert time.monotonic() < deadline, statement
        time.sleep(0.05)


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    """A primary, and a replica for which it waits at each commit."""
    with ExitStack() as stack:
        primary, replica = Node(), Node()
        for node in (primary, replica):
            stack.callback(node.stop)
        primary.initialise().start()
        replica.copy_of(primary, "second").start()
        wait_until(
            primary, "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'"
        )
        primary.reload(synchronous_standby_names="second")
        wait_until(
            primary, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        )
        yield primary, replica


def test_the_replica_of_a_killed_primary_has_every_acknowledged_write(
    pair: tuple[Node, Node],
) -> None:
    """Programs with an open store continue with the replica after its promotion."""
    primary, replica = pair
    both = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres"
    url = f"{both}?target_session_attrs=read-write"
    store = PostgresStore(url, SPACE)
    reader = PostgresStore(replica.url(), SPACE)
    writers = []
    try:
        store.append([record("first", text="apple pie")])
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in NAMESPACES
        ]
        deadline = time.monotonic() + 300
        while reader.count(pool(*NAMESPACES)) <= 30:  # a replica can be read at any time
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(StoreError, match="read-only replica"):
            reader.append([record("m")])
        reader.touch([Ref(MEMORY, "ann", "first", 1)])
        primary.kill()
        answers = [writer.communicate(timeout=300) for writer in writers]
        replica.promote()
        replica.reload(synchronous_standby_names="")
        acknowledged = {group for out, _ in answers for group in out.split()}
        found = {entry.ref.group for entry in everything(store, pool(*NAMESPACES), limit=200_000)}
        assert len(acknowledged) > 30
        assert acknowledged <= found
        assert len(found - acknowledged - {"first"}) <= len(NAMESPACES)
        assert all("connect" in error for _, error in answers)
        store.append([record("later", text="banana bread")])
        assert search(store, "apple pie")["first"].similarity == pytest.approx(1.0, abs=0.01)
        assert search(store, "banana bread")["later"].word_score > 0
        assert reader.count(pool()) == store.count(pool())
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate(timeout=300)
        store.close()
        reader.close()


# --- a partition on another node

_names = itertools.count()


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    """A node that gets the queries, and one with a partition, which the first knows as `far`."""
    with ExitStack() as stack:
        near, far = Node(), Node()
        for node in (near, far):
            stack.callback(node.stop)
            node.initialise().start()
        near.sql("CREATE EXTENSION postgres_fdw")
        near.sql(
            "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', "
            f"port '{far.port}', dbname 'postgres', extensions 'vector', use_remote_estimate 'true', "
            "options '-c hnsw.ef_search=300 -c hnsw.iterative_scan=relaxed_order -c enable_seqscan=off')"
        )
        near.sql("CREATE USER MAPPING FOR postgres SERVER far OPTIONS (user 'postgres')")
        yield near, far


def partition_of(node: Node, schema: str, namespace: str) -> int:
    """Return the number of the partition, of two, that contains a namespace."""
    sql = 'SELECT satisfies_hash_partition(to_regclass(%s), 2, 0, %s::text COLLATE "C")'
    return 0 if node.sql(sql, (f"{schema}.record", namespace)) == [(True,)] else 1


def spread(near: Node, far: Node, schema: str) -> None:
    """Move the partition with the namespace `ann` to the other node, into a store with a single
    partition.
    """
    ours = PostgresStore(near.url(options=f"schema={schema}&partitions=2"), SPACE)
    theirs = PostgresStore(far.url(options=f"schema={schema}&partitions=1"), SPACE)
    for store in (ours, theirs):
        ref = Ref(MEMORY, "nobody", "m", 1)
        store.append([record("m", namespace="nobody")])
        with store._server.write() as db:
            for table in ("record", "vector_a", "corpus"):
                db.run(f"DELETE FROM {table}")
        assert store.read([ref]) == []
        store.close()
    number = partition_of(near, schema, "ann")
    for table in ("record", "vector_a"):
        part = f"{schema}.{table}_p{number}"
        near.sql(f"DROP TABLE {part}")
        near.sql(
            f"CREATE FOREIGN TABLE {part} PARTITION OF {schema}.{table} "
            f"FOR VALUES WITH (MODULUS 2, REMAINDER {number}) SERVER far "
            f"OPTIONS (schema_name '{schema}', table_name '{table}', batch_size '500')"
        )


@pytest.fixture
def schema(nodes: tuple[Node, Node]) -> Iterator[str]:
    """A schema with its tables on both nodes."""
    name = f"store_{next(_names)}"
    spread(*nodes, name)
    yield name
    for node in nodes:
        node.sql(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def open_store(nodes: tuple[Node, Node], schema: str) -> Iterator[OpenStore]:
    """Return a function that opens the store on both nodes."""
    url = nodes[0].url(options=f"schema={schema}")
    with opening(lambda space: PostgresStore(url, space)) as open_store:
        yield open_store


class TestSpread(StoreContract):
    """A store on two nodes fulfils the contract, except for the points in its docstring."""

    sequences = 15

    @pytest.fixture(autouse=True)
    def limits(self, request: pytest.FixtureRequest) -> None:
        for words, reason in (
            (
                (
                    "missing_store",
                    "create_a_store",
                    "knows_the_model",
                    "first_transaction",
                    "first_space",
                ),
                "it exists",
            ),
            (("not_exist_is_not_staged",), "it exists"),
            (
                ("stag", "switch", "space_may_be", "is_told", "emptied"),
                "no tables are made on other nodes",
            ),
            (("embedder_is_changed",), "no tables are made on other nodes"),
            (("removed_is_gone_from_every_read",), "other nodes are named, see below"),
        ):
            if any(word in request.node.name for word in words):
                pytest.skip(reason)


def test_a_partition_on_another_node_is_searched_there_and_stays_separate(
    nodes: tuple[Node, Node], schema: str, open_spread: OpenStore
) -> None:
    near, far = nodes
    store = open_spread(SPACE)
    other = next(
        f"n{i}"
        for i in range(99)
        if partition_of(near, schema, f"n{i}") != partition_of(near, schema, "ann")
    )
    vectors = unit_vectors(COUNT, seed=8)
    store.append(
        [
            record(
                f"m{number:04}",
                namespace=("ann", other)[number % 2],
                text=f"w{number}",
                vectors=vectors[[number]],
            )
            for number in range(COUNT)
        ]
    )
    assert far.sql(f"SELECT count(*), min(namespace), max(namespace) FROM {schema}.record") == [
        (COUNT // 2, "ann", "ann")
    ]
    for number in (0, 1, 450, 451, COUNT - 2, COUNT - 1):
        found = store.candidates(
            pool("ann", other), vector=vectors[number], terms=[f"w{number}"], k=1
        )
        assert {candidate.record.ref.group for candidate in found} == {f"m{number:04}"}
    query = "[" + ",".join(map(str, vectors[0].tolist())) + "]"
    with store._server.read() as db:
        plan = "\n".join(
            line
            for (line,) in db.rows(
                "EXPLAIN (VERBOSE) SELECT seq FROM vector_a WHERE namespace = 'ann' AND collection = 'memory' AND live "
                f"ORDER BY embedding <=> '{query}' LIMIT 5"
            )
        )
    assert "Foreign Scan" in plan
    assert "<=>" in plan.partition("Remote SQL")[2]
    assert "vector_a_p" in plan


def test_records_removed_on_another_node_are_reported_until_they_are_erased(
    nodes: tuple[Node, Node], schema: str, open_spread: OpenStore
) -> None:
    store = open_spread(SPACE)
    store.append([record("m", text="zanzibarian"), record("n")])
    also_in = store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert len(also_in) == 2
    assert all("on another node" in part for part in also_in)
    assert nodes[1].sql(f"SELECT count(*) FROM {schema}.record") == [(1,)]


def test_no_other_space_is_staged_if_parts_are_on_other_nodes(open_spread: OpenStore) -> None:
    store = open_spread(SPACE)
    store.append([record("m", text="apple")])
    with pytest.raises(StoreError, match="other nodes"):
        store.stage(OTHER, {Ref(MEMORY, "ann", "m", 1): embed_other("apple")})
    assert search(store, "apple")["m"].similarity == pytest.approx(1.0, abs=0.01)
    store.stage(SPACE, {Ref(MEMORY, "ann", "m", 1): embed("pear")})
    assert search(store, "pear")["m"].similarity == pytest.approx(1.0, abs=0.01)


def test_while_a_node_is_down_only_its_namespaces_fail() -> None:
    with ExitStack() as stack:
        near, far = Node(), Node()
        for node in (near, far):
            stack.callback(node.stop)
            node.initialise().start()
        near.sql("CREATE EXTENSION postgres_fdw")
        near.sql(
            "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw "
            f"OPTIONS (host '127.0.0.1', port '{far.port}', dbname 'postgres', extensions 'vector')"
        )
        near.sql("CREATE USER MAPPING FOR postgres SERVER far OPTIONS (user 'postgres')")
        spread(near, far, "memories")
        store = PostgresStore(near.url(), SPACE)
        stack.callback(store.close)
        other = next(
            f"n{i}"
            for i in range(99)
            if partition_of(near, "memories", f"n{i}") != partition_of(near, "memories", "ann")
        )
        store.append([record("m"), record("m", namespace=other, created_at=at(1))])
        far.kill()
        time.sleep(0.5)
        store.append([record("n", namespace=other)])
        assert store.count(pool(other)) == 2
        with pytest.raises(StoreError):
            store.count(pool("ann"))
        with pytest.raises(StoreError):
            store.append([record("n")])
        far.start()
        store.append([record("n")])
        assert {entry.ref.group for entry in everything(store, pool("ann"))} == {"m", "n"}
        assert np.isclose(search(store, "note n 1")["n"].similarity or 0, 1.0, atol=0.01)
