"""Commands that connect agents to Memories: connect, disconnect."""

import contextlib
import difflib
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.cli.app import command, completing, option
from memories.cli.options import (
    dry_run_option,
    format_option,
    namespace_option,
    with_settings,
)
from memories.cli.output import as_sentence, emit, record_change, safe, table, wrap
from memories.cli.serve import stop_command_server
from memories.connect import report
from memories.connect.connect import SCOPES, Connector, FileChange, Target, make_entries
from memories.connect.entries import server_words
from memories.connect.hosts import Host, Where, load_hosts
from memories.connect.program import Program, bare, find_conflicts, find_program, words_of
from memories.connect.status import (
    FoundEntries,
    HostConnection,
    StartCheck,
    check_connection,
    check_connections,
    describe_problem,
    find_connections,
    find_entries,
    has_plugin,
    is_installed,
    plugin_commands,
)
from memories.errors import InvalidInput, SystemFault
from memories.identity.git import find_root

if TYPE_CHECKING:
    from memories.settings import Config

_CHANGES = {"made": "Created", "changed": "Changed", "removed": "Removed"}
_STILL_CONNECTED = "Earlier entries in the file are back; run this again to remove them as well."
_MAX_DIFF_LINE = 400  # maximum number of characters per line; some files consist of one long line
_hosts_argument = click.argument(
    "hosts", nargs=-1, metavar="[HOST]...", shell_complete=completing("hosts")
)
_scope_option = option(
    "--scope", metavar="SCOPE", values=SCOPES,
    help=(
        "For you in all projects (user), or for everyone who clones this project (project). "
        "[default: user]"
    ),
)  # fmt: skip


@command(
    epilog="memory connect\nmemory connect claude-code --capture\n"
    "memory connect codex gemini -n bob --dry-run\nmemory connect cursor --scope project"
)
@_hosts_argument
@option(
    "--capture", is_flag=True, help="Also capture conversations, for review. [default: only recall]"
)
@_scope_option
@dry_run_option
@option("--status", is_flag=True, help="Only show what is connected, including in other projects.")
@with_settings(namespace_option, format_option)
def connect(
    config: "Config",
    hosts: Sequence[str],
    capture: bool,
    scope: str | None,
    dry_run: bool,
    status: bool,
) -> int:
    """Connect agents to Memories through an MCP server and hooks.

    Starts the server and the hooks as the agent does, checks that they work, and reports what the
    agent sees and what is captured.

    HOST is claude-code, codex, gemini, opencode, cursor, vscode, claude-desktop, windsurf or zed.
    Without a HOST, shows which hosts are installed and which are connected. Other entries in the
    hosts' files are kept; memory disconnect removes ours.
    """
    connector = _connector()
    _check_hosts(hosts)
    scope = _check_scope(scope)
    namespace = config.namespace if config.sources["namespace"] == "flag" else None
    if status or not hosts:
        if capture or namespace is not None:
            raise InvalidInput(
                "--capture and -n are only for connecting: name a HOST, and leave out --status"
            )
        return _show_status(connector, hosts, everywhere=status)
    program = find_program(os.environ) if scope == "user" else bare()
    environment = _environment(config, scope)
    plans = []
    for host in hosts:
        request = Target(host, scope, _project(), capture, namespace)
        plans.append(
            (request, connector.plan_connect(request, make_entries(request, program, environment)))
        )
    answers: list[dict[str, Any]] = []
    for request, changes in plans:
        answer = _connect(connector, request, changes, program, dry_run=dry_run)
        answers.append(answer)
        if changes and not dry_run:
            record_change(f"connected {_list_changed(answers)}")
        own = [name for name in environment if name.startswith("MEMORY_")]
        if own and _has_hooks(request.name):
            answer["notes"].append(_note_on_environment(request.host.title, own))
        if not dry_run:
            check = _check_target(connector, request, program)
            answer |= report.describe(config, request, check, answer["undo"])
            answer["notes"] += report.find_differences(config, check)
    emit({"connected": answers, "count": len(answers)}, partial(_render_answers, answers))
    has_problem = any(answer["check"]["problem"] for answer in answers if "check" in answer)
    return 1 if has_problem else 0


