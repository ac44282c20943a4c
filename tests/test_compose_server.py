"""Dockerfile and docker-compose.server.yml, as far as they can be checked without Docker."""

import re
from pathlib import Path
from typing import Any

import yaml

from memories.cli.serve import serve
from memories.settings import SETTINGS

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load(
    (ROOT / "docker-compose.server.yml").read_text(encoding="utf-8")
)
SERVER = COMPOSE["services"]["memories"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_server_runs_without_privileges() -> None:
    lines = DOCKERFILE.splitlines()
    assert lines.index("USER memory") < next(
        at for at, line in enumerate(lines) if line.startswith("ENTRYPOINT")
    )
    assert (SERVER["read_only"], SERVER["cap_drop"]) == (True, ["ALL"])
    assert SERVER["security_opt"] == ["no-new-privileges:true"]


def test_its_command_uses_only_options_that_exist() -> None:
    [command] = re.findall(r'^CMD \["serve", (.*)\]$', DOCKERFILE, re.M)
    given = [word for word in re.findall(r'"([^"]*)"', command) if word.startswith("--")]
    assert set(given) <= {name for option in serve.params for name in option.opts}


def test_no_port_is_open_to_other_machines() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:${MEMORIES_PORT:-8765}:8765"]


def test_the_file_contains_no_password_and_requires_one() -> None:
    text = (ROOT / "docker-compose.server.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{POSTGRES_PASSWORD[^}]*\}", text)) == {
        "${POSTGRES_PASSWORD:?set a password}"
    }
    assert "@database" in SERVER["environment"]["MEMORY_STORE"]


def test_its_environment_contains_only_settings() -> None:
    known = {setting.variable for setting in SETTINGS} | {"PGPASSWORD"}
    assert set(SERVER["environment"]) <= known
    assert {
        name: list(service.get("volumes", ())) for name, service in COMPOSE["services"].items()
    } == {
        "database": ["database:/var/lib/postgresql/data"],
        "memories": ["tokens:/data"],
    }
