"""A PostgreSQL server for the tests of its store, and stores on it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opening import opening
from postgres_node import Node

pytest.register_assert_rewrite("contract")

from contract import SPACE, OpenStore  # noqa: E402 - after its assertions are made to explain themselves

from memories.stores.postgres.store import PostgresStore  # noqa: E402
from memories.stores.protocol import Store  # noqa: E402
from memories.stores.records import Space  # noqa: E402

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """Give each test a home: stores on servers keep their locks in its cache folder."""


@pytest.fixture(scope="session")
def server() -> Iterator[Node]:
    """A PostgreSQL server."""
    node = Node()
    try:
        yield node.initialise().start()
    finally:
        node.stop()


@pytest.fixture
def schema() -> str:
    """The name of a schema that no other test uses."""
    return f"store_{next(_numbers)}"


@pytest.fixture
def url(server: Node, schema: str) -> Iterator[str]:
    """The URL of a store that does not exist yet; of few partitions, which are made sooner."""
    yield server.url(options=f"schema={schema}&partitions=2")
    server.sql(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def open_store(url: str) -> Iterator[OpenStore]:
    """Opens the PostgreSQL store of `url`; a file about another store has a fixture of this name."""
    with opening(lambda space: PostgresStore(url, space)) as open_store:
        yield open_store


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """An open store."""
    return open_store(SPACE)


@pytest.fixture
def opened() -> Iterator[Callable[..., PostgresStore]]:
    """Open stores by their URL, and close them."""

    def open_url(url: str, space: Space | None = SPACE) -> PostgresStore:
        return PostgresStore(url, space)

    with opening(open_url) as open_store:
        yield open_store
