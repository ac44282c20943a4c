"""Changes as they are made, by this server or another process: a stream of server-sent events from the audit log."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from memories.answers import transfers
from memories.errors import InvalidInput
from memories.guard.validate import canonical_namespace
from memories.models import LogEntry
from memories.server.api.feed import PING_SECONDS
from memories.server.api.problems import Refused
from memories.server.api.routes import Call, Route
from memories.server.api.server import Server
from memories.stores.chain import CHAIN, chain_of

MAX_MISSED = 1_000  # changes that are sent after a reconnection; of more the client is told to read anew

Seen = dict[str, int]  # the last entry that was sent, for each namespace


async def changes(call: Call) -> Response:
    """Stream what is changed in the namespaces of the request."""
    server = call.server
    after = call.request.headers.get("last-event-id")
    seen = await _to_thread(server, _last, server, call.readable)
    first = [_event("ready", seen, {"namespaces": list(call.readable)})]
    if after is not None:
        seen = _parse(after, seen)
    headers = {"x-accel-buffering": "no"}
    return _Stream(server, _events(call, seen, first), media_type="text/event-stream", headers=headers)


class _Stream(StreamingResponse):
    """A stream that is counted before it begins, so that one too many is refused."""

    def __init__(self, server: Server, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._server.limit("stream"):
            await super().__call__(scope, receive, send)


async def _events(call: Call, seen: Seen, first: list[str]) -> AsyncIterator[str]:
    server, feed = call.server, call.server.feed
    feed.listen()
    sent_at = anyio.current_time()
    for event in first:
        yield event
    while not server.closing.is_set():
        news = feed.news  # before it is looked: what comes meanwhile is looked for again
        events = await _to_thread(server, _news, call, seen)
        if not events and anyio.current_time() - sent_at >= PING_SECONDS:
            events = [": ping\n\n"]
        if events and not await _to_thread(server, _still_may, call):
            return
        for event in events:
            sent_at = anyio.current_time()
            yield event
        with anyio.move_on_after(feed.seconds):
            await news.wait()


async def _to_thread(server: Server, run: Any, *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(run, *arguments, limiter=server.limits["poll"])


def position(server: Server, readable: Sequence[str]) -> str:
    """Return where a stream of namespaces would begin now: the id of its first event."""
    return _position(_last(server, readable))


def _position(seen: Seen) -> str:
    return ",".join(f"{namespace}:{number}" for namespace, number in seen.items())


def _last(server: Server, readable: Sequence[str]) -> Seen:
    """Return the last entry of each log."""
    seen = {}
    for namespace in readable:
        newest = server.handles.store.scan(chain_of(namespace), limit=1, newest_first=True)
        seen[namespace] = newest[0].ref.position if newest else 0
    return seen


def _news(call: Call, seen: Seen) -> list[str]:
    """Return events for what was changed since, oldest first, and remember them as sent."""
    events = []
    for namespace in call.readable:
        after = seen[namespace]
        newest = call.server.handles.store.scan(
            chain_of(namespace), limit=1, after=(CHAIN, after) if after else None, newest_first=False
        )
        if not newest:
            continue
        found, missed = _since(call, namespace, after)
        if found is None:
            seen[namespace] = after + missed
            events.append(_event("reset", seen, {"namespace": namespace, "missed": missed}))
            continue
        for entry in reversed(found):
            seen[namespace] = entry.number
            events.append(_event("change", seen, _shape(entry)))
        seen[namespace] = max(after + missed, seen[namespace])
    return events


def _since(call: Call, namespace: str, after: int) -> tuple[list[LogEntry] | None, int]:
    """Return the entries behind one, newest first, and how many were written since; None for them if that is many."""
    memories = call.server.handles.of(call.who, namespace, shared=False)
    while True:
        missed = _last(call.server, (namespace,))[namespace] - after
        if missed > MAX_MISSED:
            return None, missed
        found = memories.log(limit=missed)
        if len(found) < missed or found[-1].number <= after + 1:
            return [each for each in found if each.number > after], missed  # else more was written meanwhile


def _shape(entry: LogEntry) -> Any:
    return transfers.log_entries([entry])["results"][0]


def _still_may(call: Call) -> bool:
    """Return whether the token that opened the stream is still valid for it."""
    try:
        who = call.server.access.principal(call.request.scope)
        for namespace in call.readable:
            who.require("read", namespace)
    except Refused:
        return False
    return True


def _event(name: str, seen: Seen, data: Any) -> str:
    return f"id: {_position(seen)}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def _parse(text: str, now: Seen) -> Seen:
    """Return what a client has seen, as `Last-Event-ID` tells; a namespace that it does not tell begins now."""
    seen = dict(now)
    for part in text.split(","):
        namespace, _, position = part.strip().rpartition(":")
        if not (position.isascii() and position.isdigit() and len(position) <= 15):
            raise InvalidInput("Last-Event-ID is none that this server has sent")
        if canonical_namespace(namespace) in seen:
            seen[namespace] = min(int(position), now[namespace])
    return seen


ROUTES = (
    Route("GET", "/api/changes", changes, "read", "Stream changes as they are made (server-sent events).",
          {200: "Events"}, streams=True),
)  # fmt: skip
