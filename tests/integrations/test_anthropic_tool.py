"""Anthropic's memory tool, driven by the real SDK; a local server simulates the API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.lib.tools import ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

from memories import Memories
from memories.integrations.anthropic import MemoriesTool


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """Ann's memories."""
    with Memories(f"sqlite:///{tmp_path}/store", namespace="ann", embedder="fake") as opened:
        yield opened


@pytest.fixture
def tool(memories: Memories) -> MemoriesTool:
    """The tool on Ann's memories."""
    return MemoriesTool(memories)


def call(tool: Any, command: str, **arguments: Any) -> str:
    """Run one command of the tool."""
    return str(tool.call({"command": command, **arguments}))


ON_BOTH = [
    ("create", {"path": "/memories/a.md", "file_text": "one\ntwo\ntwo\n"}),
    ("create", {"path": "/memories/a.md", "file_text": "again"}),
    ("create", {"path": "/memories/d/b.md", "file_text": "deep"}),
    ("view", {"path": "/memories/a.md"}),
    ("view", {"path": "/memories/a.md", "view_range": [2, 3]}),
    ("view", {"path": "/memories/a.md", "view_range": [2, -1]}),
    ("view", {"path": "/memories/none"}),
    ("str_replace", {"path": "/memories/a.md", "old_str": "one", "new_str": "1"}),
    ("str_replace", {"path": "/memories/a.md", "old_str": "two", "new_str": "2"}),
    ("str_replace", {"path": "/memories/a.md", "old_str": "three", "new_str": "3"}),
    ("str_replace", {"path": "/memories/none", "old_str": "a", "new_str": "b"}),
    ("insert", {"path": "/memories/a.md", "insert_line": 0, "insert_text": "top\n"}),
    ("insert", {"path": "/memories/a.md", "insert_line": 99, "insert_text": "x"}),
    ("insert", {"path": "/memories/none", "insert_line": 0, "insert_text": "x"}),
    ("view", {"path": "/memories/a.md"}),
    ("rename", {"old_path": "/memories/a.md", "new_path": "/memories/d/b.md"}),
    ("rename", {"old_path": "/memories/a.md", "new_path": "/memories/e/c.md"}),
    ("rename", {"old_path": "/memories/none", "new_path": "/memories/x"}),
    ("rename", {"old_path": "/memories", "new_path": "/memories/x"}),
    ("view", {"path": "/memories/e/c.md"}),
    ("delete", {"path": "/memories"}),
    ("delete", {"path": "/memories/none"}),
    ("delete", {"path": "/memories/d"}),
    ("view", {"path": "/memories/d/b.md"}),
]


def test_answers_and_errors_match_those_of_the_sdk_tool(tool: MemoriesTool, tmp_path: Path) -> None:
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path / "theirs"))
    for command, arguments in ON_BOTH:
        answers = []
        for each in (theirs, tool):
            try:
                answers.append(call(each, command, **arguments))
            except ToolError as exc:
                answers.append(f"error: {exc}")
        assert answers[0] == answers[1], (command, arguments)


@pytest.mark.parametrize(
    ("command", "arguments", "error"),
    [
        ("create", {"path": "/memories/a"}, "Invalid `file_text` parameter: "),
        ("view", {}, "Invalid `path` parameter: "),
        ("insert", {"path": "/memories/a", "insert_line": "x"}, "Invalid `insert_line` parameter"),
        ("str_replace", {"path": "/memories/a", "old_str": "a"}, "Invalid `new_str` parameter: "),
        ("rename", {"old_path": "/memories/a"}, "Invalid `new_path` parameter: "),
        ("fly", {}, "Unknown command: fly"),
    ],
)
def test_a_missing_or_wrong_parameter_is_named(
    tool: MemoriesTool, command: str, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises(ToolError, match=error):
        call(tool, command, **arguments)


def test_a_folder_is_listed_two_levels_deep(tool: MemoriesTool) -> None:
    for path in ("a.md", "d/b.md", "d/e/c.md", "d/e/f/g.md", ".hidden", "node_modules/x"):
        call(tool, "create", path=f"/memories/{path}", file_text="x" * 1536)
    assert call(tool, "view", path="/memories").splitlines()[1:] == [
        "9K\t/memories",
        "1.5K\t/memories/a.md",
        "4.5K\t/memories/d/",
        "1.5K\t/memories/d/b.md",
        "3K\t/memories/d/e/",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../etc/passwd", "/memoriesX", "/etc/passwd", "/memories/%2e%2e/x",
        "/memories/../memories/x", "x",
        "/memories//x", "/memories/./x", "/memories/a\\..\\b", "/memories/ ", "", "/",
    ],
)  # fmt: skip
def test_a_path_outside_the_folder_is_refused(
    tool: MemoriesTool, memories: Memories, path: str
) -> None:
    for command, more in (("create", {"file_text": "x"}), ("view", {}), ("delete", {})):
        with pytest.raises(ToolError):
            call(tool, command, path=path, **more)
    assert memories.list().memories == ()


