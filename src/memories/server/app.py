"""The server as one ASGI application: guard, API, MCP and sign-in; `serve` runs it in a process.

MCP over HTTP, at `/mcp`, offers the tools of `memory mcp`. Each call acts for its sender. Importing
the SDK takes half a second, so a thread imports it while the server already answers other requests.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memories.answers import shapes
from memories.embedders import Embedder
from memories.guard.validate import canonical_namespace
from memories.memories import Memories
from memories.models import SHARED
from memories.server.api import (
    bulk_routes,
    conversation_routes,
    memory_routes,
    store_routes,
)
from memories.server.api.access import SESSION_SECONDS, WELL_KNOWN, Access, Issuer, Principal
from memories.server.api.middleware import Guard, Named, allowed_methods
from memories.server.api.openapi import document
from memories.server.api.problems import Refused, json_response, problem
from memories.server.api.records import Records
from memories.server.api.records import route as store_route
from memories.server.api.routes import (
    SPACE,
    Field,
    Route,
    endpoint,
    from_body,
    from_query,
    query_pairs,
)
from memories.server.api.server import Handles, ServerState
from memories.server.group_commit import GroupCommit
from memories.settings import Config
from memories.stores import Store

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

PATH = "/mcp"
_logger = logging.getLogger(__name__)


class _Caller(NamedTuple):
    """The sender of a tool call, and the memory that the tool uses."""

    who: Principal
    namespace: str
    memories: Memories


_caller: ContextVar[_Caller] = ContextVar("caller")


def _application(access: Access, *, read_only: bool) -> tuple[ASGIApp, Any]:
    """Return the SDK's application and its session manager; this imports the SDK."""
    from mcp.server.transport_security import TransportSecuritySettings

    from memories.mcp.server import serve_tools
    from memories.mcp.tools import Tools

    class TokenTools(Tools):
        """The MCP tools; each call uses the memory that belongs to its token."""

        def __init__(self) -> None:
            """Initialize without a memory; each call provides its own."""
            # Several clients make calls, so no client's searches are remembered.
            super().__init__(
                lambda: _caller.get().memories, lambda _: (self.memories, ""), max_seen=0
            )

        def _written_by(self, caller: "Context[Any, Any]") -> Memories:
            """Return the memory that records the token or the client as the writer."""
            sender, client = _caller.get(), caller.session.client_params
            if client is None:
                return sender.memories
            name = client.client_info.name if sender.who.id == "owner" else sender.who.name
            return sender.memories.of_client(name, client.client_info.version)

        def status(self) -> Mapping[str, Any]:
            """Return the state of the memory; only managers of the store see its location."""
            shape = super().status()
            return shape if _caller.get().who.manages_store else shapes.without_place(shape)

        def complete(self, sentence: str) -> str:
            """Return a sentence, without folders unless the sender manages the store."""
            return access.without_folders(_caller.get().who, super().complete(sentence))

    server = serve_tools(TokenTools(), read_only=read_only)
    # The guard has already checked that the host and the origin name this server.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        json_response=True,
        transport_security=unchecked,
    )
    return app, server.session_manager


class McpOverHttp:
    """Serves `/mcp`; see `run`."""

    def __init__(self, server: ServerState) -> None:
        """Initialize; the SDK is imported by `run`."""
        self._server = server
        self._apps: dict[bool, ASGIApp] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Load the SDK, then serve until `stop` is set."""
        try:
            async with contextlib.AsyncExitStack() as running:
                for read_only in (False, True):
                    make = functools.partial(_application, self._server.access, read_only=read_only)
                    app, manager = await anyio.to_thread.run_sync(make)
                    await running.enter_async_context(manager.run())
                    self._apps[read_only] = app
                await stop.wait()
        finally:
            self._apps.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller = await anyio.to_thread.run_sync(
            self._authorize, scope, limiter=self._server.limits["sign"]
        )
        app = self._apps.get(caller.who.level(caller.namespace) < 2)
        if app is None:
            raise Refused(503, "MCP is still loading; try again in a second", retry_after="1")
        if scope["method"] == "POST":
            receive = await _buffer_body(receive)
        token = _caller.set(caller)
        try:
            if scope["method"] == "GET":
                async with self._server.limit_streams(caller.who.id):
                    await self._until_closing(app, scope, receive, send)
            else:
                async with self._server.limit("write"):
                    await app(scope, receive, send)
        finally:
            _caller.reset(token)

    async def _until_closing(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a stream until it ends or the server stops."""
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await self._server.closing.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            await app(scope, receive, send)
            tasks.cancel_scope.cancel()

    def _authorize(self, scope: Scope) -> _Caller:
        who = self._server.access.principal(scope)
        arguments = from_query(query_pairs(Request(scope)), SPACE)
        namespace = who.home(self._server.config.namespace)
        if "namespace" in arguments:
            namespace = canonical_namespace(arguments["namespace"])
        who.require("read", namespace)
        shared = arguments.get("shared", True) and who.level(SHARED) > 0
        memories = self._server.handles.of(who, namespace, shared=shared, channel="mcp")
        return _Caller(who, namespace, memories)


