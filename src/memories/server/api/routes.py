"""The table of routes: each is one verb of `Memories`; Starlette's routes, OpenAPI and the tests are made from it."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import anyio
from starlette.requests import Request
from starlette.responses import Response

from memories.answers import shapes
from memories.errors import InvalidInput, NotFound
from memories.guard.validate import canonical_namespace, parse_tag, read_json, shown
from memories.memories import Memories
from memories.models import SHARED
from memories.read.lookup import readable_with
from memories.server.api.access import Principal
from memories.server.api.idempotency import Work
from memories.server.api.middleware import Named
from memories.server.api.problems import encoded, failed
from memories.server.api.server import Server
from memories.write.create import Created
from memories.write.review import Reviewed

_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,), "whole": (int,), "number": (int, float), "flag": (bool,),
    "tags": (dict,), "texts": (list,), "objects": (list,),
}  # fmt: skip
_CALLED = {
    "text": "text", "whole": "a whole number", "number": "a number", "flag": "true or false",
    "tags": "an object of texts", "texts": "a list of texts", "objects": "a list of objects",
}  # fmt: skip


class Field(NamedTuple):
    """One value that a route takes.

    Attributes:
        kind: `text`, `whole`, `number`, `flag`, `tags`, `texts` or `objects`. In a query, tags are `KEY=VALUE` and,
            like texts, given by the same name several times.
        about: What it says.
        required: Whether it has to be there.
        choices: The only values, if there are few.
        of: The fields of each object in a list.
    """

    kind: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    of: "dict[str, Field] | None" = None


Fields = dict[str, Field]


def from_query(pairs: Sequence[tuple[str, str]], known: Fields) -> dict[str, Any]:
    """Return the values of a query.

    Raises:
        InvalidInput: One is unknown, not acceptable, or given twice.
    """
    given: dict[str, Any] = {}
    for name, text in pairs:
        field = _field(name, known)
        if field.kind == "tags":
            key, value = parse_tag(text)
            given.setdefault(name, {})[key] = value
        elif field.kind == "texts":
            given.setdefault(name, []).append(text)
        elif name in given:
            raise InvalidInput(f"{name} is given twice; give it once")
        else:
            given[name] = _read(name, field, text)
    return _complete(given, known)


def from_body(data: bytes, known: Fields) -> dict[str, Any]:
    """Return the values of a JSON body; null stands for what is left out.

    Raises:
        InvalidInput: It is not an object of these values.
    """
    try:
        value = read_json(data.decode()) if data else {}
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"the body is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start})") from None
    except InvalidInput as exc:
        raise InvalidInput(f"the body {exc}") from exc
    return checked(value, known, "the body")


def checked(value: object, known: Fields, what: str) -> dict[str, Any]:
    """Return the values of a JSON object; see `from_body`."""
    if type(value) is not dict:
        raise InvalidInput(f"{what} must be a JSON object")
    given = {}
    for name, found in value.items():
        field = _field(name, known)
        if found is not None:
            given[name] = _checked(name, field, found)
    return _complete(given, known)


def _checked(name: str, field: Field, found: Any) -> Any:
    if type(found) not in _TYPES[field.kind]:
        raise InvalidInput(f"{name} must be {_CALLED[field.kind]}")
    if field.kind == "texts" and not all(type(each) is str for each in found):
        raise InvalidInput(f"{name} must be a list of texts")
    if field.kind == "tags" and not all(type(each) is str for each in found.values()):
        raise InvalidInput(f"{name} must be an object whose values are texts")
    if field.kind == "objects":
        return [checked(each, field.of or {}, f"{name}[{at}]") for at, each in enumerate(found)]
    _among(name, field, found)
    return found


def _field(name: str, known: Fields) -> Field:
    if name not in known:
        raise InvalidInput(f'there is no "{shown(name)}" here; use {", ".join(known) or "nothing"}')
    return known[name]


def _read(name: str, field: Field, text: str) -> Any:
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
    _among(name, field, text)
    return text


def _among(name: str, field: Field, found: object) -> None:
    if field.choices and found not in field.choices:
        raise InvalidInput(f"{name} must be {', '.join(field.choices[:-1])} or {field.choices[-1]}")


def _complete(given: dict[str, Any], known: Fields) -> dict[str, Any]:
    for name, field in known.items():
        if field.required and name not in given:
            raise InvalidInput(f"{name} is missing")
    return given


_MAX_FIELDS = 200
SPACE: Fields = {
    "namespace": Field("text", "Namespace to use; by default that of the token."),
    "shared": Field("flag", "Also read the namespace shared; true by default."),
}


_NONE: Fields = {}
_WITHOUT_CONTENT = ("Deleted", "Reinforced", "Forgotten", "ForgottenTurns", "Rejected", "Affected")
_SAID = ("steps", "conversation_id")  # but for these


class Call(NamedTuple):
    """A request after it has been read: who asks for what.

    Attributes:
        given: The values of path, query and body, checked.
        shared: Whether the namespace shared is read too.
        key: Its idempotency key.
        begun_at: When the request with this key was begun first.
        again: Whether it may have been done before, as a server was stopped in the middle of it.
    """

    server: Server
    who: Principal
    memories: Memories
    given: dict[str, Any]
    request: Request
    shared: bool
    key: str | None = None
    begun_at: datetime | None = None
    again: bool = False

    @property
    def own(self) -> Memories:
        """The memory without the namespace shared, which may hold other memories with the ids of what was written."""
        return self.server.handles.of(self.who, self.memories.namespace, shared=False)

    @property
    def readable(self) -> tuple[str, ...]:
        """The namespaces that the request reads."""
        return readable_with(self.memories.namespace, shared=self.shared)


class Answer(NamedTuple):
    """An answer that is more than JSON with status 200."""

    shape: Any
    status: int = 200
    headers: Mapping[str, str] = {}


class Later(NamedTuple):
    """What is done, and no thread waits for it.

    Attributes:
        future: Of what comes of it.
        answer: Returns the answer then.
    """

    future: Future[Any]
    answer: Callable[[Any], Answer]


class Route(NamedTuple):
    """One route.

    Attributes:
        handle: Does it: in a thread, and returns JSON or an `Answer`; a `streams` one on the event loop, and returns
            a response.
        scope: What the token needs in the namespace of the request: `read`, `write`, `admin`; `store` is `admin` in
            the whole store, `signed` any token at all, and `open` none.
        answers: The schema of each status that is no error; see `schemas`.
        kind: Which limit it counts against; see `Server.limits`.
        submit: Does the same without waiting for the end, if the server can and the request has no idempotency key.
    """

    method: str
    path: str
    handle: Callable[[Call], Any]
    scope: str
    summary: str
    answers: Mapping[int, str]
    query: Fields = _NONE
    body: Fields | None = None
    kind: str = "read"
    streams: bool = False
    submit: Callable[[Call], Later] | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a retry with the same Idempotency-Key gets the same answer instead of being done again."""
        return self.method != "GET" and self.scope != "open" and self.kind == "write"


