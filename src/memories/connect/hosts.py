"""The agents that can be connected, from `hosts.toml`: their files, MCP entries and hooks."""

import functools
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SERVER = "memories"  # the name of the MCP server
_NAMED_FOLDER = re.compile(r"\{(\w+)\}")


class Where(NamedTuple):
    """The user, environment and system that determine where files are.

    Attributes:
        home: The user's home.
        environment: The environment.
        platform: A value of `sys.platform`.
    """

    home: Path
    environment: Mapping[str, str]
    platform: str = sys.platform

    def expand(self, template: str) -> Path:
        """Return the path for a template in `hosts.toml`."""

        def folder(match: re.Match[str]) -> str:
            return str(self._folder(match[1]))

        path = _NAMED_FOLDER.sub(folder, template)
        if path == "~" or path.startswith("~/"):
            return self.home / path[2:]
        return Path(path)

    def _folder(self, name: str) -> Path:
        if name == "applications":
            if self.platform == "darwin":
                return self.home / "Library" / "Application Support"
            if self.platform == "win32":
                return self._from_variable("APPDATA", "~/AppData/Roaming")
            name = "xdg"
        row = _read_table()["folders"][name]
        return self._from_variable(row["variable"], row["default"])

    def _from_variable(self, variable: str, default: str) -> Path:
        value = self.environment.get(variable, "").strip()
        return Path(value).expanduser() if value else self.expand(default)


class Files(NamedTuple):
    """The paths of a host's files in one scope. One file can configure both server and hooks."""

    server: Path
    hooks: Path | None = None
    plugin: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """The paths of the files, each only once."""
        return [path for path in dict.fromkeys(self) if path is not None]


class Hook(NamedTuple):
    """A host's event: the host's name for the event, and the hook's timeout in the host's unit."""

    name: str
    timeout: int


class Host(NamedTuple):
    """An agent's host, as `hosts.toml` describes it.

    Attributes:
        title: The host's name, for people.
        programs: The names of its programs; the host counts as installed if one of them is on PATH.
        folders: Templates for its own folder. The first one that exists is used; if any exists, the
            host counts as installed.
        user: Templates of its files for all of a user's projects, keyed by purpose.
        windows_folders: The `folders` on Windows; empty if they are the same there.
        project: Its files in a project, keyed by purpose; empty if it has none.
        servers: The path of the object that contains the MCP servers in its file.
        entry: Other fields of a server's entry: those before the command (`first`) and those after
            it (`last`).
        command: `list` if an entry has the program and its arguments in one list.
        comments: Whether its JSON may have comments.
        hooks: Its events, keyed by our names for them.
        flat: Whether its events list commands instead of groups of commands.
        notes: What the user must know or do.
    """

    title: str
    programs: Sequence[str]
    folders: Sequence[str]
    user: Mapping[str, Sequence[str]]
    windows_folders: Sequence[str] = ()
    project: Mapping[str, Sequence[str]] = {}
    servers: tuple[str, ...] = ("mcpServers",)
    entry: Mapping[str, Mapping[str, Any]] = {}
    command: str = ""
    comments: bool = False
    hooks: Mapping[str, Hook] = {}
    flat: bool = False
    notes: Sequence[str] = ()

    def folder(self, where: Where) -> Path:
        """Return the folder where the host keeps its own files."""
        templates = self.folders
        if where.platform == "win32" and self.windows_folders:
            templates = self.windows_folders
        return _first_existing([where.expand(template) for template in templates])

    def user_files(self, where: Where) -> Files:
        """Return the host's files that apply to all of a user's projects."""
        folder = self.folder(where)
        paths: dict[str, Path] = {}
        for purpose, names in self.user.items():
            paths[purpose] = _first_existing([folder / where.expand(name) for name in names])
        return Files(**paths)

    def project_files(self, root: Path) -> Files:
        """Return the host's files in a project."""
        paths: dict[str, Path] = {}
        for purpose, names in self.project.items():
            paths[purpose] = _first_existing([root / name for name in names])
        return Files(**paths)

    def server_entry(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return our MCP server's entry in the host's format."""
        entry = dict(self.entry.get("first", {}))
        variables = "env"
        if self.command == "list":
            entry["command"] = [program, *arguments]
            variables = "environment"
        else:
            entry["command"] = program
            entry["args"] = list(arguments)
        if environment:
            entry[variables] = dict(environment)
        return {**entry, **self.entry.get("last", {})}


def _first_existing(paths: Sequence[Path]) -> Path:
    """Return the first path that exists; if none does, the first."""
    for path in paths:
        if os.path.lexists(path):
            return path
    return paths[0]


@functools.cache
def _read_table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("hosts.toml").read_text("utf-8"))


@functools.cache
def load_hosts() -> Mapping[str, Host]:
    """Return the hosts, keyed by name, in the order of `hosts.toml`."""
    hosts = {}
    for name, row in _read_table()["hosts"].items():
        host = Host(**row)
        hooks = {event: Hook(**hook) for event, hook in row.get("hooks", {}).items()}
        hosts[name] = host._replace(servers=tuple(host.servers), hooks=hooks)
    return hosts
