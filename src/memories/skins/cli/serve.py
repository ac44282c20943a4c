"""Commands that serve others until they leave: mcp."""

import gc
import signal
import sys

import click

from memories.errors import ConfigError
from memories.skins.cli.options import namespace_option, store_option
from memories.skins.cli.session import note, settings

REQUIREMENT = "mcp>=2.2,<3"  # the extra `server`


@click.command(epilog="Example: memory mcp --namespace bob; a client starts it, see docs/mcp.md")
@namespace_option
@click.option("--no-shared", is_flag=True, help="Leave out the shared pool.")
@store_option
@click.option("--read-only", is_flag=True, help="Offer only tools that read, and count no reads.")
def mcp(namespace: str | None, no_shared: bool, store: str | None, read_only: bool) -> None:
    """Serve an agent over MCP, on standard input and output."""
    config = settings(None, namespace, store)
    gc.disable()  # the SDK makes many objects that stay: without looking through them it is there 70 ms earlier
    try:
        from memories.skins.mcp.stdio import serve
    except ImportError as exc:
        if (exc.name or "").split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ConfigError(f"the MCP SDK is missing; run: {sys.executable} -m pip install '{REQUIREMENT}'") from exc
    gc.freeze()
    gc.enable()
    if sys.stdin.isatty():
        note("This speaks MCP: a client starts it and writes to it. Ctrl-D ends it.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the SDK would wait for another line first; nothing is lost by that
    serve(config, shared=not no_shared, read_only=read_only)


COMMANDS = (mcp,)
