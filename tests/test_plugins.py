"""The agents' plugins have the same version and texts everywhere, and don't fail if the command is
missing.
"""

import importlib.util
import json
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
    script = shutil.copy(HOOK, tmp_path)

    def run(
        *arguments: str, memory: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        if memory is not None:
            (programs / "memoriae").write_text(f"#!/bin/sh\n# memories\n{memory}\n")
            (programs / "memoriae").chmod(0o700)
        environment = {"PATH": str(programs), "HOME": str(tmp_path), **variables}
        return subprocess.run(
            ["sh", script, *arguments],
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
def test_without_the_command_a_hook_only_shows_one_hint(
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


def test_gemini_shows_the_hint_at_the_first_prompt(hook: Run) -> None:
    assert hook("stop", "gemini").stdout == ""
    assert "README" in report_of(hook("user-prompt", "gemini"))
    assert hook("user-prompt", "gemini").stdout == ""


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


def test_a_hook_says_that_the_plugin_brings_the_tools(hook: Run) -> None:
    done = hook("session-start", memory='cat >/dev/null; echo "$MEMORY_PLUGIN_TOOLS"')
    assert done.stdout == "1\n"


def test_a_failing_command_does_not_make_the_hook_fail(hook: Run) -> None:
    done = hook("user-prompt", memory="cat >/dev/null; echo no such command >&2; exit 2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run_opencode_plugin(
    folder: Path, program: str, script: str, *arguments: str, capture: bool = True
) -> str:
    """Run a script with the plugin's hooks in `hooks`; return its output.

    Args:
        folder: A folder for the script.
        program: The plugin's command.
        script: The script; `data` is the session that opencode returns, and `messages` are its
            messages.
        arguments: The arguments of the process.
        capture: Whether the plugin captures.
    """
    body = (ROOT / "src" / "memories" / "connect" / "opencode.js").read_text()
    options = ["--capture"] if capture else []
    head = (
        f"const COMMAND = [{json.dumps(program)}]\nconst OPTIONS = {json.dumps(options)}\n"
        f"const CAPTURE = {json.dumps(capture)}\n"
    )
    start = """
const data = { id: "s" }, messages = []
const session = { get: async () => ({ data }), messages: async () => ({ data: messages }) }
const hooks = await MemoriesPlugin({ client: { session }, directory: "/" })
const say = (text) => hooks["chat.message"]({ sessionID: "s" }, { message: {}, parts: [{ type: "text", text }] })
const happens = (type) => hooks.event({ event: { type, properties: { sessionID: "s" } } })
const ask = async (prompt) => {
  const system = [prompt]
  await hooks["experimental.chat.system.transform"]({ sessionID: "s" }, { system })
  return system
}
"""
    (folder / "try.mjs").write_text(head + body + start + script)
    done = subprocess.run(
        ["node", str(folder / "try.mjs"), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_program(folder: Path, text: str) -> str:
    """Write a shell script that stands for the command; return its path."""
    program = folder / "memory"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return str(program)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("text", [None, "exit 2", "cat >/dev/null", "echo '{nothing'"])
def test_the_opencode_plugin_works_without_the_command(text: str | None, tmp_path: Path) -> None:
    program = write_program(tmp_path, text) if text else "nothing-of-this-name"
    script = """
await say("hello")
console.log(JSON.stringify(await ask("You are opencode")))
await happens("session.idle")
await hooks.dispose()
"""
    assert json.loads(run_opencode_plugin(tmp_path, program, script)) == ["You are opencode"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("is_of_subagent", [False, True])
def test_the_opencode_plugin_runs_hooks_only_for_user_sessions(
    is_of_subagent: bool, tmp_path: Path
) -> None:
    """A session with a parent was started by an agent for a task. With hooks of its own, it would
    become the session last active in the folder, whose identity the MCP server uses.
    """
    log = tmp_path / "log"
    log.touch()
    program = write_program(tmp_path, f'cat >/dev/null\necho "$*" >>{log}')
    script = """
await say("hello")
await hooks["experimental.session.compacting"]({ sessionID: "s" })
await happens("session.idle")
await hooks.dispose()
"""
    if is_of_subagent:
        script = 'data.parentID = "another"' + script
    run_opencode_plugin(tmp_path, program, script)
    events = ["session-start", "user-prompt", "pre-compact", "stop", "session-end"]
    expected = [] if is_of_subagent else [f"{e} --host opencode --capture" for e in events]
    assert log.read_text().splitlines() == [f"hook {each}" for each in expected]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_opencode_plugin_recalls_after_the_session_block(tmp_path: Path) -> None:
    """Otherwise, the first message could recall what the block shows."""
    log = tmp_path / "log"
    program = write_program(
        tmp_path,
        f'cat >/dev/null\n[ "$2" = user-prompt ] || sleep 0.5\necho "$2" >>{log}',
    )
    run_opencode_plugin(tmp_path, program, 'await say("hello")', capture=False)
    assert log.read_text().split() == ["session-start", "user-prompt"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_opencode_plugin_keeps_what_was_recalled_until_the_session_is_compacted(
    tmp_path: Path,
) -> None:
    """opencode builds the system prompt again for each request, and stores none of it. A hook gives
    a memory once, and a new process needs it again.
    """
    log = tmp_path / "log"
    answer = '{"hookSpecificOutput": {"additionalContext": "%s"}}'
    program = write_program(
        tmp_path,
        f"cat >>{log}\necho >>{log}\nprintf '{answer}' \"$2 $(grep -c hook_event_name {log})\"",
    )
    script = """
await say("one")
await say("two")
const before = await ask("You are opencode")
await happens("session.compacted")
const after = await ask("You are opencode")
console.log(JSON.stringify([before, after]))
"""
    before, after = json.loads(run_opencode_plugin(tmp_path, program, script))
    assert before == ["You are opencode", "session-start 1", "user-prompt 2", "user-prompt 3"]
    assert after == ["You are opencode", "session-start 4"]
    assert json.loads(log.read_text().splitlines()[0])["source"] == "clear"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    "prompt",
    [
        "You are a title generator. You output ONLY a thread title. Nothing else.",
        "You are a context summarization agent. You are given a conversation.",
    ],
)
def test_the_opencode_plugin_gives_no_memory_to_requests_for_titles_and_summaries(
    prompt: str, tmp_path: Path
) -> None:
    answer = '{"hookSpecificOutput": {"additionalContext": "known"}}'
    program = write_program(tmp_path, f"cat >/dev/null\necho '{answer}'")
    script = f'await say("hello")\nconsole.log(JSON.stringify(await ask({json.dumps(prompt)})))'
    assert json.loads(run_opencode_plugin(tmp_path, program, script)) == [prompt]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("argument", "sent", "expected"),
    [
        ("Start as bob", '"Start as bob"', "Start as bob"),
        ('Call it "heron"', '"Call it \\"heron\\""', 'Call it "heron"'),
        ("Summarize this", '"Summarize this"\nthe input', "Summarize this\nthe input"),
        ("something else", '"Start as bob"', '"Start as bob"'),
    ],
)
def test_the_opencode_plugin_removes_the_quotes_that_opencode_run_adds(
    argument: str, sent: str, expected: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    program = write_program(tmp_path, f"cat >>{log}\necho >>{log}")
    run_opencode_plugin(tmp_path, program, f"await say({json.dumps(sent)})", "run", argument)
    assert json.loads(log.read_text().splitlines()[1])["prompt"] == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_opencode_plugin_does_not_capture_a_summary_as_an_answer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = write_program(tmp_path, f"cat >>{log}\necho >>{log}")
    script = """
const answer = (id, text, summary) => ({ info: { id, role: "assistant", summary }, parts: [{ type: "text", text }] })
messages.push(answer("msg_1", "We use Rust."), answer("msg_2", "## Goal", true))
await say("hello")
await happens("session.idle")
"""
    run_opencode_plugin(tmp_path, program, script)
    stop = json.loads(log.read_text().splitlines()[-1])
    assert (stop["last_assistant_message"], stop["turn_id"]) == ("We use Rust.", "msg_1")


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
    (folder / "memoriae").write_text(
        "#!/bin/sh\n# memories\ncat >/dev/null\necho here$MEMORY_PLUGIN_TOOLS\n"
    )
    (folder / "memoriae").chmod(0o700)
    assert hook("session-start").stdout == "here\n"  # the host can't start the MCP server
