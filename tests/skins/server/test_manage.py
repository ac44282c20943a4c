"""What makes the system start a server: a unit of systemd, a plist of launchd."""

import configparser
import os
import plistlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from memories import ConfigError, load_config
from memories.skins.server import manage, watch


def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "systemd" / "user"


def test_a_unit_of_systemd_is_written_for_the_owner_alone(linux: Path) -> None:
    config = load_config()
    shown = manage.install(config, ["--port", "9000"], dry_run=True)
    assert not linux.exists()
    written = manage.install(config, ["--port", "9000"], dry_run=False)
    assert written == shown
    assert written.path.parent == linux
    assert written.path.read_text() == written.text
    assert written.path.stat().st_mode & 0o777 == 0o600
    service = unit(written.text)["Service"]
    expected = [sys.executable, "-P", "-m", "memories", "serve", "--store", config.store, "--port", "9000"]
    assert shlex.split(service["ExecStart"]) == expected
    assert (service["Type"], service["UMask"], service["NoNewPrivileges"]) == ("notify", "0077", "yes")
    assert f'"-{config.home}"' in service["ReadWritePaths"]
    assert any(command.endswith(f"enable --now {written.path.name}") for command in written.start)
    removed = manage.uninstall(config)
    assert removed is not None
    assert not written.path.exists()
    assert manage.uninstall(config) is None


def test_what_systemd_would_read_otherwise_is_escaped(linux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", 'a "quoted" $HOME %h back\\slash')
    text = manage.install(load_config(), [], dry_run=True).text
    assert r'Environment="OPENAI_API_KEY=a \"quoted\" $HOME %%h back\\slash"' in text


def test_a_setting_with_a_line_end_makes_no_second_line(linux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key\nExecStartPre=/bin/evil")
    with pytest.raises(ConfigError, match="line end"):
        manage.install(load_config(), [], dry_run=False)
    assert not linux.exists()


def test_each_store_has_a_unit_of_its_own(linux: Path, tmp_path: Path) -> None:
    one, other = (load_config({"store": f"sqlite:///{tmp_path}/{name}.db"}) for name in ("one", "other"))
    assert manage.install(one, [], dry_run=True).path != manage.install(other, [], dry_run=True).path


def test_a_plist_of_launchd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("OPENAI_API_KEY", "ann & ben")
    written = manage.install(load_config(), ["--no-http"], dry_run=False)
    told = plistlib.loads(written.path.read_bytes())
    assert told["ProgramArguments"][:5] == [sys.executable, "-P", "-m", "memories", "serve"]
    assert told["ProgramArguments"][-1] == "--no-http"
    assert (told["Umask"], told["RunAtLoad"], told["KeepAlive"]) == (63, True, {"SuccessfulExit": False})
    assert told["EnvironmentVariables"]["OPENAI_API_KEY"] == "ann & ben"
    assert written.path.parent == Path.home() / "Library" / "LaunchAgents"


def test_other_systems_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(ConfigError, match="systemd and launchd"):
        manage.install(load_config(), [], dry_run=True)


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_the_server_is_ready(
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
    assert watch.activated() is None
