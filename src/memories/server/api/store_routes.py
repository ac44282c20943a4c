"""Routes for a namespace or the entire store: status, log, changes, export, import and backup."""

import functools
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from memories.answers import shapes, store_shapes
from memories.config import registers
from memories.core.events import noting
from memories.errors import InvalidInput
from memories.guard.origin import origin
from memories.guard.validate import canonical_namespace
from memories.guard.validate import namespace as checked_namespace
from memories.models import LogEntry
from memories.scratchpad.file import mark_all_stale
from memories.search.filters import SCOPES
from memories.server.api.memory_routes import AS_OF, LIMIT
from memories.server.api.problems import Refused, json_response
from memories.server.api.routes import Call, Field, Fields, Route, read_route
from memories.server.api.server import PING_SECONDS, ServerState
from memories.stores.audit_log import chain_of
from memories.transfer.backup import back_up
from memories.transfer.export import export, matching, own_key
from memories.transfer.importing import Imported, ImportTerms, examine, import_, log_import
from memories.transfer.lines import split_lines
from memories.write.turn_queue import count_waiting

_IN_MEMORY_BYTES = 16_777_216
_PIECE = 262_144
_SCOPE = Field(
    "text",
    "What to export; by default all.",
    choices=SCOPES,
)


def me(call: Call) -> Any:
    """Return the sender and the sender's rights."""
    return {"id": call.who.id, "name": call.who.name, "namespaces": dict(call.who.grants)}


def list_namespaces(call: Call) -> Any:
    """List the namespaces that the token can read."""
    namespaces = call.memories.namespaces(as_of=call.arguments.get("as_of"))
    rows = [
        shapes.without_none(namespace._asdict())
        for namespace in namespaces
        if call.who.level(namespace.name)
    ]
    return {"namespaces": rows, "count": len(rows)}


def status(call: Call) -> Any:
    """Return the state and size of the store.

    Only managers of the entire store see paths on the server.
    """
    shape = store_shapes.status(call.memories.status())
    return call.without_place(shape)


def stats(call: Call) -> Any:
    """Return statistics about operations, their speed, and the use of memories."""
    return store_shapes.stats(call.memories.stats(**call.arguments))


def log(call: Call) -> Any:
    """List changes, newest first: who changed what, and when."""
    arguments = dict(call.arguments)
    return store_shapes.log_entries(call.memories.log(arguments.pop("id", None), **arguments))


def verify_log(call: Call) -> Any:
    """Check that no log entry was changed or removed."""
    return store_shapes.log_checks(call.memories.verify_log(against=call.arguments.get("against")))


def backup(call: Call) -> Any:
    """Copy the entire store to a file on the server, and verify the copy."""
    config = call.server.config
    with noting(config, "backup", **call.memories.event_figures()):
        result = back_up(
            config, None, keep=call.arguments.get("keep"), now=datetime.now(UTC), progress=_silent
        )
    return store_shapes.backup_result(result, config.store, count_waiting(config))


def _silent(*_: object) -> None:
    """Discard progress reports."""


async def export_lines(call: Call) -> Response:
    """Stream all memories and turns as JSON lines.

    The lines are written to a temporary file first, so that a slow reader does not block writers.
    """
    names: tuple[str, ...] | None = call.readable
    if call.arguments.get("all_namespaces"):
        call.who.require("admin")
        names = None
    where, scope = call.arguments.get("where"), call.arguments.get("in")
    chosen = None
    if where is not None or scope is not None:
        half_life = call.server.config.decay_half_life_hours
        chosen = matching(where, scope or "all", half_life)
    spool = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed when it has been sent

    def write_line(line: str) -> None:
        spool.write(line.encode())

    def prove() -> bytes | None:
        return own_key(registers(), make=True) if call.who.manages_store else None

    def write() -> None:
        with noting(call.server.config, "export", **call.memories.event_figures()):
            export(
                call.server.handles.store,
                write_line,
                namespaces=names,
                with_vectors=call.arguments.get("vectors", False),
                prove=prove,
                select=chosen,
                progress=_silent,
            )
        spool.seek(0)

    async def pieces() -> AsyncIterator[bytes]:
        with spool:
            while piece := await anyio.to_thread.run_sync(spool.read, _PIECE):
                yield piece

    try:
        await anyio.to_thread.run_sync(write, limiter=call.server.limits["transfer"])
    except BaseException:
        spool.close()
        raise
    return StreamingResponse(pieces(), media_type="application/x-ndjson")


async def import_lines(call: Call) -> Response:
    """Import an export; records that are not provably yours are held for review.

    The export is read into a temporary file and checked before any record is stored.
    """
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        async for piece in call.request.stream():
            await anyio.to_thread.run_sync(spool.write, piece)
        run = functools.partial(_import, call, spool)
        return await anyio.to_thread.run_sync(run, limiter=call.server.limits["transfer"])


