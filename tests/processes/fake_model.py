"""A fake model with four kinds of API on localhost: it calls one tool, then says "done"."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class FakeModel:
    """A model that calls a tool, and records the requests.

    Attributes:
        tool: The end of the name of the tool that it calls once, if that tool is offered.
        arguments: The arguments of the call.
        requests: The bodies of all requests.
    """

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.tool, self.arguments = tool, json.dumps(arguments)
        self.requests: list[Json] = []

    def chosen(self, names: list[str]) -> str | None:
        return next((name for name in names if name.endswith(self.tool)), None)

    def messages(self, asked: Json) -> list[Json]:
        """Answer as Anthropic's API."""
        name = self.chosen([tool["name"] for tool in asked.get("tools", [])])
        if name and '"tool_result"' not in json.dumps(asked["messages"]):
            block: Json = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
            delta, stop = {"type": "input_json_delta", "partial_json": self.arguments}, "tool_use"
        else:
            block, delta, stop = (
                {"type": "text", "text": ""},
                {"type": "text_delta", "text": "done"},
                "end_turn",
            )
        usage = dict.fromkeys(("input_tokens", "output_tokens", *CACHE), 1)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "usage": usage,
        }
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": usage,
            },
            {"type": "message_stop"},
        ]

    def responses(self, asked: Json) -> list[Json]:
        """Answer as OpenAI's Responses API."""
        spaces = {None: asked.get("tools", [])}
        spaces |= {
            tool["name"]: tool["tools"] for tool in spaces[None] if tool.get("type") == "namespace"
        }
        found = [
            (space, name)
            for space, tools in spaces.items()
            if (name := self.chosen([tool.get("name", "") for tool in tools])) is not None
        ]
        if found and '"function_call_output"' not in json.dumps(asked["input"]):
            [(space, name)] = found
            item: Json = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": name,
                "status": "completed",
            }
            item |= {"arguments": self.arguments} | ({"namespace": space} if space else {})
        else:
            said = [{"type": "output_text", "text": "done", "annotations": []}]
            item = {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": said,
            }
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        response = {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "output": [item],
            "usage": usage,
        }
        events = [
            {
                "type": "response.created",
                "response": response | {"status": "in_progress", "output": []},
            },
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]
        return [event | {"sequence_number": number} for number, event in enumerate(events)]

    def completions(self, asked: Json) -> list[Json]:
        """Answer as OpenAI's chat API."""
        name = self.chosen([tool["function"]["name"] for tool in asked.get("tools", [])])
        delta: Json = {"role": "assistant", "content": "done"}
        if name and '"role": "tool"' not in json.dumps(asked["messages"]):
            function = {"name": name, "arguments": self.arguments}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            delta = {"role": "assistant", "tool_calls": [call]}
        stop = "tool_calls" if "tool_calls" in delta else "stop"
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return [
            chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]},
        ]

    def streamGenerateContent(self, asked: Json) -> list[Json]:  # noqa: N802 - its name in the API
        """Answer as Google's API, as a stream."""
        tools = [
            each for tool in asked.get("tools", []) for each in tool.get("functionDeclarations", [])
        ]
        name = self.chosen([tool["name"] for tool in tools])
        part: Json = {"text": "done"}
        if name and '"functionResponse"' not in json.dumps(asked["contents"]):
            part = {"functionCall": {"name": name, "args": json.loads(self.arguments)}}
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return [
            {
                "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
                "usageMetadata": usage,
            }
        ]

    def generateContent(self, asked: Json) -> list[Json]:  # noqa: N802
        """Answer as Google's API, in one response."""
        return self.streamGenerateContent(asked)


CACHE = ("cache_creation_input_tokens", "cache_read_input_tokens")


@contextmanager
def serving(model: FakeModel) -> Iterator[str]:
    """Serve a model; yield the URL of its APIs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, body: str, kind: str) -> None:
            data = body.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.answer("", "text/plain")

        def do_GET(self) -> None:
            self.answer('{"object": "list", "data": []}', "application/json")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            called = re.split("[/:]", self.path.partition("?")[0])[-1]
            api = getattr(model, called, None)
            if api is None:
                self.answer('{"input_tokens": 1}', "application/json")
                return
            model.requests.append(asked)
            if called == "generateContent":
                self.answer(json.dumps(api(asked)[0]), "application/json")
                return
            named = [
                (f"event: {event['type']}\n" if "type" in event else "", event)
                for event in api(asked)
            ]
            lines = "".join(f"{name}data: {json.dumps(event)}\n\n" for name, event in named)
            self.answer(
                lines + ("data: [DONE]\n\n" if called == "completions" else ""), "text/event-stream"
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
