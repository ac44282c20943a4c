"""Commands that ask for another skin: mcp, chat. The front door starts it, since no skin knows another."""

from pathlib import Path
from typing import NamedTuple

from memories.errors import InvalidInput
from memories.settings import Config
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


class StartChat(NamedTuple):
    """What is asked of the chat; see its `Settings`."""

    config: Config
    root: Path
    env_file: Path | None
    demo: bool
    live: bool


@command(epilog="memory chat\nmemory chat --demo\necho 'What is my name?' | memory chat --root ~/talks")
@option("--root", metavar="FOLDER", help="Folder whose data and .env are used. [default: the working folder]")
@option("--env-file", metavar="PATH", help="Read this file instead of the .env of the root.")
@option("--demo", is_flag=True, help="Show three conversations with a stand-in for the model, and check them.")
@option("--live", is_flag=True, help="With --demo: with the real model, for which a key is needed.")
@with_settings()
def chat(config: Config, root: str | None, env_file: str | None, demo: bool, live: bool) -> StartChat:
    """Talk to an agent that remembers you.

    Needs MOONSHOT_API_KEY. MEMCLI_USER_ID and MEMCLI_THREAD_ID choose whose memory and which session; docs/chat.md
    tells the rest. Lines come from the terminal or from a pipe.
    """
    if live and not demo:
        raise InvalidInput("--live belongs to --demo; for a conversation leave it out")
    folder = Path(root).expanduser() if root is not None else Path.cwd()
    return StartChat(config, folder, None if env_file is None else Path(env_file).expanduser(), demo, live)


COMMANDS = (mcp, chat)
