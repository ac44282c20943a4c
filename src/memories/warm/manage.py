"""Management of a running server by `memory serve`: its status, stopping it, old unit files."""

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.errors import SystemFault
from memories.settings import Config
from memories.warm.client import GREETING, is_ours, socket_of

_TIMEOUT_SECONDS = 10.0


class Unit(NamedTuple):
    """A file of systemd or launchd that starts a server.

    Attributes:
        path: The file.
        text: Its text.
        stop: The commands that unload it.
    """

    path: Path
    text: str
    stop: Sequence[str]


def stop_command_server(config: Config) -> bool:
    """Ask a server without HTTP to end; return whether there was one."""
    status = send(config, "status")
    if status is None or status.get("url"):
        return False
    send(config, "stop")
    return True


def send(config: Config, word: str) -> Mapping[str, Any] | None:
    """Send `status` or `stop` to the server of a store; return its answer, None without a server.

    Servers of earlier protocols understand both words.

    Raises:
        SystemFault: The server does not answer.
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
        raise SystemFault(f"the server does not answer: {reason}; end its process") from exc
    if not greeting.startswith(GREETING.partition(" ")[0]) or not line:
        raise SystemFault("the server does not answer as this program does; end its process")
    answer: Mapping[str, Any] = json.loads(line)
    return answer


def uninstall(config: Config) -> Unit | None:
    """Remove the unit that `memory serve --install` of an earlier version wrote for a store.

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
