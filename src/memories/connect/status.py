"""Connection status: installed and connected hosts, missing commands, and checks.

A check starts the MCP server and the hooks as the host does, and reports whether they work.
"""

import json
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from memories.connect import files, toml
from memories.connect.connect import Connector, Target
from memories.connect.entries import PLUGIN_MARK, find_hooks, parse, server_words
from memories.connect.hosts import SERVER, Host, Where, load_hosts
from memories.connect.program import is_server, namespace_of, program_of, words_of
from memories.core.installation import install_command
from memories.errors import InvalidInput
from memories.hooks.hook import SECONDS as HOOK_SECONDS
from memories.hooks.host_events import CHECK

UNREADABLE = "its configuration can't be read"


class FoundEntries(NamedTuple):
    """Our entries in a host's files.

    Attributes:
        server: The command of the MCP server, as words; empty if there is none.
        hooks: The commands of the hooks, each as words.
        files: The files that contain our entries.
        environment: The variables that the host sets for the server.
        disabled_in: The file in which `disableAllHooks` switches the host's hooks off, if any.
    """

    server: list[str]
    hooks: list[list[str]]
    files: list[Path]
    environment: Mapping[str, str] = MappingProxyType({})
    disabled_in: Path | None = None

    @property
    def capture(self) -> bool:
        """Whether the conversation is captured."""
        return any("--capture" in words for words in self.hooks)

    @property
    def namespace(self) -> str | None:
        """The namespace in the entries' commands; None if they don't specify one."""
        names = map(namespace_of, (*self.hooks, self.server))
        return next(filter(None, names), None)


class HostConnection(NamedTuple):
    """A host that is connected in a scope, or whose files can't be read.

    Attributes:
        host: The host.
        scope: `user` or `project`.
        root: The project's folder; empty for a user.
        entries: Our entries in its files; None if they can't be read.
        problem: The problem with the connection, as a sentence; empty if there is none.
        remedy: What to do about the problem; empty if connecting again solves it. Never empty for
            files that can't be read.
        summary: How many tools the server offers and how fast it answered; empty if it was not
            started.
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
    """Return our entries in a host's files.

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
            hooks = plugin_commands(text)
        elif path.suffix == ".toml":
            entry = _read_table(text, (*host.servers, SERVER), path)
        else:
            document = parse(host, text, str(path))
            if path == host_files.server:
                entry = document.get((*host.servers, SERVER))
            if path == host_files.hooks:
                hooks = [words_of(command) for _, command in find_hooks(document, host)]
                if document.get(("disableAllHooks",)) is True:
                    entries = entries._replace(disabled_in=path)
        server = server_words(entry)
        if is_server(server):
            variables = entry.get("environment") or entry.get("env") or {}
            entries = entries._replace(server=server, environment=variables)
        entries.hooks.extend(hooks)
        if hooks or is_server(server):
            entries.files.append(path)
    return entries


def _read_table(text: str, table: toml.Table, path: Path) -> Any:
    """Return the value of a table in a TOML file; None if there is no such table.

    Raises:
        InvalidInput: The file is malformed.
    """
    try:
        return toml.get(text, table)
    except toml.MalformedTOML as exc:
        raise InvalidInput(f"{path} is malformed: {exc}; nothing was changed") from exc


def plugin_commands(plugin: str) -> list[list[str]]:
    """Return the commands of the hooks that our opencode plugin runs, each as words."""
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
    events: Sequence[str] = list(load_hosts()["claude-code"].hooks)
    if "--capture" not in options:
        events = _CHECKED_EVENTS
    return [[*command, "hook", event, "--host", "opencode", *options] for event in events]


def has_plugin(connector: Connector, name: str) -> bool:
    """Return whether our plugin or extension, which has its own hooks, is enabled in a host.

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
        plugins = _read_table(text, ("plugins",), host_files.server)
    if not isinstance(plugins, Mapping):
        return False
    for plugin, value in plugins.items():
        is_enabled = value is True
        if isinstance(value, Mapping):
            is_enabled = value.get("enabled", True) is not False
        if is_enabled and plugin.startswith(f"{SERVER}@"):
            return True
    return False


def find_connections(connector: Connector, root: Path | None) -> list[HostConnection]:
    """Return the user's connections, a project's, and those in the register.

    Args:
        connector: Locates the hosts' files and the register.
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


