"""How `memory mcp` runs: over standard input and output, with a model that loads while words answer."""

import json
import logging
import os
import re
import sys
import threading
import time
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp_types import jsonrpc_message_adapter

from memories.config import Config
from memories.embedders import Embedder, open_embedder
from memories.errors import EmbedderError, InvalidInput
from memories.service import Memories
from memories.skins.mcp.server import UNREADABLE, server
from memories.validate import read_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE = 0.5  # seconds that a question waits for the model, which mostly needs less, before words answer it
AGAIN_SECONDS = 60.0  # after which a model that could not be loaded is tried again
LEAVING_SECONDS = 10.0  # that calls still have when the client says no more
STILL_LOADING = "found by words only, the model is loading; ask again in a second to search by meaning too"
NOT_LOADED = "found by words only: {}"

_LONE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\)\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_DEEP = 100  # brackets in a line, from which it is looked at whether the SDK can read it
_logger = logging.getLogger(__name__)


def serve(config: Config, *, shared: bool = True, read_only: bool = False) -> None:
    """Serve one client until it leaves."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="memory mcp: %(message)s")
    if config.sources["store"] == ".env":
        _logger.warning("the store is the one that .env in the working folder names")
    if read_only:
        config = config._replace(count_accesses=False, reinforce_on_retrieval=False)
    embedder = open_embedder(config.embedder, config)
    with (
        Memories(config=config, shared=shared, embedder=embedder, channel="mcp") as memories,
        Memories(config=config, shared=shared, embedder="none", channel="mcp") as words,
    ):
        built = server(memories, Loading(memories, words, embedder).ready, read_only=read_only)
        failures: list[OSError] = []
        try:
            anyio.run(_run, built)  # also if it fails, after the calls that have begun
        except* BrokenPipeError:
            pass  # the client has left
        except* OSError as exc:
            failures = [each for each in exc.exceptions if isinstance(each, OSError)]
    for failure in failures:
        raise failure  # an answer could not be written: one sentence, as for any command


class Loading:
    """A model that loads in the background."""

    def __init__(self, memories: Memories, words: Memories, embedder: Embedder | None) -> None:
        """Begin to load.

        Args:
            memories: Searches with the model.
            words: Searches the same store without it.
            embedder: The model.
        """
        self._memories, self._words, self._embedder = memories, words, embedder
        self._done = threading.Event()
        self._failure = ""
        self._again_at = 0.0
        self._begin()

    def ready(self) -> tuple[Memories, str]:
        """Return what can search now, and what a model should know of that."""
        if not self._done.wait(PATIENCE):
            return self._words, STILL_LOADING
        if not self._failure:
            return self._memories, ""
        if time.monotonic() > self._again_at:
            self._begin()
        return self._words, NOT_LOADED.format(self._failure)

    def _begin(self) -> None:
        self._again_at = time.monotonic() + AGAIN_SECONDS
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        try:
            if self._embedder is not None:
                self._embedder.embed("ready")
            self._failure = ""
        except EmbedderError as exc:
            self._failure = str(exc)
            _logger.warning("%s", exc)
        finally:
            self._done.set()


async def _run(built: MCPServer) -> None:
    given = anyio.wrap_file(TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace"))
    async with stdio_server(stdin=lines(given)) as (read, write):  # type: ignore[arg-type]
        inner = built._lowlevel_server  # as `MCPServer.run` does
        await inner.run(read, write, inner.create_initialization_options())


async def lines(given: "AsyncIterator[str]") -> "AsyncIterator[str]":
    """Yield the lines that a client writes; a request that the SDK would drop is made one that is refused.

    The SDK answers nothing to JSON that holds half a character or is nested very deep, and the client would wait.
    """
    async for line in given:
        yield answerable(line)
    # The process ends soon even if a call still waits, for a lock say: nobody waits for its answer any more.
    timer = threading.Timer(LEAVING_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def answerable(line: str) -> str:
    """Return a line as it is if the SDK can read it, else a call of the same tool that says what is wrong."""
    try:
        read_json(line)
    except InvalidInput as exc:
        if not isinstance(exc.__cause__, ValueError):  # it is JSON, with a key twice or a number that is none
            return _refusable(line, f"the request {exc}")
    if not _LONE.search(line) and line.count("[") + line.count("{") < _DEEP:
        return line
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        half = "the arguments hold half a character (a lone surrogate); send valid Unicode"
        return _refusable(line, half if _LONE.search(line) else "the arguments are nested too deep; send flat text")
    return line


def _refusable(line: str, reason: str) -> str:
    try:
        given: Any = json.loads(_LONE.sub("\\\\ufffd", line))
        known = {name: given["params"][name] for name in ("name", "_meta") if name in given["params"]}
        return json.dumps({**given, "params": {**known, "arguments": {UNREADABLE: reason}}})
    except (ValueError, TypeError, KeyError, RecursionError):
        return line  # no request: the SDK logs it
