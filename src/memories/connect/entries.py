"""The entries of ours in the text of a host's file: put in, found, taken out; nothing else is
touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memories.connect import toml
from memories.connect.hosts import SERVER, Host
from memories.connect.jsonc import Document, Malformed
from memories.connect.program import is_hook, is_server, words_of
from memories.errors import InvalidInput

Path = tuple[str | int, ...]


class Wanted(NamedTuple):
    """What shall be in a host's files.

    Attributes:
        server: The entry of the MCP server.
        hooks: The command of each hook, by the host's name for the event.
        plugin: The text of the plugin, if the host has one instead of hooks.
    """

    server: Mapping[str, Any]
    hooks: Mapping[str, str]
    plugin: str


PLUGIN_MARK = "// memories: written by `memory connect`; `memory disconnect` removes it."


def opened(host: Host, text: str, name: str) -> Document:
    """Read a JSON file of a host.

    Raises:
        InvalidInput: It is broken; the sentence says where.
    """
    try:
        return Document(text, comments=host.comments)
    except Malformed as exc:
        raise InvalidInput(
            f"{name}, line {exc.line}, is broken: {exc.why}; nothing was changed"
        ) from exc


# --- the server
# -------------------------------------------------------------------------------------------------------


def put_server(document: Document, host: Host, entry: Mapping[str, Any], name: str) -> None:
    """Put the MCP server into a file; what its user has added to the entry stays.

    Raises:
        InvalidInput: Another server has its name, or what stands there is no object.
    """
    path = (*host.servers, SERVER)
    existing = document.get(path)
    _refuse_foreign(existing, name)
    try:
        document.set(path, _merged(existing, entry))
    except TypeError as exc:
        raise InvalidInput(f"{name}, {exc}; nothing was changed") from exc


def put_table(text: str, host: Host, entry: Mapping[str, Any], name: str) -> str:
    """Put the MCP server into a TOML file; see `put_server`."""
    table = (*host.servers, SERVER)
    try:
        existing = toml.get(text, table)
        _refuse_foreign(existing, name)
        merged = _merged(existing, entry)
        return text if merged == existing else toml.put(text, table, merged)
    except toml.Malformed as exc:
        raise InvalidInput(f"{name} can't be changed: {exc}; nothing was changed") from exc


def take_table(text: str, host: Host, name: str) -> str:
    """Take the MCP server out of a TOML file, if it is ours."""
    table = (*host.servers, SERVER)
    try:
        return toml.take_out(text, table) if _is_ours(toml.get(text, table)) else text
    except toml.Malformed as exc:
        raise InvalidInput(f"{name} can't be changed: {exc}; nothing was changed") from exc


def server_words(existing: Any) -> list[str]:
    """Return the command of a server's entry, as words."""
    if not isinstance(existing, Mapping):
        return []
    command = existing.get("command")
    if isinstance(command, str):
        return [command, *words_of(existing.get("args", []))]
    return words_of(command)


def _is_ours(existing: Any) -> bool:
    return is_server(server_words(existing))


def _refuse_foreign(existing: Any, name: str) -> None:
    if existing is not None and not _is_ours(existing):
        raise InvalidInput(
            f'{name} has another MCP server with the name "{SERVER}"; rename or remove it first; nothing was changed'
        )


def _merged(existing: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**(existing or {}), **entry}
    for variables in ("env", "environment"):
        if existing and isinstance(existing.get(variables), Mapping):
            merged[variables] = {**existing[variables], **entry.get(variables, {})}
    return merged


# --- hooks
# ------------------------------------------------------------------------------------------------------------


def hooks_of(document: Document, host: Host) -> Iterator[tuple[Path, str]]:
    """Yield where a hook of ours stands and its command, the last one of an event first."""
    events = document.get(("hooks",))
    for event, groups in events.items() if isinstance(events, Mapping) else ():
        for at, group in reversed(list(enumerate(groups))) if isinstance(groups, list) else ():
            if not isinstance(group, Mapping):
                continue
            if host.flat:
                if is_hook(words_of(group.get("command"))):
                    yield ("hooks", event, at), group["command"]
                continue
            inner = group.get("hooks")
            for number, handler in (
                reversed(list(enumerate(inner))) if isinstance(inner, list) else ()
            ):
                if isinstance(handler, Mapping) and is_hook(words_of(handler.get("command"))):
                    yield ("hooks", event, at, "hooks", number), handler["command"]


def _drop(document: Document, path: Path) -> None:
    """Take a hook out, and with it the group that holds no other."""
    document.remove(path)
    if path[3:4] == ("hooks",) and document.get(path[:4]) == []:
        document.remove(path[:3])


def put_hooks(document: Document, host: Host, wanted: Mapping[str, str], name: str) -> None:
    """Put hooks into a file: one for each of these events; those of ours for others are taken out.

    Raises:
        InvalidInput: What stands there has another form.
    """
    there: dict[str, str] = {}
    for path, command in list(hooks_of(document, host)):
        event = str(path[1])
        if wanted.get(event) == command and event not in there:
            there[event] = command
        else:
            _drop(document, path)
    timeouts = {hook.name: hook.timeout for hook in host.hooks.values()}
    try:
        if host.flat and wanted and document.get(("version",)) is None:
            document.set(("version",), 1)
        for event, command in wanted.items():
            if event not in there:
                document.append(("hooks", event), _handler(host, command, timeouts[event]))
    except TypeError as exc:
        raise InvalidInput(f"{name}, {exc}; nothing was changed") from exc
    _prune(document, [("hooks", event) for event in timeouts if event not in wanted])


def _handler(host: Host, command: str, timeout: int) -> dict[str, Any]:
    if host.flat:
        return {"command": command, "timeout": timeout}
    return {"hooks": [{"type": "command", "command": command, "timeout": timeout}]}


# --- taking out
# -------------------------------------------------------------------------------------------------------


def take_entries(document: Document, host: Host, made: Sequence[Path] | None) -> None:
    """Take all that is ours out of a JSON file.

    Args:
        document: The file.
        host: Whose it is.
        made: What was made for our entries and goes with them once it is empty; None if that is not
            known, and then all that our entries leave empty goes.
    """
    ours = list(hooks_of(document, host))
    for path, _ in ours:
        _drop(document, path)
    server = (*host.servers, SERVER)
    had_server = _is_ours(document.get(server))
    if had_server:
        document.remove(server)
    if made is None:
        made = [path[:2] for path, _ in ours] + ([("hooks",)] if ours else [])
        made += [host.servers] if had_server else []
    _prune(document, made)
    if host.flat and ("version",) in made and list(document.get(()) or ()) == ["version"]:
        document.remove(("version",))


def containers(document: Document, host: Host) -> list[Path]:
    """Return what is there of the objects and lists that entries of ours are put into, the
    innermost first.
    """
    events: list[Path] = [("hooks", hook.name) for hook in host.hooks.values()]
    rest: list[Path] = [("hooks",), host.servers, ("version",)]
    return [path for path in [*events, *rest] if document.get(path) is not None]


def _prune(document: Document, paths: Sequence[Path]) -> None:
    for path in sorted(set(paths), key=len, reverse=True):
        if document.get(path) in ({}, []):
            document.remove(path)
