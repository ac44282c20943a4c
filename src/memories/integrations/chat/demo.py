"""The chat's three demos (sessions continue, facts outlast sessions, users are kept apart), and a
fake model.

Each turn runs in its own process, with the fake model on this machine or, given a key, the real
model.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

from memories.integrations.chat.memory import FILE
from memories.integrations.chat.settings import BASE, KEY, Settings

_FACT = re.compile(r"\bmy ([a-z][a-z ]{0,40}?) is ([^.?!\n\"\\]{1,80})", re.I)
_QUESTION = re.compile(r"\bwhat(?:'s| is) my ([a-z][a-z ]{0,40})", re.I)
_NAME_QUESTION = re.compile(r"\bwhat(?:'s| is) (?:its|his|her) name", re.I)
_MAX_BODY = 10_000_000


def answer(messages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fake model's next message: content, or a call to the tool `memory_upsert`."""
    if messages[-1]["role"] == "tool":
        stored = json.loads(messages[-1]["content"]).get("stored")
        return {"content": "I will remember that." if stored else "I could not store that."}
    users = [_text(message) for message in messages if message["role"] == "user"]
    system = "\n".join(_text(message) for message in messages if message["role"] == "system")
    subject = _subject(users)
    if subject is not None:
        for source, text in (("history", "\n".join(users[:-1])), ("memory", system)):
            facts = [match for match in _FACT.finditer(text) if match[1].lower() == subject]
            if facts:
                return {"content": f"Your {subject} is {facts[-1][2].strip()}. (from {source})"}
        return {"content": "I don't know."}
    fact = _FACT.search(users[-1])
    if fact:
        return {"call": {"content": f"My {fact[1]} is {fact[2].strip()}", "kind": "fact"}}
    return {"content": f"You said: {users[-1]}"}


def _subject(users: list[str]) -> str | None:
    """Return a question's subject; a pronoun refers to the last fact that the user stated."""
    question = _QUESTION.search(users[-1])
    if question:
        return question[1].strip().lower()
    if _NAME_QUESTION.search(users[-1]):
        subjects = [match[1].lower() for text in users[:-1] for match in _FACT.finditer(text)]
        return subjects[-1] if subjects else "pet"
    return None


def refusal(body: Mapping[str, Any], key: str, authorization: str) -> tuple[int, str] | None:
    """Return the status and error message for a request to refuse; None for other requests."""
    if authorization != f"Bearer {key}":
        return 401, "Invalid Authentication"
    if not str(body.get("model", "")).startswith("kimi"):
        return 404, f"Not found the model {body.get('model')}"
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    if last.get("role") not in ("user", "tool"):
        return 400, "Invalid request: the last message must be from the user or a tool"
    wrong = _wrong_calls(body["messages"])
    return None if wrong is None else (400, wrong)


def _wrong_calls(messages: list[Mapping[str, Any]]) -> str | None:
    """Return the error in a conversation's tool calls; None if there is none."""
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return f"Invalid request: tool_call_id is not found at message index {number}"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return f"Invalid request: a tool call has no answer before message index {number}"
        for call in message.get("tool_calls") or ():
            open_calls.add(call["id"])
            if not message.get("reasoning_content"):
                return (
                    f"reasoning_content is missing in assistant tool call message at index {number}"
                )
    return "Invalid request: a tool call has no answer" if open_calls else None


class FakeKimi:
    """Serves the API on a free loopback port inside the context.

    Attributes:
        requests: The bodies of the requests so far.
        delay: Seconds before each piece of an answer.
    """

    def __init__(self, key: str = "test-key", *, delay: float = 0.0) -> None:
        """Initialize; the server starts inside the context.

        Args:
            key: The key that requests must contain.
            delay: Seconds before each piece of an answer.
        """
        self.key, self.delay = key, delay
        self.requests: list[dict[str, Any]] = []
        self.stopped = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


def _handler(kimi: FakeKimi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), _MAX_BODY)))
            kimi.requests.append(body)
            refused = refusal(body, kimi.key, self.headers.get("Authorization", ""))
            if refused or self.path != "/v1/chat/completions":
                status, why = refused or (404, "not found")
                error = {"message": why, "type": "invalid_request_error"}
                self._send(status, json.dumps({"error": error}).encode())
                return
            self._stream(answer(body["messages"]), body["model"], len(body["messages"]))

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, reply: dict[str, Any], model: str, number: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in _pieces(reply, model, number):
                    if kimi.stopped.wait(kimi.delay):
                        return
                    data = f"data: {piece}\n\n".encode()
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # the client has disconnected
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