def _import(call: Call, spool: IO[bytes]) -> Response:
    trusted, dry_run = call.arguments.get("trusted", False), call.arguments.get("dry_run", False)
    if trusted:
        call.who.require("admin", call.memories.namespace)
    names = _namespaces_to_import(call, trusted=trusted)
    with noting(call.server.config, "import", **call.memories.event_figures()) as figures:
        result, import_id = _store(call, spool, names, trusted=trusted, dry_run=dry_run)
        figures["written"] = 0 if dry_run else result.imported
    shape = store_shapes.import_result(result, import_id, dry_run=dry_run)
    return json_response(shape, 409 if result.conflict_count else 200)


def _store(
    call: Call, spool: IO[bytes], names: tuple[str, ...] | None, *, trusted: bool, dry_run: bool
) -> tuple[Imported, str | None]:
    """Check an export and store it. Return the result, and the import's id if the imported records
    await review.

    A token belongs to a program; only a person, on the page, can decide to trust a file.
    """
    config, into = call.server.config, call.arguments.get("as")
    terms = ImportTerms(
        writer=origin("import", into or call.memories.namespace, (call.who.name, "")),
        key=None if trusted or not call.who.manages_store else own_key(registers()),
        namespaces=names,
        into=into,
        redactor=config.redactor() if call.arguments.get("redact", True) else None,
        trusted=trusted,
        by_person=call.who.browser,
    )
    intake, writer = examine(split_lines(spool, "the body"), terms)
    handles, quota = call.server.handles, config.namespace_quota
    store = log_import(handles.store, call.who.channel, writer, quota)
    lines = split_lines(spool, "the body")
    try:
        return import_(
            store, lines, handles.embedder, namespaces=names, dry_run=dry_run, intake=intake
        ), intake.foreign
    finally:  # an import that fails halfway keeps the batches that it has stored
        mark_all_stale(config.home)


def _namespaces_to_import(call: Call, *, trusted: bool) -> tuple[str, ...] | None:
    """Return the namespaces to import from an export.

    None means all namespaces: either all records are moved to one namespace, or the sender manages
    the store.

    Raises:
        Refused: 403.
    """
    into = call.arguments.get("as")
    if into is not None:
        if call.arguments.get("all_namespaces"):
            raise InvalidInput(
                '"as" requires an export of a single namespace; omit it, or omit "all_namespaces"'
            )
        call.arguments["as"] = into = checked_namespace(into)
        call.who.require("admin" if trusted else "write", into)
        return None
    if call.arguments.get("all_namespaces"):
        call.who.require("admin")
        return None
    return (call.memories.namespace,)


# maximum number of missed changes to send after a reconnection; if there are more, the client must
# read everything again
MAX_MISSED = 1_000

Seen = dict[str, int]  # the number of the last entry that was sent, keyed by namespace


async def changes(call: Call) -> Response:
    """Stream changes as they happen (server-sent events)."""
    if call.request.method == "HEAD":
        return Response(media_type="text/event-stream")
    server = call.server
    after = call.request.headers.get("last-event-id")
    seen = await _to_thread(server, _last_entries, server, call.readable)
    if after is not None:
        seen = _parse(after, seen)
    first = [_event("ready", seen, {"namespaces": list(call.readable)})]
    headers = {"x-accel-buffering": "no"}
    return _Stream(call, _events(call, seen, first), headers=headers)


