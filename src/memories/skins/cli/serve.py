"""Commands that serve others until they leave: mcp."""

import gc
import sys

from memories.errors import ConfigError
from memories.skins.cli.options import command, namespace_option, no_shared_option, option, store_option
from memories.skins.cli.output import note
from memories.skins.cli.session import settings

REQUIREMENT = "mcp>=2.2,<3"  # the extra `server`


@command(epilog="memory mcp --namespace bob\nclaude mcp add memories -- memory mcp")
@option("--read-only", is_flag=True, help="Offer only tools that read, and do not count reads.")
@namespace_option
@no_shared_option
@store_option
def mcp(namespace: str | None, no_shared: bool, store: str | None, read_only: bool) -> None:
    """Serve an agent over MCP, on standard input and output.

    An MCP client starts this command; docs/mcp.md shows how to configure one.
    """
    import signal

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
        note("This command speaks MCP; a client should start it. Press Ctrl-D to end it.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the SDK would wait for another line first; nothing is lost by that
    serve(config, shared=not no_shared, read_only=read_only)


COMMANDS = (mcp,)
