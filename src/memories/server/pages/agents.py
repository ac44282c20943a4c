"""The agents page: what an agent sees and why, which agents are connected, and their hooks."""

import math
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.config import registers
from memories.connect.connect import Connector
from memories.connect.hosts import Where, load_hosts
from memories.connect.status import (
    describe_problem,
    find_connections,
    has_plugin,
    is_installed,
)
from memories.core.urls import without_password
from memories.errors import InvalidInput, MemoriesError
from memories.hooks import hook, inbox, model_context, runs, switch
from memories.hooks.preview import SECONDS, ConsideredMemory, PreviewedText, QuotedTurn, preview
from memories.hooks.recall_strategy import RecallRequest
from memories.identity.place import remembered_root
from memories.languages.text import query_terms
from memories.models import Memory
from memories.server.pages.request import PageRequest, View
from memories.server.pages.results import describe_meaning, describe_words
from memories.server.pages.views import explain_present, title_of

if TYPE_CHECKING:
    from memories.connect.status import HostConnection
    from memories.hooks.model_context import Situation
    from memories.memories import Memories

_MAX_MESSAGE = 4_000  # maximum number of characters in a message, which is part of the address
_PROJECTS = 100  # maximum number of projects suggested in the form
_IN_BLOCK = {
    "pinned": "Pinned: it always comes first.",
    "preference": "It is a preference. Preferences come before newer memories.",
    "project": "It is about this project.",
    "everywhere": "It belongs to no project, or to every project.",
    "other_project": "It is about another project, but there was room left.",
    "session": "It is the note of an earlier session in this project.",
}
_LEFT_OUT = {
    "beyond": "Other memories come first and leave no room.",
    "suspicious": "It may give instructions to a model.",
    "untrusted": "It was captured or imported, and nobody has accepted it.",
    "captured": "It was captured, and nobody has accepted it.",
    "one_writer": "Other memories by the same agent fill that agent's share.",
    "recall_off": "You marked it as not useful: agents see it only when they search.",
    "expired": "It has expired.",
    "no_room": "There was no room for it, or a conversation shown here says the same thing.",
    "in_context": "The session block already shows it.",
    "corrected": "A newer memory corrects it and takes its place.",
    "below": "The message probably doesn't need it.",
    "other_project": "It is about another project.",
}
_SILENT = {
    "command": "This message is a command to the agent's program; it recalls nothing.",
    "switch": "This message switches memory on or off; it recalls nothing.",
    "empty": "No person wrote this message, so it recalls nothing.",
}
_HOOKS = {
    "session-start": "session start",
    "user-prompt": "prompt",
    "answer": "answer",
    "stop": "end of an answer",
    "pre-compact": "before compacting",
    "session-end": "session end",
}


class PreviewRequest(NamedTuple):
    """The agent, the project and the message that a reader chose.

    Attributes:
        host: The agent's program.
        project: The name of a project, or a folder; empty for neither.
        message: The message; may be empty.
    """

    host: str
    project: str
    message: str

    @property
    def folder(self) -> str:
        """The folder; empty if the reader named a project."""
        if not self.project.startswith(("/", "~")):
            return ""
        try:
            return str(Path(self.project).expanduser().absolute())
        except RuntimeError:  # the path begins with ~ and the name of an unknown user
            return ""


def agents(memories: "Memories", request: PageRequest) -> View:
    """Show what an agent sees and, to the owner of the server, the machine's agents and hooks."""
    if request.as_of:
        why = "The context that hooks gave an agent in the past is not recorded."
        return explain_present(request, "Agents", why)
    chosen = _read_choice(request)
    described = _describe_hosts(memories, chosen.host) if request.is_owner else {}
    situation = _find_situation(memories, request, chosen)
    situation = situation._replace(open_in_server=request.open_memories)
    if described.get("is_by_plugin"):
        situation = situation._replace(client="mcp")  # the plugin also provides the MCP server
    seen = preview(situation, chosen.folder, chosen.message)
    data = {
        "host": chosen.host,
        "namespace": situation.config.namespace,
        "project": situation.project,
        "message": chosen.message,
        "start": _shape_part(seen.start, chosen.message),
        "prompt": _shape_part(seen.prompt, chosen.message) if seen.prompt else None,
    }
    hosts = load_hosts()
    why_off = ""
    if request.is_owner:
        why_off = switch.read_state(chosen.folder or os.sep, None).why_off
    more = {
        "chosen": chosen,
        "hosts": [(name, hosts[name].title) for name in hook.HOSTS if name in hosts],
        "projects": list(memories.tags("project"))[:_PROJECTS],
        "off": why_off,
        "today": _captured_today(memories),
    }
    return View("agents.html", data, more | described)


