"""Starting a server from systemd or launchd: the units in the docs, and those that an earlier
version wrote.
"""

import configparser
import os
import plistlib
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from memories import load_config
from memories.cli import serve as manage
from memories.config import registers
from memories.server import sockets

CRC = "fe2468b5"  # hash of the store's URL in the unit's name


def unit(text: str) -> configparser.ConfigParser:
    """Parse a systemd unit."""
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


def block_of_the_docs(language: str) -> str:
    """Return the code block in a language from docs/server.md."""
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    [block] = re.findall(rf"```{language}\n(.*?)```", page, re.S)
    return str(block)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The home of a user whose `memory` command prints its arguments."""
    for variable in ("MEMORY_HOME", "MEMORY_STORE", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / ".local" / "bin" / "memory"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s " "$0" "$@"\n')
    program.chmod(0o700)
    return tmp_path


def test_the_systemd_unit_in_the_docs_starts_the_server_and_grants_its_folders(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    service = unit(block_of_the_docs("ini").replace("%h", str(user)))["Service"]
    assert subprocess.check_output(
        shlex.split(service["ExecStart"]), text=True, timeout=60
    ).split()[1:] == ["serve"]
    assert (service["Type"], service["UMask"], service["NoNewPrivileges"]) == (
        "notify",
        "0077",
        "yes",
    )
    writable = [Path(folder.removeprefix("-")) for folder in service["ReadWritePaths"].split()]
    assert {load_config().home, registers()} <= set(writable)


def test_the_plist_in_the_docs_starts_the_server(user: Path) -> None:
    agent = plistlib.loads(block_of_the_docs("xml").encode())
    program = user / ".local" / "bin" / "memory"
    assert subprocess.check_output(agent["ProgramArguments"], text=True, timeout=60).split() == [
        str(program),
        "serve",
    ]
    assert (agent["Umask"], agent["RunAtLoad"], agent["KeepAlive"]) == (
        0o77,
        True,
        {"SuccessfulExit": False},
    )


@pytest.mark.parametrize(
    ("system", "file", "stop"),
    [
        (
            "linux",
            ".config/systemd/user/memories-CRC.service",
            "systemctl --user disable --now memories-CRC.service",
        ),
        (
            "darwin",
            "Library/LaunchAgents/memories.serve.CRC.plist",
            "launchctl bootout gui/UID/memories.serve.CRC",
        ),
    ],
)
def test_the_systemd_unit_from_an_earlier_version_is_removed(
    user: Path, monkeypatch: pytest.MonkeyPatch, system: str, file: str, stop: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    config = load_config({"store": "sqlite:////nowhere/m.db"})
    assert manage.uninstall(config) is None
    installed = user / file.replace("CRC", CRC)
    other = installed.with_name(installed.name.replace(CRC, "00000000"))
    installed.parent.mkdir(parents=True)
    installed.write_text("text")
    other.write_text("of another store")
    removed = manage.uninstall(config)
    assert removed is not None
    assert (removed.path, removed.text) == (installed, "text")
    assert removed.stop[0] == stop.replace("CRC", CRC).replace("UID", str(os.getuid()))
    assert list(installed.parent.iterdir()) == [other]


@pytest.mark.first(1)
@pytest.mark.parametrize("abstract", [False, True])
def test_the_server_notifies_systemd_when_it_is_ready(
    abstract: bool, clean_environment: Mapping[str, str], tmp_path: Path
) -> None:
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0{tmp_path}" if abstract else name)
        told.settimeout(100)
        environment = {**clean_environment, "NOTIFY_SOCKET": name, "XDG_RUNTIME_DIR": str(tmp_path)}
        command = [sys.executable, "-P", "-m", "memories", "serve", "--no-http"]
        server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert told.recv(100) == b"READY=1"
            server.terminate()
            assert told.recv(100) == b"STOPPING=1"
            assert server.wait(100) == 0
        finally:
            server.kill()
            server.wait(60)


def test_a_socket_of_another_process_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert sockets.socket_from_systemd() is None
