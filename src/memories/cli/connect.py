"""Commands that plug the memory into agents: connect, disconnect."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memories.cli.options import command, format_option, namespace_option, option, with_settings
from memories.cli.output import emit, safe
from memories.connect.connect import SCOPES, Change, Connector, Target, make_entries
from memories.connect.hosts import Host, Where, load_hosts
from memories.connect.program import Program, bare, find_program
from memories.connect.status import Connection, find_connections, has_plugin, is_installed
from memories.errors import InvalidInput

if TYPE_CHECKING:
    from memories.connect.files import WrittenFile
    from memories.settings import Config

_hosts = click.argument("hosts", nargs=-1, metavar="[HOST]...")
_scope_option = option(
    "--scope", metavar="SCOPE", values=SCOPES,
    help="For you in all projects (user), or for all who clone this one (project). [default: user]",
)  # fmt: skip
_LINE = 400  # characters of a line in a diff: some hosts write whole files on one
_dry_run_option = option(
    "--dry-run", is_flag=True, help="Change nothing, only show what would change."
)


@command(
    epilog="memory connect\nmemory connect claude-code --capture\nmemory connect codex gemini -n bob --dry-run\n"
    "memory connect cursor --scope project"
)
@_hosts
@option(
    "--capture", is_flag=True, help="Also keep what is said, for review. [default: only recall]"
)
@_scope_option
@_dry_run_option
@option("--status", is_flag=True, help="Only tell what is connected, also in other projects.")
@with_settings(namespace_option, format_option)
def connect(
    config: "Config",
    hosts: Sequence[str],
    capture: bool,
    scope: str | None,
    dry_run: bool,
    status: bool,
) -> int:
    """Plug the memory into agents: their MCP server and hooks.

    HOST is claude-code, codex, gemini, opencode, cursor, vscode, claude-desktop, windsurf or zed.
    Without one, lists which are here and which are connected. Entries of others are kept; memory
    disconnect undoes it.
    """
    connector = _connector()
    _check(hosts, scope)
    if status or not hosts:
        return _tell(connector, hosts, everywhere=status)
    named = config.namespace if config.sources["namespace"] == "flag" else None
    chosen = scope or "user"
    program = find_program(os.environ) if chosen == "user" else bare()
    asked = [Target(host, chosen, _project(), capture, named) for host in hosts]
    environment = _environment(config, chosen)
    plans = [
        (each, connector.plan_connect(each, make_entries(each, program, environment)))
        for each in asked
    ]
    answers = [
        _connected(connector, each, changes, program, dry_run=dry_run) for each, changes in plans
    ]
    for each, answer in zip(asked, answers, strict=True):
        answer["notes"] += _differing(each, environment)
    emit({"connected": answers, "count": len(answers)}, lambda: "\n\n".join(map(_text, answers)))
    return 0


@command(epilog="memory disconnect claude-code\nmemory disconnect codex --scope project --dry-run")
@_hosts
@_scope_option
@_dry_run_option
@with_settings(format_option)
def disconnect(_config: "Config", hosts: Sequence[str], scope: str | None, dry_run: bool) -> int:
    """Take the memory out of agents again.

    A file that nothing else has changed since is as it was before, to the byte; of others only our
    entries go. Memories stay.
    """
    connector = _connector()
    _check(hosts, scope)
    if not hosts:
        raise InvalidInput(
            f"name the host to disconnect: {', '.join(load_hosts())}; memory connect lists what is connected"
        )
    plans = [
        (each, connector.plan_disconnect(each))
        for each in (Target(host, scope or "user", _project()) for host in hosts)
    ]
    answers = []
    for each, changes in plans:
        if not dry_run:
            connector.disconnect(each, changes)
        answer = _answer(each, changes, dry_run=dry_run)
        title = each.host.title
        answer["notes"] = [] if changes else [f"{title} was not connected; nothing to change."]
        answers.append(answer)
    emit({"disconnected": answers, "count": len(answers)}, lambda: "\n\n".join(map(_text, answers)))
    return 0


def _connector() -> Connector:
    from memories.config import registers

    return Connector(Where(Path.home(), os.environ), registers())


def _check(hosts: Sequence[str], scope: str | None) -> None:
    unknown = next((host for host in hosts if host not in load_hosts()), None)
    if unknown is not None:
        raise InvalidInput(
            f'there is no host "{safe(unknown)}"; name one of {", ".join(load_hosts())}'
        )
    if len(set(hosts)) < len(hosts):
        raise InvalidInput("a host is named twice; name each once")
    if scope is not None and scope not in SCOPES:
        raise InvalidInput(f'--scope is user or project, not "{safe(scope)}"')


def _project() -> Path:
    """Return the folder of the repository that the command runs in; without one, the working
    folder.
    """
    here = Path.cwd()
    inside = [
        folder
        for folder in (here, *here.parents)
        if (folder / ".git").exists() and folder != Path.home()
    ]
    return inside[0] if inside else here


def _environment(config: "Config", scope: str) -> dict[str, str]:
    """Return what a host's server needs of the environment of this run; nothing for a project,
    which others clone.
    """
    if scope == "project":
        return {}
    from memories.core.urls import without_password
    from memories.stores import local_path

    given = {}
    if _is_here(config, "home"):
        given["MEMORY_HOME"] = os.path.abspath(config.home)  # noqa: PTH100 - hosts start it in other folders
    if _is_here(config, "store") and without_password(config.store) == config.store:
        path = local_path(config.store)
        given["MEMORY_STORE"] = (
            config.store if path is None else f"{config.store.partition(':')[0]}:///{path}"
        )
    return given


def _is_here(config: "Config", name: str) -> bool:
    return config.sources[name] == "environment" and f"MEMORY_{name.upper()}" in os.environ


def _connected(
    connector: Connector,
    asked: Target,
    changes: Sequence[Change],
    program: Program,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    notes = _notes(
        connector, asked, program, changed=bool(changes)
    )  # before the host's folder is made
    written: Sequence[WrittenFile] = (
        () if dry_run or not changes else connector.connect(asked, changes)
    )
    copies = {each.path: each.before for each in written}
    answer = _answer(asked, changes, dry_run=dry_run)
    for file in answer["files"]:
        if copies.get(file["path"]):
            file["backup"] = copies[file["path"]]
    answer["notes"] = notes
    undo = f"memory disconnect {asked.name}" + (
        " --scope project" if asked.scope == "project" else ""
    )
    return answer | {"undo": undo}


def _answer(asked: Target, changes: Sequence[Change], *, dry_run: bool) -> dict[str, Any]:
    files = [{"path": str(change.path), "change": _kind(change)} for change in changes]
    answer: dict[str, Any] = {
        "host": asked.name,
        "scope": asked.scope,
        "changed": bool(changes),
        "files": files,
    }
    if dry_run:
        answer |= {"dry_run": True, "diff": "\n".join(filter(None, map(_diff, changes)))}
    return answer


def _kind(change: Change) -> str:
    return "made" if change.before is None else "removed" if change.after is None else "changed"


def _diff(change: Change) -> str:
    """Return how a file changes; what may be a secret in it is not shown."""
    from memories.guard.redactor import redact

    old, new = ((data or b"").decode().splitlines() for data in (change.before, change.after))
    lines = difflib.unified_diff(old, new, str(change.path), str(change.path), lineterm="")
    return redact(
        "\n".join(line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines)
    ).text


def _notes(connector: Connector, asked: Target, program: Program, *, changed: bool) -> list[str]:
    host = asked.host
    notes = [] if changed else [f"{host.title} is connected already; nothing to change."]
    if not is_installed(host, connector.where):
        notes.append(f"{host.title} was not found here; it reads these files once it is installed.")
    if has_plugin(connector, asked.name):
        notes.append(
            f"The plugin memories is switched on in {host.title}, too, so hooks run twice; use one of the two: remove "
            f"the plugin, or run memory disconnect {asked.name}."
        )
    if program.doubt and changed:
        notes.append(f"{program.doubt[:1].upper()}{program.doubt[1:]}.")
    if asked.scope == "project":
        notes.append(
            "Others who clone this project get these files: they hold no secret and no path of yours, and name the "
            "command memory, which has to be on the PATH of each of them."
        )
        if any(
            each.host == asked.name and each.scope == "user"
            for each in find_connections(connector, None)
        ):
            notes.append(
                f"{host.title} is connected for you as a user, too, so its hooks run twice here; memory disconnect "
                f"{asked.name} leaves those of the project."
            )
    if asked.capture and not _has_hooks(asked.name):
        notes.append(
            f"{host.title} has no hooks, so it captures nothing; it has the tools of the MCP server."
        )
    return [*notes, *(host.notes if changed else ())]


def _differing(asked: Target, environment: dict[str, str]) -> list[str]:
    """Return that hooks get none of the variables that the server's entry has, if there are any."""
    if not environment or not _has_hooks(asked.name):
        return []
    title, names = asked.host.title, ", ".join(environment)
    said = f"The server's entry has {names} of this run; its hooks take {names} from the environment of {title}"
    return [f"{said}, so set it there too, such as in your shell's profile."]


