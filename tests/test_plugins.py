"""The agents' plugins have the same version and texts everywhere, and don't fail if the command is
missing.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import memories
from memories.connect.hosts import load_hosts

ROOT = Path(__file__).parent.parent
CLAUDE, GEMINI, OPENCODE = (
    ROOT / "plugins" / "memories",
    ROOT / "extensions" / "gemini",
    ROOT / "extensions" / "opencode",
)
HOOK = CLAUDE / "hooks" / "memory-hook.sh"
Run = Callable[..., subprocess.CompletedProcess[str]]


def tool() -> Any:
    """The module `tools/plugins.py`."""
    spec = importlib.util.spec_from_file_location("plugins_tool", ROOT / "tools" / "plugins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_plugin_has_the_version_of_the_package() -> None:
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    manifests = (
        CLAUDE / ".claude-plugin" / "plugin.json",
        GEMINI / "gemini-extension.json",
        OPENCODE / "package.json",
    )
    versions = [json.loads(file.read_text())["version"] for file in manifests]
    assert {*versions, *(each["version"] for each in market["plugins"])} == {memories.__version__}


def test_generated_plugin_files_are_up_to_date() -> None:
    """If this fails, run: make plugins."""
    assert [str(file) for file, text in tool().wanted().items() if file.read_text() != text] == []


def test_a_new_version_reaches_every_plugin() -> None:
    texts = tool().wanted()
    assert {str(ROOT / name) for name in tool().VERSIONED} <= set(map(str, texts))
    assert all(
        re.search(rf'"?version"?(:| =) "{memories.__version__}"', texts[ROOT / name])
        for name in tool().VERSIONED
    )


def test_the_marketplace_points_to_the_plugin() -> None:
    [entry] = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())["plugins"]
    manifest = json.loads((ROOT / entry["source"] / ".claude-plugin" / "plugin.json").read_text())
    assert manifest["name"] == entry["name"]
    assert len((CLAUDE / "README.md").read_text().split()) >= 40


@pytest.mark.parametrize(
    ("host", "folder", "variable"),
    [("claude-code", CLAUDE, "CLAUDE_PLUGIN_ROOT"), ("gemini", GEMINI, "extensionPath")],
)
def test_the_plugins_hooks_match_the_hosts_events(host: str, folder: Path, variable: str) -> None:
    hooks = json.loads((folder / "hooks" / "hooks.json").read_text())["hooks"]
    expected = {
        each.name: (event, each.timeout) for event, each in load_hosts()[host].hooks.items()
    }
    assert set(hooks) == set(expected)
    for name, [group] in hooks.items():
        [handler] = group["hooks"]
        assert set(handler) == {"type", "command", "timeout"}  # Codex ignores or refuses other keys
        found = re.fullmatch(
            rf'sh "\$\{{{variable}\}}/hooks/memory-hook.sh" (\S+)( gemini)?', handler["command"]
        )
        assert found is not None
        assert (found[1], handler["timeout"]) == expected[name]
        assert (found[2] is not None) == (host == "gemini")


@pytest.fixture
def hook(tmp_path: Path) -> Run:
    """Return a function that runs the hooks' script; `memory`, if given, is the script of our
    command.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cat", "mkdir", "grep"):
        (programs / name).symlink_to(shutil.which(name) or "")

    def run(
        *arguments: str, memory: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        if memory is not None:
            (programs / "memoriae").write_text(f"#!/bin/sh\n# memories\n{memory}\n")
            (programs / "memoriae").chmod(0o700)
        environment = {"PATH": str(programs), "HOME": str(tmp_path), **variables}
        return subprocess.run(
            ["sh", str(HOOK), *arguments],
            env=environment,
            input="{}" * 100_000,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize(
    "event", ["session-start", "user-prompt", "stop", "pre-compact", "session-end"]
)
def test_without_the_command_a_hook_only_gives_a_hint_once(
    event: str, hook: Run, tmp_path: Path
) -> None:
    data = {"CLAUDE_PLUGIN_DATA": str(tmp_path / "data")}
    first, second = hook(event, **data), hook(event, **data)
    assert (first.returncode, second.returncode) == (0, 0)
    assert (first.stderr, second.stderr, second.stdout) == ("", "", "")
    if event == "session-start":
        assert "README" in json.loads(first.stdout)["systemMessage"]
    else:
        assert first.stdout == ""


def test_a_hook_works_even_if_it_cannot_record_its_hint(hook: Run) -> None:
    done = hook("session-start", CLAUDE_PLUGIN_DATA="/proc/nowhere")
    assert done.returncode == 0
    assert "systemMessage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["session-start"], {}, "hook session-start --host claude-code"),
        (
            ["session-start"],
            {"PLUGIN_ROOT": "/x", "CLAUDE_PLUGIN_ROOT": "/x"},
            "hook session-start --host codex",
        ),
        (["user-prompt", "gemini"], {"PLUGIN_ROOT": "/x"}, "hook user-prompt --host gemini"),
        (["stop"], {}, ""),
        (["stop"], {"CLAUDE_PLUGIN_OPTION_CAPTURE": "false", "MEMORY_CAPTURE": "1"}, ""),
        (["session-end"], {}, "hook session-end --host claude-code"),
        (
            ["stop"],
            {"CLAUDE_PLUGIN_OPTION_CAPTURE": "true"},
            "hook stop --host claude-code --capture",
        ),
        (["stop", "gemini"], {"MEMORY_CAPTURE": "true"}, "hook stop --host gemini --capture"),
        (
            ["user-prompt"],
            {"CLAUDE_PLUGIN_OPTION_NAMESPACE": "a b"},
            "hook user-prompt --host claude-code -n a b",
        ),
    ],
)
def test_a_hook_runs_the_command(
    arguments: list[str], variables: Mapping[str, str], expected: str, hook: Run
) -> None:
    done = hook(*arguments, memory='cat >/dev/null; echo "$*"', **variables)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, expected, "")


