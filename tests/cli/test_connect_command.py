"""`memory connect` and `memory disconnect`: their changes to the files of agents, which can be
undone.
"""

import json
import os
import shlex
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories.connect.entries import server_words
from memories.connect.hosts import Where, load_hosts
from memories.connect.program import (
    EVENTS,
    find_program,
    hook_command,
    is_hook,
    is_server,
    words_of,
)
from memories.connect.status import FoundEntries, HookCheck, StartCheck

Command = Callable[..., Any]

PROGRAM = Path(sys.executable).with_name("memoriae")
TOKEN = (
    "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5"
)  # a value that must not appear in any output
MINE = {
    "claude-code": {
        ".claude.json": '{"numStartups": 4, "mcpServers": {"other": {"command": "x"}}, "oauth": "'
        + TOKEN
        + '"}',
        ".claude/settings.json": '{\n    "model": "opus",\n    "hooks": {\n        "Stop": [\n            {"hooks": '
        '[{"type": "command", "command": "say done"}]}\n        ]\n    }\n}',
    },
    "codex": {
        ".codex/config.toml": '# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x"\n',
        ".codex/hooks.json": '{"hooks": {"SessionStart": [{"matcher": "startup", "hooks": []}]}}\n',
    },
    "gemini": {".gemini/settings.json": '{\n  // mine\n  "theme": "x" // dark\n}\n'},
    "opencode": {
        ".config/opencode/opencode.json": '{\n\t"model": "m", // the best\n\t"mcp": {},\n}\n'
    },
    "cursor": {
        ".cursor/mcp.json": '{"mcpServers": {}}',
        ".cursor/hooks.json": (
            '{\n  "version": 1,\n  "hooks": {\n    "stop": [{"command": "./say-done.sh"}]\n  }\n}\n'
        ),
    },
    "vscode": {".config/Code/User/mcp.json": '{\n\t"servers": {\n\t},\n\t"inputs": []\n}'},
    "claude-desktop": {".config/Claude/claude_desktop_config.json": '{"globalShortcut": ""}\r\n'},
    "windsurf": {".codeium/windsurf/mcp_config.json": "{}"},
    "zed": {".config/zed/settings.json": '// Zed\n{\n  "theme": "One",\n  /* no servers */\n}\n'},
}
HOOKED = ("claude-code", "codex", "gemini", "cursor")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user whose agents are in their default folders."""
    for variable in (
        "XDG_CONFIG_HOME",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "GEMINI_CLI_HOME",
        "OPENCODE_CONFIG_DIR",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("MEMORY_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    # These tests are about files; `tests/connect/test_check.py` starts the programs.
    hooks = (HookCheck("session-start", 0.1, 10), HookCheck("user-prompt", 0.1, 0))
    works = StartCheck(("search_memories",), 0.5, "sqlite:////x/memories.db", 1)

    def check(entries: FoundEntries) -> StartCheck:
        return works._replace(hooks=hooks if entries.hooks else ())

    monkeypatch.setattr("memories.cli.connect.check_connection", check)
    monkeypatch.setattr("memories.cli.connect.check_connections", list)
    monkeypatch.setattr("memories.connect.status.check_connections", list)
    home = tmp_path / "home"
    home.mkdir()
    return home


def write_mine(home: Path, host: str) -> dict[Path, bytes]:
    """Write a user's own configuration of a host; return all files in the home."""
    for name, text in MINE[host].items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(text.encode())
    return everything(home)


def everything(home: Path) -> dict[Path, bytes]:
    """Return all files in a home except those of Memories."""
    own = home / ".config" / "memories"
    return {
        file: file.read_bytes()
        for file in home.rglob("*")
        if file.is_file() and not file.is_relative_to(own)
    }


def copies(home: Path) -> list[Path]:
    """Return the copies of configurations that `connect` left."""
    return sorted(home.rglob("*.before-memories-*"))


def entry_of(home: Path, host: str) -> Any:
    """Return the entry of the MCP server in a host's configuration."""
    files = load_hosts()[host].user_files(Where(home, {}, "linux"))
    text = files.server.read_text()
    if files.server.suffix == ".toml":
        return tomllib.loads(text)["mcp_servers"]["memories"]
    from memories.connect.jsonc import Document

    return Document(text, comments=True).get((*load_hosts()[host].servers, "memories"))


def commands_of(file: Path) -> dict[str, list[str]]:
    """Return our hooks in a file, by the host's event."""
    from memories.connect.jsonc import Document

    groups = Document(file.read_text(), comments=True).get(("hooks",)) or {}
    found = {
        event: [each["command"] for group in listed for each in group.get("hooks", [group])]
        for event, listed in groups.items()
    }
    ours = {event: [each for each in listed if " hook " in each] for event, listed in found.items()}
    return {event: listed for event, listed in ours.items() if listed}


@pytest.mark.parametrize("host", load_hosts())
def test_connect_adds_a_working_server_to_each_host_and_disconnect_removes_it(
    host: str, memory: Command, user: Path
) -> None:
    before = write_mine(user, host)
    answer = memory("connect", host, "--capture", "-n", "bob").json["connected"][0]
    assert answer["changed"]
    assert answer["undo"] == f"memory disconnect {host}"
    assert {Path(file["path"]) for file in answer["files"]} == {
        file
        for file, data in everything(user).items()
        if before.get(file) != data and file not in copies(user)
    }
    entry = entry_of(user, host)
    command = entry["command"] if host == "opencode" else [entry["command"], *entry["args"]]
    assert command == [str(PROGRAM), "mcp", "-n", "bob"]
    assert os.access(command[0], os.X_OK)
    row = memory("connect", "--status", host).json["hosts"][0]
    assert row["installed"]
    assert [(each["mcp"], each["namespace"], each["problem"]) for each in row["connected"]] == [
        (True, "bob", None)
    ]
    assert memory("disconnect", host).json["disconnected"][0]["changed"]
    assert everything(user) == before


SHAPES: dict[str, tuple[str, Any]] = {
    "claude-code": (
        "mcpServers",
        {"type": "stdio", "command": str(PROGRAM), "args": ["mcp"], "alwaysLoad": True},
    ),
    "codex": (
        "mcp_servers",
        {"command": str(PROGRAM), "args": ["mcp"], "startup_timeout_sec": 60},
    ),
    "gemini": ("mcpServers", {"command": str(PROGRAM), "args": ["mcp"]}),
    "opencode": (
        "mcp",
        {"type": "local", "command": [str(PROGRAM), "mcp"], "enabled": True, "timeout": 15_000},
    ),
    "cursor": ("mcpServers", {"command": str(PROGRAM), "args": ["mcp"]}),
    "vscode": ("servers", {"type": "stdio", "command": str(PROGRAM), "args": ["mcp"]}),
    "claude-desktop": ("mcpServers", {"command": str(PROGRAM), "args": ["mcp"]}),
    "windsurf": ("mcpServers", {"command": str(PROGRAM), "args": ["mcp"]}),
    "zed": ("context_servers", {"command": str(PROGRAM), "args": ["mcp"]}),
}


