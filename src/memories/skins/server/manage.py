"""What `memory serve` does beside serving: ask a server how it is, end it, and have the system start it."""

import json
import os
import plistlib
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memories.config import without_password
from memories.disk import make_folder, replacing
from memories.errors import ConfigError, SystemFault
from memories.settings import SETTINGS, Config
from memories.skins.warm.client import GREETING
from memories.skins.warm.place import is_ours, socket_of
from memories.stores import local_path

_SECONDS = 10.0
_SYSTEMD = """\
[Unit]
Description=Memories: {store}

[Service]
Type=notify
ExecStart={command}
{environment}Restart=on-failure
RestartSec=2
KillSignal=SIGTERM
TimeoutStopSec=10
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folders}
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
MemoryMax=1G

[Install]
WantedBy=default.target
"""


class Unit(NamedTuple):
    """What makes the system start a server.

    Attributes:
        path: The file.
        text: What is in it.
        start: The commands that have the system read it and start the server.
        stop: Those that have it forget the server.
    """

    path: Path
    text: str
    start: Sequence[str]
    stop: Sequence[str]


def asked(config: Config, word: str) -> Mapping[str, Any] | None:
    """Tell the server of a store a word, `status` or `stop`; return what it says, None if there is none.

    Raises:
        SystemFault: It does not answer.
    """
    path = socket_of(config.store, os.environ)
    try:
        if not is_ours(path):
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(path)
            with connection.makefile("rwb") as stream:
                greeting = stream.readline().decode()
                stream.write(f"{word}\n".encode())
                stream.flush()
                told = stream.readline()
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as exc:
        raise SystemFault(f"the server does not answer: {exc.strerror or exc}; end its process") from exc
    if not greeting.startswith(GREETING) or not told:
        raise SystemFault("the server does not answer as this program does; end its process")
    said: Mapping[str, Any] = json.loads(told)
    return said


def install(config: Config, arguments: Sequence[str], *, dry_run: bool) -> Unit:
    """Write what makes the system start a server of a store when this user logs in; return it.

    Args:
        config: The settings; those of the environment are written into it, secrets and all, for this user to read.
        arguments: Of `memory serve`.
        dry_run: Write nothing.

    Raises:
        ConfigError: This system has none of the ways that are known.
    """
    unit = _unit(config, arguments)
    if not dry_run:
        make_folder(unit.path.parent)
        with replacing(unit.path) as file:
            file.write(unit.text.encode())
    return unit


def uninstall(config: Config) -> Unit | None:
    """Remove what `install` wrote; return it, or None if it is not there."""
    unit = _unit(config, ())
    if not unit.path.exists():
        return None
    unit.path.unlink()
    return unit


def _unit(config: Config, arguments: Sequence[str]) -> Unit:
    command = [sys.executable, "-P", "-m", "memories", "serve", "--store", config.store, *arguments]
    given = {each.variable: os.environ[each.variable] for each in SETTINGS if each.variable in os.environ}
    given |= {"MEMORY_HOME": str(config.home)} if "MEMORY_HOME" in given else {}
    name = Path(socket_of(config.store, os.environ)).stem
    if sys.platform == "darwin":
        return _launchd(f"memories.serve.{name}", command, given)
    if not sys.platform.startswith("linux"):
        raise ConfigError("--install knows systemd and launchd only; have your system run: memory serve")
    service = f"memories-{name}.service"
    base = Path(os.environ.get("XDG_CONFIG_HOME", "").strip() or Path.home() / ".config")
    places = {config.home, Path(socket_of(config.store, os.environ)).parent}
    file = local_path(config.store)
    if file is not None:
        places.add(file.parent)
    text = _SYSTEMD.format(
        store=without_password(config.store).replace("%", "%%"),
        command=" ".join(_quoted(word).replace("$", "$$") for word in command),  # only there is a $ special
        environment="".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in given.items()),
        folders=" ".join(_quoted(f"-{place}") for place in sorted(places)),
    )
    told = "systemctl --user"
    begin = (f"{told} daemon-reload", f"{told} enable --now {service}", "loginctl enable-linger  # to keep it running")
    end = (f"{told} disable --now {service}", f"{told} daemon-reload")
    return Unit(base / "systemd" / "user" / service, text, begin, end)


def _launchd(label: str, command: Sequence[str], environment: Mapping[str, str]) -> Unit:
    path = Path.home() / "Library" / "LaunchAgents" / f"{label}.plist"
    asked = {
        "Label": label,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Background",
        "Umask": 0o077,
    }
    target = f"gui/{os.getuid()}"
    begin = (f"launchctl bootstrap {target} {path}",)
    return Unit(path, plistlib.dumps(asked).decode(), begin, (f"launchctl bootout {target}/{label}",))


def _quoted(text: str) -> str:
    """Return a word as systemd reads it; see systemd.syntax(7)."""
    if any(sign in text for sign in "\n\r\0"):
        raise ConfigError("a setting has a line end, which a unit of systemd can't hold; put it into config.toml")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
