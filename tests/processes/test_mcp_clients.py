"""`memory mcp` in the agents that people use, offline: their model is a fake one on the loopback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel, serving

from memories import Memories

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")]

CLIENTS = ("@anthropic-ai/claude-code@2.1.329", "@openai/codex@0.169.0", "opencode-ai@1.18.33")
MEMORY = [sys.executable, "-m", "memories", "mcp"]
FACT = "Deploys happen on Tuesdays at 09:30"
CODEX = """
model = "fake"
model_provider = "fake"
approval_policy = "never"
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
[projects."{work}"]
trust_level = "trusted"
[mcp_servers.memories]
command = "{command}"
args = {arguments}
env = {{ MEMORY_HOME = "{home}/memories" }}
required = true
default_tools_approval_mode = "approve"
"""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed clients."""
    folder = tmp_path_factory.mktemp("clients")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", *CLIENTS], cwd=folder, check=True, timeout=500)
    return folder / "node_modules"


@pytest.fixture
def model() -> Iterator[tuple[FakeModel, str]]:
    fake = FakeModel("search_memories", {"query": "when do we release?"})
    with serving(fake) as url:
        yield fake, url


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A home with a memory in it, and a folder to work in."""
    (tmp_path / "work").mkdir()
    with Memories(f"sqlite:///{tmp_path}/memories/memories.db") as memories:
        memories.create(FACT)
    return tmp_path


def run(command: list[str], place: Path, **more: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), **more}
    done = subprocess.run(
        command, cwd=place / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def program(clients: Path, pattern: str) -> str:
    return str(next(found for found in sorted(clients.glob(pattern)) if found.is_file()))


def heard(model: FakeModel, *, structure: bool) -> None:
    """The model was told how to use the memory, offered its tools, and given what they found, dated."""
    last = json.dumps(model.requests[-1])
    assert FACT in last
    assert "just now" in last
    assert ("=== results" in last) != structure
    assert "A memory that outlasts conversations" in last
    offered = json.dumps([request.get("tools") for request in model.requests])
    assert "create_memory" in offered


def test_claude_code(clients: Path, model: tuple[FakeModel, str], place: Path) -> None:
    fake, url = model
    server = {"type": "stdio", "command": MEMORY[0], "args": MEMORY[1:], "env": {"MEMORY_HOME": f"{place}/memories"}}
    file = place / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"memories": server}}))
    run(
        [
            program(clients, "@anthropic-ai/claude-code-*/claude"),
            *("-p", "when do we release?", "--mcp-config", str(file), "--strict-mcp-config"),
            *("--allowedTools", "mcp__memories"),
        ],
        place,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_API_KEY="x",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    heard(fake, structure=True)


def test_codex(clients: Path, model: tuple[FakeModel, str], place: Path) -> None:
    fake, url = model
    (place / ".codex").mkdir()
    settings: dict[str, Any] = {"url": url, "work": place / "work", "home": place, "command": MEMORY[0]}
    (place / ".codex" / "config.toml").write_text(CODEX.format(**settings, arguments=json.dumps(MEMORY[1:])))
    codex = program(clients, "@openai/codex-*/**/codex")
    run([codex, "exec", "--json", "--skip-git-repo-check", "when do we release?"], place, FAKE_KEY="x")
    heard(fake, structure=True)


def test_opencode(clients: Path, model: tuple[FakeModel, str], place: Path) -> None:
    fake, url = model
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Fake",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {"fake-model": {"name": "Fake", "tool_call": True}},
    }
    server = {
        "type": "local",
        "command": MEMORY,
        "environment": {"MEMORY_HOME": f"{place}/memories"},
        "timeout": 15_000,
    }
    settings = {
        "model": "fake/fake-model",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"fake": provider},
        "mcp": {"memories": {**server, "enabled": True}},
    }
    (place / "work" / "opencode.json").write_text(json.dumps(settings))
    opencode = program(clients, "opencode-linux-x64/bin/opencode")
    run([opencode, "run", "when do we release?", "--format", "json"], place)
    heard(fake, structure=False)