@pytest.mark.parametrize("host", load_hosts())
def test_entries_have_the_format_documented_by_the_host(
    host: str, memory: Command, user: Path, tmp_path: Path
) -> None:
    memory("connect", host)
    name, entry = SHAPES[host]
    assert load_hosts()[host].servers == (name,)
    assert entry_of(user, host) == entry
    elsewhere = {"MEMORY_HOME": str(tmp_path / "elsewhere")}
    memory("connect", host, env=elsewhere)
    assert entry_of(user, host) == entry | {
        "environment" if host == "opencode" else "env": elsewhere
    }


@pytest.mark.parametrize("host", load_hosts())
def test_an_empty_home_is_empty_again_after_disconnect(
    host: str, memory: Command, user: Path
) -> None:
    answer = memory("connect", host, "--capture").json["connected"][0]
    assert any("is not installed here" in note for note in answer["notes"])
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in everything(user))
    memory("disconnect", host)
    assert everything(user) == {}
    assert [each.name for each in user.iterdir()] == [".config"]
    assert [each.name for each in (user / ".config").iterdir()] == ["memories"]


@pytest.mark.parametrize("host", load_hosts())
def test_a_second_run_changes_nothing(host: str, memory: Command, user: Path) -> None:
    write_mine(user, host)
    memory("connect", host)
    before = everything(user)
    answer = memory("connect", host).json["connected"][0]
    assert not answer["changed"]
    assert answer["files"] == []
    assert "nothing to change" in answer["notes"][0]
    assert everything(user) == before


@pytest.mark.parametrize("variables", ["MEMORY_HOME=/x ", "env MEMORY_HOME='/a b' NOTE=$HOME  "])
@pytest.mark.parametrize("host", HOOKED)
def test_a_hook_keeps_the_variables_that_the_user_added(
    host: str, variables: str, memory: Command, user: Path
) -> None:
    memory("connect", host)
    file = load_hosts()[host].user_files(Where(user, {}, "linux")).hooks
    assert file is not None
    plain = commands_of(file)
    file.write_text(file.read_text().replace(f'"{PROGRAM} hook', f'"{variables}{PROGRAM} hook'))
    before = everything(user)
    assert not memory("connect", host).json["connected"][0]["changed"]
    assert everything(user) == before
    [row] = memory("connect", "--status", host).json["hosts"][0]["connected"]
    assert (row["problem"], len(row["hooks"])) == (None, len(plain))
    memory("connect", host, "--capture")
    expected = {event: [f"{variables}{command} --capture"] for event, [command] in plain.items()}
    assert expected.items() <= commands_of(file).items()
    memory("disconnect", host)
    assert not file.exists() or not commands_of(file)


def test_several_hooks_for_an_event_become_one_that_keeps_their_variables(
    memory: Command, user: Path
) -> None:
    memory("connect", "claude-code")
    file = load_hosts()["claude-code"].user_files(Where(user, {}, "linux")).hooks
    assert file is not None
    plain = commands_of(file)
    changed = json.loads(file.read_text())
    groups = changed["hooks"]["SessionStart"]
    for matcher in ("startup", "resume"):
        hook = {"type": "command", "command": f"A=1 {PROGRAM} hook session-start --seconds 3"}
        groups.append({"matcher": matcher, "hooks": [hook]})
    file.write_text(json.dumps(changed))
    memory("connect", "claude-code")
    assert commands_of(file) == plain | {"SessionStart": [f"A=1 {plain['SessionStart'][0]}"]}


@pytest.mark.parametrize("host", load_hosts())
def test_later_changes_by_another_program_are_kept(host: str, memory: Command, user: Path) -> None:
    """Only our entries are removed from a file that another program has changed, even without the
    register.
    """
    write_mine(user, host)
    memory("connect", host, "--capture")
    found = dict.fromkeys(load_hosts()[host].user_files(Where(user, {}, "linux")))
    files = [file for file in found if file is not None and file.suffix != ".js" and file.exists()]
    for file in files:
        text = file.read_bytes().decode()
        file.write_bytes((text + "\n# new\n" if file.suffix == ".toml" else text + "\n").encode())
    (user / ".config" / "memories" / "connected.json").unlink()
    memory("disconnect", host)
    for file in files:
        assert b"memor" not in file.read_bytes()
        name = str(file.relative_to(user))
        if name in MINE[host] and "{}" not in MINE[host][name] and "[]" not in MINE[host][name]:
            added = "\n# new\n" if file.suffix == ".toml" else "\n"
            assert file.read_bytes().decode() == (MINE[host][name] + added).replace("{\n\t}", "{}")


@pytest.mark.parametrize("host", HOOKED)
def test_hooks_are_written_with_their_time_limits(host: str, memory: Command, user: Path) -> None:
    write_mine(user, host)
    hooks = load_hosts()[host].user_files(Where(user, {}, "linux")).hooks
    assert hooks is not None
    memory("connect", host)
    recall = commands_of(hooks)
    events = {words_of(command)[2] for listed in recall.values() for command in listed}
    begins_with_prompt = {"session-start"} if host == "gemini" else set()
    assert events == {"session-start", "user-prompt", "session-end"} - begins_with_prompt
    memory("connect", host, "--capture", "-n", "bob")
    names = {each.name: event for event, each in load_hosts()[host].hooks.items()}
    for name, listed in commands_of(hooks).items():
        assert listed == [f"{PROGRAM} hook {names[name]} --host {host} --capture -n bob"]
    assert set(commands_of(hooks)) == set(names)
    unit = 1000 if host == "gemini" else 1
    written = json.dumps(_parsed(hooks))
    assert f'"timeout": {5 * unit}' in written
    if host in ("claude-code", "codex"):
        [end] = _parsed(hooks)["hooks"]["SessionEnd"]
        assert end["hooks"][0]["timeout"] <= 3
    memory("connect", host)
    assert commands_of(hooks) == recall


def _parsed(file: Path) -> Any:
    """Parse a JSON file that may have comments."""

    from memories.connect.jsonc import Document

    return Document(file.read_text(), comments=True).get(())


