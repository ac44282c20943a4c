"""Commands that ask for a server: mcp. The front door starts it, since no skin knows another."""

from typing import NamedTuple

from memories.config import Config
from memories.skins.cli.options import command, namespace_option, no_shared_option, option, store_option, with_settings


class ServeMCP(NamedTuple):
    """What is asked of the MCP server; see its `serve`."""

    config: Config
    shared: bool
    read_only: bool


@command(epilog="memory mcp --namespace bob\nclaude mcp add memories -- memory mcp")
@option("--read-only", is_flag=True, help="Offer only tools that read, and do not count reads.")
@with_settings(namespace_option, no_shared_option, store_option)
def mcp(config: Config, no_shared: bool, read_only: bool) -> ServeMCP:
    """Serve an agent over MCP, on standard input and output.

    An MCP client starts this command; docs/mcp.md shows how to configure one.
    """
    return ServeMCP(config, not no_shared, read_only)


COMMANDS = (mcp,)
