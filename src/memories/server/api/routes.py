"""Defines `Route`, the type of the API's routes, and reads, authorizes and answers requests.

Each route calls one method of `Memories`. Starlette's routes, the OpenAPI document and tests are
generated from the tables named `ROUTES` in the modules that define routes.
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import anyio
from starlette.requests import Request
from starlette.responses import Response

from memories.answers import shapes, store_shapes
from memories.answers.advice import complete_answer
from memories.errors import InvalidInput, NotFound
from memories.guard.validate import add_tags, canonical_namespace, shown
from memories.memories import Memories
from memories.models import SHARED
from memories.read.lookup import readable_namespaces
from memories.server.api.access import Principal
from memories.server.api.idempotency import shows_erased
from memories.server.api.middleware import Named
from memories.server.api.problems import SETTINGS, decode_json, encode_json, json_response
from memories.server.api.server import ServerState
from memories.write.create import Created
from memories.write.review import Reviewed

_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,), "whole": (int,), "number": (int, float), "flag": (bool,),
    "tags": (dict,), "texts": (list,), "objects": (list,),
}  # fmt: skip
_CALLED = {
    "text": "text", "whole": "a whole number", "number": "a number", "flag": "true or false",
    "tags": "an object whose values are strings", "texts": "a list of strings",
    "objects": "a list of objects",
}  # fmt: skip


class Field(NamedTuple):
    """A parameter of a route.

    Attributes:
        kind: `text`, `whole`, `number`, `flag`, `tags`, `texts` or `objects`. In a query, each tag
            is written `KEY=VALUE`, and the name is repeated for each tag or text.
        about: The description.
        required: Whether the value is required.
        choices: The allowed values; empty for any.
        of: The fields of each object, if the parameter is a list of objects.
    """

    kind: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    of: "dict[str, Field] | None" = None


Fields = dict[str, Field]


def from_query(pairs: Sequence[tuple[str, str]], fields: Fields) -> dict[str, Any]:
    """Return the values in a query string.

    Raises:
        InvalidInput: A value is unknown, invalid or repeated.
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        field = _find_field(name, fields)
        if field.kind == "tags":
            add_tags(values.setdefault(name, {}), [text])
        elif field.kind == "texts":
            values.setdefault(name, []).append(text)
        elif name in values:
            raise InvalidInput(f"{name} is given twice; give it once")
        else:
            values[name] = _parse(name, field, text)
    return _require_all(values, fields)


def from_body(data: bytes, fields: Fields) -> dict[str, Any]:
    """Return the values in a JSON body, without nulls.

    Raises:
        InvalidInput: The body is not an object with these values.
    """
    return _read_object(decode_json(data) if data else {}, fields, "the body")


def _read_object(shape: object, fields: Fields, where: str) -> dict[str, Any]:
    if type(shape) is not dict:
        raise InvalidInput(f"{where} must be a JSON object")
    values = {}
    for name, value in shape.items():
        field = _find_field(name, fields)
        if value is not None:
            values[name] = _check(name, field, value)
    return _require_all(values, fields)


def _check(name: str, field: Field, value: Any) -> Any:
    if type(value) not in _TYPES[field.kind]:
        raise InvalidInput(f"{name} must be {_CALLED[field.kind]}")
    if field.kind == "texts" and not all(type(text) is str for text in value):
        raise InvalidInput(f"{name} must be a list of strings")
    if field.kind == "tags" and not all(type(text) is str for text in value.values()):
        raise InvalidInput(f"{name} must be an object whose values are strings")
    if field.kind == "objects":
        return [
            _read_object(shape, field.of or {}, f"{name}[{at}]") for at, shape in enumerate(value)
        ]
    _check_choice(name, field, value)
    return value


def _find_field(name: str, fields: Fields) -> Field:
    if name not in fields:
        advice = f"use {', '.join(fields)}" if fields else "this request takes none"
        raise InvalidInput(f'unknown parameter "{shown(name)}"; {advice}')
    return fields[name]


