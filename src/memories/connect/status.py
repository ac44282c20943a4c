"""Connection status: installed and connected hosts, and missing commands."""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from memories.connect import files, toml
from memories.connect.connect import Connector, Target
from memories.connect.entries import PLUGIN_MARK, find_hooks, parse, server_words
from memories.connect.hosts import SERVER, Host, Where, load_hosts
from memories.connect.program import CAPTURING, is_missing, is_server, words_of
from memories.errors import InvalidInput


class FoundEntries(NamedTuple):
    """Our entries in the files of a host.

    Attributes:
        server: The command of the MCP server, as words; empty if there is none.
        hooks: The commands of the hooks, each as words.
        files: The files that contain our entries.
        environment: The variables that the host sets for the server.
    """

    server: list[str]
    hooks: list[list[str]]
    files: list[Path]
    environment: Mapping[str, str] = MappingProxyType({})

    @property
    def capture(self) -> bool:
        """Whether the conversation is captured."""
        return any("--capture" in words for words in self.hooks)

    @property
    def namespace(self) -> str | None:
        """The namespace that the commands in the entries name."""
        words = self.hooks[0] if self.hooks else self.server
        return words[words.index("-n") + 1] if "-n" in words[:-1] else None


class Connection(NamedTuple):
    """A host that is connected in a scope, or whose files can't be read.

    Attributes:
        host: The host.
        scope: `user` or `project`.
        root: The folder of the project; empty for a user.
        entries: Our entries in its files; None if they can't be read.
        problem: The problem with them, as a sentence; empty if there is none.
        remedy: What to do about it; empty to connect again.
        summary: How many tools it offers and how fast it answered; empty if it was not started.
    """

    host: str
    scope: str
    root: str
    entries: FoundEntries | None
    problem: str
    remedy: str = ""
    summary: str = ""


def is_installed(host: Host, where: Where) -> bool:
    """Return whether a host is installed: its program is on PATH, or its folder exists."""
    if host.folder(where).is_dir():
        return True
    path = where.environment.get("PATH")
    return any(shutil.which(name, path=path) for name in host.programs)


def find_entries(connector: Connector, target: Target) -> FoundEntries:
    """Return our entries in the files of a host.

    Raises:
        InvalidInput: A file is malformed or can't be read.
    """
    host, host_files = target.host, connector.files(target)
    entries = FoundEntries([], [], [])
    for path in host_files.paths:
        data = target.read(path)
        if data is None:
            continue
        text, _ = files.decode(data, path)
        hooks: list[list[str]] = []
        entry: Any = None
        if path == host_files.plugin:
            hooks = _plugin_commands(text)
        elif path.suffix == ".toml":
            try:
                entry = toml.get(text, (*host.servers, SERVER))
            except toml.Malformed as exc:
                raise InvalidInput(f"{path}, {exc}; nothing was changed") from exc
        else:
            document = parse(host, text, str(path))
            if path == host_files.server:
                entry = document.get((*host.servers, SERVER))
            if path == host_files.hooks:
                hooks = [words_of(command) for _, command in find_hooks(document, host)]
        server = server_words(entry)
        if is_server(server):
            variables = entry.get("environment") or entry.get("env") or {}
            entries = entries._replace(server=server, environment=variables)
        entries.hooks.extend(hooks)
        if hooks or is_server(server):
            entries.files.append(path)
    return entries


def _plugin_commands(plugin: str) -> list[list[str]]:
    """Return the hooks that our plugin for opencode runs, each as words."""
    if not plugin.startswith(PLUGIN_MARK):
        return []
    constants = {}
    for line in plugin.splitlines()[1:3]:
        name, _, value = line.removeprefix("const ").partition(" = ")
        constants[name] = value
    try:
        command, options = json.loads(constants["COMMAND"]), json.loads(constants["OPTIONS"])
    except (KeyError, ValueError):
        return []
    events = list(load_hosts()["claude-code"].hooks)
    if "--capture" not in options:
        events = [event for event in events if event not in CAPTURING]
    return [[*command, "hook", event, "--host", "opencode", *options] for event in events]


def has_plugin(connector: Connector, name: str) -> bool:
    """Return whether our plugin or extension, which brings its hooks, is enabled in a host.

    Raises:
        InvalidInput: A file is malformed or can't be read.
    """
    target = Target(name, "user", Path())
    host_files = connector.files(target)
    plugins: Any = None
    if name == "gemini":
        return (host_files.server.parent / "extensions" / SERVER).is_dir()
    if name == "claude-code" and host_files.hooks is not None:
        text, _ = files.decode(target.read(host_files.hooks), host_files.hooks)
        plugins = parse(target.host, text, str(host_files.hooks)).get(("enabledPlugins",))
    if name == "codex":
        text, _ = files.decode(target.read(host_files.server), host_files.server)
        plugins = toml.read(text).get("plugins")
    if not isinstance(plugins, Mapping):
        return False
    ours = [value for plugin, value in plugins.items() if plugin.startswith(f"{SERVER}@")]
    return any(map(_is_enabled, ours))


def _is_enabled(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("enabled", True) is not False
    return value is True


def find_connections(connector: Connector, root: Path | None) -> list[Connection]:
    """Return the user's connections, a project's, and those in the register.

    Args:
        connector: Knows the files and the register.
        root: A project's folder; None to use only the register.
    """
    hosts = load_hosts()
    places = [(name, "user", "") for name in hosts]
    if root is not None:
        places += [(name, "project", str(root)) for name, host in hosts.items() if host.project]
    receipts = files.load_receipts(connector.folder)
    places += [receipt.place for receipt in receipts if receipt.host in hosts]
    connections = (_find_connection(connector, *place) for place in dict.fromkeys(places))
    return [connection for connection in connections if connection is not None]


def _find_connection(connector: Connector, name: str, scope: str, root: str) -> Connection | None:
    target = Target(name, scope, Path(root))
    try:
        entries = find_entries(connector, target)
    except InvalidInput as exc:
        if scope != "user" and files.find_receipt(connector.folder, (name, scope, root)) is None:
            return None
        problem = str(exc).removesuffix("; nothing was changed")
        return Connection(name, scope, root, None, problem)
    if not (entries.server or entries.hooks):
        return None
    problem = _find_missing(entries, connector.where.environment)
    return Connection(name, scope, root, entries, problem)


def _find_missing(entries: FoundEntries, environment: Mapping[str, str]) -> str:
    """Return a sentence on the first program of the commands that does not exist; else empty."""
    for words in (entries.server, *entries.hooks):
        if words and is_missing(words, environment):
            program = words[0]
            if "/" in program or "\\" in program:
                return f"{program} no longer exists"
            return f"{program} is not on PATH"
    return ""


def describe_problem(connection: Connection) -> tuple[str, str]:
    """Return a connection's problem and its remedy."""
    title = load_hosts()[connection.host].title
    return f"{title}: {connection.problem}", _remedy(connection)


def _remedy(connection: Connection) -> str:
    if connection.remedy:
        return connection.remedy
    if connection.entries is None:
        return "repair the file"
    # A cloned project's name and content may try to run something in the user's shell.
    command = f"memory connect {connection.host}"
    if connection.scope != "user":
        command = f"cd {shlex.quote(connection.root)} && {command} --scope project"
    if connection.entries.capture:
        command += " --capture"
    if connection.entries.namespace:
        command += f" -n {shlex.quote(connection.entries.namespace)}"
    return f"run: {command}"
