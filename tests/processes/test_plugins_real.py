"""The plugins in the real agents: each is accepted, and recalls."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_model import FakeModel, serving
from real_agents import AGENTS, command_of, program_of, run, texts

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")]

ROOT = Path(__file__).parents[2]
MEMORY = Path(sys.executable).with_name("memoriae")
FACT = "The release train leaves on Tuesdays at 09:30"
# Gives a hook more time, which a busy machine needs.
PATIENT = '#!/bin/sh\n# memories\nif [ "$1" = hook ]; then shift; exec "{memory}" hook "$@" --seconds 25; fi\nexec "{memory}" "$@"\n'
INSTALL = {
    "claude-code": (
        ("plugin", "validate", f"{ROOT}/plugins/memories", "--strict"),
        ("plugin", "validate", str(ROOT), "--strict"),
        ("plugin", "marketplace", "add", "{market}"),
        ("plugin", "install", "memories@memories"),
    ),
    "codex": (("plugin", "marketplace", "add", "{market}"), ("plugin", "add", "memories@memories")),
    "gemini": (
        ("extensions", "validate", f"{ROOT}/extensions/gemini"),
        ("extensions", "install", f"{ROOT}/extensions/gemini", "--consent", "--skip-settings"),
    ),
    "opencode": (),  # it loads a plugin from its folder
}


@pytest.fixture
def model() -> Iterator[tuple[FakeModel, str]]:
    """A model that calls no tool, and its URL."""
    fake = FakeModel("/no tool/", {})
    with serving(fake) as url:
        yield fake, url


@pytest.mark.parametrize("host", INSTALL)
def test_a_host_accepts_the_plugin_and_recalls_memories(
    host: str, clients: Path, model: tuple[FakeModel, str], tmp_path: Path
) -> None:
    fake, url = model
    home, work, programs, market = (
        tmp_path / name for name in ("agent-home", "agent-work", "bin", "market")
    )
    for folder in (home / ".config" / "memories", work, programs):
        folder.mkdir(parents=True)
    for name in (".claude-plugin", "plugins"):  # only what the plugins need from the repository
        shutil.copytree(ROOT / name, market / name)
    (home / ".config" / "memories" / "config.toml").write_text('embedder = "none"\n')
    (programs / "memoriae").write_text(PATIENT.format(memory=MEMORY))
    (programs / "memoriae").chmod(0o700)
    agent = AGENTS[host]
    agent.configure(home, work, url)
    variables = {name: value.format(url=url) for name, value in agent.variables.items()}
    variables["PATH"] = f"{programs}:{os.environ['PATH']}"
    run([str(MEMORY), "create", FACT], home, work)
    if host == "opencode":
        plugins = home / ".config" / "opencode" / "plugins"
        plugins.mkdir()
        plugin = (ROOT / "extensions" / "opencode" / "memories.js").read_text()
        (plugins / "memories.js").write_text(re.sub(r'": (5|10)_000', '": 60_000', plugin))
    for arguments in INSTALL[host]:
        command = [*agent.before[0], program_of(clients, agent.program)]
        run(
            [*command, *(each.format(market=market) for each in arguments)], home, work, **variables
        )
    run(command_of(agent, clients, "When does the release train leave?"), home, work, **variables)
    [block, *_] = [text for request in fake.requests for text in texts(request) if FACT in text]
    way = "memory search" if host == "opencode" else "Query deep storage: search_memories"
    assert way in block
