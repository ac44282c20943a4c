"""Real agents, offline: where npm installs them, and how each is run for one message with a fake
model.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

CLIENTS = (
    *("@anthropic-ai/claude-code@2.1.329", "@openai/codex@0.169.0", "opencode-ai@1.18.33"),
    "@google/gemini-cli@0.61.0",
)
CODEX = """\
# mine
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
"""
GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "telemetry": {"enabled": False},
    "privacy": {"usageStatisticsEnabled": False},
}


class Agent(NamedTuple):
    """How an agent is run.

    Attributes:
        program: The path at which npm installs its program.
        before: The words before the program, and the arguments before the message.
        arguments: The arguments after the message.
        variables: Variables for its environment; `{url}` stands for the model's URL.
        configure: Writes its configuration into a home, given the working folder and the model's
            URL.
        words: Whether each word of the message is a separate argument, because the agent puts
            quotes around an argument of several words.
    """

    program: str
    before: tuple[tuple[str, ...], tuple[str, ...]]
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    configure: Callable[[Path, Path, str], None]
    words: bool = False


def _nothing(_home: Path, _work: Path, _url: str) -> None:
    """Claude Code needs no configuration: the environment names its model."""


def _codex(home: Path, work: Path, url: str) -> None:
    """Configure Codex."""
    _write(home / ".codex" / "config.toml", CODEX.format(url=url, work=work))


def _gemini(home: Path, _work: Path, _url: str) -> None:
    """Configure Gemini."""
    _write(home / ".gemini" / "settings.json", json.dumps(GEMINI, indent=2))


def _opencode(home: Path, _work: Path, url: str) -> None:
    """Configure OpenCode."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Fake",
        "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
        "models": {"fake-model": {"name": "Fake", "tool_call": True}},
    }
    settings = {
        "model": "fake/fake-model",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"fake": provider},
    }
    _write(
        home / ".config" / "opencode" / "opencode.json",
        "// mine\n" + json.dumps(settings, indent=2),
    )


def _write(file: Path, text: str) -> None:
    """Write a file and the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


AGENTS = {
    "claude-code": Agent(
        "@anthropic-ai/claude-code-*/claude",
        ((), ("-p",)),
        (),
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "x",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        _nothing,
    ),
    "codex": Agent(
        "@openai/codex-*/**/codex",
        ((), ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust")),
        (),
        {"FAKE_KEY": "x"},
        _codex,
    ),
    "gemini": Agent(
        "@google/gemini-cli/bundle/gemini.js",
        (("node",), ("-p",)),
        ("-m", "fake-model"),
        {
            "GEMINI_API_KEY": "x",
            "GOOGLE_GEMINI_BASE_URL": "{url}",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        _gemini,
    ),
    "opencode": Agent(
        "opencode-linux-x64/bin/opencode",
        ((), ("run",)),
        ("--format", "json"),
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"},
        _opencode,
        words=True,
    ),
}


def command_of(agent: Agent, clients: Path, message: str) -> list[str]:
    """Return the command that makes an agent answer a message in a new session."""
    program = program_of(clients, agent.program)
    said = message.split() if agent.words else [message]
    return [*agent.before[0], program, *agent.before[1], *said, *agent.arguments]


def program_of(clients: Path, pattern: str) -> str:
    """Return the path of a program that npm installed."""
    return str(next(found for found in sorted(clients.glob(pattern)) if found.is_file()))


def run(command: list[str], home: Path, work: Path, **more: str) -> str:
    """Run a command with its own home; return its output."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **more}
    done = subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def texts(given: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(given, str):
        yield given
    for inner in (
        given.values() if isinstance(given, dict) else given if isinstance(given, list) else ()
    ):
        yield from texts(inner)
