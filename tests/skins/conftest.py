"""What the tests of several skins share."""

from collections.abc import Iterator

import pytest

from forked import Forked


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """What runs the command in processes of its own."""
    found = Forked()
    yield found
    found.close()
