"""The pages as routes of the application: each as HTML or, with `format=json`, as the JSON of the API."""

import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

import anyio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from memories.errors import InvalidInput, MemoriesError
from memories.guard.validate import canonical_namespace
from memories.memories import Memories
from memories.models import SHARED
from memories.read.lookup import readable_with
from memories.server.api.changes import position
from memories.server.api.metrics import Named
from memories.server.api.problems import Refused, encoded, failed, problem
from memories.server.api.routes import path_values
from memories.server.api.server import Server
from memories.server.pages import browse, manage, one
from memories.server.pages.asked import Asked, NotThen, View
from memories.server.pages.render import HEADERS, html

CHANGES = "/api/changes"
_MAX_FIELDS = 100
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_LOST = ("/{name}", *(f"/{view}/{{rest:path}}" for view in ("memories", "conversations", "review", "tags", "status")))
_STATIC = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}


class Page(NamedTuple):
    """One page: its path, the view that answers it, and which limit it counts against."""

    path: str
    view: Callable[[Memories, Asked], View]
    kind: str = "read"


PAGES = (
    Page("/", browse.home, "search"),
    Page("/memories/{id}", one.memory),
    Page("/conversations", one.conversations),
    Page("/conversations/{id}", one.conversation),
    Page("/review", manage.review),
    Page("/tags", manage.tags),
    Page("/namespaces", manage.namespaces),
    Page("/status", manage.health),
)


def routes() -> list[BaseRoute]:
    """Return the routes of all pages, of signing in and of what pages load."""
    return [
        *(Named(page.path, _answer(page), methods=["GET"], name=f"page {page.path}") for page in PAGES),
        Named("/login", _login, methods=["GET"], name="page /login"),
        *(Named(f"/static/{name}", _static(name), methods=["GET"], name=name) for name in _STATIC),
        *(Named(path, _nowhere, methods=_METHODS, name=f"no page {path}") for path in _LOST),
    ]


def _answer(page: Page) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        server: Server = request.app.state.server
        try:
            async with server.limit(page.kind) as limiter:
                return await anyio.to_thread.run_sync(_shown, server, page, request, limiter=limiter)
        except Exception as exc:  # noqa: BLE001 - every error becomes an answer, what is unexpected a logged one
            answer = failed(exc)
            if request.query_params.get("format") == "json":
                return answer
            if answer.status_code == 401:
                asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(asked, safe='')}", 303, HEADERS)
            view = View("error.html", json.loads(bytes(answer.body)), status=answer.status_code)
            return _html(view, Asked(()), path=page.path)

    return answer


def _shown(server: Server, page: Page, request: Request) -> Response:
    """Return a page for who asks, as HTML or JSON."""
    who = server.access.principal(request.scope)
    asked = Asked(_pairs(request), {}, lambda name: who.level(name) > 0, who.everywhere >= 3)
    as_json = asked.text("format") == "json"
    known, named = list[str](), who.home(server.config.namespace)
    try:
        asked = asked._replace(path=path_values(request))
        named = canonical_namespace(asked.text("namespace") or named)
        who.require("read", named)
        known.append("namespace")
        past = asked.past
        known.append("as_of")
        shared = who.level(SHARED) > 0
        memories = server.handles.of(who, named, shared=shared)
        seen = position(server, readable_with(named, shared=shared))  # before anything is read
        view = page.view(memories, asked)
        waiting = 0 if past else memories.review.count()
        about = {"namespace": named, "pending_count": waiting, "path": page.path, "seen": seen}
    except Refused:
        raise
    except MemoriesError as exc:
        answer = failed(exc.error if isinstance(exc, NotThen) else exc)
        if as_json:
            return answer
        then = {"title": exc.title, "detail": exc.sentence, "links": exc.links} if isinstance(exc, NotThen) else {}
        view = View("error.html", {**json.loads(bytes(answer.body)), **then}, status=answer.status_code)
        about = {"namespace": named if known else "", "pending_count": 0, "path": page.path, "seen": ""}
        # What was not acceptable in the address is in no link of the page that says so.
        asked = asked._replace(params=[pair for pair in asked.params if pair[0] in known])
    if as_json:
        return Response(encoded(view.data), view.status, HEADERS, media_type="application/json")
    return _html(view, asked, changes=asked.call(CHANGES), **about)


def _pairs(request: Request) -> list[tuple[str, str]]:
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidInput("the address can't be read; percent-encode it as UTF-8, and keep it short") from None


def _html(view: View, asked: Asked, **about: Any) -> Response:
    """Return a page; what is not told of it is empty, as for who is not signed in."""
    text = html(view, asked, **{"changes": "", "seen": "", "namespace": "", "pending_count": 0, **about})
    return Response(text, view.status, HEADERS, media_type="text/html")


async def _login(_: Request) -> Response:
    return _html(View("login.html", {}), Asked(()), path="/login")


async def _nowhere(request: Request) -> Response:
    """Tell who mistyped an address, a browser by a page."""
    told = problem(404, "there is nothing at this path; /openapi.json lists all routes")
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return told
    view = View("error.html", {"title": "Not found", "detail": "There is no such page."}, status=404)
    return _html(view, Asked(()), path=request.url.path)


def _static(name: str) -> Callable[[Request], object]:
    content = files("memories.server.pages").joinpath("static", name).read_bytes()
    stamp = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": stamp}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == stamp:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, media_type=_STATIC[name])

    return answer
