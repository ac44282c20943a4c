"""What the tests of agents share: a machine with much to do is no reason to give up."""

import json
from typing import Any

import pytest

from memories.context.fence import marks


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each operation five minutes."""
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "300")


@pytest.fixture
def fake_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embed with the fake embedder, also in other processes."""
    monkeypatch.setenv("EMBEDDER", "fake")


def read_block(text: str, title: str, boundary: str) -> list[dict[str, Any]]:
    """Return the items of a block of a fence, as a model tells them apart; none if the block is not
    there.
    """
    opening, closing = marks(title, boundary)
    rows = text.split("\n")
    if opening not in rows:
        return []
    start = rows.index(opening)
    return [json.loads(row) for row in rows[start + 1 : rows.index(closing, start)]]
