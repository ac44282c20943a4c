"""Report on a new connection: what the agent gets, what is stored, and how to undo it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memories.connect.connect import Target
from memories.connect.status import FoundEntries, StartCheck, connect_command
from memories.core.urls import local_path, without_password
from memories.hooks.hook import SECONDS as HOOK_SECONDS
from memories.settings import LOCAL_EMBEDDERS, Config


def describe(config: Config, target: Target, check: StartCheck, undo: str) -> dict[str, Any]:
    """Return the facts about a new connection, keyed by their names in JSON.

    Args:
        config: The settings.
        target: The host.
        check: The result of checking the connection.
        undo: The command that disconnects the host.
    """
    about: dict[str, Any] = {"check": _check_fields(check)}
    if check.problem:
        return about
    has_hooks = bool(check.hooks)
    prompts, switch = "nothing automatically: the agent searches with its tools", undo
    if has_hooks:
        prompts = "memories that match the prompt, each once a session; often none"
        switch = "memory off, in a project's folder; memory off --all for every project"
    request = 'say "Store in memories that we deploy on Tuesdays", and ask in a new session'
    if check.memories:
        request = 'ask: "What do you remember about this project?"'
    return about | {
        "at_session_start": _describe_start(check),
        "at_each_prompt": prompts,
        "captured": _describe_capture(target, has_hooks),
        "stored_in": _describe_store(check),
        "background": _describe_server(config, has_hooks),
        "sent": _describe_network(config, target),
        "ask_first": f"restart {target.host.title}, then {request}",
        "switch_off": switch,
        "undo": undo,
    }


def find_differences(config: Config, check: StartCheck) -> list[str]:
    """Return a note if the MCP server opened a different store than this command."""
    if not check.store:
        return []
    here, there = _place(config.store), _place(check.store)
    if here == there:
        return []
    difference = f"The MCP server uses {there}, but this command uses {here}"
    return [f"{difference}; set MEMORY_HOME or MEMORY_STORE for both, and connect again."]


def describe_earlier(before: FoundEntries, target: Target) -> list[str]:
    """Return notes on a host's files before the host is connected.

    For example, its hooks are switched off, or its earlier connection had options that this one
    lacks.
    """
    notes, dropped = [], []
    if before.disabled_in:
        notes.append(
            f"{target.host.title} runs no hooks, because of disableAllHooks in "
            f"{before.disabled_in}; remove it there."
        )
    if before.capture and not target.capture:
        dropped.append("--capture")
    if before.namespace and not target.namespace:
        dropped.append(f"-n {before.namespace}")
    if not dropped:
        return notes
    same = target._replace(
        capture=target.capture or before.capture, namespace=target.namespace or before.namespace
    )
    note = f"{target.host.title} was connected with {' '.join(dropped)}, which this command removes"
    return [*notes, f"{note}; to keep it, run: {connect_command(same)}"]


def _place(store: str) -> str:
    """Return the real path of a local store, else its URL without a password."""
    path = local_path(store)
    return without_password(store) if path is None else os.path.realpath(path)


def _check_fields(check: StartCheck) -> dict[str, Any]:
    return {
        "works": not check.problem,
        "tools": list(check.tools),
        "server_seconds": round(check.seconds, 2),
        "hooks": [
            {
                "event": hook.event,
                "seconds": round(hook.seconds, 2),
                "is_late": hook.is_late,
                "characters": hook.characters,
            }
            for hook in check.hooks
        ],
        "is_off": check.is_off,
        "problem": check.problem or None,
        "remedy": check.remedy or None,
    }


def _describe_start(check: StartCheck) -> str:
    if not check.hooks:
        return "the tools of the MCP server; there are no hooks"
    text = "its identity, pinned and recent memories, notes of the last sessions"
    sizes = {hook.event: hook.characters for hook in check.hooks}
    size = sizes.get("session-start")
    return f"{text} (now {size} characters)" if size else text


def _describe_capture(target: Target, has_hooks: bool) -> str:
    if not has_hooks:
        return "nothing automatically: the agent decides what to store, with its tools"
    if target.capture:
        return (
            "what you and the agent say, as conversations; proposed memories wait in memory review"
        )
    return "nothing, until you add --capture; the agent decides what to store, with its tools"


def _describe_store(check: StartCheck) -> str:
    path, place = local_path(check.store), check.store
    if path is not None:
        is_in_home = path.is_relative_to(Path.home())
        place = f"~/{path.relative_to(Path.home())}" if is_in_home else str(path)
    noun = "memory" if check.memories == 1 else "memories"
    return f"{place} ({check.memories} {noun})"


def _describe_server(config: Config, has_hooks: bool) -> str:
    if config.serve == "off" or not has_hooks or sys.platform == "win32":
        return "nothing"
    return (
        "hooks start a small server on a socket that only you can open; it stops when idle (or with"
        " memory serve --stop)"
    )


def _describe_network(config: Config, target: Target) -> str:
    places = []
    if local_path(config.store) is None:
        places.append(f"memories, to {without_password(config.store)}")
    if config.embedder not in LOCAL_EMBEDDERS:
        service = urlsplit(config.embedder_url or "").hostname or config.embedder
        places.append(f"texts, to the embedder {service}")
    sent = " and ".join(places) or "nothing leaves this machine"
    return f"{sent}; {target.host.title} sends recalled memories to its own model"


_ROWS = (
    ("session start", "at_session_start"),
    ("each prompt", "at_each_prompt"),
    ("captured", "captured"),
    ("stored in", "stored_in"),
    ("background", "background"),
    ("sent away", "sent"),
    ("try it", "ask_first"),
    ("switch off", "switch_off"),
    ("undo", "undo"),
)


def render(answer: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the sentences that describe a new connection to the user, and the rows of a table."""
    check = answer["check"]
    title = answer["title"]
    if check["problem"]:
        lines = [f"{title} is configured, but does not work: {check['problem']}."]
        if check["remedy"]:
            lines.append(f"What to do: {check['remedy']}")
        return [*lines, f"To undo it: {answer['undo']}"], []
    head = f"{title} is connected: {len(check['tools'])} tools in {check['server_seconds']:.1f} s"
    if check["hooks"]:
        slowest = max(hook["seconds"] for hook in check["hooks"])
        head += f", recall in {slowest:.2f} s"
        if any(hook["is_late"] for hook in check["hooks"]):
            head += f" (too slow: after {HOOK_SECONDS} s, the agent continues without it)"
    if check["is_off"]:
        head += "; memory is off in this folder (to switch it on: memory on)"
    return [f"{head}."], [(f"  {label}", answer[name]) for label, name in _ROWS]
