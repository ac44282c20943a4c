"""MCP over HTTP at `/mcp`: the tools of `memory mcp`, for whoever the token of a request stands for.

The SDK takes half a second to import: that is done in a thread while the server answers everything else already.
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
    """Who calls a tool, and the memory that it works on."""

    who: Principal
    namespace: str
    memories: Memories


_caller: ContextVar[_Caller] = ContextVar("caller")


def _application(*, read_only: bool) -> tuple[ASGIApp, Any]:
    """Return the SDK's application and what runs it; this imports the SDK."""
    from mcp.server.transport_security import TransportSecuritySettings

    from memories.mcp.server import serving
    from memories.mcp.tools import Tools

    class TokenTools(Tools):
        """The tools, each call on the memory of the token that came with it."""

        def __init__(self) -> None:
            """Prepare; there is no memory before a call."""
            self.ready = lambda _: (self.memories, "")

        @property
        def memories(self) -> Memories:  # type: ignore[override]
            """The memory of this call."""
            return _caller.get().memories

        def _written_by(self, caller: "Context[Any, Any]") -> Memories:
            """Return the memory as the client writes to it, and the token that it shows."""
            found, told = _caller.get(), caller.session.client_params
            if told is None:
                return found.memories
            name = found.who.name if found.who.id != "owner" else told.client_info.name
            return found.memories.of_client(name, told.client_info.version)

    built = serving(TokenTools(), read_only=read_only)
    # The guard checks host and origin before this, with the names that this server answers to.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = built.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, json_response=True, transport_security=unchecked
    )
    return app, built.session_manager


class McpOverHttp:
    """Serves `/mcp`; see `run`."""

    def __init__(self, server: Server) -> None:
        """Prepare; nothing is imported yet."""
        self._server = server
        self._apps: dict[bool, ASGIApp] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Load the SDK, then serve until told to stop."""
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
            caller = await anyio.to_thread.run_sync(self._called, scope, limiter=self._server.limits["sign"])
            app = self._apps.get(caller.who.level(caller.namespace) < 2)
            if app is None:
                raise Refused(503, "MCP is being loaded; try again in a second", headers={"retry-after": "1"})
            if scope["method"] == "POST":
                receive = await _read(receive)
            self._server.require_room(kind := "stream" if scope["method"] == "GET" else "write")
        except Exception as exc:  # noqa: BLE001 - every error becomes an answer
            await failed(exc)(scope, receive, send)
            return
        token = _caller.set(caller)
        try:
            async with self._server.limit(kind):
                await self._until_closing(app, scope, receive, send)
        finally:
            _caller.reset(token)

    async def _until_closing(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; one that would stay open for good ends when the server does."""
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

    def _called(self, scope: Scope) -> _Caller:
        who = self._server.access.principal(scope)
        namespace = who.home(self._server.config.namespace)
        who.require("read", namespace)
        memories = self._server.handles.of(who, namespace, shared=who.level("shared") > 0, channel="mcp")
        return _Caller(who, namespace, memories)


async def _read(receive: Receive) -> Receive:
    """Read a body, so that one that is refused is answered here; return what gives it once more."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again