def _parse(name: str, field: Field, text: str) -> Any:
    if field.kind == "flag":
        if text.lower() not in _TRUE + _FALSE:
            raise InvalidInput(f"{name} must be true or false")
        return text.lower() in _TRUE
    if field.kind == "whole":
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidInput(f"{name} must be a whole number")
        return int(text)
    if field.kind == "number":
        try:
            return float(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a number") from None
    _check_choice(name, field, text)
    return text


def _check_choice(name: str, field: Field, value: object) -> None:
    if field.choices and value not in field.choices:
        raise InvalidInput(f"{name} must be {', '.join(field.choices[:-1])} or {field.choices[-1]}")


def _require_all(values: dict[str, Any], fields: Fields) -> dict[str, Any]:
    for name, field in fields.items():
        if field.required and name not in values:
            raise InvalidInput(f"{name} is missing")
    return values


SPACE: Fields = {
    "namespace": Field("text", "The namespace; by default the token's."),
    "shared": Field("flag", "Also read the namespace shared; true by default."),
}


_NONE: Fields = {}
_WITHOUT_CONTENT = (
    "Deleted",
    "Reinforced",
    "Forgotten",
    "ForgottenTurns",
    "Rejected",
    "Affected",
    "Moved",
)
_CONTENT = ("steps", "conversation_id")  # members that are objects may contain content
_ERASED = "the request was carried out, but what it wrote has been erased or moved since"


class Call(NamedTuple):
    """A request that has been read and authorized.

    Attributes:
        arguments: The validated values from path, query and body.
        shared: Whether the namespace `shared` is read too.
        key: Its idempotency key.
        begun_at: When the first request with this key began.
        again: Whether an earlier attempt may have changed something before its server stopped.
    """

    server: ServerState
    who: Principal
    memories: Memories
    arguments: dict[str, Any]
    request: Request
    shared: bool
    key: str | None = None
    begun_at: datetime | None = None
    again: bool = False

    @property
    def id(self) -> str:
        """The id in the path."""
        return str(self.arguments["id"])

    @property
    def own(self) -> Memories:
        """The `Memories` of the request's namespace alone; the namespace `shared` may contain
        different memories with the same ids.
        """
        return self.server.handles.of(self.who, self.memories.namespace, shared=False)

    @property
    def readable(self) -> tuple[str, ...]:
        """The namespaces that the request reads."""
        return readable_namespaces(self.memories.namespace, shared=self.shared)

    def without_place(self, shape: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remove paths on the server from a response, unless the sender manages the store."""
        return shape if self.who.manages_store else shapes.without_place(shape)


class Answer(NamedTuple):
    """A response that isn't just JSON with status 200."""

    shape: Any
    status: int = 200
    headers: Mapping[str, str] = {}


class Later(NamedTuple):
    """A response that will be ready later, without a thread that waits for it.

    Attributes:
        future: The pending result.
        answer: Converts the result into a response.
    """

    future: Future[Any]
    answer: Callable[[Any], Answer]


class Route(NamedTuple):
    """One route.

    Attributes:
        handle: The handler, whose docstring describes the route. It runs in a thread and returns
            JSON or an `Answer`; with `streams`, it runs on the event loop and returns a response.
        schema: The schema of successful responses; see `openapi`.
        scope: The right required in the request's namespace: `read`, `write` or `admin`. `store` is
            `admin` for the entire store, and `signed` accepts any token.
        kind: The kind of request, which has its own limit; see `ServerState.limits`.
        statuses: The statuses of successful responses.
        submit: A handler that doesn't wait for the result. It is used if the server has a write
            queue and the request has no idempotency key.
        versioned: Whether If-Match restricts the change to one version of the memory.
    """

    method: str
    path: str
    handle: Callable[[Call], Any]
    schema: str
    query: Fields = _NONE
    body: Fields | None = None
    scope: str = "read"
    kind: str = "read"
    statuses: tuple[int, ...] = (200,)
    streams: bool = False
    submit: Callable[[Call], Later] | None = None
    versioned: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether a retry with the same Idempotency-Key gets the same response and is not
        applied again.
        """
        return self.kind == "write"

    @property
    def summary(self) -> str:
        """The route's purpose, in one sentence."""
        first_paragraph = inspect.cleandoc(self.handle.__doc__ or "").partition("\n\n")[0]
        return " ".join(first_paragraph.split())


def read_route(
    path: str,
    handle: Callable[[Call], Any],
    schema: str,
    query: Fields = _NONE,
    scope: str = "read",
    kind: str = "read",
) -> Route:
    """Return a route that changes nothing."""
    return Route("GET", path, handle, schema, query, scope=scope, kind=kind)


def write_route(
    method: str,
    path: str,
    handle: Callable[[Call], Any],
    schema: str,
    body: Fields | None,
    scope: str = "write",
) -> Route:
    """Return a route that changes memories; `body` is None if requests to it have no body."""
    return Route(method, path, handle, schema, body=body, scope=scope, kind="write")


def endpoint(route: Route) -> Named:
    """Convert a route of this API to a Starlette route; the guard turns errors into responses."""
    respond = functools.partial(_process_request, route)
    return Named(route.path, respond, methods=[route.method], name=f"{route.method} {route.path}")


async def _process_request(route: Route, request: Request) -> Response:
    """Parse a request on the event loop, then authorize and handle it in a thread."""
    server: ServerState = request.app.state.server
    if route.kind == "write" and not route.versioned and "if-match" in request.headers:
        raise InvalidInput("this request does not check versions; omit If-Match")
    fields = route.query if route.scope in ("signed", "store") else route.query | SPACE
    arguments = from_query(query_pairs(request), fields) | path_values(request)
    if route.body is not None and not route.streams:
        arguments |= from_body(await request.body(), route.body)
    elif not route.streams and request.method not in ("GET", "HEAD") and await request.body():
        raise InvalidInput("this request must not have a body")
    async with server.limit(route.kind) as limiter:
        can_submit = route.submit and server.group_commit and server.access.is_quick
        if can_submit and "idempotency-key" not in request.headers:
            submit = functools.partial(_submit, server, route, request, arguments)
            return json_response(*await _await_later(server, submit))
        # If authorizing never blocks, do everything in one thread: starting a second thread takes a
        # fifth of the time that a create takes.
        if not route.streams and server.access.is_quick and limiter.available_tokens:

            def authorize_and_handle() -> Response:
                return _make_response(route, _authorize(server, route, request, arguments))

            return await anyio.to_thread.run_sync(authorize_and_handle, limiter=limiter)
        call = await anyio.to_thread.run_sync(
            _authorize, server, route, request, arguments, limiter=server.limits["sign"]
        )
        if route.streams:
            response: Awaitable[Response] = route.handle(call)
            return await response
        return await anyio.to_thread.run_sync(_make_response, route, call, limiter=limiter)


async def _await_later(server: ServerState, submit: Callable[[], Later]) -> Answer:
    """Call `submit` in a thread, wait for its result, and return the response. The event loop is
    woken only once, when the result is there.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Later] = loop.create_future()

    def wake(later: Later) -> None:
        if not ended.done():  # else the client has disconnected
            ended.set_result(later)

    def submit_in_thread() -> None:
        try:
            later = submit()
        except Exception as exc:  # noqa: BLE001 - the response raises it
            error: Future[Any] = Future()
            error.set_exception(exc)
            later = Later(error, Answer)

        def wake_soon(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped and closed its loop
                loop.call_soon_threadsafe(wake, later)

        later.future.add_done_callback(wake_soon)

    server.preparers.submit(submit_in_thread)
    later = await ended
    return later.answer(later.future.result())


def _submit(
    server: ServerState, route: Route, request: Request, arguments: dict[str, Any]
) -> Later:
    call = _authorize(server, route, request, arguments)
    mark = call.memories.damaged.mark()
    assert route.submit is not None
    later = route.submit(call)

    def answer(result: Any) -> Answer:
        return _complete(call, _with_damage(call, later.answer(result), mark))

    return Later(later.future, answer)


def query_pairs(request: Request, max_fields: int = 200) -> list[tuple[str, str]]:
    """Return the names and values in a query.

    Raises:
        InvalidInput: The query is not UTF-8, or too long.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=max_fields)
    except ValueError:
        raise InvalidInput(
            "the query string is invalid; percent-encode it as UTF-8, and send at most "
            f"{max_fields} parameters"
        ) from None


def path_values(request: Request) -> dict[str, Any]:
    """Return the decoded path parameters.

    Raises:
        InvalidInput: A parameter is not UTF-8.
    """
    try:
        return {
            name: unquote(str(value), errors="strict")
            for name, value in request.path_params.items()
        }
    except UnicodeDecodeError:
        raise InvalidInput("the path is not valid UTF-8; percent-encode it as UTF-8") from None


def _authorize(
    server: ServerState, route: Route, request: Request, arguments: dict[str, Any]
) -> Call:
    """Identify the sender and check the rights.

    Raises:
        Refused: The sender is unknown or lacks a right.
    """
    who = server.access.principal(request.scope)
    namespace = arguments.pop("namespace", None)
    named = (
        who.home(server.config.namespace) if namespace is None else canonical_namespace(namespace)
    )
    if route.scope == "store":
        who.require("admin")
    elif route.scope != "signed":
        who.require(route.scope, named)
    if arguments.get("redact") is False:
        who.require("unredacted", canonical_namespace(arguments.get("as") or named))
    shared = arguments.pop("shared", True) and who.level(SHARED) > 0
    memories = server.handles.of(who, named, shared=shared)
    request.scope[SETTINGS] = memories.config
    return Call(server, who, memories, arguments, request, shared)


def _make_response(route: Route, call: Call) -> Response:
    """Handle a request, or repeat the earlier response for its idempotency key."""
    key = call.request.headers.get("idempotency-key")
    if key is None or not route.repeatable:
        return json_response(*_complete(call, _handle(route, call)))
    return json_response(*_complete(call, _handle_once(route, call, key)))


def _complete(call: Call, answer: Answer) -> Answer:
    """Return an answer in which suggested commands name the namespace and the store."""
    return answer._replace(shape=complete_answer(answer.shape, call.memories.config))


def _handle_once(route: Route, call: Call, key: str) -> Answer:
    """Return the response to a request with a key; process the request only if it has not been
    processed.
    """
    request = [route.method, route.path, call.memories.namespace, call.arguments]
    call = call._replace(arguments=dict(call.arguments), key=key)
    sync = bool(call.arguments.get("force"))
    with call.server.once.begin(key, call.who.id, request, sync=sync) as keyed:
        answer: Answer | None = keyed.answer
        summary = keyed.summary
        if summary and answer is not None and shows_erased(call.memories, answer.shape):
            if "shape" not in summary:
                raise NotFound(_ERASED)
            answer = None  # a response is rebuilt without content
        if answer is None and summary is not None:
            answer = _revive(route, call, summary)
        if answer is None:
            answer = _handle(route, call._replace(begun_at=keyed.begun_at, again=keyed.again))
            summary = None
            if answer.status < 300:
                content_free = _without_content(route.schema, answer.shape)
                summary = {"schema": route.schema, "status": answer.status, **content_free}
            keyed.end(answer, summary, len(encode_json(answer.shape)))
    return answer


def _handle(route: Route, call: Call) -> Answer:
    mark = call.memories.damaged.mark()
    answer = route.handle(call)
    answer = answer if isinstance(answer, Answer) else Answer(answer)
    if "also_in" in answer.shape:
        public = functools.partial(call.server.access.without_folders, call.who)
        also_in = list(map(public, answer.shape["also_in"]))
        answer = answer._replace(shape=answer.shape | {"also_in": also_in})
    return _with_damage(call, answer, mark)


def _with_damage(call: Call, answer: Answer, mark: int) -> Answer:
    """Add any damage found since `mark` to a response."""
    findings = [
        finding
        for finding in call.memories.damaged.since(mark)
        if finding.ref is not None and finding.ref.namespace in call.readable
    ]
    if not findings:
        return answer
    return answer._replace(shape=answer.shape | {"damaged": store_shapes.damage_details(findings)})


def _without_content(schema: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a response that may be saved: ids and counts, but neither content nor
    names.
    """
    if schema in _WITHOUT_CONTENT:
        return {"shape": {name: value for name, value in shape.items() if name not in _CONTENT}}
    if schema in ("Memory", "Created"):
        return {"id": shape["id"], "stored": shape.get("stored")}
    results = shape.get("results", ())
    if schema == "Added":
        turns = [[result["id"].rpartition("#")[2], result["status"]] for result in results]
        return {"results": turns}
    if schema == "CreatedMany" and all(result["id"] for result in results):
        return {"results": [[result["id"], result["stored"]] for result in results]}
    is_stored = schema == "Accepted" and not shape["dry_run"]
    if is_stored and all(result["accepted"] for result in results):
        return {"results": [[result["id"], result["memory"]["id"]] for result in results]}
    return {}


def _revive(route: Route, call: Call, summary: Mapping[str, Any]) -> Answer | None:
    """Rebuild a response from its summary and the current memories. Return None if the request must
    run again.
    """
    schema, status = summary["schema"], summary["status"]
    if "shape" in summary:
        shape = dict(summary["shape"])
        if schema == "Affected":
            shape["steps"] = []
        if schema == "ForgottenTurns":
            shape = {"conversation_id": call.arguments["conversation"].strip(), **shape}
        return Answer(shape, status)
    if "results" in summary:
        return Answer(_REVIVERS[schema](route, call, summary["results"]), status)
    if "id" not in summary:
        return None
    memory = call.own.get(summary["id"])
    headers = {"etag": f'"{memory.version}"'}
    if schema == "Memory":
        return Answer(shapes.memory(memory), status, headers)
    created = Created(bool(summary["stored"]), memory)
    return Answer(shapes.create_result(created), status, headers)


def _revive_created(_: Route, call: Call, results: Sequence[Any]) -> Any:
    revived = []
    for memory_id, stored in results:
        try:
            revived.append(shapes.create_result(Created(stored, call.own.get(memory_id))))
        except NotFound as exc:  # the memory has been deleted in the meantime
            revived.append({"id": memory_id, "stored": stored, "error": str(exc)})
    return {"results": revived, "count": len(revived)}


def _revive_accepted(_: Route, call: Call, results: Sequence[Any]) -> Any:
    reviewed = [
        Reviewed(pending_id, True, call.own.get(memory_id)) for pending_id, memory_id in results
    ]
    return shapes.accept_result(reviewed, dry_run=False)


def _revive_added(route: Route, call: Call, results: Sequence[Any]) -> Any:
    """Add the turns again, which changes nothing, and report the original outcomes."""
    name = call.arguments["conversation"].strip()
    if shows_erased(call.memories, [{"id": f"{name}#{index}"} for index, _ in results]):
        raise NotFound(_ERASED)
    shape = _handle(route, call).shape
    statuses = [status for _, status in results]
    for result, status in zip(shape["results"], statuses, strict=True):
        result["status"] = status
    return shape | {status: statuses.count(status) for status in ("stored", "known", "refused")}


_REVIVERS = {"CreatedMany": _revive_created, "Accepted": _revive_accepted, "Added": _revive_added}