def test_a_failing_command_does_not_fail_the_hook(hook: Run) -> None:
    done = hook("user-prompt", memory="cat >/dev/null; echo no such command >&2; exit 2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("command", ["nothing-of-this-name", "failing", "silent", "noise"])
def test_the_opencode_plugin_works_without_the_command(command: str, tmp_path: Path) -> None:
    for name, text in (
        ("failing", "exit 2"),
        ("silent", "cat >/dev/null"),
        ("noise", "echo '{nothing'"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    program = tmp_path / command if (tmp_path / command).exists() else command
    head = (
        f"const COMMAND = [{json.dumps(str(program))}]\nconst OPTIONS = []\nconst CAPTURE = true\n"
    )
    script = """
const hooks = await MemoriesPlugin({ client: {}, directory: "/" })
const system = []
await hooks["chat.message"]({ sessionID: "s" }, { message: {}, parts: [{ type: "text", text: "hello" }] })
await hooks["experimental.chat.system.transform"]({ sessionID: "s" }, { system })
await hooks.event({ event: { type: "session.idle", properties: { sessionID: "s" } } })
await hooks.dispose()
console.log(JSON.stringify(system))
"""
    (tmp_path / "try.mjs").write_text(head + body + script)
    done = subprocess.run(
        ["node", str(tmp_path / "try.mjs")],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(("parent", "told"), [(None, True), ("another", False)])
def test_the_opencode_plugin_captures_only_messages_of_a_person(
    parent: str | None, told: bool, tmp_path: Path
) -> None:
    """A session with a parent was started by an agent for a task, and contains no messages of a
    person.
    """
    program, log = tmp_path / "memory", tmp_path / "log"
    program.write_text(f'#!/bin/sh\ncat >/dev/null\necho "$*" >>{log}\n')
    program.chmod(0o700)
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    head = f"const COMMAND = [{json.dumps(str(program))}]\nconst OPTIONS = ['--capture']\nconst CAPTURE = true\n"
    script = f"""
const data = {{ id: "s", parentID: {json.dumps(parent)} }}
const client = {{ session: {{ get: async () => ({{ data }}), messages: async () => ({{ data: [] }}) }} }}
const hooks = await MemoriesPlugin({{ client, directory: "/" }})
await hooks["chat.message"]({{ sessionID: "s" }}, {{ message: {{}}, parts: [{{ type: "text", text: "hello" }}] }})
await hooks["experimental.session.compacting"]({{ sessionID: "s" }})
await hooks.event({{ event: {{ type: "session.idle", properties: {{ sessionID: "s" }} }} }})
await hooks.dispose()
"""
    (tmp_path / "try.mjs").write_text(head + body + script)
    done = subprocess.run(
        ["node", str(tmp_path / "try.mjs")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    events = {row.split()[1]: "--capture" in row for row in log.read_text().splitlines()}
    assert events["user-prompt"] is told
    assert {"stop", "pre-compact", "session-end"} & events.keys() == (
        {"stop", "pre-compact", "session-end"} if told else set()
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_opencode_plugin_recalls_after_the_session_block(tmp_path: Path) -> None:
    """Otherwise, the first message could recall what the block shows."""
    program, log = tmp_path / "memory", tmp_path / "log"
    program.write_text(
        f'#!/bin/sh\ncat >/dev/null\n[ "$2" = user-prompt ] || sleep 0.5\necho "$2" >>{log}\n'
    )
    program.chmod(0o700)
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    head = (
        f"const COMMAND = [{json.dumps(str(program))}]\nconst OPTIONS = []\nconst CAPTURE = false\n"
    )
    script = """
const hooks = await MemoriesPlugin({ client: {}, directory: "/" })
await hooks["chat.message"]({ sessionID: "s" }, { message: {}, parts: [{ type: "text", text: "hello" }] })
"""
    (tmp_path / "try.mjs").write_text(head + body + script)
    done = subprocess.run(
        ["node", str(tmp_path / "try.mjs")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert log.read_text().split() == ["session-start", "user-prompt"]


def report_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a hook that must have succeeded."""
    assert done.returncode == 0
    return str(json.loads(done.stdout)["systemMessage"])


def test_another_program_on_the_path_is_noticed(hook: Run, tmp_path: Path) -> None:
    other = tmp_path / "bin" / "memory"
    other.write_text("#!/bin/sh\n# mcp-memory-service\n")
    other.chmod(0o700)
    assert "the memory on your PATH is another program" in report_of(hook("session-start"))
    foreign = tmp_path / "bin" / "memoriae"
    foreign.write_text("#!/bin/sh\necho should not run\n")
    foreign.chmod(0o700)
    assert f"{foreign} is not this plugin's memoriae" in report_of(hook("session-start"))


def test_the_folder_of_uv_and_pipx_is_searched_after_the_path(hook: Run, tmp_path: Path) -> None:
    folder = tmp_path / ".local" / "bin"
    folder.mkdir(parents=True)
    (folder / "memoriae").write_text("#!/bin/sh\n# memories\ncat >/dev/null\necho here\n")
    (folder / "memoriae").chmod(0o700)
    assert hook("session-start").stdout == "here\n"
