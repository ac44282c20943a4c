"""A PostgreSQL server for the tests of its store, and fixtures that open stores on it."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from contract import SPACE, OpenStore

from memories.stores.postgres.store import PostgresStore
from memories.stores.records import Space
from opening import opening
from postgres_node import Node

_numbers = itertools.count()


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
    """The URL of a store that doesn't exist yet; with only two partitions it takes less time to
    create.
    """
    yield server.url(options=f"schema={schema}&partitions=2")
    server.sql(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def open_store(url: str) -> Iterator[OpenStore]:
    """Open the store of `url`."""
    with opening(lambda space: PostgresStore(url, space)) as open_store:
        yield open_store


@pytest.fixture
def opened() -> Iterator[Callable[..., PostgresStore]]:
    """Opens stores by their URL, and closes them at the end."""

    def open_url(url: str, space: Space | None = SPACE) -> PostgresStore:
        return PostgresStore(url, space)

    with opening(open_url) as open_store:
        yield open_store