@command(epilog="memory disconnect claude-code\nmemory disconnect codex --scope project --dry-run")
@_hosts_argument
@_scope_option
@dry_run_option
@with_settings(format_option)
def disconnect(config: "Config", hosts: Sequence[str], scope: str | None, dry_run: bool) -> int:
    """Disconnect agents from Memories.

    A file that nothing else has changed is restored byte for byte; from other files, only our
    entries are removed. Memories are kept. Disconnecting the last agent also stops the server that
    hooks started.
    """
    connector = _connector()
    _check_hosts(hosts)
    scope = _check_scope(scope)
    if not hosts:
        raise InvalidInput(
            f"name the host to disconnect: {', '.join(load_hosts())}; "
            "to see which are connected, run memory connect"
        )
    plans = []
    for host in hosts:
        request = Target(host, scope, _project())
        plans.append((request, connector.plan_disconnect(request)))
    answers = []
    for request, changes in plans:
        if not dry_run:
            connector.disconnect(request, changes)
        answer = _answer(request, changes, dry_run=dry_run) | {"notes": []}
        answers.append(answer)
        if not changes:
            answer["notes"].append(f"{request.host.title} was not connected; nothing to change.")
        elif not dry_run:
            record_change(f"disconnected {_list_changed(answers)}")
            if find_entries(connector, request).files:
                answer["notes"].append(_STILL_CONNECTED)
    emit({"disconnected": answers, "count": len(answers)}, partial(_render_answers, answers))
    if not (dry_run or find_connections(connector, None)) and os.name == "posix":
        with contextlib.suppress(SystemFault):  # the server also stops by itself when it is idle
            stop_command_server(config)
    return 0


def _connector() -> Connector:
    from memories.config import registers

    return Connector(Where(Path.home(), os.environ), registers())


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if host not in load_hosts():
            names = list(load_hosts())
            near = difflib.get_close_matches(host.lower(), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}"
            raise InvalidInput(f'there is no host "{safe(host)}"; {hint}')
    if len(set(hosts)) < len(hosts):
        raise InvalidInput("a host is named twice; name each host once")


def _check_scope(scope: str | None) -> str:
    if scope is not None and scope not in SCOPES:
        raise InvalidInput(f'--scope must be user or project, not "{safe(scope)}"')
    return scope or "user"


def _project() -> Path:
    """Return the root of the working folder's repository, or the folder itself if it has none."""
    folder = Path.cwd()
    root = find_root(folder)
    return folder if root is None or root == Path.home() else root


def _environment(config: "Config", scope: str) -> dict[str, str]:
    """Return the environment variables of this run that belong in the server's entry.

    Hosts start servers with only a few variables. An entry in a project's files gets none of ours,
    since other people clone the project.
    """
    from memories.core.urls import local_path, without_password

    variables: dict[str, str] = {}
    if scope == "project":
        return variables
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        if os.environ.get(name, "").strip():
            variables[name] = os.environ[name]
    if _is_from_environment(config, "home"):
        variables["MEMORY_HOME"] = os.path.abspath(config.home)  # noqa: PTH100 - hosts start servers in other folders
    if _is_from_environment(config, "store") and without_password(config.store) == config.store:
        path = local_path(config.store)
        scheme = config.store.partition(":")[0]
        variables["MEMORY_STORE"] = config.store if path is None else f"{scheme}:///{path}"
    return variables


def _is_from_environment(config: "Config", name: str) -> bool:
    return config.sources[name] == "environment" and f"MEMORY_{name.upper()}" in os.environ


