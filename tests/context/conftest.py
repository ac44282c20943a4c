"""Fixtures for the tests of contexts: a long timeout for busy machines, and the fake embedder."""

import json
from typing import Any

import pytest

from memories.context.fence import marks


@pytest.fixture(autouse=True)
def long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each operation five minutes."""
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "300")


@pytest.fixture
def fake_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fake embedder, in other processes too."""
    monkeypatch.setenv("EMBEDDER", "fake")


def read_block(text: str, title: str, boundary: str) -> list[dict[str, Any]]:
    """Return the items of a block inside a fence, separated as a model would separate them; empty
    if there is no such block.
    """
    opening, closing = marks(title, boundary)
    rows = text.split("\n")
    if opening not in rows:
        return []
    start = rows.index(opening)
    return [json.loads(row) for row in rows[start + 1 : rows.index(closing, start)]]