def _read_choice(request: PageRequest) -> PreviewRequest:
    host = request.text("host") or hook.HOSTS[0]
    if host not in hook.HOSTS:
        raise InvalidInput(f'there is no agent "{host[:40]}"; use {", ".join(hook.HOSTS)}')
    chosen = PreviewRequest(host, request.text("project"), request.text("message")[:_MAX_MESSAGE])
    if chosen.folder and not request.is_owner:
        raise InvalidInput("only the owner of this server can choose a folder; choose a project")
    if chosen.folder and not Path(chosen.folder).is_dir():
        raise InvalidInput(f'there is no folder "{chosen.folder[:200]}" on the server')
    return chosen


def _find_situation(
    memories: "Memories", request: PageRequest, chosen: PreviewRequest
) -> "Situation":
    """Return the settings and project that a hook would have in the situation that the reader
    chose.

    Raises:
        InvalidInput: The settings of the folder name a different store.
    """
    if not chosen.folder:
        config = memories.config._replace(namespace=memories.namespace)
        has_mcp_tools = request.is_owner and model_context.has_mcp_tools(chosen.host, os.sep)
        root = remembered_root(chosen.project) if chosen.project and request.is_owner else None
        client = "mcp" if has_mcp_tools else "shell"
        return model_context.Situation(config, chosen.project or None, client, root)
    caller = (
        str(memories.config.home),
        chosen.folder,
        chosen.host,
        request.text("namespace") or None,
    )
    deadline = time.monotonic() + SECONDS
    situation = model_context.find_situation(
        RecallRequest(caller, None, deadline, marks_read=False)
    )
    if situation.config.store != memories.config.store:
        store = without_password(situation.config.store)
        raise InvalidInput(f"the settings of {chosen.folder} name a different store: {store}")
    return situation


def _shape_part(part: PreviewedText, message: str) -> dict[str, Any]:
    """Return, as JSON, a text that an agent gets and the reasons for its contents."""
    terms = query_terms(message) if message else []
    shape: dict[str, Any] = {
        "text": part.text,
        "tokens": part.tokens,
        "ms": part.milliseconds,
        "lines": [_shape_line(line, terms) for line in part.lines],
        "turns": [_shape_turn(quoted, terms) for quoted in part.turns],
    }
    if part.silence:
        shape["silence"] = _SILENT[part.silence]
    if part.error:
        shape["error"] = part.error
    return shape


def _shape_turn(quoted: QuotedTurn, terms: Sequence[str]) -> dict[str, Any]:
    turn = quoted.turn
    shape: dict[str, Any] = {
        "conversation_id": turn.conversation_id,
        "turn_index": turn.turn_index,
        "content": turn.text,
    }
    if quoted.rating is None:
        return shape | {"why": ["It is next to a turn that the message needs."]}
    why = [describe_words(turn.text, terms)]
    return shape | {"why": why, "chance": _chance(quoted.rating)}


def _shape_line(line: ConsideredMemory, terms: Sequence[str]) -> dict[str, Any]:
    memory = line.memory
    shape: dict[str, Any] = {
        "id": memory.id,
        "content": memory.content,
        "tags": dict(memory.tags),
        "namespace": memory.namespace,
        "version": memory.version,
        "pinned": memory.pinned,
        "shown": line.is_shown,
        "reason": line.reason,
        "why": _explain(line, terms),
        "whole": isinstance(memory, Memory) or memory.cut is None,
    }
    if line.rating is not None and line.threshold is not None:
        shape |= {"chance": _chance(line.rating), "threshold": _chance(line.threshold)}
    if isinstance(memory, Memory) and memory.corrected_by is not None:
        shape["corrected_by"] = memory.corrected_by
    return shape