def _has_hooks(host: str) -> bool:
    return bool(load_hosts()[host].hooks) or host == "opencode"


def _tell(connector: Connector, hosts: Sequence[str], *, everywhere: bool) -> int:
    """Print which hosts are here and what is connected; return the exit code, 1 if something is
    wrong.
    """
    root = None if _project() == Path.home() else _project()
    found = [
        each
        for each in find_connections(connector, root)
        if everywhere or each.root in ("", str(root))
    ]
    rows = [_row(connector, name, load_hosts()[name], found) for name in hosts or load_hosts()]
    emit({"hosts": rows, "count": len(rows)}, lambda: _table(rows))
    return (
        1 if everywhere and any(each["problem"] for row in rows for each in row["connected"]) else 0
    )


def _row(
    connector: Connector, name: str, host: Host, found: Sequence[Connection]
) -> dict[str, Any]:
    return {
        "host": name,
        "title": host.title,
        "installed": is_installed(host, connector.where),
        "connected": [_shape(each) for each in found if each.host == name],
    }


def _shape(each: Connection) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "scope": each.scope,
        "root": each.root or None,
        "problem": each.problem or None,
    }
    if each.found is not None:
        at = {words[words.index("hook") + 1]: None for words in each.found.hooks}
        shape |= {"mcp": bool(each.found.server), "hooks": list(at), "capture": each.found.capture}
        shape |= {"namespace": each.found.namespace, "files": list(map(str, each.found.files))}
    return shape


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        state = "found" if row["installed"] else "not found"
        lines.append(
            f"{row['host']:<15} {state:<10} {'' if row['connected'] else 'not connected'}".rstrip()
        )
        lines += [f"    {_line(each)}" for each in row["connected"]]
    return "\n".join(map(safe, lines))