def endpoint(route: Route) -> Named:
    """Return what Starlette calls for a route."""

    async def answer(request: Request) -> Response:
        try:
            return await _answer(route, request)
        except Exception as exc:  # noqa: BLE001 - every error becomes an answer, what is unexpected a logged one
            return failed(exc)

    return Named(route.path, answer, methods=[route.method], name=f"{route.method} {route.path}")


async def _answer(route: Route, request: Request) -> Response:
    server: Server = request.app.state.server
    given = _asked(route, request)
    if route.body is not None and not route.streams:
        given |= from_body(await request.body(), route.body)
    elif not route.streams and request.method not in ("GET", "HEAD") and await request.body():
        raise InvalidInput("this request takes no body")
    async with server.limit(route.kind) as limiter:
        if route.submit and server.submit and server.access.is_quick and "idempotency-key" not in request.headers:
            return json_answer(await _later(server, functools.partial(_submitted, server, route, request, given)))
        # In one thread where nothing is waited for: to begin another one takes a fifth of a create.
        if not route.streams and server.access.is_quick and limiter.available_tokens:
            return await anyio.to_thread.run_sync(_called, server, route, request, given, limiter=limiter)
        call = await anyio.to_thread.run_sync(_call, server, route, request, given, limiter=server.limits["sign"])
        if route.streams:
            streamed: Awaitable[Response] = route.handle(call)
            return await streamed
        return await anyio.to_thread.run_sync(_run, route, call, limiter=limiter)


