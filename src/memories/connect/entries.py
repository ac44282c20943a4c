"""Adds, finds and removes our entries in a host's file, leaving the rest untouched."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memories.connect import toml
from memories.connect.hosts import SERVER, Host
from memories.connect.jsonc import Document, MalformedJSON
from memories.connect.program import (
    is_hook,
    is_server,
    server_options,
    variables_of,
    words_of,
)
from memories.errors import InvalidInput

KeyPath = tuple[str | int, ...]

PLUGIN_MARK = "// memories: written by `memory connect`; `memory disconnect` removes it."


class Entries(NamedTuple):
    """The entries that a host needs.

    Attributes:
        server: The entry for the MCP server.
        hooks: The command of each hook, keyed by the host's name for the event.
        plugin: The text of the plugin, for a host that has plugins instead of hooks.
    """

    server: Mapping[str, Any]
    hooks: Mapping[str, str]
    plugin: str


def parse(host: Host, text: str, name: str) -> Document:
    """Parse a host's JSON file.

    Raises:
        InvalidInput: The file is malformed; the message names the line.
    """
    try:
        return Document(text, comments=host.comments)
    except MalformedJSON as exc:
        raise InvalidInput(
            f"{name}, line {exc.line}, is malformed: {exc.why}; nothing was changed"
        ) from exc


def put_server(document: Document, host: Host, entry: Mapping[str, Any], name: str) -> None:
    """Add the MCP server to a file, keeping any fields and options that the user has added to it.

    Raises:
        InvalidInput: Another server has this name, or the file has an unexpected structure.
    """
    path = (*host.servers, SERVER)
    existing = document.get(path)
    _refuse_foreign(existing, name)
    with _explained(name):
        document.set(path, _merge(existing, entry))


def put_table(text: str, host: Host, entry: Mapping[str, Any], name: str) -> str:
    """Add the MCP server to a TOML file; see `put_server`."""
    table = (*host.servers, SERVER)
    with _explained(name):
        existing = toml.get(text, table)
        _refuse_foreign(existing, name)
        merged = _merge(existing, entry)
        return text if merged == existing else toml.put(text, table, merged)


def remove_table(text: str, host: Host, name: str) -> str:
    """Remove the MCP server from a TOML file, if it is ours."""
    table = (*host.servers, SERVER)
    with _explained(name):
        return toml.remove(text, table) if _is_ours(toml.get(text, table)) else text


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Add the file's name to errors about its structure."""
    try:
        yield
    except toml.MalformedTOML as exc:
        raise InvalidInput(f"{name} can't be changed: {exc}; nothing was changed") from exc
    except TypeError as exc:
        raise InvalidInput(f"{name}, {exc}; nothing was changed") from exc


def server_words(entry: Any) -> list[str]:
    """Return the command in a server's entry, as words."""
    if not isinstance(entry, Mapping):
        return []
    command = entry.get("command")
    if isinstance(command, str):
        return [command, *words_of(entry.get("args", []))]
    return words_of(command)


def _is_ours(entry: Any) -> bool:
    return is_server(server_words(entry))


def _refuse_foreign(entry: Any, name: str) -> None:
    if entry is not None and not _is_ours(entry):
        raise InvalidInput(
            f'{name} has a different MCP server with the name "{SERVER}"; rename or remove that '
            "server first; nothing was changed"
        )


def _merge(existing: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> dict[str, Any]:
    if existing is None:
        return dict(entry)
    merged = {**existing, **entry}
    words = "args" if "args" in entry else "command"
    merged[words] = [*entry[words], *server_options(server_words(existing))]
    for field in ("env", "environment"):
        variables = existing.get(field)
        if isinstance(variables, Mapping):
            merged[field] = {**variables, **entry.get(field, {})}
    return merged


def find_hooks(document: Document, host: Host) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and command of each of our hooks.

    The last hook of an event comes first, so removing a hook doesn't change the paths that follow.
    """
    events = document.get(("hooks",))
    if not isinstance(events, Mapping):
        return
    for event, groups in events.items():
        for number, group in _reversed_objects(groups):
            path = ("hooks", event, number)
            handlers: list[tuple[KeyPath, Mapping[str, Any]]] = [(path, group)]
            if not host.flat:
                own = _reversed_objects(group.get("hooks"))
                handlers = [((*path, "hooks", position), handler) for position, handler in own]
            for place, handler in handlers:
                command = handler.get("command")
                if isinstance(command, str) and is_hook(words_of(command)):
                    yield place, command


def _reversed_objects(values: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects in a list and their positions, last first."""
    if isinstance(values, list):
        for position in reversed(range(len(values))):
            if isinstance(values[position], Mapping):
                yield position, values[position]


def _remove_hook(document: Document, path: KeyPath) -> None:
    """Remove a hook, and its group too if the group has no other hook."""
    document.remove(path)
    if path[3:4] == ("hooks",) and document.get(path[:4]) == []:
        document.remove(path[:3])


def put_hooks(document: Document, host: Host, commands: Mapping[str, str], name: str) -> None:
    """Add one hook for each event in `commands`, and remove our hooks for other events.

    An existing hook keeps its place, its other fields, and the variables that the user has added to
    its command.

    Raises:
        InvalidInput: The file has an unexpected structure.
    """
    present: set[str] = set()
    hooks = list(find_hooks(document, host))
    variables: dict[str, str] = {}
    for path, command in hooks:
        event = str(path[1])
        variables[event] = variables.get(event) or variables_of(command)
    commands = dict(commands)
    for event in commands:
        commands[event] = variables.get(event, "") + commands[event]
    for path, _ in hooks:
        event = str(path[1])
        if event in commands and event not in present:
            present.add(event)
            document.set((*path, "command"), commands[event])
        else:
            _remove_hook(document, path)
    with _explained(name):
        if host.flat and commands and document.get(("version",)) is None:
            document.set(("version",), 1)
        for hook in host.hooks.values():
            if hook.name in commands and hook.name not in present:
                handler: dict[str, Any] = {"command": commands[hook.name], "timeout": hook.timeout}
                if not host.flat:
                    handler = {"hooks": [{"type": "command"} | handler]}
                document.append(("hooks", hook.name), handler)
    _prune(document, [path[:2] for path, _ in hooks])


def remove_entries(document: Document, host: Host, earlier: Document) -> None:
    """Remove all our entries from a JSON file, and the objects and lists that become empty.

    Args:
        document: The file.
        host: Its host.
        earlier: The file before we changed it. An object or list that was empty then is kept.
    """
    hooks = [path for path, _ in find_hooks(document, host)]
    for path in hooks:
        _remove_hook(document, path)
    emptied = [path[:2] for path in hooks]
    if hooks:
        emptied.append(("hooks",))
    server = (*host.servers, SERVER)
    if _is_ours(document.get(server)):
        document.remove(server)
        emptied.append(host.servers)
    _prune(document, [path for path in emptied if earlier.get(path) not in ({}, [])])
    is_ours = host.flat and hooks and earlier.get(("version",)) is None
    if is_ours and set(document.get(())) <= {"version", "hooks"} and not document.get(("hooks",)):
        document.remove(("version",))


def _prune(document: Document, paths: Sequence[KeyPath]) -> None:
    for path in sorted(set(paths), key=len, reverse=True):
        if document.get(path) in ({}, []):
            document.remove(path)