class _Stream(StreamingResponse):
    """A stream that counts against the limit before it begins, so that it can still be refused."""

    media_type = "text/event-stream"

    def __init__(self, call: Call, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._call.server.limit_streams(self._call.who.id):
            await super().__call__(scope, receive, send)


async def _events(call: Call, seen: Seen, first: list[str]) -> AsyncIterator[str]:
    server, feed = call.server, call.server.feed
    feed.listen()
    sent_at = anyio.current_time()
    for event in first:
        yield event
    while not server.closing.is_set():
        news = feed.news  # read first, so that a change during this round starts another
        events = await _to_thread(server, _new_events, call, seen)
        if not events and anyio.current_time() - sent_at >= PING_SECONDS:
            events = [": ping\n\n"]
        if events and not await _to_thread(server, _is_still_allowed, call):
            return
        for event in events:
            sent_at = anyio.current_time()
            yield event
        with anyio.move_on_after(feed.seconds):
            await news.wait()


async def _to_thread(server: ServerState, run: Any, *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(run, *arguments, limiter=server.limits["poll"])


def position(server: ServerState, readable: Sequence[str]) -> str:
    """Return the current position in the changes of these namespaces, as an event id."""
    return _format_position(_last_entries(server, readable))


def _format_position(seen: Seen) -> str:
    return ",".join(f"{namespace}:{number}" for namespace, number in seen.items())


def _last_entries(server: ServerState, readable: Sequence[str]) -> Seen:
    seen = {}
    for namespace in readable:
        newest = server.handles.store.scan(chain_of(namespace), limit=1, newest_first=True)
        seen[namespace] = newest[0].ref.position if newest else 0
    return seen


def _new_events(call: Call, seen: Seen) -> list[str]:
    """Return events for the new log entries, oldest first, and record them in `seen`."""
    events = []
    for namespace in call.readable:
        after = seen[namespace]
        entries, last = _entries_since(call, namespace, after)
        if entries is None:
            seen[namespace] = last
            missed = last - after if last > after else last
            events.append(_event("reset", seen, {"namespace": namespace, "missed": missed}))
            continue
        for entry in reversed(entries):
            seen[namespace] = entry.number
            events.append(_event("change", seen, store_shapes.log_entries([entry])["results"][0]))
        seen[namespace] = max(last, seen[namespace])
    return events


def _entries_since(call: Call, namespace: str, after: int) -> tuple[list[LogEntry] | None, int]:
    """Return the log entries above a given number, newest first, and the last entry's number.

    Return None instead of the entries if there are too many, or if the log no longer has an entry
    with that number because the namespace was erased.
    """
    while True:
        last = _last_entries(call.server, (namespace,))[namespace]
        missed = last - after
        if missed == 0:
            return [], last
        if not 0 < missed <= MAX_MISSED:
            return None, last
        memories = call.server.handles.of(call.who, namespace, shared=False)
        entries = memories.log(limit=missed)
        if len(entries) < missed or entries[-1].number <= after + 1:
            return [entry for entry in entries if entry.number > after], last
        # More entries were written in the meantime.


def _is_still_allowed(call: Call) -> bool:
    """Return whether the token that opened the stream still allows it."""
    try:
        who = call.server.access.principal(call.request.scope)
        for namespace in call.readable:
            who.require("read", namespace)
    except Refused:
        return False
    return True


def _event(name: str, seen: Seen, data: Any) -> str:
    return f"id: {_format_position(seen)}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def _parse(text: str, now: Seen) -> Seen:
    """Parse `Last-Event-ID`, the client's position. Namespaces that are missing from it start at
    the present.
    """
    seen = dict(now)
    problem = InvalidInput("Last-Event-ID is not an id that this server sent")
    for part in text.split(","):
        namespace, _, position = part.strip().rpartition(":")
        if not (position.isascii() and position.isdigit() and len(position) <= 15):
            raise problem
        try:
            name = canonical_namespace(namespace)
        except InvalidInput:
            raise problem from None
        if name in seen:
            seen[name] = int(position)
    return seen


_ALL = Field("flag", "The entire store with all namespaces; only for managers of the store.")
_LOG: Fields = {
    "id": Field("text", "Only changes of this memory."),
    "conversation": Field("text", "Only changes of this conversation."),
    "action": Field("text", "Only operations of this kind."),
    "since": Field("text", "Only entries at or after this time."),
    "until": Field("text", "Only entries up to this time."),
}
ROUTES = (
    read_route("/api/me", me, "Me", scope="signed"),
    read_route("/api/namespaces", list_namespaces, "Namespaces", AS_OF, scope="signed"),
    read_route("/api/status", status, "Status"),
    read_route(
        "/api/stats", stats, "Stats", {"since": Field("text", "Only operations since this time.")}
    ),
    read_route("/api/log", log, "Log", _LOG | LIMIT),
    read_route(
        "/api/log/verify",
        verify_log,
        "LogChecks",
        {"against": Field("text", "A head that an earlier check returned.")},
        kind="transfer",
    ),
    Route(
        "POST",
        "/api/backup",
        backup,
        "BackedUp",
        body={"keep": Field("whole", "Keep only this many of the newest backups.")},
        scope="store",
        kind="transfer",
    ),
    Route(
        "GET",
        "/api/export",
        export_lines,
        "Lines",
        {
            "where": Field("text", "Only records that match this expression."),
            "in": _SCOPE,
            "vectors": Field("flag", "Include vectors."),
            "all_namespaces": _ALL,
        },
        kind="transfer",
        streams=True,
    ),
    Route(
        "POST",
        "/api/import",
        import_lines,
        "Imported",
        {
            "as": Field("text", "Namespace for the records of an export with a single namespace."),
            "dry_run": Field("flag", "Store nothing."),
            "trusted": Field("flag", "Store the records without review."),
            "redact": Field("flag", "Redact secrets; true by default."),
            "all_namespaces": _ALL,
        },
        scope="write",
        kind="transfer",
        statuses=(200, 409),
        streams=True,
    ),
    Route("GET", "/api/changes", changes, "Events", streams=True),
)
