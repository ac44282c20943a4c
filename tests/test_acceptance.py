"""Acceptance criteria of the conversation specification (AC-…) that no other file tests."""

import contextlib
import inspect
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from memories import (
    AgentMemory,
    ContextBuilder,
    MCPError,
    MemoryGateway,
    MemoryPolicy,
    load_config,
)
from memories.context import context, gateway, memories_backend, policy, protocol
from memories.context import memory as agent_memory
from memories.settings import SETTINGS

ROOT = Path(__file__).parent.parent
APP = ROOT / "agent-app" / "src" / "app.py"
GUIDE = (ROOT / "docs" / "conversations.md").read_text(encoding="utf-8")
SETTINGS_PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def start(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the app."""
    return subprocess.Popen(
        [sys.executable, str(APP)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment,
    )  # fmt: skip


def say(app: subprocess.Popen[str], role: str, text: str) -> dict[str, Any]:
    """Send the app a message; return its answer, which it sends once the message is stored."""
    assert app.stdin
    assert app.stdout
    app.stdin.write(json.dumps({"conversation_id": "conv_123", "role": role, "text": text}) + "\n")
    app.stdin.flush()
    answer: dict[str, Any] = json.loads(app.stdout.readline())
    return answer


def end(app: subprocess.Popen[str]) -> int:
    """Close the app's input, at which it ends; return its exit code."""
    app.communicate(timeout=300)
    return app.returncode


# --- persistence


@pytest.mark.thorough  # AC-PERS-004 restarts it too, after it was killed
def test_ac_pers_001_history_survives_a_restart(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    app = start(tmp_path, clean_environment)
    for number in range(20):
        assert say(app, ("user", "assistant")[number % 2], f"message {number}")["stored"]
    assert end(app) == 0
    app = start(tmp_path, clean_environment)
    history = say(app, "user", "What was said?")["history"]
    assert [(turn["turn_index"], turn["text"]) for turn in history] == [
        (n, f"message {n}") for n in range(4, 20)
    ]
    assert end(app) == 0


@pytest.mark.thorough  # like AC-PERS-004, with a memory instead of a history
def test_ac_pers_002_memories_survive_a_restart(
    tmp_path: Path, clean_environment: dict[str, str], run_python: Any
) -> None:
    stored = run_python("""
from memories import AgentMemory
memory = AgentMemory.start()
print(memory.remember("The user prefers a memory stack in Docker", "preference", 0.85, conversation_id="conv_123"))
print(memory.remember("The user may like Kubernetes", "preference", 0.5, conversation_id="conv_123"))
""")
    named, refused = stored.stdout.split()
    assert refused == "None"
    app = start(tmp_path, clean_environment)
    [[memory, similarity]] = say(app, "user", "Which memory stack does the user prefer?")[
        "memories"
    ]
    assert (memory["id"], memory["memory_type"], memory["confidence"]) == (
        named,
        "preference",
        0.85,
    )
    assert 0 < similarity <= 1
    assert end(app) == 0


@pytest.mark.thorough  # the core's tests prove it for stores and gateways
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ac_pers_004_a_shutdown_loses_no_stored_message(
    tmp_path: Path, clean_environment: dict[str, str], how: signal.Signals
) -> None:
    with start(tmp_path, clean_environment) as app:
        for number in range(5):
            assert say(app, "user", f"message {number}")["stored"]
        app.send_signal(how)
        assert app.wait(timeout=300) != 0
    with start(tmp_path, clean_environment) as app:
        assert [turn["text"] for turn in say(app, "user", "And?")["history"]] == [
            f"message {n}" for n in range(5)
        ]


# --- quality


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the names and objects of a module's public classes and functions, and of the methods
    defined in them.
    """
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield f"{module.__name__}.{name}", value
            for inner, wrapped in vars(value).items():
                method = getattr(wrapped, "__func__", getattr(wrapped, "fget", wrapped))
                written = (
                    inspect.isfunction(method) and method.__code__.co_filename == module.__file__
                )
                if written and (inner == "__init__" or not inner.startswith("_")):
                    yield f"{module.__name__}.{name}.{inner}", method
        elif inspect.isfunction(value):
            yield f"{module.__name__}.{name}", value


INTERFACES = dict(
    pair
    for module in (gateway, context, policy, agent_memory, protocol, memories_backend)
    for pair in public(module)
)


def test_ac_qual_001_the_inspected_interfaces_include_all_of_the_specification() -> None:
    named = {name.removeprefix("memories.") for name in INTERFACES}
    assert named >= {
        "context.gateway.MemoryGateway.__init__", "context.gateway.MemoryGateway.ensure_collections",
        "context.gateway.MemoryGateway.append_history", "context.gateway.MemoryGateway.tail_history",
        "context.gateway.MemoryGateway.write_memory", "context.gateway.MemoryGateway.recall_memory",
        "context.context.ContextBuilder.__init__", "context.context.ContextBuilder.build_context",
        "context.context.ContextBuilder.format_for_prompt", "context.policy.MemoryPolicy.__init__",
        "context.policy.MemoryPolicy.should_store", "context.policy.MemoryPolicy.enforce_rate_limit",
        "context.policy.MemoryPolicy.validate_memory_type", "context.memory.AgentMemory.health",
    }  # fmt: skip


def test_ac_qual_001_every_public_interface_has_type_hints_and_a_docstring() -> None:
    bare: list[str] = []
    for name, found in INTERFACES.items():
        if not (found.__doc__ or "").strip():
            bare.append(f"{name} has no docstring")
        if inspect.isfunction(found):
            signature = inspect.signature(found)
            given = {value.name: value.annotation for value in signature.parameters.values()}
            given["its result"] = signature.return_annotation
            untyped = [value for value, hint in given.items() if hint is inspect.Signature.empty]
            bare += [
                f"{name}: {value} has no type" for value in untyped if value not in ("self", "cls")
            ]
    assert len(INTERFACES) > 40
    assert bare == []


@pytest.mark.thorough  # runs these tests a second time, with tracing
def test_ac_qual_002_tests_cover_most_of_gateway_context_and_policy(
    tmp_path: Path, clean_environment: Mapping[str, str]
) -> None:
    tests = [
        str(ROOT / "tests" / "context" / f"test_{name}.py")
        for name in ("gateway", "context", "policy")
    ]
    environment = {**clean_environment, "COVERAGE_FILE": str(tmp_path / "coverage")}
    run = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        "--source=memories",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*run, "-k", "not process and not kill", *tests], cwd=ROOT, env=environment, timeout=3000
    )
    assert done.returncode == 0
    for name in ("gateway", "context", "policy"):
        report = [
            sys.executable,
            "-m",
            "coverage",
            "report",
            "--fail-under=80",
            f"--include=*/memories/context/{name}.py",
        ]
        assert subprocess.run(report, cwd=ROOT, env=environment, timeout=300).returncode == 0


@pytest.mark.thorough  # `make lint` runs it too
def test_ac_qual_004_the_linter_finds_nothing() -> None:
    for given in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *given, "src", "agent-app"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


class Failing:
    """A backend whose methods all fail."""

    def __init__(self, folder: Path, error: Exception) -> None:
        self.folder_name, self.error = (folder, "failing"), error
        self.timeout_seconds, self.most_characters = None, 1_000

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object) -> None:
            raise self.error

        return fail


@pytest.mark.parametrize("error", [MCPError("the disk is full"), ConnectionError("nobody answers")])
def test_ac_qual_005_every_error_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    memory = MemoryGateway("failing", backend=Failing(tmp_path, error))  # type: ignore[arg-type]
    builder, said = ContextBuilder(memory), (1.0, "2026-05-31T10:00:00Z")
    agent = AgentMemory(memory, builder, MemoryPolicy(count_stored=memory.count_window))
    calls: dict[str, Callable[[], object]] = {
        "failed: collections are there": lambda: memory.ensure_collections(["history"]),
        "failed: turn stored": lambda: memory.append_history(
            "c", "user", "one", 0, "2026-05-31T10:00:00Z"
        ),
        "only queued turns could be read": lambda: memory.tail_history("c", 3),
        "failed: history read": lambda: memory.tail_history("another", 3),
        "failed: memory stored": lambda: memory.write_memory("one", "fact", *said),
        "failed: memories recalled": lambda: memory.recall_memory("one", 3, 0.7),
        "context degraded": lambda: builder.build_context("c", "one"),
        "turn not stored": lambda: agent.append("c", "user", "two"),
        "memory not stored": lambda: agent.remember("two", "fact", 0.9),
        "degraded": agent.health,
    }
    for event, call in calls.items():
        caplog.clear()
        with contextlib.suppress(type(error)):
            call()
        logged = [record for record in caplog.records if record.getMessage() == event]
        assert logged, event
        assert str(error) in json.dumps([vars(record)["fields"] for record in logged])


# --- configuration


def section(title: str, page: str = GUIDE) -> str:
    """Return the text under a heading of a page."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str, page: str = GUIDE) -> dict[str, str]:
    """Return the second column of a section's tables, by variable."""
    found = re.findall(r"^\| `([A-Z_]+)` \| ([^|]*) \|", section(title, page), re.MULTILINE)
    return {name: value.strip(" `") for name, value in found}


AGENT = ("MCP_ENDPOINT", "MEMORY_CONFIDENCE_MIN", "HISTORY_TAIL_N", "MEMORY_TOP_K", "MEMORY_MAX_PER_WINDOW",
         "CONTEXT_TOKEN_BUDGET", "LOG_LEVEL")  # fmt: skip
OTHERS = (
    "IS_PERSISTENT",
    "ANONYMIZED_TELEMETRY",
    "CHROMA_CLIENT_TYPE",
    "CHROMA_HTTP_HOST",
    "CHROMA_HTTP_PORT",
)


def test_ac_conf_001_the_agents_variables_are_documented_with_their_defaults(
    tmp_path: Path,
) -> None:
    config = load_config({"home": str(tmp_path)}, environment={}, folder=tmp_path)
    defaults = {
        setting.variable: getattr(config, setting.name)
        for setting in SETTINGS
        if setting.variable in AGENT
    }
    expected = {
        variable: "none" if default is None else str(default)
        for variable, default in defaults.items()
    }
    documented = rows("Settings", SETTINGS_PAGE)
    assert {variable: documented.get(variable) for variable in AGENT} == expected


def test_ac_conf_001_the_variables_of_the_services_are_documented_with_their_values() -> None:
    services = yaml.safe_load(COMPOSE)["services"].values()
    pairs = {
        pair for service in services for pair in service["environment"].items() if pair[0] in OTHERS
    }
    assert {(variable, rows("In Docker").get(variable)) for variable in OTHERS} == pairs


# --- documentation


def test_ac_doc_001_the_readme_has_a_quick_start_that_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^make ([a-z-]+)", readme, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert "docs/index.md" in readme


def test_ac_doc_002_each_service_has_a_comment() -> None:
    lines = COMPOSE.splitlines()
    for service in yaml.safe_load(COMPOSE)["services"]:
        above = lines[lines.index(f"  {service}:") - 1]
        assert above.startswith("  # "), service


def test_ac_doc_003_the_example_payloads_parse_as_turn_and_memory() -> None:
    block = re.search(r"```json\n(.*?)```", section("Turns and memories"), re.DOTALL)
    assert block
    turn, memory = (json.loads(example) for example in block[1].split("\n\n"))
    assert protocol.turn_of(turn).text == turn["text"]
    assert protocol.item_of(memory).memory_type == memory["metadata"]["type"]
    assert turn["metadata"].keys() >= {"conversation_id", "role", "ts", "turn_index"}
    assert memory["metadata"].keys() >= {"type", "confidence", "ts", "conversation_id"}


def test_ac_doc_004_the_guide_draws_the_architecture() -> None:
    drawn = [
        block
        for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
        if "►" in block and "└" in block
    ]
    assert drawn
    for part in ("AgentMemory", "MemoryPolicy", "ContextBuilder", "MemoryGateway", "Backend"):
        assert part in drawn[0]
