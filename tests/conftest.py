"""What every test gets: a home of its own, so that none touches the memory of whoever runs it."""

from pathlib import Path

import pytest

from memories.config import SETTINGS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("MEMORY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