def _find_connection(
    connector: Connector, name: str, scope: str, root: str
) -> HostConnection | None:
    target = Target(name, scope, Path(root))
    try:
        entries = find_entries(connector, target)
    except InvalidInput as exc:
        if scope != "user" and files.find_receipt(connector.folder, (name, scope, root)) is None:
            return None
        problem, _, remedy = str(exc).removesuffix("; nothing was changed").partition("; ")
        remedy = remedy or "repair the file, then run: memory connect --status"
        return HostConnection(name, scope, root, None, f"{UNREADABLE}: {problem}", remedy)
    if not (entries.server or entries.hooks):
        return None
    problem, remedy = _find_missing(entries, connector.where.environment), ""
    if entries.hooks and entries.disabled_in and not problem:
        problem = f"its hooks are switched off by disableAllHooks in {entries.disabled_in}"
        remedy = f"remove disableAllHooks from {entries.disabled_in}"
    return HostConnection(name, scope, root, entries, problem, remedy)


def _find_missing(entries: FoundEntries, environment: Mapping[str, str]) -> str:
    """Return a sentence about the first missing program; empty if none is missing."""
    for words in (entries.server, *entries.hooks):
        program = program_of(words)
        if program and shutil.which(program, path=environment.get("PATH")) is None:
            if "/" in program or "\\" in program:
                return f"{program} no longer exists"
            return f"{program} is not on PATH"
    return ""


def describe_problem(connection: HostConnection) -> tuple[str, str]:
    """Return a connection's problem and its remedy."""
    title = load_hosts()[connection.host].title
    return f"{title}: {connection.problem}", _remedy(connection)


def _remedy(connection: HostConnection) -> str:
    if connection.remedy or connection.entries is None:
        return connection.remedy
    entries = connection.entries
    root = Path(connection.root)
    target = Target(
        connection.host, connection.scope, root, entries.capture, entries.namespace or None
    )
    return f"run: {connect_command(target)}"


def connect_command(target: Target) -> str:
    """Return the command that connects a host, for the user to copy."""
    # Quote values from a cloned project, which could otherwise run commands in the user's shell.
    command = f"memory connect {target.name}"
    if not target.is_private:
        command = f"cd {shlex.quote(str(target.root))} && {command} --scope project"
    if target.capture:
        command += " --capture"
    if target.namespace:
        command += f" -n {shlex.quote(target.namespace)}"
    return command


# --- checking a connection ---

_SERVER_SECONDS = 20.0  # Codex's limit; other hosts wait longer
_FIRST_START_SECONDS = 3.0  # a slower start probably compiled modules, so measure a second start
_MORE_SECONDS = ("--seconds", "10")  # lets a slow hook finish, so that it can be timed
_HOOK_SECONDS = 15.0
_CHECKED_EVENTS = ("session-start", "user-prompt")  # hooks for other events give agents nothing
_PROMPT = "what do you remember about this project?"
_STATUS = "memory://status"


class HookCheck(NamedTuple):
    """A hook that was run.

    Attributes:
        event: The event.
        seconds: How long the host waited.
        characters: The length of the text that the agent would have got.
        is_on: Whether memory is on in this folder.
    """

    event: str
    seconds: float
    characters: int
    is_on: bool = True

    @property
    def is_late(self) -> bool:
        """Whether the hook took longer than its usual limit, as can happen on a busy machine."""
        return self.seconds > HOOK_SECONDS


class StartCheck(NamedTuple):
    """The result of starting a connection as its host does.

    Attributes:
        tools: The tools of the MCP server.
        seconds: How long the server took to start and list its tools.
        store: The URL of the store that the server opened, without a password.
        memories: How many memories the store has; None if the server didn't say.
        hooks: The hooks that were run.
        problem: Why the connection does not work, as a sentence; empty if it works.
        remedy: What to do about the problem.
    """

    tools: tuple[str, ...] = ()
    seconds: float = 0.0
    store: str = ""
    memories: int | None = None
    hooks: tuple[HookCheck, ...] = ()
    problem: str = ""
    remedy: str = ""

    @property
    def is_off(self) -> bool:
        """Whether memory is switched off in this folder."""
        return not all(hook.is_on for hook in self.hooks)


def check_connections(connections: Sequence[HostConnection]) -> list[HostConnection]:
    """Check a user's connections; return all connections, with any problems found.

    Commands in a project's files are never started, because anyone may have written them.
    """
    checked = []
    checks: dict[str, StartCheck] = {}
    for connection in connections:
        entries = connection.entries
        if entries is None or connection.problem or connection.scope != "user":
            checked.append(connection)
            continue
        key = repr((entries.server, sorted(entries.environment.items()), entries.hooks))
        if key not in checks:
            checks[key] = check_connection(entries)
        check = checks[key]
        summary = "" if check.problem else summarize(check)
        checked.append(
            connection._replace(problem=check.problem, remedy=check.remedy, summary=summary)
        )
    return checked


def summarize(check: StartCheck) -> str:
    """Summarize a working connection: how many tools it has, and how fast it answered."""
    summary = f"{len(check.tools)} tools in {check.seconds:.1f} s"
    if check.hooks:
        summary += f", recall in {max(hook.seconds for hook in check.hooks):.2f} s"
    return summary