def _called(server: Server, route: Route, request: Request, given: dict[str, Any]) -> Response:
    return _run(route, _call(server, route, request, given))


async def _later(server: Server, submit: Callable[[], Later]) -> Answer:
    """Return the answer to what is submitted in a thread; the event loop is woken once, when all is done."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Later] = loop.create_future()

    def wake(later: Later) -> None:
        if not done.done():  # else nobody waits any more
            done.set_result(later)

    def wake_soon(later: Later) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped and closed its loop: nobody waits any more
            loop.call_soon_threadsafe(wake, later)

    def run() -> None:
        try:
            later = submit()
        except Exception as exc:  # noqa: BLE001 - who waits is told
            failed: Future[Any] = Future()
            failed.set_exception(exc)
            later = Later(failed, Answer)
        later.future.add_done_callback(lambda _: wake_soon(later))

    server.preparers.submit(run)
    later = await done
    return later.answer(later.future.result())


def _submitted(server: Server, route: Route, request: Request, given: dict[str, Any]) -> Later:
    call = _call(server, route, request, given)
    mark = call.memories.damaged.mark()
    assert route.submit is not None
    later = route.submit(call)
    return later._replace(answer=lambda result: _with_damage(call, later.answer(result), mark))


def _asked(route: Route, request: Request) -> dict[str, Any]:
    known = {**route.query, **({} if route.scope in ("open", "signed", "store") else SPACE)}
    text = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidInput("the query can't be read; percent-encode it as UTF-8, and keep it short") from None
    return from_query(pairs, known) | path_values(request)


def path_values(request: Request) -> dict[str, Any]:
    """Return the parts of the path that have names, decoded.

    Raises:
        InvalidInput: One is not UTF-8.
    """
    try:
        return {name: unquote(str(value), errors="strict") for name, value in request.path_params.items()}
    except UnicodeDecodeError:
        raise InvalidInput("the path is not UTF-8; percent-encode it so") from None


def _call(server: Server, route: Route, request: Request, given: dict[str, Any]) -> Call:
    """Tell who asks, and whether they may.

    Raises:
        Refused: They may not.
    """
    who = server.access.principal(request.scope)
    namespace = given.pop("namespace", None)
    named = who.home(server.config.namespace) if namespace is None else canonical_namespace(namespace)
    if route.scope == "store":
        who.require("admin")
    elif route.scope != "signed":
        who.require(route.scope, named)
    if given.get("redact") is False:
        who.require("unredacted", canonical_namespace(given.get("as") or named))
    shared = given.pop("shared", True) and who.level(SHARED) > 0
    memories = server.handles.of(who, named, shared=shared)
    return Call(server, who, memories, given, request, shared)


def _run(route: Route, call: Call) -> Response:
    key = call.request.headers.get("idempotency-key")
    if key is None or not route.repeatable:
        return json_answer(_done(route, call))
    asked = [route.method, route.path, call.memories.namespace, call.given]
    work = Work(
        lambda begun_at, again: _done(route, call._replace(begun_at=begun_at, again=again)),
        lambda answer: _brief(route, answer),
        lambda told: _revived(route, call, told),
        lambda answer: len(encoded(answer.shape)),
    )
    call = call._replace(given=dict(call.given), key=key)
    answer = call.server.once.do(key, call.who.id, asked, work, sync=bool(call.given.get("force")))
    return json_answer(answer)


def _done(route: Route, call: Call) -> Answer:
    mark = call.memories.damaged.mark()
    answer = route.handle(call)
    return _with_damage(call, answer if isinstance(answer, Answer) else Answer(answer), mark)


def _with_damage(call: Call, answer: Answer, mark: int) -> Answer:
    """Return an answer with the damage that was met since a mark."""
    found = call.memories.damaged.since(mark)
    findings = [each for each in found if each.ref is not None and each.ref.namespace in call.readable]
    return answer._replace(shape=answer.shape | {"damaged": shapes.damaged(findings)}) if findings else answer


def _brief(route: Route, answer: Answer) -> dict[str, Any] | None:
    """Return what is written down of an answer; nothing of one that failed."""
    if answer.status >= 300:
        return None
    schema = route.answers[answer.status]
    return {"schema": schema, "status": answer.status, **_kept(schema, answer.shape)}


def _kept(schema: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of the JSON of an answer: nothing of what somebody said or named."""
    if schema in _WITHOUT_CONTENT:
        return {"shape": {name: value for name, value in shape.items() if name not in _SAID}}
    if schema in ("Memory", "Created"):
        return {"id": shape["id"], "stored": shape.get("stored")}
    results = shape.get("results", ())
    if schema == "Added":
        return {"results": [each["status"] for each in results]}
    if schema == "CreatedMany" and all(each["id"] for each in results):
        return {"results": [[each["id"], each["stored"]] for each in results]}
    if schema == "Accepted" and not shape["dry_run"] and all(each["accepted"] for each in results):
        return {"results": [[each["id"], each["memory"]["id"]] for each in results]}
    return {}