def _connect(
    connector: Connector,
    request: Target,
    changes: Sequence[FileChange],
    program: Program,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    # Write the notes first: connecting creates the host's folder, which makes it look installed.
    notes = _notes(connector, request, program, is_changed=bool(changes))
    backups = {}
    if changes and not dry_run:
        backups = {file.path: file.before for file in connector.connect(request, changes)}
    answer = _answer(request, changes, dry_run=dry_run)
    for file in answer["files"]:
        if backups.get(file["path"]):
            file["backup"] = backups[file["path"]]
    undo = f"memory disconnect {request.name}"
    if request.scope == "project":
        undo += " --scope project"
    return answer | {"notes": notes, "undo": undo}


def _check_target(connector: Connector, request: Target, program: Program) -> StartCheck:
    """Start the server and the hooks in a host's configuration, and check that they work.

    Someone else may have written the commands in a project's files, so our own are started
    instead.
    """
    entries = find_entries(connector, request)
    if request.scope == "project":
        ours = make_entries(request, program, {})
        hooks = [words_of(command) for command in ours.hooks.values()]
        if "plugin" in request.host.project:
            hooks = plugin_commands(ours.plugin)
        entries = FoundEntries(server_words(ours.server), hooks, [])
    return check_connection(entries)


def _answer(request: Target, changes: Sequence[FileChange], *, dry_run: bool) -> dict[str, Any]:
    files = []
    for change in changes:
        kind = "changed"
        if change.before is None:
            kind = "made"
        elif change.after is None:
            kind = "removed"
        files.append({"path": str(change.path), "change": kind})
    answer: dict[str, Any] = {
        "host": request.name,
        "title": request.host.title,
        "scope": request.scope,
        "changed": bool(changes),
        "files": files,
    }
    if dry_run:
        diffs = [_diff(change) for change in changes]
        answer |= {"dry_run": True, "diff": "\n".join(filter(None, diffs))}
    return answer


def _list_changed(answers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(answer["title"] for answer in answers if answer["changed"])


def _diff(change: FileChange) -> str:
    """Return a file's changes as a diff, with possible secrets removed."""
    from memories.guard.redactor import redact

    old, new = ((data or b"").decode().splitlines() for data in (change.before, change.after))
    lines = difflib.unified_diff(old, new, str(change.path), str(change.path), lineterm="")
    short_lines = []
    for line in lines:
        mark = "…" if len(line) > _MAX_DIFF_LINE else ""
        short_lines.append(f"{line[:_MAX_DIFF_LINE]}{mark}")
    return redact("\n".join(short_lines)).text


def _notes(
    connector: Connector, request: Target, program: Program, *, is_changed: bool
) -> list[str]:
    host = request.host
    notes = []
    if not is_changed:
        notes.append(f"{host.title} is already connected; nothing to change.")
    notes += report.describe_earlier(find_entries(connector, request), request)
    if not is_installed(host, connector.where):
        notes.append(f"{host.title} is not installed here; it will read these files once it is.")
    if has_plugin(connector, request.name):
        notes.append(
            f"The plugin memories is also enabled in {host.title}, so hooks run twice; either "
            f"remove the plugin, or run memory disconnect {request.name}."
        )
    if program.doubt and is_changed:
        notes.append(as_sentence(program.doubt))
    if request.scope == "project":
        notes += _project_notes(connector, request)
    for conflict in find_conflicts(os.environ):
        notes.append(as_sentence(f"{conflict.problem}; {conflict.remedy}"))
    if request.capture and not _has_hooks(request.name):
        notes.append(
            f"{host.title} has no hooks, so it captures nothing; it only gets the MCP server's "
            "tools."
        )
    return [*notes, *host.notes] if is_changed else notes


def _project_notes(connector: Connector, request: Target) -> list[str]:
    notes = []
    if find_root(request.root) is None:
        notes.append(
            f"{request.root} is not in a git repository; the files apply only to this folder."
        )
    notes.append(
        "Everyone who clones this project gets these files. They contain none of your secrets or "
        "paths; they run the command memoriae, which everyone needs on the PATH."
    )
    is_for_user = any(
        connection.host == request.name and connection.scope == "user"
        for connection in find_connections(connector, None)
    )
    if is_for_user:
        notes.append(
            f"{request.host.title} is also connected for you in all projects, so its hooks run "
            "twice here, and the first takes effect; to keep only the project's hooks, run memory "
            f"disconnect {request.name}."
        )
    return notes


def _note_on_environment(title: str, variables: Sequence[str]) -> str:
    names = ", ".join(variables)
    return (
        f"The server's entry contains {names} from this run, but hooks read {names} from the "
        f"environment of {title}; set it there too, for example in your shell's profile."
    )


def _has_hooks(host: str) -> bool:
    return bool(load_hosts()[host].hooks) or host == "opencode"


# --- status ---


def _show_status(connector: Connector, hosts: Sequence[str], *, everywhere: bool) -> int:
    """Print which hosts are installed and connected; return the exit code."""
    project = _project()
    root = None if project == Path.home() else project
    connected = find_connections(connector, root)
    if everywhere:
        connected = check_connections(connected)
    else:
        here = ("", str(root))
        connected = [connection for connection in connected if connection.root in here]
    rows = [_row(connector, name, load_hosts()[name], connected) for name in hosts or load_hosts()]
    emit({"hosts": rows, "count": len(rows)}, partial(_render_status, rows))
    has_problem = any(shape["problem"] for row in rows for shape in row["connected"])
    return 1 if everywhere and has_problem else 0


def _row(
    connector: Connector, name: str, host: Host, connected: Sequence[HostConnection]
) -> dict[str, Any]:
    own = [connection for connection in connected if connection.host == name]
    try:
        by_plugin = has_plugin(connector, name)
    except InvalidInput:  # the list of connections reports a malformed file
        by_plugin = False
    row = {
        "host": name,
        "title": host.title,
        "installed": is_installed(host, connector.where),
        "plugin": by_plugin,
        "connected": [_shape(connection) for connection in own],
    }
    return row | {"next": _next_step(row, own)}


def _next_step(row: Mapping[str, Any], own: Sequence[HostConnection]) -> str:
    """Return what a user can do next with a host."""
    for connection in own:
        if connection.problem:
            return describe_problem(connection)[1]
    if own:
        undo = f"memory disconnect {row['host']}"
        if own[0].scope != "user":
            undo = f"cd {shlex.quote(own[0].root)} && {undo} --scope project"
        return f"to disconnect it: {undo}"
    command = f"memory connect {row['host']}"
    if row["plugin"]:
        return "nothing to do: its plugin connects it"
    return f"run: {command}" if row["installed"] else f"install {row['title']}, then run: {command}"


def _shape(connection: HostConnection) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "scope": connection.scope,
        "root": connection.root or None,
        "problem": connection.problem or None,
    }
    entries = connection.entries
    if entries is not None:
        events = dict.fromkeys(words[words.index("hook") + 1] for words in entries.hooks)
        shape |= {"mcp": bool(entries.server), "hooks": list(events), "capture": entries.capture}
        shape |= {"namespace": entries.namespace, "files": list(map(str, entries.files))}
    return shape


def _render_status(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        state = "installed" if row["installed"] else "not installed"
        if row["plugin"] or any("mcp" in shape for shape in row["connected"]):
            state = "connected"
        elif row["connected"]:
            state = "can't be read"
        lines.append((f"{row['host']:<15} {state:<13}", safe(row["next"])))
        lines += [("", safe(_render_connection(shape))) for shape in row["connected"]]
    return table(lines)


def _render_connection(shape: Mapping[str, Any]) -> str:
    if "mcp" not in shape:
        return str(shape["problem"])
    parts = []
    if shape["mcp"]:
        parts.append("MCP")
    if shape["hooks"]:
        parts.append("recall")
    if shape["capture"]:
        parts.append("capture")
    if shape["namespace"]:
        parts.append(f"namespace {shape['namespace']}")
    line = ", ".join(parts)
    if shape["scope"] != "user":
        line = f"in {shape['root']}: {line}"
    if shape["problem"]:
        line += f"; {shape['problem']}"
    return line


def _render_answers(answers: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(map(_render_answer, answers))


def _render_answer(answer: Mapping[str, Any]) -> str:
    if answer.get("dry_run"):
        lines = [*answer["diff"].splitlines(), *answer["notes"]]
        return "\n".join(map(safe, lines))
    lines = []
    for file in answer["files"]:
        change = _CHANGES[file["change"]]
        lines.append(safe(f"{change:<8} {file['path']}"))
        if "backup" in file:
            lines.append(safe(f"         backup of the old file: {file['backup']}"))
    if "check" in answer:
        sentences, rows = report.render(answer)
        for sentence in sentences:
            lines += wrap(safe(sentence))
        if rows:
            lines.append(table((label, safe(value)) for label, value in rows))
    for sentence in answer["notes"]:
        lines += wrap(safe(sentence))
    return "\n".join(lines)


COMMANDS = (connect, disconnect)
