"""Commands that start a long-running program: serve, mcp, chat.

Each command returns a request, and the entry point then starts the program. The programs are
optional and slow to import.
"""

import contextlib
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memories.cli.app import command, option
from memories.cli.options import (
    format_option,
    namespace_option,
    no_shared_option,
    store_option,
    whole_number_or,
    with_settings,
)
from memories.cli.output import emit, note, safe, table
from memories.errors import InvalidInput, SystemFault
from memories.guard.validate import shown
from memories.settings import Config
from memories.warm import GREETING, is_ours, socket_of

_PORT = "port must be a whole number from 0 to 65535"
_HOST_NAME = re.compile(r"\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9._-]{0,252}[a-z0-9])?")
_IDLE = "idle must be a whole number of minutes, 1 or more"


_TIMEOUT_SECONDS = 10.0  # how long to wait for a running server's response, or for its end
_POLL_SECONDS = 0.05


class StartServer(NamedTuple):
    """A request to start the server; see the server's `ServeOptions`."""

    config: Config
    options: Mapping[str, Any]


class StartMCP(NamedTuple):
    """A request to start the MCP server; see `mcp.stdio.serve`."""

    config: Config
    shared: bool
    read_only: bool


class StartChat(NamedTuple):
    """A request to start the chat; see the chat's `Settings`."""

    config: Config
    root: Path
    env_file: Path | None
    demo: bool
    live: bool


