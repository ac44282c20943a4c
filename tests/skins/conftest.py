"""What the tests of several skins share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import Forked


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """What runs the command in processes of its own."""
    found = Forked()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """Give each test a home: commands, hooks and servers use the default store."""
