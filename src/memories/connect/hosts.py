"""The agents that can be connected: their files, and how an MCP server and hooks are written there.

They differ in data only. What one of them can't be told is not in its row. docs/connect.md says the
same for people.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SERVER = "memories"  # the name of the MCP server


class Where(NamedTuple):
    """What decides where files are.

    Attributes:
        home: The user's home.
        environment: The environment.
        platform: As `sys.platform`.
    """

    home: Path
    environment: Mapping[str, str]
    platform: str = sys.platform

    def set(self, variable: str, otherwise: Path) -> Path:
        """Return the folder that a variable names, or another one."""
        given = self.environment.get(variable, "").strip()
        return Path(given).expanduser() if given else otherwise

    @property
    def xdg(self) -> Path:
        """The folder for configurations of programs that keep to XDG on every system."""
        return self.set("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def applications(self) -> Path:
        """The folder for configurations of programs with windows."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return self.set("APPDATA", self.home / "AppData" / "Roaming")
        return self.xdg


class Files(NamedTuple):
    """The files of a host in one scope; one file can be both."""

    server: Path
    hooks: Path | None = None
    plugin: Path | None = None


class Hook(NamedTuple):
    """An event of a host: its name there, and how long its hook may take, in the unit of the
    host.
    """

    name: str
    timeout: int


Entry = Callable[[str, list[str], dict[str, str]], dict[str, Any]]


def _entry(program: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"command": program, "args": arguments} | ({"env": env} if env else {})