class _Failure(Exception):
    """A connection doesn't work; `args` are the problem and the remedy."""


def check_connection(entries: FoundEntries) -> StartCheck:
    """Start a connection's server and hooks, and report whether they work.

    The hooks capture nothing and count no memory as read.
    """
    check = StartCheck()
    hooks = [words for words in entries.hooks if _event(words) in _CHECKED_EVENTS]
    try:
        if not entries.server:
            raise _Failure("its MCP server is not configured", "")
        # The first hook starts the background server, which is ready when the other hooks run.
        for words in hooks[:1]:
            _send_event(words)
        check = _check_server(entries.server, entries.environment)
        if check.seconds > _FIRST_START_SECONDS:
            check = _check_server(entries.server, entries.environment)
        return check._replace(hooks=tuple(map(_run_hook, hooks)))
    except _Failure as failure:
        problem, remedy = failure.args
        return check._replace(problem=problem, remedy=remedy)


# --- the MCP server ---


def _check_server(words: Sequence[str], variables: Mapping[str, str]) -> StartCheck:
    import anyio

    logging.getLogger("mcp").propagate = False  # otherwise the SDK logs what other programs print
    started_at = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            tools, state = anyio.run(_ask_server, words, variables, errors)
        except Exception as exc:
            errors.seek(0)
            raise _server_failure(words, exc, errors.read()) from exc
    seconds = time.monotonic() - started_at
    return StartCheck(tuple(tools), seconds, state["store"], state["memory_count"])


async def _ask_server(
    words: Sequence[str], variables: Mapping[str, str], errors: IO[str]
) -> tuple[list[str], dict[str, Any]]:
    """Start the server with only the variables that hosts set; return its tools and status."""
    import anyio

    from mcp import Client, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
        command=words[0], args=list(words[1:]), env=dict(variables) or None
    )
    with anyio.fail_after(_SERVER_SECONDS):
        async with Client(stdio_client(parameters, errlog=errors)) as client:  # type: ignore[arg-type]
            listed = await client.list_tools()
            resource = await client.read_resource(_STATUS)
    state = json.loads(getattr(resource.contents[0], "text", "{}"))
    return [tool.name for tool in listed.tools], state


def _server_failure(words: Sequence[str], exc: BaseException, errors: str) -> _Failure:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, TimeoutError):
        return _Failure(
            f"its MCP server did not answer within {_SERVER_SECONDS:.0f} s",
            f"run: {shlex.join(words)}, and see what it is waiting for",
        )
    reason, _, remedy = _last_error(errors).partition("; ")
    return _Failure(
        f"its MCP server failed: {reason or exc}",
        remedy or f"install the program again: {install_command()}",
    )


def _last_error(text: str) -> str:
    """Return the last error that a program printed; our own program prints errors as JSON."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    try:
        return str(json.loads(lines[-1])["error"])
    except (ValueError, TypeError, KeyError):
        return lines[-1].strip().removeprefix("error: ")


# --- hooks ---


def _event(words: Sequence[str]) -> str:
    return words[words.index("hook") + 1]


def _run_hook(words: Sequence[str]) -> HookCheck:
    """Run a hook; return its result.

    Raises:
        _Failure: The hook does not work.
    """
    event = _event(words)
    started_at = time.monotonic()
    answer = _send_event(words)
    seconds = time.monotonic() - started_at
    if not answer:
        raise _Failure(f"its {event} hook printed nothing", "run: memory doctor")
    try:
        report = json.loads(answer)[CHECK]
    except (ValueError, TypeError, KeyError) as exc:
        raise _Failure(
            f"its {event} hook printed output that this version doesn't understand",
            f"install the program again: {install_command()}",
        ) from exc
    if report["problem"]:
        problem, _, remedy = str(report["problem"]).partition("; ")
        raise _Failure(f"its {event} hook can't recall: {problem}", remedy or "run: memory doctor")
    return HookCheck(event, seconds, len(report["text"]), report["is_on"])


def _send_event(words: Sequence[str]) -> bytes:
    """Run a hook with a test event; return its output, which may be empty.

    Raises:
        _Failure: The hook can't be started.
    """
    fields = {CHECK: True, "cwd": os.getcwd(), "session_id": CHECK, "prompt": _PROMPT}  # noqa: PTH109
    event = json.dumps(fields).encode()
    try:
        return subprocess.run(  # noqa: S603 - the command that the host runs
            [*words, *_MORE_SECONDS],
            input=event,
            capture_output=True,
            timeout=_HOOK_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return b""
    except OSError as exc:
        problem = f"its {_event(words)} hook can't be started: {exc.strerror or exc}"
        raise _Failure(problem, "") from exc
