"""The MCP server of a session uses the same identity as the session's hooks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memories import Memories
from memories.hooks import session

if TYPE_CHECKING:
    from memories.mcp.stdio import ServerSession

Hook = Callable[..., Any]
Call = Callable[..., str]


def server_session(home: Path, **environment: str) -> "ServerSession":
    """Return the session of an MCP server in this environment."""
    from memories.mcp.stdio import ServerSession  # the SDK takes a second to load

    begun = ServerSession.begin(str(home), follows_hooks=True)
    return begun._replace(environment=environment)


def start_session(
    hook: Hook,
    name: str,
    identity: str = "",
    *,
    folder: Path | None = None,
    host: str = "claude-code",
) -> None:
    """Start a session, and name an identity in its first prompt."""
    where = {"session_id": name, "cwd": str(folder or Path.cwd())}
    assert not hook("session-start", where, host=host).code
    if identity:
        prompt = {**where, "prompt": f"start as {identity}"}
        assert not hook("user-prompt", prompt, host=host).code


def test_a_host_variable_names_the_session(hook: Hook, home: Path) -> None:
    start_session(hook, "s1", "bob")
    start_session(hook, "s2")
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s1").namespace() == "bob"
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s2").namespace() is None


def test_without_a_host_variable_the_latest_session_in_the_folder_is_used(
    hook: Hook, home: Path
) -> None:
    start_session(hook, "s1")
    start_session(hook, "s2", "bob")
    assert server_session(home).namespace() == "bob"


def test_a_server_without_a_namespace_uses_the_namespace_of_its_hooks(
    hook: Hook, home: Path
) -> None:
    """A plugin passes the namespace in its options only to the hooks."""
    where = {"session_id": "s1", "cwd": str(Path.cwd())}
    assert not hook("session-start", where, "-n", "bob").code
    found = server_session(home, CLAUDE_CODE_SESSION_ID="s1")
    assert found.namespace() == "bob"
    assert found._replace(follows_hooks=False).namespace() is None
    assert server_session(home).namespace() is None  # may be another host's session
    start_session(hook, "s1", "alice")
    assert found.namespace() == "alice"
    start_session(hook, "s2")
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s2").namespace() is None


@pytest.mark.thorough
def test_a_server_variable_takes_precedence_over_the_namespace_of_the_hooks(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    where = {"session_id": "s1", "cwd": str(Path.cwd())}
    assert not hook("session-start", where, "-n", "bob").code
    monkeypatch.setenv("MEMORY_NAMESPACE", "alice")
    call: Call = request.getfixturevalue("call")
    assert '"namespace":"alice"' in call("create_memory", content="Lunch is at noon")
    assert not hook("user-prompt", {**where, "prompt": "start as carol"}).code
    assert '"namespace":"carol"' in call("create_memory", content="Tea is at four")


def test_a_session_of_another_host_in_the_folder_is_ignored(hook: Hook, home: Path) -> None:
    """The server's own session has ended, or the host runs no hooks."""
    start_session(hook, "s1")
    assert not hook("session-end", {"session_id": "s1", "reason": "clear"}).code
    start_session(hook, "t1", "bob", host="codex")
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s1").namespace() is None
    assert server_session(home, GEMINI_SESSION_ID="unknown").namespace() is None
    assert server_session(home, CODEX_THREAD_ID="unknown").namespace() == "bob"