@command(
    epilog="memory serve\nmemory serve --no-http\n"
    "memory serve --host 0.0.0.0 --host-name memory.example.org\nmemory serve --status"
)
@option(
    "--host", metavar="ADDRESS", group="http", help="The address for HTTP. [default: 127.0.0.1]"
)
@option(
    "--port", metavar="N", parse=whole_number_or(_PORT), group="http",
    help="The port for HTTP. [default: 8765]",
)  # fmt: skip
@option(
    "--host-name", "names", metavar="NAME", multiple=True, group="http",
    help="A host name that browsers and proxies use for the server; may be repeated.",
)  # fmt: skip
@option("--no-http", is_flag=True, help="Only make commands faster, without opening a port.")
@option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate.")
@option("--tls-key", metavar="FILE", help="The certificate's key.")
@option(
    "--issuer", metavar="URL", group="http",
    help="Also accept tokens from this OAuth issuer, for MCP clients on other machines.",
)  # fmt: skip
@option(
    "--public-url", metavar="URL", group="http",
    help="The URL at which clients on other machines reach the server.",
)  # fmt: skip
@option(
    "--idle", metavar="MINUTES", parse=whole_number_or(_IDLE),
    help="Stop after this many minutes without a request. [default: never]",
)  # fmt: skip
@option(
    "--status", "action", flag_value="status", section="Manage",
    help="Show whether a server is running, and its state.",
)  # fmt: skip
@option("--stop", "action", flag_value="stop", section="Manage", help="Stop this store's server.")
@option(
    "--uninstall", "action", flag_value="uninstall", section="Manage",
    help="Remove the file that --install wrote in an earlier version.",
)  # fmt: skip
@option("--install", "action", flag_value="install", hidden=True, help="Explain what replaces it.")
@option("--dry-run", is_flag=True, hidden=True, help="Like --install, for old scripts.")
@with_settings(store_option, format_option)
def serve(
    config: Config,
    http: dict[str, Any],
    no_http: bool,
    tls_cert: str | None,
    tls_key: str | None,
    idle: int | None,
    action: str | None,
    dry_run: bool,
) -> StartServer | int:
    """Run a local server: faster commands, an HTTP API and a web page.

    While the server runs, memory commands use it over a socket that only you can open, and take
    only a few milliseconds; no setting is needed. The API, MCP and the page are on
    http://127.0.0.1:8765; see docs/server.md and docs/http.md. Stop the server with Ctrl-C or
    memory serve --stop.
    """
    _refuse_empty(http)
    _refuse_bad_url(http.get("public_url"))
    _refuse_bad_names(http.get("names", ()))
    if (tls_cert is None) != (tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key must be used together; give both")
    if no_http and (tls_cert or any(http.values())):
        raise InvalidInput(
            "--no-http can't be combined with the HTTP options; omit one or the other"
        )
    if dry_run or action == "install":
        raise InvalidInput(
            "serve --install was removed; docs/server.md has unit files for systemd and launchd"
        )
    if http.get("port", 0) > 65_535:
        raise InvalidInput(f'{_PORT}, not "{http["port"]}"')
    if idle == 0:
        raise InvalidInput(f'{_IDLE}, not "0"')
    if action is not None:
        return _manage(config, action)
    files = [file for file in (tls_cert, tls_key) if file is not None]
    tls = tuple(str(Path(file).expanduser().absolute()) for file in files)
    options = {**http, "http": not no_http, "tls": tls}
    if idle is not None:
        options["idle_seconds"] = idle * 60.0
    return StartServer(config, options)


def _refuse_empty(options: Mapping[str, Any]) -> None:
    """Refuse empty values: an empty address, for example, would mean all addresses."""
    for name, value in options.items():
        flag = "host-name" if name == "names" else name.replace("_", "-")
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and not text.strip():
                raise InvalidInput(f"--{flag} is empty; give it a value, or leave it out")


def _refuse_bad_url(public_url: str | None) -> None:
    """Refuse a public URL at which no client could reach the server."""
    from urllib.parse import urlsplit  # imported late; only `serve` needs it

    if public_url is None:
        return
    try:
        parts = urlsplit(public_url)
        is_usable = bool(parts.hostname) and parts.port != 0
        is_usable &= not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:  # invalid brackets or port
        is_usable = False
    if not is_usable or parts.scheme not in ("http", "https"):
        raise InvalidInput(
            "--public-url must be an http:// or https:// URL with a host, and without a user, a "
            "query or a fragment, such as https://memory.example.org, not "
            f'"{shown(public_url)}"'
        )


def _refuse_bad_names(names: Sequence[str]) -> None:
    """Refuse a host name that no client could send in its `Host` header."""
    for name in names:
        if not _HOST_NAME.fullmatch(name.lower()):
            raise InvalidInput(
                "--host-name must be a host name or an IP address, without a port or a path, such "
                f'as memory.example.org or [fd00::1], not "{shown(name)}"'
            )


@command(epilog="memory mcp --namespace bob\nclaude mcp add memories -- memoriae mcp")
@option("--read-only", is_flag=True, help="Leave out tools that write, and don't count reads.")
@with_settings(namespace_option, no_shared_option, store_option)
def mcp(config: Config, no_shared: bool, read_only: bool) -> StartMCP:
    """Serve an agent over MCP, on standard input and output.

    An MCP client starts this command; docs/mcp.md shows how to configure one.
    """
    return StartMCP(config, not no_shared, read_only)


@command(
    epilog="memory chat\nmemory chat --demo\necho 'What is my name?' | memory chat --root ~/talks"
)
@option(
    "--root", metavar="FOLDER",
    help="The folder whose data and .env are used. [default: the working folder]",
)  # fmt: skip
@option("--env-file", metavar="PATH", help="A file to read instead of the root's .env.")
@option(
    "--demo", is_flag=True,
    help="Show three conversations with a fake model, and check them.",
)  # fmt: skip
@option("--live", is_flag=True, help="With --demo: use the real model, which needs a key.")
@with_settings()
def chat(
    config: Config, root: str | None, env_file: str | None, demo: bool, live: bool
) -> StartChat:
    """Talk to an agent that remembers you.

    Needs MOONSHOT_API_KEY. MEMCLI_USER_ID chooses the user whose memory is used; MEMCLI_THREAD_ID
    chooses the session. Reads lines from the terminal or from a pipe. See docs/chat.md.
    """
    if live and not demo:
        raise InvalidInput("--live requires --demo; to talk to the real model, omit --live")
    folder = Path(root).expanduser() if root is not None else Path.cwd()
    file = None if env_file is None else Path(env_file).expanduser()
    return StartChat(config, folder, file, demo, live)


# --- a running server ---


class Unit(NamedTuple):
    """A systemd or launchd file that starts a server.

    Attributes:
        path: The file.
        text: Its text.
        stop: The commands that unload the file.
    """

    path: Path
    text: str
    stop: Sequence[str]


def stop_command_server(config: Config) -> bool:
    """Ask the command server, which doesn't serve HTTP, to stop; return whether it was running."""
    status = send(config, "status")
    if status is None or status.get("url"):
        return False
    send(config, "stop")
    return True


def send(config: Config, word: str) -> Mapping[str, Any] | None:
    """Send `status` or `stop` to a store's server; return its response, or None if no server is
    running.

    Servers with earlier protocols also understand both words.

    Raises:
        SystemFault: The server does not respond.
    """
    path = socket_of(config.store, os.environ)
    try:
        if not is_ours(path):
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(path)
            with connection.makefile("rwb") as stream:
                greeting = stream.readline().decode()
                stream.write(f"{word}\n".encode())
                stream.flush()
                line = stream.readline()
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as exc:
        reason = exc.strerror or exc
        raise SystemFault(f"the server does not answer: {reason}; stop its process") from exc
    if not greeting.startswith(GREETING.partition(" ")[0]) or not line:
        raise SystemFault(
            "the server does not speak this program's protocol; stop the server's process"
        )
    answer: Mapping[str, Any] = json.loads(line)
    return answer


def _wait_for_end(config: Config, process: int) -> bool:
    """Wait for a stopping server to end; return whether it did."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(SystemFault):  # the connection may be cut while the server ends
            status = send(config, "status")
            if status is None or status.get("process") != process:
                return True
        time.sleep(_POLL_SECONDS)
    return False


def uninstall(config: Config) -> Unit | None:
    """Remove the unit that an earlier version's `memory serve --install` wrote for a store.

    Returns:
        The removed unit; None if there is none.

    Raises:
        SystemFault: The file can't be read or removed.
    """
    name = Path(socket_of(config.store, os.environ)).stem
    if sys.platform == "darwin":
        label = f"memories.serve.{name}"
        path = Path.home() / "Library" / "LaunchAgents" / f"{label}.plist"
        stop = [f"launchctl bootout gui/{os.getuid()}/{label}"]
    else:
        service = f"memories-{name}.service"
        base = Path(os.environ.get("XDG_CONFIG_HOME", "").strip() or Path.home() / ".config")
        path = base / "systemd" / "user" / service
        stop = [f"systemctl --user disable --now {service}", "systemctl --user daemon-reload"]
    try:
        text = path.read_text(errors="replace")
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SystemFault(f"cannot remove {path}: {exc.strerror or exc}") from exc
    return Unit(path, text, stop)


def _manage(config: Config, action: str) -> int:
    """Show or stop a running server, or remove what `serve --install` wrote."""
    if action == "uninstall":
        unit = uninstall(config)
        if unit is None:
            note("No server is installed.")
            return 1
        text = "\n  ".join([f"Removed {unit.path}.\nNow run:", *unit.stop])
        shape = {"file": str(unit.path), "done": "removed", "text": unit.text}
        emit({**shape, "commands": unit.stop}, text)
        return 0
    status = send(config, action) or {"running": False}
    if action == "stop":
        process = status.get("process")  # servers of earlier versions don't report it
        has_ended = process is None or _wait_for_end(config, process)
        status = {**status, "running": not has_ended, "stopped": status["running"] and has_ended}
        done = "Stopped" if has_ended else "Told to stop, but still running:"
        stopped = f"{done} process {process} of {status.get('store')}."
        emit(status, "No server was running." if process is None else safe(stopped))
        return 0 if has_ended else 1
    emit(status, partial(_describe_server, status))
    return 0 if status["running"] else 1


def _describe_server(status: Mapping[str, Any]) -> str:
    rows = {name: str(value) for name, value in status.items() if value is not None}
    minutes, seconds = divmod(int(rows.pop("seconds", 0)), 60)
    rows["running"] = f"for {minutes} min {seconds} s" if status["running"] else "no"
    return table((name.replace("_", " "), safe(value)) for name, value in rows.items())


COMMANDS = (serve, mcp, chat)
