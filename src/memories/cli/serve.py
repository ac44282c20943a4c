"""Commands that start a long-running program: serve, mcp, chat. The entry point starts it, by its
name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memories.cli.options import (
    command,
    format_option,
    namespace_option,
    no_shared_option,
    option,
    store_option,
    whole_number,
    with_settings,
)
from memories.errors import InvalidInput
from memories.settings import Config


class Serve(NamedTuple):
    """What is asked of the server; see its `Asked`."""

    config: Config
    asked: Mapping[str, Any]


@command(
    epilog="memory serve\nmemory serve --no-http\nmemory serve --host 0.0.0.0 --host-name memory.example.org\n"
    "memory serve --status"
)
@option("--host", metavar="ADDRESS", help="Where HTTP is served. [default: 127.0.0.1]")
@option("--port", metavar="N", help="Port of HTTP. [default: 8765]")
@option(
    "--host-name", "names", metavar="NAME", multiple=True,
    help="A name under which browsers and proxies ask for it; may be repeated.",
)  # fmt: skip
@option("--no-http", is_flag=True, help="Only make the command fast; listen on no port.")
@option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate.")
@option("--tls-key", metavar="FILE", help="The key of the certificate.")
@option(
    "--issuer",
    metavar="URL",
    help="Accept tokens of this OAuth issuer too, for MCP clients elsewhere.",
)
@option("--public-url", metavar="URL", help="The URL under which clients elsewhere reach it.")
@option(
    "--idle", metavar="MINUTES", help="End when nothing was asked for so long. [default: never]"
)
@option(
    "--status",
    "how",
    flag_value="status",
    section="Manage",
    help="Show whether a server runs, and how it does.",
)
@option("--stop", "how", flag_value="stop", section="Manage", help="End the server of this store.")
@option(
    "--uninstall", "how", flag_value="uninstall", section="Manage",
    help="Remove what --install of an earlier version wrote.",
)  # fmt: skip
@option(
    "--install",
    "how",
    flag_value="install",
    hidden=True,
    help="Answer where docs have a unit to copy.",
)
@option("--dry-run", is_flag=True, hidden=True, help="The same; it belonged to --install.")
@with_settings(store_option, format_option)
def serve(
    config: Config,
    host: str | None,
    port: str | None,
    names: tuple[str, ...],
    no_http: bool,
    tls_cert: str | None,
    tls_key: str | None,
    issuer: str | None,
    public_url: str | None,
    idle: str | None,
    how: str | None,
    dry_run: bool,
) -> "Serve | Manage":
    """Make the command fast, and serve programs over HTTP.

    While it runs, memory commands ask it over a socket that only you can open, which takes them a
    few milliseconds; no setting is needed. The API, MCP and the page are on http://127.0.0.1:8765;
    see docs/server.md and docs/http.md. It ends by Ctrl-C or memory serve --stop.
    """
    if (tls_cert is None) != (tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key go together; give both")
    if no_http and (host or port or names or tls_cert or issuer or public_url):
        raise InvalidInput("--no-http goes with no option of HTTP; leave out one or the other")
    if dry_run or how == "install":
        raise InvalidInput(
            "serve --install is gone: docs/server.md has units for systemd and launchd to copy"
        )
    whole = whole_number(port, "port must be a whole number from 0 to 65535")
    minutes = whole_number(idle, "idle must be a whole number of minutes from 1")
    if (whole or 0) > 65_535 or minutes == 0:
        raise InvalidInput("port must be at most 65535, and idle at least 1 minute")
    files = [
        str(Path(file).expanduser().absolute()) for file in (tls_cert, tls_key) if file is not None
    ]
    if how is not None:
        return Manage(config, how)
    asked: dict[str, Any] = {
        "host": host,
        "port": whole,
        "http": not no_http,
        "names": names,
        "tls": tuple(files),
    }
    asked |= {
        "issuer": issuer,
        "public_url": public_url,
        "idle_seconds": None if minutes is None else minutes * 60.0,
    }
    return Serve(config, {name: value for name, value in asked.items() if value is not None})


class Manage(NamedTuple):
    """What is asked about a server; see its `manage`."""

    config: Config
    how: str


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


@command(
    epilog="memory chat\nmemory chat --demo\necho 'What is my name?' | memory chat --root ~/talks"
)
@option(
    "--root",
    metavar="FOLDER",
    help="Folder whose data and .env are used. [default: the working folder]",
)
@option("--env-file", metavar="PATH", help="Read this file instead of the .env of the root.")
@option(
    "--demo",
    is_flag=True,
    help="Show three conversations with a stand-in for the model, and check them.",
)
@option("--live", is_flag=True, help="With --demo: with the real model, for which a key is needed.")
@with_settings()
def chat(
    config: Config, root: str | None, env_file: str | None, demo: bool, live: bool
) -> StartChat:
    """Talk to an agent that remembers you.

    Needs MOONSHOT_API_KEY. MEMCLI_USER_ID and MEMCLI_THREAD_ID choose whose memory and which
    session; docs/chat.md tells the rest. Lines come from the terminal or from a pipe.
    """
    if live and not demo:
        raise InvalidInput("--live belongs to --demo; for a conversation leave it out")
    folder = Path(root).expanduser() if root is not None else Path.cwd()
    return StartChat(
        config, folder, None if env_file is None else Path(env_file).expanduser(), demo, live
    )


COMMANDS = (serve, mcp, chat)