async def _buffer_body(receive: Receive) -> Receive:
    """Read the body now, so that errors are answered here; return a receiver that replays it."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())

    async def receive_again() -> Message:
        return messages.pop(0) if messages else await receive()

    return receive_again


ROUTES: tuple[Route, ...] = (
    *memory_routes.ROUTES,
    *bulk_routes.ROUTES,
    *conversation_routes.ROUTES,
    *store_routes.ROUTES,
)
_TOKEN = {"token": Field("text", "The token to sign in with.", required=True)}


class Options(NamedTuple):
    """The application's options.

    Attributes:
        port: The port of the TCP socket. The name of the page's cookie contains it.
        hosts: Host names that are accepted in addition to the loopback names.
        store: Used instead of the store in the settings; it is not closed.
        embedder: The model to use with `store`; None searches by words only.
        group_commit: Stores new memories in transactions that several requests share; by default,
            each request has its own transaction.
        routes: Additional routes, such as the page's.
        secure: Whether browsers reach the server only over TLS.
        issuer: The URL of an OAuth issuer whose tokens are accepted too.
        public_url: The URL at which remote clients reach the server; its host is accepted too.
    """

    port: int = 0
    hosts: Sequence[str] = ()
    store: Store | None = None
    embedder: Embedder | None = None
    group_commit: GroupCommit | None = None
    routes: Sequence[BaseRoute] = ()
    secure: bool = False
    issuer: str | None = None
    public_url: str | None = None


def build(config: Config, options: Options = Options()) -> Starlette:  # noqa: B008 - it never changes
    """Return the application. All its requests share the state in `app.state.server`.

    Args:
        config: The settings.
        options: The options.

    Raises:
        ConfigError: The token files or the store's URL can't be used.
    """
    public = (options.public_url or f"http://127.0.0.1:{options.port}").rstrip("/")
    issuer = Issuer(options.issuer, f"{public}{PATH}", config.namespace) if options.issuer else None
    access = Access(config, options.port, issuer)
    handles = Handles(config, store=options.store, embedder=options.embedder)
    server = ServerState(config, access, handles, options.group_commit)
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
    if issuer is not None:  # these routes tell OAuth clients where to sign in
        places = {"", PATH, urlsplit(issuer.resource).path}
        metadata = [_public_route(WELL_KNOWN + place, issuer.metadata) for place in places]
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
        Refused: The sender is unknown; `problems.error_response` makes the response.
    """
    server: ServerState = request.app.state.server
    return await anyio.to_thread.run_sync(
        server.access.principal, request.scope, limiter=server.limits["sign"]
    )


def _public_route(path: str, make_shape: Callable[[], Any]) -> Named:
    """Return a route that answers with JSON and requires no token."""

    async def answer(_: Request) -> Response:
        return json_response(make_shape())

    return Named(path, answer, methods=["GET"])


async def _login(request: Request, *, secure: bool) -> Response:
    """Give a browser a cookie in exchange for a token."""
    access: Access = request.app.state.server.access
    token = from_body(await request.body(), _TOKEN)["token"]
    value = await anyio.to_thread.run_sync(access.session, token)
    if value is None:
        await anyio.to_thread.run_sync(access.count_failure, request.scope)
        raise Refused(401, "this token is unknown; create one with: memory tokens create")
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
    server: ServerState = request.app.state.server
    await anyio.to_thread.run_sync(
        server.access.end_session, request.scope, limiter=server.limits["sign"]
    )
    answer = json_response({"ok": True})
    answer.delete_cookie(server.access.cookie, path="/", httponly=True, samesite="strict")
    return answer


async def _nowhere(request: Request, _: Exception) -> Response:
    methods = allowed_methods(request)
    if not methods:
        return problem(404, "there is nothing at this path; see /openapi.json for all routes")
    detail = f"{request.method} is not supported for this path; see /openapi.json for all routes"
    return problem(405, detail, None, allow=", ".join(methods))
