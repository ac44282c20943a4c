"""Checking a connection: starts the MCP server and the hooks as the host does, and times them."""

import json
import logging
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from memories.connect.status import Connection, FoundEntries
from memories.core.installation import install_command
from memories.hooks.hook import SECONDS as HOOK_SECONDS
from memories.hooks.host_events import CHECK

_SERVER_SECONDS = 20.0  # the limit of Codex; other hosts wait longer
_FIRST_START_SECONDS = 3.0  # seconds; a slower start had to compile its modules
_MORE_SECONDS = ("--seconds", "10")  # so that a slow hook is timed, not ended
_HOOK_SECONDS = 15.0
_CHECKED_EVENTS = ("session-start", "user-prompt")  # other events give the agent nothing
_PROMPT = "what do you remember about this project?"
_STATUS = "memory://status"


class HookCheck(NamedTuple):
    """A hook that was run.

    Attributes:
        event: The event.
        seconds: How long the host waited.
        characters: The length of the text that the agent would have got.
    """

    event: str
    seconds: float
    characters: int

    @property
    def is_late(self) -> bool:
        """Whether the hook would have ended without an answer, as on a very busy machine."""
        return self.seconds > HOOK_SECONDS


class Check(NamedTuple):
    """The result of starting a connection as its host does.

    Attributes:
        tools: The tools of the MCP server.
        seconds: How long the server took from its start to the list of tools.
        store: The URL of the store that the server opened, without a password.
        memories: How many memories it has; None if it didn't say.
        hooks: The hooks that were run.
        is_off: Whether memory is switched off in this folder.
        problem: Why the connection does not work, as a sentence; empty if it works.
        remedy: What to do about it.
    """

    tools: tuple[str, ...] = ()
    seconds: float = 0.0
    store: str = ""
    memories: int | None = None
    hooks: tuple[HookCheck, ...] = ()
    is_off: bool = False
    problem: str = ""
    remedy: str = ""


def check_connections(connections: Sequence[Connection]) -> list[Connection]:
    """Check a user's connections; return all connections, each with its problem if it has one.

    Commands in a project's files are never started, because anyone may have written them.
    """
    checked = []
    checks: dict[str, Check] = {}
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


def summarize(check: Check) -> str:
    """Summarize a connection that works: the number of tools, and how fast it answered."""
    summary = f"{len(check.tools)} tools in {check.seconds:.1f} s"
    if check.hooks:
        summary += f", recall in {max(hook.seconds for hook in check.hooks):.2f} s"
    return summary


class _Failure(Exception):
    """Raised if a connection doesn't work; `args` are the problem and the remedy."""


def check_connection(entries: FoundEntries) -> Check:
    """Start the server and the hooks of a connection, and return how they work.

    The hooks capture nothing and count no memory as read.
    """
    check = Check()
    hooks = [words for words in entries.hooks if _event(words) in _CHECKED_EVENTS]
    try:
        if not entries.server:
            raise _Failure("its MCP server is not configured", "")
        # This hook starts the background server, which is ready when the others run.
        for words in hooks[:1]:
            _send_event(words)
        check = _check_server(entries.server, entries.environment)
        if check.seconds > _FIRST_START_SECONDS:
            check = _check_server(entries.server, entries.environment)
        reports = [_run_hook(words) for words in hooks]
    except _Failure as failure:
        problem, remedy = failure.args
        return check._replace(problem=problem, remedy=remedy)
    is_off = any(not is_on for _, is_on in reports)
    return check._replace(hooks=tuple(hook for hook, _ in reports), is_off=is_off)


# --- the MCP server ---


def _check_server(words: Sequence[str], variables: Mapping[str, str]) -> Check:
    import anyio

    logging.getLogger("mcp").propagate = False  # it logs the output of a wrong program
    started_at = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            tools, state = anyio.run(_ask_server, words, variables, errors)
        except Exception as exc:
            errors.seek(0)
            raise _server_failure(words, exc, errors.read()) from exc
    seconds = time.monotonic() - started_at
    return Check(tuple(tools), seconds, state["store"], state["memory_count"])


async def _ask_server(
    words: Sequence[str], variables: Mapping[str, str], errors: IO[str]
) -> tuple[list[str], dict[str, Any]]:
    """Start the server with the little environment that hosts give it; return tools and status."""
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
            f"run: {shlex.join(words)}, and see whether it waits for something",
        )
    reason, _, remedy = _last_error(errors).partition("; ")
    return _Failure(
        f"its MCP server ended at once: {reason or exc}",
        remedy or f"install the program again: {install_command()}",
    )


def _last_error(text: str) -> str:
    """Return the error that a program printed last; our own are JSON on a pipe."""
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


def _run_hook(words: Sequence[str]) -> tuple[HookCheck, bool]:
    """Run a hook; return its result, and whether memory is on in this folder.

    Raises:
        _Failure: It does not work.
    """
    event = _event(words)
    started_at = time.monotonic()
    answer = _send_event(words)
    seconds = time.monotonic() - started_at
    if not answer:
        raise _Failure(f"its hook {event} gave no answer", "run: memory doctor")
    try:
        report = json.loads(answer)[CHECK]
    except (ValueError, TypeError, KeyError) as exc:
        raise _Failure(
            f"its hook {event} doesn't answer as this version does",
            f"install the program again: {install_command()}",
        ) from exc
    if report["problem"]:
        problem, _, remedy = str(report["problem"]).partition("; ")
        raise _Failure(f"its hook {event} can't recall: {problem}", remedy or "run: memory doctor")
    return HookCheck(event, seconds, len(report["text"])), report["is_on"]


def _send_event(words: Sequence[str]) -> bytes:
    """Run a hook on an event of ours; return its answer, empty if it gave none.

    Raises:
        _Failure: It can't be started.
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
        problem = f"its hook {_event(words)} can't be started: {exc.strerror or exc}"
        raise _Failure(problem, "") from exc