def _typed(program: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    return {"type": "stdio"} | _entry(program, arguments, env)


def _codex(program: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    return _entry(program, arguments, env) | {"startup_timeout_sec": 20}


def _opencode(program: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    entry = {
        "type": "local",
        "command": [program, *arguments],
        "enabled": True,
        "timeout": 15_000,
    }  # milliseconds
    return entry | ({"environment": env} if env else {})


class Host(NamedTuple):
    """An agent.

    Attributes:
        title: Its name.
        programs: What it is started as; one on PATH tells that it is installed.
        folder: Where it keeps its own files; that tells it too.
        user: Its files for all projects of a user.
        project: Its files in a project; None if it has none.
        servers: Where in its file the MCP servers are.
        entry: Makes the entry of a server of a program, its arguments and its environment.
        comments: Its JSON may have comments.
        hooks: Its events by ours; those that it has no way to tell, or that bring nothing, are left
            out.
        flat: Its events list commands, not groups of commands.
        notes: What its user has to know or do.
    """

    title: str
    programs: tuple[str, ...]
    folder: Callable[[Where], Path]
    user: Callable[[Where], Files]
    project: Callable[[Path], Files] | None
    servers: tuple[str, ...] = ("mcpServers",)
    entry: Entry = _entry
    comments: bool = False
    hooks: Mapping[str, Hook] = {}
    flat: bool = False
    notes: tuple[str, ...] = ()


def _claude_folder(where: Where) -> Path:
    return where.set("CLAUDE_CONFIG_DIR", where.home / ".claude")


def _claude(where: Where) -> Files:
    moved = where.environment.get("CLAUDE_CONFIG_DIR", "").strip()
    folder = _claude_folder(where)
    return Files((folder if moved else where.home) / ".claude.json", folder / "settings.json")


def _codex_folder(where: Where) -> Path:
    return where.set("CODEX_HOME", where.home / ".codex")


def _gemini_folder(where: Where) -> Path:
    return where.set("GEMINI_CLI_HOME", where.home) / ".gemini"


def _gemini(folder: Path) -> Files:
    return Files(folder / "settings.json", folder / "settings.json")


def _opencode_folder(where: Where) -> Path:
    return where.set("OPENCODE_CONFIG_DIR", where.xdg / "opencode")


def _opencode_files(folder: Path, plugins: Path) -> Files:
    return Files(
        _first(folder / "opencode.json", folder / "opencode.jsonc"), plugin=plugins / "memories.js"
    )


def _cursor(folder: Path) -> Files:
    return Files(folder / "mcp.json", folder / "hooks.json")


def _code_folder(where: Where) -> Path:
    names = ("Code", "Code - Insiders", "VSCodium")
    return _first(*(where.applications / name / "User" for name in names))


def _zed_folder(where: Where) -> Path:
    return where.applications / "Zed" if where.platform == "win32" else where.xdg / "zed"


def _first(*paths: Path) -> Path:
    """Return the first of some paths that is there, else the first of all."""
    return next((path for path in paths if os.path.lexists(path)), paths[0])


_CLAUDE_HOOKS = {
    "session-start": Hook("SessionStart", 10),
    "user-prompt": Hook("UserPromptSubmit", 5),
    "stop": Hook("Stop", 10),
    "pre-compact": Hook("PreCompact", 10),
    "session-end": Hook("SessionEnd", 3),  # Codex gives no more
}

HOSTS: Mapping[str, Host] = {
    "claude-code": Host(
        "Claude Code",
        ("claude",),
        _claude_folder,
        _claude,
        lambda root: Files(root / ".mcp.json", root / ".claude" / "settings.json"),
        entry=_typed,
        hooks=_CLAUDE_HOOKS,
    ),
    "codex": Host(
        "Codex",
        ("codex",),
        _codex_folder,
        lambda where: Files(
            _codex_folder(where) / "config.toml", _codex_folder(where) / "hooks.json"
        ),
        lambda root: Files(root / ".codex" / "config.toml", root / ".codex" / "hooks.json"),
        servers=("mcp_servers",),
        entry=_codex,
        hooks=_CLAUDE_HOOKS,
        notes=(
            "Codex runs no hook before you trust it: start codex and approve the hooks of memory in /hooks.",
        ),
    ),
    "gemini": Host(
        "Gemini CLI",
        ("gemini",),
        _gemini_folder,
        lambda where: _gemini(_gemini_folder(where)),
        lambda root: _gemini(root / ".gemini"),
        comments=True,
        # milliseconds; its PreCompress comes with every turn and brings nothing that AfterAgent has
        # not
        hooks={
            "session-start": Hook("SessionStart", 10_000),
            "user-prompt": Hook("BeforeAgent", 5_000),
            "stop": Hook("AfterAgent", 10_000),
            "session-end": Hook("SessionEnd", 3_000),
        },
    ),
    "opencode": Host(
        "opencode",
        ("opencode",),
        _opencode_folder,
        lambda where: _opencode_files(_opencode_folder(where), _opencode_folder(where) / "plugins"),
        lambda root: _opencode_files(root, root / ".opencode" / "plugins"),
        servers=("mcp",),
        entry=_opencode,
        comments=True,
    ),
    "cursor": Host(
        "Cursor",
        ("cursor", "cursor-agent"),
        lambda where: where.home / ".cursor",
        lambda where: _cursor(where.home / ".cursor"),
        lambda root: _cursor(root / ".cursor"),
        comments=True,
        hooks={
            "session-start": Hook("sessionStart", 10),
            "user-prompt": Hook("beforeSubmitPrompt", 5),
            "answer": Hook("afterAgentResponse", 10),
            "stop": Hook("stop", 10),
            "pre-compact": Hook("preCompact", 10),
            "session-end": Hook("sessionEnd", 10),
        },
        flat=True,
    ),
    "vscode": Host(
        "VS Code",
        ("code", "code-insiders", "codium"),
        _code_folder,
        lambda where: Files(_code_folder(where) / "mcp.json"),
        lambda root: Files(root / ".vscode" / "mcp.json"),
        servers=("servers",),
        entry=_typed,
        comments=True,
    ),
    "claude-desktop": Host(
        "Claude Desktop",
        ("claude-desktop",),
        lambda where: where.applications / "Claude",
        lambda where: Files(where.applications / "Claude" / "claude_desktop_config.json"),
        None,
        notes=("Quit Claude Desktop and start it again.",),
    ),
    "windsurf": Host(
        "Windsurf",
        ("windsurf",),
        lambda where: where.home / ".codeium" / "windsurf",
        lambda where: Files(where.home / ".codeium" / "windsurf" / "mcp_config.json"),
        None,
    ),
    "zed": Host(
        "Zed",
        ("zed", "zeditor"),
        _zed_folder,
        lambda where: Files(_zed_folder(where) / "settings.json"),
        None,
        servers=("context_servers",),
        comments=True,
    ),
}
