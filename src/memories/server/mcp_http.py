"""MCP over HTTP at `/mcp`: the tools of `memory mcp`, run for the sender of each request.

Importing the SDK takes half a second. A thread does it, while the server answers all other
requests.
"""

import asyncio
import contextlib
import functools
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memories.memories import Memories
from memories.server.api.access import Principal
from memories.server.api.problems import Refused, failed
from memories.server.api.server import Server

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

PATH = "/mcp"
_logger = logging.getLogger(__name__)


class _Caller(NamedTuple):
    """A call's sender, and the memory that the tool uses."""

    who: Principal
    namespace: str
    memories: Memories


_caller: ContextVar[_Caller] = ContextVar("caller")


def _application(*, read_only: bool) -> tuple[ASGIApp, Any]:
    """Return the SDK's application and its session manager; this imports the SDK."""
    from mcp.server.transport_security import TransportSecuritySettings

    from memories.mcp.server import serve_tools
    from memories.mcp.tools import Tools

    class TokenTools(Tools):
        """The tools; each call uses the memory that belongs to its token."""

        def __init__(self) -> None:
            """Initialize without a memory, which each call provides."""
            # The calls come from several clients, so no search is remembered.
            super().__init__(
                lambda: _caller.get().memories, lambda _: (self.memories, ""), max_seen=0
            )

        def _written_by(self, caller: "Context[Any, Any]") -> Memories:
            """Return the memory, with the token or the client as the writer."""
            sender, client = _caller.get(), caller.session.client_params
            if client is None:
                return sender.memories
            name = client.client_info.name if sender.who.id == "owner" else sender.who.name
            return sender.memories.of_client(name, client.client_info.version)

    server = serve_tools(TokenTools(), read_only=read_only)
    # The guard has already checked host and origin against the names of this server.
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

    def __init__(self, server: Server) -> None:
        """Initialize; the SDK is imported by `run`."""
        self._server = server
        self._apps: dict[bool, ASGIApp] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Load the SDK, then serve until `stop` is set."""
        try:
            async with contextlib.AsyncExitStack() as running:
                for read_only in (False, True):
                    make = functools.partial(_application, read_only=read_only)
                    app, manager = await anyio.to_thread.run_sync(make)
                    await running.enter_async_context(manager.run())
                    self._apps[read_only] = app
                await stop.wait()
        finally:
            self._apps.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            caller = await anyio.to_thread.run_sync(
                self._authorize, scope, limiter=self._server.limits["sign"]
            )
            app = self._apps.get(caller.who.level(caller.namespace) < 2)
            if app is None:
                raise Refused(503, "MCP is still loading; try again in a second", retry_after="1")
            if scope["method"] == "POST":
                receive = await _buffer_body(receive)
            kind = "stream" if scope["method"] == "GET" else "write"
            self._server.require_room(kind)
        except Exception as exc:  # noqa: BLE001 - every error becomes an answer
            await failed(exc)(scope, receive, send)
            return
        token = _caller.set(caller)
        try:
            async with self._server.limit(kind):
                await self._until_closing(app, scope, receive, send)
        finally:
            _caller.reset(token)

    async def _until_closing(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request; a stream ends when the server stops."""
        if scope["method"] != "GET":
            await app(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await self._server.closing.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            await app(scope, receive, send)
            tasks.cancel_scope.cancel()

    def _authorize(self, scope: Scope) -> _Caller:
        who = self._server.access.principal(scope)
        namespace = who.home(self._server.config.namespace)
        who.require("read", namespace)
        memories = self._server.handles.of(
            who, namespace, shared=who.level("shared") > 0, channel="mcp"
        )
        return _Caller(who, namespace, memories)


async def _buffer_body(receive: Receive) -> Receive:
    """Read the body now, so that a refusal is answered here; return a receiver that repeats it."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())

    async def receive_again() -> Message:
        return messages.pop(0) if messages else await receive()

    return receive_again
