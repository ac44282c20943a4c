"""The server as one ASGI application with guard, API and sign-in; `serve` runs it in a process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from memories.embedders import Embedder
from memories.server.api import (
    conversation_routes,
    many_routes,
    memory_routes,
    search_routes,
    store_routes,
)
from memories.server.api.access import SESSION_SECONDS, WELL_KNOWN, Access, Issuer, Principal
from memories.server.api.middleware import Guard, Named
from memories.server.api.openapi import document
from memories.server.api.problems import Refused, failed, json_response, problem
from memories.server.api.records import Records
from memories.server.api.records import route as store_route
from memories.server.api.routes import Field, Route, endpoint, from_body
from memories.server.api.server import Handles, Server
from memories.server.mcp_http import PATH, McpOverHttp
from memories.server.writers import Writers
from memories.settings import Config
from memories.stores import Store

ROUTES: tuple[Route, ...] = (
    *search_routes.ROUTES,
    *memory_routes.ROUTES,
    *many_routes.ROUTES,
    *conversation_routes.ROUTES,
    *store_routes.ROUTES,
)
_TOKEN = {"token": Field("text", "The token to sign in with.", required=True)}


class Options(NamedTuple):
    """The application's options.

    Attributes:
        port: The port of the TCP socket; part of the name of the page's cookie.
        hosts: Host names that are accepted in addition to the loopback ones.
        store: Used instead of the store in the settings; it is not closed.
        embedder: The model of `store`; None searches by words only.
        writers: Stores new memories in transactions that several requests share; by default, each
            request has its own.
        routes: Additional routes, such as those of the page.
        secure: Whether browsers reach the server over TLS only.
        issuer: The URL of an OAuth issuer whose tokens are accepted too.
        public_url: The URL at which remote clients reach the server; its host is accepted too.
    """

    port: int = 0
    hosts: Sequence[str] = ()
    store: Store | None = None
    embedder: Embedder | None = None
    writers: Writers | None = None
    routes: Sequence[BaseRoute] = ()
    secure: bool = False
    issuer: str | None = None
    public_url: str | None = None


def build(config: Config, options: Options = Options()) -> Starlette:  # noqa: B008 - it never changes
    """Return the application; `app.state.server` is the state that its requests share.

    Args:
        config: The settings.
        options: The options.

    Raises:
        ConfigError: The token files or the store's URL can't be used.
    """
    public = (options.public_url or f"http://127.0.0.1:{options.port}").rstrip("/")
    issuer = Issuer(options.issuer, f"{public}{PATH}", config.namespace) if options.issuer else None
    access = Access(
        config.home,
        options.port,
        verify=issuer,
        challenge="" if issuer is None else issuer.challenge(),
    )
    handles = Handles(config, store=options.store, embedder=options.embedder)
    server = Server(config, access, handles, options.writers)
    records, mcp = Records(server), McpOverHttp(server)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        server.begin()
        stop = asyncio.Event()
        loading = asyncio.create_task(mcp.run(stop))
        try:
            yield
        finally:
            server.end_streams()
            stop.set()
            await loading
            await anyio.to_thread.run_sync(records.close)
            await anyio.to_thread.run_sync(server.close)

    metadata: list[BaseRoute] = []
    if issuer is not None:  # these tell OAuth clients where to sign in
        paths = WELL_KNOWN, WELL_KNOWN + PATH
        metadata = [_public_route(path, issuer.metadata) for path in paths]
    app = Starlette(
        routes=[
            _public_route("/health", lambda: {"ok": True}),
            _public_route("/openapi.json", lambda: document(ROUTES)),
            Named("/login", partial(_login, secure=options.secure), methods=["POST"]),
            Named("/logout", _logout, methods=["POST"]),
            *map(endpoint, ROUTES),
            store_route(),
            Named(PATH, mcp, methods=["GET", "POST", "DELETE"]),
            *metadata,
            *options.routes,
        ],
        middleware=[Middleware(Guard, [*options.hosts, urlsplit(public).hostname or ""])],
        exception_handlers={404: _nowhere, 405: _nowhere},
        lifespan=lifespan,
    )
    # after a redirect, clients would send their token and body again
    app.router.redirect_slashes = False
    app.state.server, app.state.records = server, records
    return app


async def principal(request: Request) -> Principal:
    """Return a request's sender, for routes outside the table such as `/metrics`.

    Raises:
        Refused: The sender is unknown; `problems.failed` makes the answer.
    """
    server: Server = request.app.state.server
    return await anyio.to_thread.run_sync(
        server.access.principal, request.scope, limiter=server.limits["sign"]
    )


def _public_route(path: str, make_shape: Callable[[], Any]) -> Named:
    """Return a route that answers everyone with JSON."""

    async def answer(_: Request) -> Response:
        return json_response(make_shape())

    return Named(path, answer, methods=["GET"])


async def _login(request: Request, *, secure: bool) -> Response:
    """Give a browser a cookie in exchange for a token."""
    access: Access = request.app.state.server.access
    try:
        token = from_body(await request.body(), _TOKEN)["token"]
        value = await anyio.to_thread.run_sync(access.session, token)
        if value is None:
            await anyio.to_thread.run_sync(access.count_failure, request.scope)
            raise Refused(401, "this token is unknown; create one with: memory tokens create")
    except Exception as exc:  # noqa: BLE001 - as for every route
        return failed(exc)
    answer = json_response({"ok": True})
    answer.set_cookie(
        access.cookie,
        value,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        path="/",
        secure=secure,
    )
    return answer


async def _logout(request: Request) -> Response:
    server: Server = request.app.state.server
    try:
        await anyio.to_thread.run_sync(
            server.access.end_session, request.scope, limiter=server.limits["sign"]
        )
    except Exception as exc:  # noqa: BLE001 - as for every route
        return failed(exc)
    answer = json_response({"ok": True})
    answer.delete_cookie(server.access.cookie, path="/", httponly=True, samesite="strict")
    return answer


async def _nowhere(request: Request, exc: Exception) -> Response:
    status = getattr(exc, "status_code", 404)
    detail = "there is nothing at this path"
    if status != 404:
        detail = f"{request.method} is not supported for this path"
    headers = getattr(exc, "headers", None) or {}
    return problem(status, f"{detail}; see /openapi.json for all routes", **headers)