def _pieces(reply: dict[str, Any], model: str, number: int) -> Iterator[str]:
    """Yield the events of a streamed answer: the model's thoughts, then its text or a tool call in
    pieces.
    """
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me see."},
    ]
    if "call" in reply:
        text = json.dumps(reply["call"])
        named = {"index": 0, "id": f"call_{number}", "type": "function"}
        deltas.append(
            {"tool_calls": [{**named, "function": {"name": "memory_upsert", "arguments": ""}}]}
        )
        halves = (text[: len(text) // 2], text[len(text) // 2 :])
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": half}}]} for half in halves
        ]
    else:
        deltas += [{"content": word} for word in re.findall(r"\S+\s*", reply["content"])]
    for delta in deltas:
        yield _event(model, delta, None)
    yield _event(model, {}, "tool_calls" if "call" in reply else "stop")
    yield "[DONE]"


def _event(model: str, delta: dict[str, Any], reason: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return json.dumps(
        {
            "id": "chat-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": model,
            "choices": [choice],
        }
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)


_TURN_SECONDS = 300


class DemoTurn(NamedTuple):
    """One turn of a demo: a user's message in a thread, and texts that the answer must or must not
    contain.
    """

    user: str
    thread: str
    says: str
    expect: str = ""
    never: str = ""


class Demo(NamedTuple):
    """A demo: its name, its turns, and the minimum and maximum number of facts stored for each user
    at its end.
    """

    name: str
    steps: tuple[DemoTurn, ...]
    facts: Mapping[str, tuple[int, int]]


_COLOUR = "My favourite colour is teal. Remember that for all our conversations."
DEMOS = (
    Demo(
        "a session continues in the same thread",
        (
            DemoTurn("ann", "one", "My dog is Rex. Please keep that in mind."),
            DemoTurn("ann", "one", "What is its name?", expect="Rex"),
            DemoTurn("ann", "one", "What is my dog?", expect="Rex"),
        ),
        {"ann": (0, 1)},
    ),
    Demo(
        "a fact is known in a new thread of the same user",
        (
            DemoTurn("ann", "one", _COLOUR),
            DemoTurn("ann", "two", "What is my favourite colour?", expect="teal"),
        ),
        {"ann": (1, 1)},
    ),
    Demo(
        "another user does not know it",
        (
            DemoTurn("ann", "one", _COLOUR),
            DemoTurn("ben", "one", "What is my favourite colour?", never="teal"),
            DemoTurn("ben", "two", "What is my favourite colour?", never="teal"),
        ),
        {"ann": (1, 1), "ben": (0, 0)},
    ),
)


def run(live: Settings | None, say: Callable[[str], None]) -> bool:
    """Run the demos, each in a new folder; return whether all passed.

    Args:
        live: The real model's settings; None for the fake model.
        say: Shows a line.
    """
    with ExitStack() as stack:
        if live is None:
            fake = stack.enter_context(FakeKimi())
            access = {KEY: fake.key, BASE: fake.url}
        else:
            access = {KEY: live.key.reveal(), "MEMCLI_MODEL": live.model}
            if live.base:
                access[BASE] = live.base
        passed = [_run(demo, access, stack, say) for demo in DEMOS]
    say(f"{sum(passed)} of {len(passed)} demos passed")
    return all(passed)


def _run(
    demo: Demo, access: Mapping[str, str], stack: ExitStack, say: Callable[[str], None]
) -> bool:
    say(f"=== {demo.name}")
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memories-chat-")))
    wrong = []
    for step in demo.steps:
        process = _turn(root, step, access)
        output = process.stdout.strip()
        say(f"{step.user}/{step.thread}> {step.says}\n{output or process.stderr.strip()}")
        if process.returncode:
            wrong.append(f"the command ended with {process.returncode}: {process.stderr.strip()}")
        if step.expect.lower() not in output.lower():
            wrong.append(f'"{step.expect}" is not in the answer')
        if step.never and step.never.lower() in output.lower():
            wrong.append(f'"{step.never}" is in the answer')
    for user, (low, high) in demo.facts.items():
        file = root / "data" / "memory" / f"{user}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        count = len([json.loads(line) for line in lines])
        if not low <= count <= high:
            wrong.append(f"{count} facts about {user} are stored, not {low} to {high}")
    if not (root / "data" / FILE).stat().st_size:
        wrong.append("the session file is empty")
    for problem in wrong:
        say(f"FAILED: {problem}")
    say("failed" if wrong else "passed")
    return not wrong


def _turn(
    root: Path, step: DemoTurn, access: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    own = {
        "MEMCLI_USER_ID": step.user,
        "MEMCLI_THREAD_ID": step.thread,
        "LANGSMITH_TRACING": "false",
    }
    return subprocess.run(  # noqa: S603 - this program itself
        [sys.executable, "-P", "-m", "memories", "chat", "--root", str(root)],
        input=f"{step.says}\n",
        env={**os.environ, **own, **access},
        capture_output=True,
        text=True,
        timeout=_TURN_SECONDS,
        check=False,
    )
