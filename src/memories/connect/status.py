"""Which hosts are here, which are connected and how, and which of their commands are gone."""

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memories.connect import files, receipts, toml
from memories.connect.connect import Asked, Connector
from memories.connect.entries import PLUGIN_MARK, hooks_of, opened, server_words
from memories.connect.hosts import HOSTS, SERVER, Host, Where
from memories.connect.program import CAPTURING, is_server, missing, words_of
from memories.errors import InvalidInput


class Found(NamedTuple):
    """What of ours is in the files of a host.

    Attributes:
        server: The command of the MCP server, as words; empty if it is not there.
        hooks: The commands of the hooks, each as words.
        files: The files that something of ours is in.
    """

    server: list[str]
    hooks: list[list[str]]
    files: list[Path]

    @property
    def capture(self) -> bool:
        """Whether what is said is kept."""
        return any("--capture" in words for words in self.hooks)

    @property
    def namespace(self) -> str | None:
        """The namespace in the commands."""
        words = self.hooks[0] if self.hooks else self.server
        return words[words.index("-n") + 1] if "-n" in words[:-1] else None


def installed(host: Host, where: Where) -> bool:
    """Return whether a host is here: its program is on PATH, or its folder is there."""
    path = where.environment.get("PATH")
    return host.folder(where).is_dir() or any(
        shutil.which(name, path=path) for name in host.programs
    )


def look(connector: Connector, asked: Asked) -> Found:
    """Return what of ours is in the files of a host.

    Raises:
        InvalidInput: A file is broken or can't be read.
    """
    host, found = HOSTS[asked.host], connector.files(asked)
    server: list[str] = []
    hooks: list[list[str]] = []
    places = []
    for path in dict.fromkeys(path for path in found if path is not None):
        data = connector.read(path, asked)
        if data is None:
            continue
        text, _ = files.decoded(data, path)
        here: list[list[str]] = []
        entry: Any = None
        if path == found.plugin:
            here = _commands_of(text)
        elif path.suffix == ".toml":
            entry = _table(text, host, path)
        else:
            document = opened(host, text, str(path))
            entry = document.get((*host.servers, SERVER)) if path == found.server else None
            here = (
                [words_of(command) for _, command in hooks_of(document, host)]
                if path == found.hooks
                else []
            )
        words = server_words(entry)
        if is_server(words):
            server = words
        hooks += here
        if here or is_server(words):
            places.append(path)
    return Found(server, hooks, places)


def _table(text: str, host: Host, path: Path) -> Any:
    try:
        return toml.get(text, (*host.servers, SERVER))
    except toml.Malformed as exc:
        raise InvalidInput(f"{path}, {exc}; nothing was changed") from exc


def _commands_of(plugin: str) -> list[list[str]]:
    """Return the hooks that a plugin of ours runs, each as words."""
    if not plugin.startswith(PLUGIN_MARK):
        return []
    rows = dict(
        line.removeprefix("const ").split(" = ", 1)
        for line in plugin.splitlines()[1:3]
        if " = " in line
    )
    try:
        command, options = json.loads(rows["COMMAND"]), json.loads(rows["OPTIONS"])
    except (KeyError, ValueError):
        return []
    events = [
        event
        for event in HOSTS["claude-code"].hooks
        if "--capture" in options or event not in CAPTURING
    ]
    return [[*command, "hook", event, "--host", "opencode", *options] for event in events]


def has_plugin(connector: Connector, host: str) -> bool:
    """Return whether the plugin or extension of ours is switched on in a host, whose hooks it
    brings.

    Raises:
        InvalidInput: A file is broken or can't be read.
    """
    asked = Asked(host, "user", Path())
    found = connector.files(asked)
    plugins: Any = None
    if host == "gemini":
        return (found.server.parent / "extensions" / SERVER).is_dir()
    if host == "claude-code" and found.hooks is not None:
        text, _ = files.decoded(connector.read(found.hooks, asked), found.hooks)
        plugins = opened(HOSTS[host], text, str(found.hooks)).get(("enabledPlugins",))
    if host == "codex":
        text, _ = files.decoded(connector.read(found.server, asked), found.server)
        plugins = toml.read(text).get("plugins")
    every = plugins.items() if isinstance(plugins, Mapping) else ()
    return any(name.startswith(f"{SERVER}@") and _is_on(value) for name, value in every)


def _is_on(value: Any) -> bool:
    return value.get("enabled", True) is not False if isinstance(value, Mapping) else value is True


class Connection(NamedTuple):
    """A host that is connected in a scope, or may be.

    Attributes:
        host: The host.
        scope: `user` or `project`.
        root: The folder of the project; empty for a user.
        found: What of ours is in its files; None if they can't be read.
        problem: What is wrong with them, a sentence; empty if nothing is.
    """

    host: str
    scope: str
    root: str
    found: Found | None
    problem: str


def connections(connector: Connector, root: Path | None) -> list[Connection]:
    """Return what is connected, or can't be read: for the user, in a project, and in all that the
    register knows.

    Args:
        connector: Where to look.
        root: The folder of a project; None for no other than those in the register.
    """
    places = [(name, "user", "") for name in HOSTS]
    if root is not None:
        places += [
            (name, "project", str(root)) for name, host in HOSTS.items() if host.project is not None
        ]
    places += [each[:3] for each in receipts.load(connector.folder) if each.host in HOSTS]
    found = (_connection(connector, *place) for place in dict.fromkeys(places))
    return [each for each in found if each is not None]


def _connection(connector: Connector, host: str, scope: str, root: str) -> Connection | None:
    try:
        found = look(connector, Asked(host, scope, Path(root)))
    except InvalidInput as exc:
        known = receipts.find(receipts.load(connector.folder), host, scope, root)
        broken = f"{exc}".removesuffix("; nothing was changed")
        return Connection(host, scope, root, None, broken) if known or scope == "user" else None
    if not (found.server or found.hooks):
        return None
    return Connection(host, scope, root, found, _gone(found, connector.where.environment))


def _gone(found: Found, environment: Mapping[str, str]) -> str:
    """Return what is wrong if a program of the commands is not there; else nothing."""
    commands = [words for words in (found.server, *found.hooks) if words]
    program = next((words[0] for words in commands if missing(words, environment)), "")
    if not program:
        return ""
    return (
        f"{program} is not there any more"
        if "/" in program or "\\" in program
        else f"{program} is not on PATH"
    )


def problem(each: Connection) -> tuple[str, str]:
    """Return what is wrong with a connected host, and what to do."""
    return f"{HOSTS[each.host].title}: {each.problem}", _remedy(each)


def _remedy(each: Connection) -> str:
    if each.found is None:
        return "mend the file"
    # What a cloned project holds, and its name, may be meant for the shell of whoever runs this.
    place = "" if each.scope == "user" else f"cd {shlex.quote(each.root)} && "
    options = "" if each.scope == "user" else " --scope project"
    capture = " --capture" if each.found.capture else ""
    namespace = f" -n {shlex.quote(each.found.namespace)}" if each.found.namespace else ""
    return f"run: {place}memory connect {each.host}{options}{capture}{namespace}"