def _explain(line: ConsideredMemory, terms: Sequence[str]) -> list[str]:
    """Return sentences that say why a memory is shown or left out."""
    if line.rating is None:
        return [(_IN_BLOCK if line.is_shown else _LEFT_OUT)[line.reason]]
    sentences = [] if line.is_shown else [_LEFT_OUT[line.reason]]
    if line.reason == "correction":
        sentences.append("It corrects a memory that the message needs.")
    if line.meaning is not None:
        sentences.append(describe_meaning(_chance(line.meaning)))
    sentences.append(describe_words(line.memory.content, terms))
    return sentences


def _chance(log_odds: float) -> float:
    return round(1 / (1 + math.exp(-max(-30.0, log_odds))), 3)


def _captured_today(memories: "Memories") -> dict[str, Any]:
    """Return the number of today's proposals, and some conversations with turns from today (in
    UTC).
    """
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    page = memories.list_conversations(since=f"{day}T00:00:00Z", limit=6)
    return {
        "proposals": len(memories.review.select(trust="captured", since=f"{day}T00:00:00Z")),
        "conversations": [(talk, title_of(talk)) for talk in page.conversations],
    }


def _describe_hosts(memories: "Memories", host: str) -> dict[str, Any]:
    """Return the agents on this machine with their connections and hooks."""
    connector = Connector(Where(Path.home(), os.environ), registers())
    problem = ""
    connections: list[HostConnection] = []
    by_plugin: set[str] = set()
    try:
        connections = find_connections(connector, None)
        by_plugin = {name for name in load_hosts() if has_plugin(connector, name)}
    except MemoriesError as exc:
        problem = str(exc)
    home = str(memories.config.home)
    runs_of = _runs_by_host(home)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for name, known_host in load_hosts().items():
        own = [connection for connection in connections if connection.host == name]
        is_here = name in by_plugin or is_installed(known_host, connector.where)
        if own or name in runs_of or is_here:
            row = {"name": name, "title": known_host.title, "runs": runs_of.get(name, [])}
            rows.append(row | _describe_connections(own, is_by_plugin=name in by_plugin))
        else:
            missing.append(known_host.title)
    namespaces = [
        connection.entries.namespace
        for connection in connections
        if connection.host == host and connection.entries and connection.entries.namespace
    ]
    return {
        "agents": rows,
        "missing": missing,
        "problem": problem,
        "is_by_plugin": host in by_plugin,
        "connected_as": namespaces[0] if namespaces else "",
        "inbox_bytes": inbox.size(home),
    }


def _runs_by_host(home: str) -> dict[str, list[dict[str, Any]]]:
    """Return the last runs of each host's hooks, with human-readable names."""
    runs_of: dict[str, list[dict[str, Any]]] = {}
    for run in runs.describe_runs(home):
        name = _HOOKS.get(run["event"], run["event"])
        runs_of.setdefault(run["host"], []).append({**run, "name": name})
    return runs_of


def _describe_connections(
    connections: "list[HostConnection]", *, is_by_plugin: bool
) -> dict[str, Any]:
    if not connections and is_by_plugin:
        return {"state": "connected by its plugin", "is_connected": True, "problem": ""}
    if not connections:
        return {"state": "not connected", "is_connected": False, "problem": ""}
    problems = [
        f"{connection.problem}; {describe_problem(connection)[1]}"
        for connection in connections
        if connection.problem
    ]
    problem = "; ".join(problems)
    if not any(connection.entries for connection in connections):
        return {"state": "can't be read", "is_connected": False, "problem": problem}
    captures = any(connection.entries and connection.entries.capture for connection in connections)
    has_hooks = any(connection.entries and connection.entries.hooks for connection in connections)
    parts = ["connected"]
    parts.append("recalls" if has_hooks else "tools only")
    if captures:
        parts.append("captures")
    return {"state": ", ".join(parts), "is_connected": True, "problem": problem}
