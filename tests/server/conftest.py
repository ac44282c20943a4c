"""Fixtures for servers, in this process and in others, and for their clients."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from live_server import Live, running, without_mcp
from memories.config import load_config
from memories.identity import tokens
from memories.server.app import Options, build
from memories.settings import Config

BASE = "http://127.0.0.1:8765"
Ask = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def mcp() -> Iterator[None]:
    """Serve no MCP. A test file about MCP overrides this fixture."""
    with without_mcp():
        yield


@pytest.fixture
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of a server with a SQLite store."""
    monkeypatch.setenv("EMBEDDER", "fake")
    monkeypatch.setenv("MEMORY_STORE", f"sqlite:///{home}/m.db")
    return load_config()


@pytest.fixture
def options() -> Options:
    """The options of a server."""
    return Options(port=8765)


@pytest.fixture
def nobody(config: Config, options: Options) -> Iterator[TestClient]:
    """A client of the server without a token."""
    with TestClient(build(config, options), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def owner(nobody: TestClient, config: Config) -> TestClient:
    """The same client, with the token of the server's user."""
    nobody.headers["authorization"] = f"Bearer {tokens.own(config.home)}"
    return nobody


@pytest.fixture
def token(config: Config) -> Callable[..., dict[str, str]]:
    """Return a function that creates a token and returns its header."""

    def make(
        *grants: str, name: str = "agent", expires_at: datetime | None = None
    ) -> dict[str, str]:
        secret, _ = tokens.create(config.home, name, tokens.parse_grants(grants), expires_at)
        return {"authorization": f"Bearer {secret}"}

    return make


@pytest.fixture
def live(config: Config) -> Iterator[Live]:
    """A real server on its own port."""
    with running(config) as server:
        yield server


@pytest.fixture
def environment(clean_environment: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a server and of the commands that use it."""
    given = {
        "MEMORY_HOME": str(tmp_path / "h"),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "EMBEDDER": "none",
    }
    return {**clean_environment, **given}
