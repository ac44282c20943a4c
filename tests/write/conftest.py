"""Memories for tests of writes that need no vectors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from memories import Memories


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """An empty store without an embedder."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as opened:
        yield opened
