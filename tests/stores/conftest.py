"""Fixtures for the tests of all stores. Each store's file or folder has a fixture `open_store`."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, OpenStore  # noqa: E402 - after its assertions are rewritten

from memories.stores.protocol import Store  # noqa: E402


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """Give each test a home: stores on servers keep their locks in its cache folder."""


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """An open store."""
    return open_store(SPACE)