CURSOR_KNOWS = {  # Cursor ignores the whole file if it contains an unknown event
    "beforeShellExecution",
    "beforeMCPExecution",
    "afterShellExecution",
    "afterMCPExecution",
    "beforeReadFile",
    "afterFileEdit",
    "beforeTabFileRead",
    "afterTabFileEdit",
    "stop",
    "beforeSubmitPrompt",
    "afterAgentResponse",
    "afterAgentThought",
    "sessionStart",
    "sessionEnd",
    "preCompact",
    "subagentStart",
    "subagentStop",
    "preToolUse",
    "postToolUse",
    "postToolUseFailure",
}


def test_cursor_gets_only_hooks_that_it_supports(memory: Command, user: Path) -> None:
    memory("connect", "cursor", "--capture", "-n", "bob")
    file = user / ".cursor" / "hooks.json"
    written = json.loads(file.read_text())  # no comments
    assert written.keys() == {"version", "hooks"}
    assert written["version"] == 1
    assert written["hooks"].keys() <= CURSOR_KNOWS
    for [handler] in written["hooks"].values():
        assert handler.keys() == {"command", "timeout"}
        assert shlex.split(handler["command"])[0] == str(PROGRAM)
        assert 0 < handler["timeout"] <= 10  # seconds
        assert "//" not in handler["command"]  # Cursor reads the rest as a comment
    memory("connect", "cursor")
    recalling = {"sessionStart", "beforeSubmitPrompt", "sessionEnd"}
    assert json.loads(file.read_text())["hooks"].keys() == recalling
    memory("disconnect", "cursor")
    assert not file.exists()


def test_other_hooks_in_cursors_file_are_kept(memory: Command, user: Path) -> None:
    file = user / ".cursor" / "hooks.json"
    file.parent.mkdir()
    mine = {
        "version": 1,
        "hooks": {
            "sessionStart": [{"command": "./a.sh"}],
            "afterFileEdit": [{"command": "./b.sh"}],
        },
    }
    file.write_text(json.dumps(mine))
    memory("connect", "cursor", "--capture")
    found = json.loads(file.read_text())
    assert found["hooks"]["sessionStart"][0] == {"command": "./a.sh"}
    assert len(found["hooks"]["sessionStart"]) == 2
    found["hooks"]["stop"].append({"command": "./c.sh"})
    file.write_text(json.dumps(found))
    shown = memory("disconnect", "cursor", "--dry-run").json["disconnected"][0]["diff"]
    assert "-" in shown
    assert "./c.sh" in shown
    memory("disconnect", "cursor")
    mine["hooks"] |= {"stop": [{"command": "./c.sh"}]}  # type: ignore[operator]
    assert json.loads(file.read_text()) == mine


@pytest.mark.parametrize(
    ("host", "name", "before"),
    [
        ("claude-code", ".claude.json", {"mcpServers": {}}),
        ("claude-code", ".claude/settings.json", {"hooks": {}}),
        ("claude-code", ".claude/settings.json", {"hooks": {"Stop": [], "SessionStart": []}}),
        ("gemini", ".gemini/settings.json", {"mcpServers": {}, "hooks": {}}),
        ("cursor", ".cursor/mcp.json", {"mcpServers": {}}),
        ("cursor", ".cursor/hooks.json", {"hooks": {}}),
        ("cursor", ".cursor/hooks.json", {"version": 1}),
        ("cursor", ".cursor/hooks.json", {"version": 1, "hooks": {"stop": []}}),
        ("cursor", ".cursor/hooks.json", {"version": 1, "hooks": {}}),
    ],
)
@pytest.mark.parametrize("is_edited", [True, False])
def test_objects_that_were_empty_before_connect_are_empty_after_disconnect(
    host: str, name: str, before: Any, is_edited: bool, memory: Command, user: Path
) -> None:
    file = user / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(before))
    memory("connect", host)
    if is_edited:
        file.write_text(file.read_text() + "\n")
    memory("disconnect", host)
    assert json.loads(file.read_text()) == before


def test_a_missing_cursor_hook_is_reported(memory: Command, user: Path, folder: Path) -> None:
    memory("connect", "cursor", "--capture")
    file = user / ".cursor" / "hooks.json"
    file.write_text(file.read_text().replace(str(PROGRAM), "/gone/memory"))
    (user / ".cursor" / "mcp.json").unlink()
    row = memory("connect", "--status", "cursor")
    assert row.code == 1
    [connected] = json.loads(row.out)["hosts"][0]["connected"]
    assert connected["problem"] == "/gone/memory no longer exists"
    assert connected["hooks"] == list(EVENTS)
    [finding] = [
        each for each in json.loads(memory("doctor").out)["findings"] if "Cursor" in each["what"]
    ]
    assert finding["remedy"] == "run: memory connect cursor --capture"


def test_other_hooks_are_kept_even_in_a_group_with_ours(memory: Command, user: Path) -> None:
    file = user / ".claude" / "settings.json"
    memory("connect", "claude-code")
    settings = json.loads(file.read_text())
    own = settings["hooks"]["SessionStart"][0]["hooks"][0]
    other = {"type": "command", "command": "memory-of-others hook session-start"}
    settings["hooks"]["SessionStart"] = [{"matcher": "startup", "hooks": [other, own, dict(own)]}]
    file.write_text(json.dumps(settings))
    memory("connect", "claude-code")
    found = json.loads(file.read_text())["hooks"]["SessionStart"]
    assert found == [{"matcher": "startup", "hooks": [other, own]}]
    undone = memory("disconnect", "claude-code").json["disconnected"][0]
    assert {Path(each["path"]).name: each["change"] for each in undone["files"]} == {
        ".claude.json": "removed",
        "settings.json": "changed",
    }
    assert json.loads(file.read_text()) == {
        "hooks": {"SessionStart": [{"matcher": "startup", "hooks": [other]}]},
    }


def test_the_users_additions_to_an_entry_are_kept(memory: Command, user: Path) -> None:
    memory("connect", "claude-code")
    file = user / ".claude.json"
    found = json.loads(file.read_text())
    found["mcpServers"]["memories"] |= {
        "timeout": 60_000,
        "env": {"LOG_LEVEL": "DEBUG"},
        "command": "/gone/memory",
    }
    file.write_text(json.dumps(found))
    memory("connect", "claude-code", env={"MEMORY_HOME": str(user / "elsewhere")})
    entry = json.loads(file.read_text())["mcpServers"]["memories"]
    assert (entry["timeout"], entry["alwaysLoad"]) == (60_000, True)
    assert entry["env"] == {"LOG_LEVEL": "DEBUG", "MEMORY_HOME": str(user / "elsewhere")}
    assert entry["command"] == str(PROGRAM)