def _revived(route: Route, call: Call, told: Mapping[str, Any]) -> Answer | None:
    """Return an answer that a server gave, with what the memory says now; None if it has to be run again."""
    if "shape" in told:
        shape = told["shape"] | ({"steps": []} if told["schema"] == "Affected" else {})
        if told["schema"] == "ForgottenTurns":
            shape = {"conversation_id": call.given["conversation"].strip(), **shape}
        return Answer(shape, told["status"])
    if "results" in told:
        return Answer(_REVIVED[told["schema"]](route, call, told["results"]), told["status"])
    if "id" not in told:
        return None
    found = call.own.get(told["id"])
    shape = shapes.memory(found) if told["schema"] == "Memory" else shapes.created(Created(bool(told["stored"]), found))
    return Answer(shape, told["status"], {"etag": f'"{found.version}"'})


def _created_many(_: Route, call: Call, results: Sequence[Any]) -> Any:
    shown = []
    for memory_id, stored in results:
        try:
            shown.append(shapes.created(Created(stored, call.own.get(memory_id))))
        except NotFound as exc:  # it was deleted since
            shown.append({"id": memory_id, "stored": stored, "error": str(exc)})
    return {"results": shown, "count": len(shown)}


def _accepted(_: Route, call: Call, results: Sequence[Any]) -> Any:
    done = [Reviewed(each, True, call.own.get(now)) for each, now in results]
    return shapes.accepted(done, dry_run=False)


def _added(route: Route, call: Call, results: Sequence[Any]) -> Any:
    """Add the turns once more, which are known by now, and say what became of them the first time."""
    shape = _done(route, call).shape
    for each, status in zip(shape["results"], results, strict=True):
        each["status"] = status
    return shape | {status: results.count(status) for status in ("stored", "known", "refused")}


_REVIVED = {"CreatedMany": _created_many, "Accepted": _accepted, "Added": _added}


def json_answer(answer: Answer) -> Response:
    """Return an answer as Starlette sends it."""
    return Response(encoded(answer.shape), answer.status, dict(answer.headers), media_type="application/json")