def test_a_path_in_another_unicode_form_is_the_same_file(tool: MemoriesTool) -> None:
    call(tool, "create", path="/memories/cafe\u0301.md", file_text="open")
    for path in ("/memories/cafe\u0301.md", "/memories/caf\u00e9.md"):
        assert call(tool, "view", path=path).endswith("\topen")
        with pytest.raises(ToolError, match="already exists"):
            call(tool, "create", path=path, file_text="again")


def test_a_path_that_contains_a_secret_is_refused(tool: MemoriesTool) -> None:
    path = "/memories/ghp_52bed334f8730fed0e717859699da7cc2379.md"
    with pytest.raises(ToolError, match="path contains what looks like a secret"):
        call(tool, "create", path=path, file_text="text")
    assert call(tool, "view", path="/memories").endswith("0B\t/memories")


def test_a_file_is_a_memory_with_versions(tool: MemoriesTool, memories: Memories) -> None:
    call(tool, "create", path="/memories/likes.md", file_text="Ann likes tea")
    call(tool, "str_replace", path="/memories/likes.md", old_str="tea", new_str="coffee")
    (hit,) = memories.search("what does Ann like?")
    assert hit.memory.content == "Ann likes coffee"
    assert [version.content for version in memories.history(hit.memory.id).versions] == [
        "Ann likes tea",
        "Ann likes coffee",
    ]
    memories.update(hit.memory.id, "Ann likes water")
    assert "Ann likes water" in call(tool, "view", path="/memories/likes.md")
    assert tool.clear_all_memory() == "All memory cleared"
    assert memories.list().memories == ()


@pytest.mark.parametrize("text", ["", "\n", "e\u0301", "\ufeffx", "...", " x "])
def test_a_text_is_returned_unchanged(tool: MemoriesTool, text: str) -> None:
    call(tool, "create", path="/memories/x", file_text=text)
    call(tool, "insert", path="/memories/x", insert_line=0, insert_text="first")
    assert call(tool, "view", path="/memories/x").split("\t", 1)[1].startswith("first\n")
    assert tool._file("/memories/x")[1].removeprefix("first\n").removesuffix(
        "\n"
    ) == text.removesuffix("\n")


def test_other_memories_are_not_files(
    tool: MemoriesTool, memories: Memories, tmp_path: Path
) -> None:
    memories.create("Ann likes tea", key="/memories/x")
    with Memories(f"sqlite:///{tmp_path}/store", embedder="fake") as shared:
        MemoriesTool(shared).call(
            {"command": "create", "path": "/memories/y", "file_text": "shared"}
        )
    assert call(tool, "view", path="/memories").splitlines()[1:] == ["0B\t/memories"]


def test_the_real_sdk_runs_the_tool(tool: MemoriesTool, memories: Memories) -> None:
    calls = [
        {"command": "create", "path": "/memories/ann.md", "file_text": "Ann likes tea"},
        {"command": "view", "path": "/memories/ann.md"},
        {"command": "view", "path": "/etc/passwd"},
    ]
    results: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            results.append(body["messages"][-1])
            number = len(results) - 1
            if number < len(calls):
                content = [
                    {
                        "type": "tool_use",
                        "id": f"t{number}",
                        "name": "memory",
                        "input": calls[number],
                    }
                ]
            else:
                content = [{"type": "text", "text": "done"}]
            reason = "tool_use" if number < len(calls) else "end_turn"
            usage = {"input_tokens": 1, "output_tokens": 1}
            message = {"id": "m", "type": "message", "role": "assistant", "model": "claude",
            "content": content,
                    "stop_reason": reason, "stop_sequence": None, "usage": usage}  # fmt: skip
            data = json.dumps(message).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = Anthropic(
        base_url=f"http://127.0.0.1:{server.server_address[1]}", api_key="x", max_retries=0
    )
    messages: Any = [{"role": "user", "content": "remember that Ann likes tea"}]
    runner = client.beta.messages.tool_runner(
        model="claude", max_tokens=100, messages=messages, tools=[tool]
    )
    final = runner.until_done()
    server.shutdown()
    server.server_close()
    client.close()
    assert final.content[0].text == "done"  # type: ignore[union-attr]
    answers = [message["content"][0] for message in results[1:]]
    assert [each.get("is_error", False) for each in answers] == [False, False, True]
    assert "Ann likes tea" in json.dumps(answers[1])
    assert [memory.content for memory in memories.list().memories] == ["Ann likes tea"]
