"""The application's routes for the pages. Each answers with HTML or, for `format=json`, with the
API's JSON.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from memories import __version__
from memories.answers.advice import complete_commands
from memories.core.times import describe_age
from memories.errors import MemoriesError, NotFound
from memories.guard.validate import canonical_namespace
from memories.languages import make_visible
from memories.memories import Memories
from memories.models import SHARED
from memories.read.lookup import readable_namespaces
from memories.server.api.access import OWNER
from memories.server.api.middleware import Named, allowed_methods
from memories.server.api.problems import SETTINGS, Refused, error_response, json_response
from memories.server.api.routes import path_values, query_pairs
from memories.server.api.server import ServerState
from memories.server.api.store_routes import position
from memories.server.pages import agents, picture, views
from memories.server.pages.request import (
    NotThen,
    PageRequest,
    View,
    excerpt,
    moment,
    short_project,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from memories.server.api.access import Principal
    from memories.settings import Config

CHANGES = "/api/changes"
_MAX_FIELDS = 100
_SCRIPT = "text/javascript; charset=utf-8"
_STATIC = {"page.css": "text/css; charset=utf-8", "page.js": _SCRIPT, "work.js": _SCRIPT}


class PageRoute(NamedTuple):
    """A page: its path, its view, and the limit that its requests count against."""

    path: str
    view: Callable[[Memories, PageRequest], View]
    kind: str = "read"


PAGES = (
    PageRoute("/", views.home, "search"),
    PageRoute("/agents", agents.agents, "search"),
    PageRoute("/map", picture.picture, "search"),
    PageRoute("/memories/{id}", views.memory),
    PageRoute("/conversations", views.conversations),
    PageRoute("/conversations/{id}", views.conversation),
    PageRoute("/review", views.review),
    PageRoute("/tags", views.tags),
    PageRoute("/namespaces", views.namespaces),
    PageRoute("/status", views.health),
)


def routes() -> list[BaseRoute]:
    """Return the routes of all pages, the sign-in page, the style sheet and the scripts."""

    def get(path: str, endpoint: Callable[[Request], object], name: str) -> BaseRoute:
        return Named(path, endpoint, methods=["GET"], name=name)

    async def show_login(_: Request) -> Response:
        return _html(View("login.html", {}), PageRequest(()), path="/login")

    pages = [get(page.path, _answer(page), f"page {page.path}") for page in PAGES]
    login = get("/login", show_login, "page /login")
    parts = [get(f"/static/{name}", _static(name), name) for name in _STATIC]
    return [*pages, login, *parts, Route("/{rest:path}", _nowhere)]


def _answer(page: PageRoute) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        server: ServerState = request.app.state.server
        try:
            async with server.limit(page.kind) as limiter:
                return await anyio.to_thread.run_sync(
                    _render, server, page, request, limiter=limiter
                )
        except Exception as exc:  # noqa: BLE001 - every error becomes a response; unexpected ones are also logged
            answer = error_response(exc, request.scope)
            if request.query_params.get("format") == "json":
                return answer
            if answer.status_code == 401:
                address = request.url.path
                if request.url.query:
                    address += f"?{request.url.query}"
                return RedirectResponse(f"/login?next={quote(address, safe='')}", 303, HEADERS)
            view = View("error.html", json.loads(bytes(answer.body)), status=answer.status_code)
            return _html(view, PageRequest(()), path=page.path)

    return answer


def _render(server: ServerState, page: PageRoute, request: Request) -> Response:
    """Return a page, as HTML or JSON, limited to what the sender of the request may see."""
    who = server.access.principal(request.scope)
    page_request = PageRequest(
        query_pairs(request, _MAX_FIELDS),
        reads=lambda name: who.level(name) > 0,
        writes=lambda name: who.level(name) > 1,
        administers=lambda name: who.level(name) > 2,
        manages=who.manages_store,
        is_owner=who.id == OWNER.id,
        open_memories=_opener(server, who),
    )
    as_json = page_request.text("format") == "json"
    accepted: list[str] = []
    namespace = who.home(server.config.namespace)
    try:
        page_request = page_request._replace(path=path_values(request))
        namespace = canonical_namespace(page_request.text("namespace") or namespace)
        who.require("read", namespace)
        accepted.append("namespace")
        past = page_request.past
        accepted.append("as_of")
        shared = who.level(SHARED) > 0
        memories = server.handles.of(who, namespace, shared=shared)
        request.scope[SETTINGS] = memories.config
        # Read the position before anything else, so that the page notices every later change.
        seen = position(server, readable_namespaces(namespace, shared=shared))
        view = page.view(memories, page_request)
        waiting = 0 if past else memories.review.count()
        about = {"namespace": namespace, "pending_count": waiting, "path": page.path, "seen": seen}
        about["complete"] = functools.partial(complete_commands, config=memories.config)
    except Refused:
        raise
    except MemoriesError as exc:
        answer = error_response(exc.error if isinstance(exc, NotThen) else exc, request.scope)
        if as_json:
            return answer
        shape = json.loads(bytes(answer.body))
        if page.path == "/memories/{id}" and isinstance(exc, NotFound):
            shape["title"] = "No such memory"
        if isinstance(exc, NotThen):
            shape |= {"title": exc.title, "detail": exc.sentence, "links": exc.links}
        view = View("error.html", shape, status=answer.status_code)
        about = {"namespace": namespace if accepted else "", "path": page.path}
        # No link on the error page repeats the invalid parameters.
        page_request = page_request._replace(
            params=[pair for pair in page_request.params if pair[0] in accepted]
        )
    if as_json:
        return json_response(view.data, view.status, HEADERS)
    # An error page does not update itself.
    changes = page_request.call(CHANGES) if view.status < 400 else ""
    return _html(view, page_request, changes=changes, **about)


def _opener(server: ServerState, who: "Principal") -> "Callable[[Config, bool], Memories]":
    """Return a function that opens the memories that a sender may read."""

    def open_memories(config: "Config", shared: bool) -> Memories:
        who.require("read", config.namespace)
        return server.handles.open(config, shared=shared and who.level(SHARED) > 0)

    return open_memories


def _html(view: View, page_request: PageRequest, **about: Any) -> Response:
    """Return a view as HTML; every value is escaped.

    Args:
        view: What to show.
        page_request: The request.
        **about: The values that all pages show: `path`, and for readers who are signed in
            `namespace`, `pending_count`, `changes`, `seen` and the function `complete`.
    """
    values = {
        "changes": "",
        "seen": "",
        "namespace": "",
        "pending_count": 0,
        "data": view.data,
        "request": page_request,
        "to": page_request.address,
        "call": page_request.call,
        "past": page_request.past,
        **view.more,
        **about,
    }
    text = _environment().get_template(view.template).render(values)
    return Response(text, view.status, HEADERS, media_type="text/html")


async def _nowhere(request: Request) -> Response:
    """Answer a mistyped address; browsers get a page."""
    if allowed_methods(request) or "text/html" not in request.headers.get("accept", ""):
        raise HTTPException(404)
    view = View(
        "error.html", {"title": "Not found", "detail": "There is no such page."}, status=404
    )
    return _html(view, PageRequest(()), path=request.url.path)


def _static(name: str) -> Callable[[Request], object]:
    content = files("memories.server.pages").joinpath("static", name).read_bytes()
    stamp = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": stamp}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == stamp:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, media_type=_STATIC[name])

    return answer


HEADERS = {  # pages run only our own scripts, and can't be framed; the guard adds more headers
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("memories.server.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )  # a memory's JSON omits unknown values, so an undefined name counts as empty
    environment.filters |= {
        "moment": moment,
        "ago": lambda iso: describe_age(datetime.fromisoformat(iso), datetime.now(UTC)),
        "day": lambda iso: f"{datetime.fromisoformat(iso):%A, %d %B %Y}".replace(" 0", " "),
        "shown": _make_visible,
        "cut": excerpt,
        "project": short_project,
    }
    environment.globals |= {"version": __version__}
    return environment


def _make_visible(text: str) -> str:
    """Return a text with invisible characters made visible, because they could hide or reorder
    words.
    """
    return make_visible(
        text, lambda sign: f"\\u{{{ord(sign):x}}}", keep="\n\t\u200d\ufe0f"
    )  # joined emoji stay intact