def test_a_hook_keeps_the_users_timeout_when_its_command_changes(
    memory: Command, user: Path
) -> None:
    memory("connect", "claude-code")
    file = user / ".claude" / "settings.json"
    file.write_text(file.read_text().replace('"timeout": 5', '"timeout": 30'))
    memory("connect", "claude-code", "-n", "bob")
    [group] = json.loads(file.read_text())["hooks"]["UserPromptSubmit"]
    assert (group["hooks"][0]["command"][-7:], group["hooks"][0]["timeout"]) == (" -n bob", 30)


@pytest.mark.parametrize(
    ("host", "file", "entry"),
    [
        ("cursor", ".cursor/mcp.json", {"command": "memoriae", "args": ["mcp", "--read-only"]}),
        (
            "cursor",
            ".cursor/mcp.json",
            {"command": "uvx", "args": ["memoriae", "mcp", "--read-only"]},
        ),
        (
            "opencode",
            ".config/opencode/opencode.json",
            {"type": "local", "command": ["memoriae", "mcp", "--read-only"]},
        ),
    ],
)
def test_the_users_options_of_the_server_are_kept(
    host: str, file: str, entry: dict[str, Any], memory: Command, user: Path
) -> None:
    path = user / file
    path.parent.mkdir(parents=True)
    servers = load_hosts()[host].servers[0]
    path.write_text(json.dumps({servers: {"memories": entry}}))
    memory("connect", host)
    memory("connect", host, "-n", "bob")
    found = json.loads(path.read_text())[servers]["memories"]
    assert server_words(found) == [str(PROGRAM), "mcp", "-n", "bob", "--read-only"]


@pytest.mark.parametrize(
    "option", [["--namespace", "bob"], ["--namespace=bob"], ["-n", "bob"], ["-nbob"]]
)
def test_dropping_a_namespace_that_the_user_added_is_noted(
    option: list[str], memory: Command, user: Path
) -> None:
    entry = {"command": "memoriae", "args": ["mcp", *option]}
    (user / ".claude.json").write_text(json.dumps({"mcpServers": {"memories": entry}}))
    [note, *_] = memory("connect", "claude-code").json["connected"][0]["notes"]
    assert note.startswith("Claude Code was connected with -n bob, which this command removes")


def test_a_namespace_added_only_to_the_server_is_noted(memory: Command, user: Path) -> None:
    memory("connect", "claude-code")
    file = user / ".claude.json"
    file.write_text(file.read_text().replace('"mcp"', '"mcp", "-n", "bob", "--read-only"'))
    notes = memory("connect", "claude-code").json["connected"][0]["notes"]
    assert any("-n bob, which this command removes" in note for note in notes)
    words = server_words(json.loads(file.read_text())["mcpServers"]["memories"])
    assert words == [str(PROGRAM), "mcp", "--read-only"]


def test_a_hook_whose_command_is_a_list_is_left_alone(memory: Command, user: Path) -> None:
    hook = {"type": "command", "command": ["memoriae", "hook", "stop", "--host", "claude-code"]}
    (user / ".claude").mkdir()
    file = user / ".claude" / "settings.json"
    file.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [hook]}]}}))
    assert memory("connect", "claude-code").code == 0
    assert json.loads(file.read_text())["hooks"]["Stop"] == [{"hooks": [hook]}]
    assert memory("disconnect", "claude-code").code == 0


@pytest.mark.parametrize(
    "command", ["uvx memoriae", "uvx memoriae@latest", "uv tool run memoriae", "pipx run memoriae"]
)
def test_a_server_added_by_a_one_click_link_can_be_connected_and_disconnected(
    command: str, memory: Command, user: Path
) -> None:
    file = user / ".cursor" / "mcp.json"
    file.parent.mkdir()
    program, *arguments = command.split()
    entry = {"command": program, "args": [*arguments, "mcp"]}
    file.write_text(json.dumps({"mcpServers": {"memories": entry}}))
    before = file.read_bytes()
    assert memory("connect", "cursor").json["connected"][0]["check"]["works"]
    assert server_words(json.loads(file.read_text())["mcpServers"]["memories"]) == [
        str(PROGRAM),
        "mcp",
    ]
    [undone] = memory("disconnect", "cursor").json["disconnected"]
    assert file.read_bytes() == before
    assert undone["notes"] == [
        "Earlier entries in the file are back; run this again to remove them as well."
    ]
    assert not memory("disconnect", "cursor").json["disconnected"][0]["notes"]
    assert "memoriae" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "text", "host", "why"),
    [
        (".claude.json", '{\n"a": 1,\n}', "claude-code", "line 2, is malformed"),
        (".claude/settings.json", '{"hooks": []}', "claude-code", "line 1: hooks is not an object"),
        (
            ".claude/settings.json",
            '{"hooks": {"SessionStart": {}}}',
            "claude-code",
            "is not a list",
        ),
        (".claude/settings.json", "// no\n{}", "claude-code", "line 1, is malformed"),
        (
            ".claude.json",
            '{"mcpServers": {"memories": {"command": "npx", "args": ["mcp"]}}}',
            "claude-code",
            "different MCP server",
        ),
        (
            ".claude.json",
            '{"mcpServers": {"memories": {"url": "http://127.0.0.1:1/mcp"}}}',
            "claude-code",
            "different MCP server",
        ),
        (".codex/config.toml", "a = 1\nb =\n", "codex", "line 2"),
        (".codex/config.toml", "mcp_servers = {}\n", "codex", "layout"),
        (".codex/hooks.json", '{"hooks": ', "codex", "line 1, is malformed"),
        (".gemini/settings.json", '["x"]', "gemini", "not a JSON object"),
        (
            ".config/opencode/plugins/memories.js",
            "export const other = 1\n",
            "opencode",
            "not our plugin",
        ),
        (".config/zed/settings.json", '\xff{"a": 1}', "zed", "is not UTF-8"),
    ],
)
def test_broken_files_are_refused_and_not_changed(
    name: str, text: str, host: str, why: str, memory: Command, user: Path
) -> None:
    write_mine(user, host)
    (user / name).parent.mkdir(parents=True, exist_ok=True)
    (user / name).write_bytes(text.encode("latin-1"))
    before = everything(user)
    answer = memory("connect", host, "--capture")
    assert answer.code == 2
    assert why in answer.error
    assert name in answer.error
    assert everything(user) == before


