"""What the tests of agents share: a machine with much to do is no reason to give up."""

import pytest


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TIMEOUT_SECONDS", "300")