def _line(each: dict[str, Any]) -> str:
    place = "connected" if each["scope"] == "user" else f"connected in {each['root']}"
    if "mcp" not in each:
        return each["problem"]  # type: ignore[no-any-return]
    parts = ["MCP"] * each["mcp"] + ["recall"] * bool(each["hooks"]) + ["capture"] * each["capture"]
    parts += [f"namespace {each['namespace']}"] if each["namespace"] else []
    return f"{place}: {', '.join(parts)}" + (f"; {each['problem']}" if each["problem"] else "")


def _text(answer: dict[str, Any]) -> str:
    """Return what was done to one host, for people."""
    if answer.get("dry_run"):
        body = (
            ["\n".join(safe(line) for line in answer["diff"].splitlines())]
            if answer["diff"]
            else []
        )
        return "\n".join([*body, *map(safe, answer["notes"])])
    lines = []
    for file in answer["files"]:
        lines.append(f"{file['change'].capitalize():<8} {file['path']}")
        lines += (
            [f"         a copy of what was there: {file['backup']}"] if "backup" in file else []
        )
    lines += answer["notes"]
    lines += [f"To undo it: {answer['undo']}"] if answer["changed"] and "undo" in answer else []
    return "\n".join(map(safe, lines))


COMMANDS = (connect, disconnect)