def test_a_broken_file_of_one_host_blocks_changes_to_all_named_hosts(
    memory: Command, user: Path
) -> None:
    (user / ".gemini").mkdir()
    (user / ".gemini" / "settings.json").write_text("{")
    assert memory("connect", "claude-code", "gemini").code == 2
    assert list(everything(user)) == [user / ".gemini" / "settings.json"]


def test_file_modes_and_links_are_kept(memory: Command, user: Path) -> None:
    dotfiles = user / "dotfiles"
    dotfiles.mkdir()
    target = dotfiles / "gemini.json"
    target.write_text("{}\n")
    target.chmod(0o640)
    (user / ".gemini").mkdir()
    link = user / ".gemini" / "settings.json"
    link.symlink_to(target)
    memory("connect", "gemini")
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert "memories" in target.read_text()
    [copy] = copies(user)
    assert copy.parent == link.parent
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    memory("disconnect", "gemini")
    assert link.is_symlink()
    assert target.read_text() == "{}\n"


@pytest.mark.parametrize("verb", ["connect", "disconnect"])
def test_a_read_only_file_is_refused(verb: str, memory: Command, user: Path) -> None:
    write_mine(user, "claude-code")
    if verb == "disconnect":
        assert memory("connect", "claude-code").code == 0
    (user / ".claude" / "settings.json").chmod(0o444)
    before = everything(user)
    for options in ((), ("--dry-run",)):
        done = memory(verb, "claude-code", *options)
        assert done.code == 2
        assert "settings.json is read-only" in done.error
    assert everything(user) == before


