"""Gives each test its own memory, and puts the app's modules on the path."""

from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the memory's folder."""
    monkeypatch.syspath_prepend(SOURCES)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "memories"))
    monkeypatch.setenv("EMBEDDER", "fake")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "memories"