def test_a_session_in_another_folder_is_ignored(hook: Hook, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    start_session(hook, "s1", "bob", folder=tmp_path / "elsewhere")
    assert server_session(home).namespace() is None


def test_a_session_that_began_before_the_server_is_ignored(hook: Hook, home: Path) -> None:
    start_session(hook, "s1", "bob")
    [file] = (home / "sessions").iterdir()
    os.utime(file, (time.time() - 3_600, time.time() - 3_600))
    assert server_session(home).namespace() is None


@pytest.mark.parametrize("last_prompt", ["how are you?", "memory off"])
def test_after_the_named_session_ends_the_latest_session_is_used(
    hook: Hook, home: Path, last_prompt: str
) -> None:
    start_session(hook, "s1", "bob")
    assert not hook("user-prompt", {"session_id": "s1", "prompt": last_prompt}).code
    assert not hook("session-end", {"session_id": "s1", "reason": "clear"}).code
    start_session(hook, "s2")
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s1").namespace() is None


def test_a_session_after_a_clear_keeps_the_namespace_of_the_hooks(hook: Hook, home: Path) -> None:
    for name in ("s1", "s2"):
        where = {"session_id": name, "cwd": str(Path.cwd())}
        assert not hook("session-start", where, "-n", "bob").code
        assert server_session(home, CLAUDE_CODE_SESSION_ID="s1").namespace() == "bob"
        assert server_session(home, CODEX_THREAD_ID="t1").namespace() is None
        assert not hook("session-end", {"session_id": "s1", "reason": "clear"}).code


def test_an_ended_session_gives_the_tools_no_identity(hook: Hook, home: Path) -> None:
    start_session(hook, "s1")
    start_session(hook, "s2", "bob")
    assert not hook("session-end", {"session_id": "s2", "reason": "other"}).code
    assert server_session(home).namespace() is None


def test_a_resumed_session_has_not_ended(hook: Hook, home: Path) -> None:
    start_session(hook, "s1", "bob")
    assert not hook("session-end", {"session_id": "s1", "reason": "other"}).code
    session.append(str(home), "claude-code.s1", ended=False)
    assert server_session(home, CLAUDE_CODE_SESSION_ID="s1").namespace() == "bob"


@pytest.fixture
def call(home: Path) -> Iterator[Call]:
    """Return a function that calls a tool of a real server and returns the text of its answer."""
    environment = {**os.environ, "CLAUDE_CODE_SESSION_ID": "s1", "EMBEDDER": "none"}
    server = subprocess.Popen(
        [sys.executable, "-m", "memories", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    reader, writer = server.stdout, server.stdin

    def send(method: str, number: int | None, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        writer.write(json.dumps(message) + "\n")
        writer.flush()
        return None if number is None else json.loads(reader.readline())["result"]

    who = {"name": "claude-code", "version": "1"}
    send("initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo=who)
    send("notifications/initialized", None)

    def run(tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> str:
        result = send("tools/call", 2, name=tool, arguments=arguments, _meta=meta or {})
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])

    yield run
    writer.close()
    server.wait(timeout=60)
    reader.close()


@pytest.mark.thorough
def test_an_identity_switch_applies_to_the_tools_and_is_shown(hook: Hook, call: Call) -> None:
    start_session(hook, "s1")
    assert '"namespace"' not in call("create_memory", content="Lunch is at noon")
    assert not hook("user-prompt", {"prompt": "start as bob"}).code
    answer = call("create_memory", content="Bob's salary talk is on 4 December")
    assert json.loads(answer.partition("\n")[0])["namespace"] == "bob"
    assert '{"namespace":"bob"}' in call("search_memories", query="salary talk").replace(" ", "")
    with Memories(embedder="none") as shared, Memories(namespace="bob", embedder="none") as bob:
        assert [memory.content for memory in shared.list().memories] == ["Lunch is at noon"]
        own = [memory.content for memory in bob.list().memories if memory.namespace == "bob"]
        assert own == ["Bob's salary talk is on 4 December"]


@pytest.mark.thorough
def test_codex_sends_the_session_id_with_each_call(hook: Hook, call: Call) -> None:
    """Codex passes no variable to its servers; a subagent has a thread of its own."""
    start_session(hook, "t1", "bob", host="codex")
    start_session(hook, "t2", host="codex")
    bobs = {"sessionId": "t1", "threadId": "t3", "progressToken": 1}
    assert '"namespace":"bob"' in call("create_memory", bobs, content="Lunch is at noon")
    own = {"sessionId": "t2", "threadId": "t2", "progressToken": 2}
    assert '"namespace"' not in call("create_memory", own, content="Tea is at four")
    assert '"namespace":"bob"' in call("list_memories", bobs)


@pytest.mark.thorough
def test_an_unknown_session_id_in_a_call_leaves_the_one_in_the_environment(
    hook: Hook, call: Call
) -> None:
    start_session(hook, "s1", "bob")
    start_session(hook, "t2", host="codex")
    unknown = {"sessionId": "a connection of another host"}
    assert '"namespace":"bob"' in call("create_memory", unknown, content="Lunch is at noon")