def test_another_users_file_is_refused(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mine(user, "gemini")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    answer = memory("connect", "gemini")
    assert answer.code in (1, 2)
    assert "belongs to user" in answer.error


def test_a_pipe_in_place_of_a_file_is_refused_at_once(memory: Command, user: Path) -> None:
    (user / ".gemini").mkdir()
    os.mkfifo(user / ".gemini" / "settings.json")
    assert "cannot read" in memory("connect", "gemini").error


def test_only_a_few_copies_are_kept(memory: Command, user: Path) -> None:
    file = user / ".gemini" / "settings.json"
    file.parent.mkdir()
    for number in range(9):
        file.write_text(json.dumps({"number": number}))
        memory("connect", "gemini")
    assert len(copies(user)) == 3
    assert json.loads(copies(user)[-1].read_text()) == {"number": 8}


def test_a_folder_that_a_first_disconnect_missed_can_still_be_restored(
    memory: Command, user: Path, tmp_path: Path
) -> None:
    moved = {"CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "settings.json").write_text('{"hooks": {},\n\n"model": "m"}')
    before = everything(tmp_path / "moved")
    memory("connect", "claude-code", env=moved)
    assert not memory("disconnect", "claude-code").json["disconnected"][0]["changed"]
    memory("disconnect", "claude-code", env=moved)
    assert everything(tmp_path / "moved") == before


def test_connecting_with_other_options_can_still_be_undone_byte_for_byte(
    memory: Command, user: Path
) -> None:
    before = write_mine(user, "claude-code")
    for options in (["--capture"], ["-n", "bob"], [], ["--capture", "-n", "x"]):
        memory("connect", "claude-code", *options)
    memory("disconnect", "claude-code")
    assert everything(user) == before


def test_a_dry_run_shows_the_diff_and_changes_nothing(memory: Command, user: Path) -> None:
    before = write_mine(user, "gemini")
    answer = memory("connect", "gemini", "--dry-run").json["connected"][0]
    assert answer["dry_run"]
    assert '+    "memories": {' in answer["diff"]
    assert '+  "theme": "x", // dark' in answer["diff"]
    assert everything(user) == before
    assert not (user / ".config").exists()
    memory("connect", "gemini")
    before = everything(user)
    undone = memory("disconnect", "gemini", "--dry-run").json["disconnected"][0]
    assert '-    "memories": {' in undone["diff"]
    assert everything(user) == before


def test_a_diff_shows_no_secret(memory: Command, user: Path) -> None:
    write_mine(user, "claude-code")
    answer = memory("connect", "claude-code", "--dry-run")
    assert TOKEN not in answer.out


def make_repository(folder: Path) -> None:
    """Make a folder the root of an empty repository."""
    for name in ("objects", "refs"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def test_an_empty_git_folder_above_is_not_a_repository(memory: Command, folder: Path) -> None:
    """Codex leaves such folders in places where its commands may write, such as /tmp."""
    (folder / ".git").mkdir()
    (folder / "deep").mkdir()
    os.chdir(folder / "deep")
    said = memory("connect", "claude-code", "--scope", "project", "--dry-run").out
    [answer] = json.loads(said)["connected"]
    assert {Path(file["path"]).parts[len(folder.parts)] for file in answer["files"]} == {"deep"}
    assert any("is not in a git repository" in note for note in answer["notes"])


@pytest.mark.parametrize("host", [name for name, host in load_hosts().items() if host.project])
def test_project_files_reveal_nothing_about_this_machine(
    host: str, memory: Command, user: Path, folder: Path
) -> None:
    make_repository(folder)
    (folder / "deep").mkdir()
    os.chdir(folder / "deep")
    answer = memory(
        "connect", host, "--scope", "project", "--capture", env={"MEMORY_HOME": str(user)}
    ).json
    made = [Path(file["path"]) for file in answer["connected"][0]["files"]]
    assert made
    for file in made:
        assert file.is_relative_to(folder)
        text = file.read_text()
        assert str(user) not in text
        assert str(PROGRAM.parent) not in text
        assert '"memoriae"' in text or '"memoriae hook' in text
        assert stat.S_IMODE(file.stat().st_mode) & 0o044
    assert any("clone" in note for note in answer["connected"][0]["notes"])
    others = {each for each in folder.rglob("*") if each.is_file() and ".git" not in each.parts}
    assert others == set(made)
    memory("disconnect", host, "--scope", "project", env={"MEMORY_HOME": str(user)})
    assert sorted(each.name for each in folder.iterdir()) == [".git", "deep"]


def test_a_link_out_of_the_project_is_refused(memory: Command, user: Path, folder: Path) -> None:
    before = write_mine(user, "claude-code")
    (folder / ".mcp.json").symlink_to(user / ".claude.json")
    assert "leads out of" in memory("connect", "claude-code", "--scope", "project").error
    assert everything(user) == before


@pytest.mark.parametrize("host", ["zed", "windsurf", "claude-desktop"])
def test_connecting_a_host_without_projects_is_refused(host: str, memory: Command) -> None:
    assert "omit --scope project" in memory("connect", host, "--scope", "project").error


def test_the_home_is_not_a_project(memory: Command, user: Path) -> None:
    os.chdir(user)
    assert "is your home" in memory("connect", "gemini", "--scope", "project").error


@pytest.mark.parametrize(
    "arguments",
    [
        ("connect", "emacs"),
        ("connect", "gemini", "gemini"),
        ("connect", "gemini", "--scope", "world"),
        ("connect", "gemini", "-n", "a b"),
        ("connect", "--capture"),
        ("connect", "-n", "bob"),
        ("connect", "gemini", "--capture", "--status"),
        ("disconnect",),
    ],
)
def test_incorrect_usage_changes_nothing(
    arguments: tuple[str, ...], memory: Command, user: Path
) -> None:
    answer = memory(*arguments)
    assert answer.code == 2
    assert answer.error
    assert everything(user) == {}


@pytest.mark.parametrize(
    ("host", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
        ("opencode", "OPENCODE_CONFIG_DIR", "plugins/memories.js"),
        ("zed", "XDG_CONFIG_HOME", "zed/settings.json"),
        ("vscode", "XDG_CONFIG_HOME", "Code/User/mcp.json"),
    ],
)
def test_a_moved_folder_of_a_host_is_found(
    host: str, variable: str, file: str, memory: Command, user: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    memory("connect", host, env={variable: str(moved)})
    assert (moved / file).is_file()
    assert [each for each in everything(user) if not each.is_relative_to(moved)] == []


@pytest.mark.parametrize(
    ("platform", "host", "file"),
    [
        (
            "darwin",
            "claude-desktop",
            "Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("darwin", "vscode", "Library/Application Support/Code/User/mcp.json"),
        ("darwin", "zed", ".config/zed/settings.json"),
        ("win32", "claude-desktop", "AppData/Roaming/Claude/claude_desktop_config.json"),
        ("win32", "zed", "AppData/Roaming/Zed/settings.json"),
        ("win32", "windsurf", ".codeium/windsurf/mcp_config.json"),
    ],
)
def test_each_operating_system_has_its_own_paths(
    platform: str, host: str, file: str, tmp_path: Path
) -> None:
    assert load_hosts()[host].user_files(Where(tmp_path, {}, platform)).server == tmp_path / file


def test_the_command_of_a_hook_is_quoted_for_the_shell() -> None:
    for program in ("/home/a b/memory", "/home/it's/$HOME/memory", "/plain/memory"):
        line = hook_command([program, "-m", "memories"], "stop", "codex", ["--capture"])
        assert shlex.split(line) == [
            program,
            "-m",
            "memories",
            "hook",
            "stop",
            "--host",
            "codex",
            "--capture",
        ]


def test_a_folder_named_memories_in_a_project_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.connect.program.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    command = find_program({}).command
    monkeypatch.undo()
    (tmp_path / "memories").mkdir()
    (tmp_path / "memories" / "__init__.py").write_text(
        "raise SystemExit('the code of somebody else')\n"
    )
    done = subprocess.run(
        [*command, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    line = words_of(hook_command(command, "stop", "codex", []))
    assert is_hook(line)
    assert is_hook([line[0], *line[2:]])  # as earlier versions wrote it
    assert is_server([*command, "-n", "bob", "mcp"])
    assert not is_hook(["python", "-m", "other", "hook", "stop"])
    assert not is_hook(words_of("A=1 other memoriae hook stop"))
    assert not is_hook(["env", "A=1"])


@pytest.mark.parametrize("folder", ["/Users/Ann Lee", "/Users/O'Hara"])
def test_a_space_in_a_variable_does_not_split_a_word(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", folder)
    words = words_of("MEMORY_HOME=$HOME/m memoriae hook stop")
    assert words == ["env", f"MEMORY_HOME={folder}/m", "memoriae", "hook", "stop"]


def test_a_program_in_a_temporary_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ".cache" / "uv" / "archive-v0" / "x" / "bin"
    place.mkdir(parents=True)
    for name in ("python", "memoriae"):
        (place / name).write_text("#!/bin/sh\nfrom memories.__main__ import main\n")
        (place / name).chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setattr(sys, "prefix", str(place.parent))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    found = find_program({"PATH": str(place)})
    assert found.command == (str(place / "memoriae"),)
    assert "temporary folder; install the program permanently (uv tool install" in found.doubt
    lasting = tmp_path / "lasting"
    lasting.mkdir()
    (lasting / "memoriae").write_text("#!/bin/sh\nexec python -m memories\n")
    (lasting / "memoriae").chmod(0o700)
    found = find_program({"PATH": f"{place}:{lasting}"})  # as `uvx` does
    assert found.command == (str(lasting / "memoriae"),)
    assert "temporary" not in found.doubt


def test_an_advised_command_cannot_contain_a_second_command(
    memory: Command, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "a b; echo $(id)"
    make_repository(work)
    monkeypatch.chdir(work)
    memory("connect", "claude-code", "--scope", "project")
    line = {"type": "command", "command": "/gone/memory hook stop --host claude-code -n 'x; id'"}
    (work / ".claude" / "settings.json").write_text(
        json.dumps({"hooks": {"Stop": [{"hooks": [line]}]}})
    )
    monkeypatch.setenv("PATH", "/nowhere")
    [advice] = [
        row["remedy"]
        for row in json.loads(memory("doctor").out)["findings"]
        if "connect" in row["remedy"]
    ]
    words = shlex.split(advice.removeprefix("run: "))
    assert words == [
        "cd",
        str(work),
        "&&",
        "memory",
        "connect",
        "claude-code",
        "--scope",
        "project",
        "-n",
        "x; id",
    ]


def test_doctor_names_commands_that_no_longer_exist(
    memory: Command, user: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}:{os.environ['PATH']}")
    memory("connect", "gemini", "codex", "--capture", "-n", "bob")
    memory("connect", "opencode", "--scope", "project")
    healthy = memory("doctor")
    assert healthy.code in (0, 1)
    assert not [each for each in json.loads(healthy.out)["findings"] if "any more" in each["what"]]
    assert json.loads(healthy.out)["connected"] == ["codex", "gemini", f"opencode in {folder}"]
    for file in (user / ".gemini" / "settings.json", user / ".codex" / "config.toml"):
        file.write_text(file.read_text().replace(str(PROGRAM), "/gone/bin/memory"))
    (user / ".codex" / "hooks.json").write_text("{")
    answer = memory("doctor")
    assert answer.code == 1
    findings = {each["what"]: each["remedy"] for each in json.loads(answer.out)["findings"]}
    assert findings["Gemini CLI: /gone/bin/memory no longer exists"] == (
        "run: memory connect gemini --capture -n bob"
    )
    assert any("hooks.json" in what and "line 1" in what for what in findings)
    assert memory("connect", "--status").code == 1


@pytest.mark.parametrize(
    ("host", "file", "text", "why"),
    [
        ("codex", ".codex/config.toml", "[[[", " is malformed: line 1: invalid"),
        ("zed", ".config/zed/settings.json", '{"a": ', ", line 1, is malformed: it ends early"),
    ],
)
def test_a_host_whose_file_is_malformed_is_not_called_connected(
    host: str, file: str, text: str, why: str, memory: Command, user: Path
) -> None:
    (user / file).parent.mkdir(parents=True)
    (user / file).write_text(text)
    problem = f"its configuration can't be read: {user / file}{why}"
    status = memory("connect", "--status")
    assert status.code == 1
    [row] = [row for row in json.loads(status.out)["hosts"] if row["connected"]]
    assert row["host"] == host
    assert row["connected"][0]["problem"].startswith(problem)
    assert row["next"] == "repair the file, then run: memory connect --status"
    listed = memory("connect", host, "--status", "--format", "text").out
    assert listed.startswith(f"{host:<15} can't be read  repair the file")
    examined = json.loads(memory("doctor").out)
    assert examined["connected"] == []
    assert any(problem in finding["what"] for finding in examined["findings"])


def test_connecting_again_names_the_options_that_it_removes(memory: Command, user: Path) -> None:
    memory("connect", "codex", "--capture", "-n", "bob")
    note = "Codex was connected with {}, which this command removes; to keep it, run: {}"
    same = "memory connect codex --capture -n bob"
    tried = memory("connect", "codex", "--dry-run").json["connected"][0]
    assert note.format("--capture -n bob", same) in tried["notes"]
    changed = memory("connect", "codex", "--capture").json["connected"][0]
    assert note.format("-n bob", same) in changed["notes"]
    again = memory("connect", "codex", "--capture").json["connected"][0]
    assert not any("removes" in sentence for sentence in again["notes"])


def test_hooks_that_claude_code_does_not_run_are_reported(memory: Command, user: Path) -> None:
    file = user / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"disableAllHooks": true}')
    [note, *_] = memory("connect", "claude-code").json["connected"][0]["notes"]
    assert (
        note == f"Claude Code runs no hooks, because of disableAllHooks in {file}; remove it there."
    )
    status = memory("connect", "claude-code", "--status")
    assert status.code == 1
    [row] = json.loads(status.out)["hosts"]
    assert row["connected"][0]["problem"].startswith(
        "its hooks are switched off by disableAllHooks"
    )
    assert row["next"] == f"remove disableAllHooks from {file}"
    assert memory("doctor").code == 1
    file.write_text(file.read_text().replace("true", "false", 1))
    assert memory("connect", "claude-code", "--status").code == 0
    assert not any("disableAllHooks" in each for each in memory("doctor").out.splitlines())


def test_the_next_step_of_a_projects_connection_works_in_any_folder(
    memory: Command, user: Path, folder: Path
) -> None:
    with_program = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    memory("connect", "gemini", "--scope", "project")
    os.chdir(user)
    [row] = memory("connect", "gemini", "--status", env=with_program).json["hosts"]
    undo = f"cd {folder} && memory disconnect gemini --scope project"
    assert row["next"] == f"to disconnect it: {undo}"


def test_connecting_with_capture_reports_a_host_that_cannot_capture(
    memory: Command, user: Path
) -> None:
    for _ in range(2):
        answer = memory("connect", "zed", "--capture").json["connected"][0]
        assert any("Zed has no hooks, so it captures nothing" in each for each in answer["notes"])


@pytest.mark.parametrize(
    ("host", "file", "on", "off"),
    [
        (
            "claude-code",
            ".claude/settings.json",
            '{"enabledPlugins": {"memories@memories": true}}',
            '{"enabledPlugins": {"memories@memories": false}}',
        ),
        (
            "codex",
            ".codex/config.toml",
            '[plugins."memories@memories"]\nenabled = true\n',
            '[plugins."memories@memories"]\nenabled = false\n',
        ),
        ("gemini", ".gemini/extensions/memories/gemini-extension.json", "{}", None),
    ],
)
def test_a_plugin_next_to_an_entry_is_reported(
    host: str, file: str, on: str, off: str | None, memory: Command, user: Path
) -> None:
    (user / file).parent.mkdir(parents=True)
    (user / file).write_text(on)
    assert any(
        "run twice" in note for note in memory("connect", host).json["connected"][0]["notes"]
    )
    memory("disconnect", host)
    [row] = memory("connect", "--status", host).json["hosts"]
    assert (row["plugin"], row["next"]) == (True, "nothing to do: its plugin connects it")
    if off is not None:
        (user / file).write_text(off)
        assert not any(
            "run twice" in note for note in memory("connect", host).json["connected"][0]["notes"]
        )


def test_a_servers_entry_contains_the_configured_store_unless_it_has_a_password(
    memory: Command, user: Path, folder: Path
) -> None:
    memory("connect", "gemini", env={"MEMORY_STORE": "sqlite:///here.db"})
    assert entry_of(user, "gemini")["env"] == {"MEMORY_STORE": f"sqlite:///{folder}/here.db"}
    memory("disconnect", "gemini")
    memory("connect", "gemini", env={"MEMORY_STORE": "postgresql://ann:swordfish@db/memories"})
    assert "env" not in entry_of(user, "gemini")
    memory("disconnect", "gemini")


def test_hooks_that_may_use_another_store_are_reported(memory: Command, user: Path) -> None:
    note = "hooks read MEMORY_HOME, MEMORY_STORE from"
    set_here = {"MEMORY_HOME": str(user / "elsewhere"), "MEMORY_STORE": "sqlite:///here.db"}
    assert note in " ".join(
        memory("connect", "claude-code", env=set_here).json["connected"][0]["notes"]
    )
    assert note in " ".join(
        memory("connect", "opencode", env=set_here).json["connected"][0]["notes"]
    )
    assert note not in " ".join(
        memory("connect", "zed", env=set_here).json["connected"][0]["notes"]
    )
    assert note not in " ".join(memory("connect", "codex").json["connected"][0]["notes"])


def test_the_list_shows_installed_hosts(memory: Command, user: Path) -> None:
    (user / ".gemini").mkdir()
    rows = {row["host"]: row for row in memory("connect", env={"PATH": "/nowhere"}).json["hosts"]}
    assert list(rows) == list(load_hosts())
    assert [name for name, row in rows.items() if row["installed"]] == ["gemini"]
    assert all(row["connected"] == [] for row in rows.values())
    text = memory("connect", "--format", "text", env={"PATH": "/nowhere"}).out
    assert "gemini          installed      run: memory connect gemini\n" in text
    assert "zed             not installed  install Zed, then run: memory connect zed" in text


def test_a_change_that_fails_halfway_is_undone(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_mine(user, "claude-code")
    from memories.connect import files

    write = files.write

    def fail_for_settings(path: Path, data: bytes, **more: Any) -> list[str]:
        if path.name == "settings.json" and b"hook session-start" in data:
            raise OSError(28, "No space left on device")
        return write(path, data, **more)

    monkeypatch.setattr(files, "write", fail_for_settings)
    answer = memory("connect", "claude-code")
    assert answer.code == 1
    assert "settings.json" in answer.error
    assert "No space left" in answer.error
    assert {
        file: data for file, data in everything(user).items() if file not in copies(user)
    } == before


def test_an_error_names_the_hosts_that_were_connected_before_it(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.connect import files

    write = files.write

    def fail_for_codex(path: Path, data: bytes, **more: Any) -> list[str]:
        if path.name == "config.toml":
            raise OSError(28, "No space left on device")
        return write(path, data, **more)

    monkeypatch.setattr(files, "write", fail_for_codex)
    answer = memory("connect", "gemini", "zed", "codex")
    assert answer.code == 1
    assert answer.error.startswith("connected Gemini CLI, Zed, but cannot write ")
    assert answer.error.endswith("config.toml: No space left on device")
    assert memory("connect", "codex").error.endswith("on device; nothing was changed")
    memory("connect", "gemini", "zed")  # nothing changes, so a later error mentions neither
    error = memory("connect", "gemini", "cursor", "zed", "codex").error
    assert error.startswith("connected Cursor, but cannot write ")


def test_an_unwritable_register_undoes_the_connection(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memories.connect import files

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "keep_receipt", fail)
    (user / ".codex").mkdir()
    (user / ".codex" / "config.toml").write_text('model = "m"\n')
    answer = memory("connect", "codex")
    assert answer.code == 1
    assert "connected.json: No space left on device; nothing was changed" in answer.error
    assert (user / ".codex" / "config.toml").read_text() == 'model = "m"\n'
    assert not (user / ".codex" / "hooks.json").exists()


def test_concurrent_writes_by_a_host_are_not_lost(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claude Code constantly writes its own state into the file that gets the server's entry."""
    write_mine(user, "claude-code")
    file, theirs = user / ".claude.json", '{"numStartups": 5}'
    real = os.fsync

    def slow(fd: int) -> None:
        real(fd)
        if not list(user.glob(".claude.json.before*")):
            return  # its copy comes first
        file.write_text(theirs)

    monkeypatch.setattr(os, "fsync", slow)
    answer = memory("connect", "claude-code")
    assert answer.code == 2
    assert "changed by another program in the meantime" in answer.error
    assert file.read_text() == theirs
    assert "memory hook" not in (user / ".claude" / "settings.json").read_text()


def test_the_opencode_plugin_names_the_command(memory: Command, user: Path) -> None:
    memory("connect", "opencode", "--capture", "-n", "bob")
    text = (user / ".config" / "opencode" / "plugins" / "memories.js").read_text()
    assert f'const COMMAND = ["{PROGRAM}"]' in text
    assert 'const OPTIONS = ["--capture", "-n", "bob"]' in text
    assert "const CAPTURE = true" in text


def test_the_answer_to_a_new_connection_describes_its_effects(memory: Command, user: Path) -> None:
    answer = memory("connect", "claude-code").json["connected"][0]
    assert answer["check"]["works"]
    assert answer["captured"].startswith("nothing, until you add --capture")
    assert answer["stored_in"] == "/x/memories.db (1 memory)"
    assert answer["sent"].startswith("nothing leaves this machine")
    assert "What do you remember" in answer["ask_first"]
    text = memory("connect", "claude-code", "--capture", "--format", "text").out
    assert "Claude Code is connected: 1 tools in 0.5 s, recall in 0.10 s." in text
    assert "captured       what you and the agent say" in text
    assert "undo           memory disconnect claude-code" in text


@pytest.mark.parametrize(
    ("host", "has_hooks"), [("opencode", True), ("cursor", True), ("vscode", False)]
)
def test_the_hooks_of_a_project_are_described(
    host: str, has_hooks: bool, memory: Command, user: Path
) -> None:
    answer = memory("connect", host, "--scope", "project").json["connected"][0]
    assert ("there are no hooks" not in answer["at_session_start"]) is has_hooks


def test_connect_names_the_data_that_leaves_the_machine(memory: Command, user: Path) -> None:
    remote = {"EMBEDDER": "openai", "OPENAI_API_KEY": "x"}
    answer = memory("connect", "zed", env=remote).json["connected"][0]
    assert answer["sent"].startswith("texts, to the embedder openai")
    assert answer["at_each_prompt"].startswith("nothing automatically")


def test_a_dead_connection_is_reported_with_a_remedy(
    memory: Command, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = StartCheck(problem="its MCP server failed: no module anyio", remedy="run: x")
    monkeypatch.setattr("memories.cli.connect.check_connection", lambda _: dead)
    answer = memory("connect", "gemini")
    assert answer.code == 1
    check = json.loads(answer.out)["connected"][0]["check"]
    assert (check["works"], check["remedy"]) == (False, "run: x")
    text = memory("connect", "gemini", "--format", "text").out
    assert "Gemini CLI is configured, but does not work: its MCP server failed" in text
    assert "What to do: run: x\nTo undo it: memory disconnect gemini\n" in text


def test_a_servers_entry_contains_the_variables_for_folders(memory: Command, user: Path) -> None:
    """Hosts start servers without these variables, so a server would use another store."""
    folders = {"XDG_DATA_HOME": str(user / "data"), "XDG_CONFIG_HOME": str(user / ".config")}
    memory("connect", "gemini", env=folders)
    assert entry_of(user, "gemini")["env"] == folders


def test_a_server_with_another_store_is_reported(memory: Command, user: Path) -> None:
    notes = memory("connect", "zed").json["connected"][0]["notes"]
    assert any(
        "The MCP server uses /x/memories.db, but this command uses" in note for note in notes
    )
