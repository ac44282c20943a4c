"""docker-compose.yml, as far as it can be checked without Docker, and agent-app as a real
process.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from memories import load_config

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
APP = ROOT / "agent-app" / "src" / "app.py"

# Section 2.5 of the specification.
VARIABLES = {
    "chroma": {"IS_PERSISTENT": "TRUE", "ANONYMIZED_TELEMETRY": "FALSE"},
    "chroma-mcp": {
        "CHROMA_CLIENT_TYPE": "http",
        "CHROMA_HTTP_HOST": "chroma",
        "CHROMA_HTTP_PORT": "8000",
    },
    "agent-app": {
        "MCP_ENDPOINT": "chroma-mcp",
        "MEMORY_CONFIDENCE_MIN": "0.7",
        "HISTORY_TAIL_N": "16",
        "MEMORY_TOP_K": "8",
        "MEMORY_MAX_PER_WINDOW": "3",
        "CONTEXT_TOKEN_BUDGET": "null",
        "LOG_LEVEL": "INFO",
    },
}


class Interpolation(Template):
    """Replaces `${NAME:-default}` like Compose if NAME is not set."""

    braceidpattern = r"[A-Z_]+:-[^}]*"


class Defaults(dict[str, str]):
    """Returns the default of each variable."""

    def __missing__(self, expression: str) -> str:
        return expression.partition(":-")[2]


def environment(service: str) -> dict[str, str]:
    """Return the environment that Compose gives a service if the user has set nothing."""
    given = SERVICES[service]["environment"]
    assert all(
        isinstance(value, str) for value in given.values()
    )  # YAML would turn TRUE and 8000 into something else
    return {name: Interpolation(value).substitute(Defaults()) for name, value in given.items()}


def test_the_three_services_have_their_images_and_names() -> None:
    assert {name: service.get("image") for name, service in SERVICES.items()} == {
        "chroma": "chromadb/chroma:latest",
        "chroma-mcp": "ghcr.io/chroma-core/chroma-mcp:latest",
        "agent-app": None,
    }
    assert all(service["container_name"] == name for name, service in SERVICES.items())


def test_each_service_waits_for_the_service_it_depends_on() -> None:
    assert SERVICES["chroma-mcp"]["depends_on"] == {"chroma": {"condition": "service_healthy"}}
    assert SERVICES["agent-app"]["depends_on"] == {"chroma-mcp": {"condition": "service_started"}}
    assert SERVICES["chroma-mcp"]["stdin_open"]  # chroma-mcp talks over its standard input


def test_ac_pers_003_the_store_and_the_queue_have_separate_named_volumes() -> None:
    assert COMPOSE["volumes"]["chroma_data"]["name"] == "chroma_data"
    assert {name: service.get("volumes") for name, service in SERVICES.items()} == {
        "chroma": ["chroma_data:/chroma/chroma"],
        "chroma-mcp": None,
        "agent-app": ["agent_queue:/data"],
    }
    assert environment("agent-app")["MEMORY_HOME"] == "/data"
    command = SERVICES["chroma"]["command"]
    assert command[command.index("--path") + 1] == "/chroma/chroma"


def test_ports_are_open_to_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("service", VARIABLES)
def test_ac_conf_001_each_service_has_its_variables_with_their_defaults(service: str) -> None:
    assert environment(service).items() >= VARIABLES[service].items()


def test_chroma_mcp_also_gets_its_own_variables() -> None:
    given = environment("chroma-mcp")
    assert (given["CHROMA_HOST"], given["CHROMA_PORT"]) == (
        given["CHROMA_HTTP_HOST"],
        given["CHROMA_HTTP_PORT"],
    )
    assert given["CHROMA_SSL"] == "false"


def test_the_app_gets_the_address_of_the_database() -> None:
    given = environment("agent-app")
    assert (given["CHROMADB_HOST"], given["CHROMADB_PORT"]) == ("chroma", "8000")


def test_the_apps_variables_have_the_default_values(tmp_path: Path) -> None:
    config = load_config({"home": str(tmp_path)}, environment=environment("agent-app"))
    plain = load_config({"home": str(tmp_path)}, environment={})
    for variable in VARIABLES["agent-app"]:
        if variable != "MCP_ENDPOINT":  # without Docker, the default is our own engine
            assert getattr(config, variable.lower()) == getattr(plain, variable.lower()), variable


# --- health checks


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Run a server that answers a heartbeat request with a status and any other with 404; yield its
    port.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/v2/heartbeat" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def check_chroma(port: int) -> int:
    """Run the database's health check, a bash command, against another port; return its exit
    code.
    """
    word, *command = SERVICES["chroma"]["healthcheck"]["test"]
    assert word == "CMD"
    assert command[2].count("8000") == 1
    command[2] = command[2].replace("8000", str(port))
    return subprocess.run(command, capture_output=True, timeout=300).returncode


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_the_database_is_healthy_when_its_heartbeat_answers() -> None:
    with answering(200) as port:
        assert check_chroma(port) == 0
    assert check_chroma(port) != 0  # the server has stopped
    for status in (410, 503):
        with answering(status) as port:
            assert check_chroma(port) != 0


def test_ac_deploy_002_the_database_is_checked_every_ten_seconds() -> None:
    check = SERVICES["chroma"]["healthcheck"]
    assert (check["interval"], check["timeout"]) == ("10s", "5s")


# --- the app


def run_app(
    folder: Path, environment: Mapping[str, str], *arguments: str, said: str = ""
) -> tuple[int, list[dict[str, Any]], str]:
    """Run the app in a separate process; return its exit code, its answers and its log."""
    done = subprocess.run(
        [sys.executable, str(APP), *arguments],
        input=said, capture_output=True, text=True, cwd=folder, env=environment, timeout=300,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def message(conversation: str, role: str, text: str) -> str:
    """Return the input line of a message."""
    return json.dumps({"conversation_id": conversation, "role": role, "text": text}) + "\n"


def test_the_app_stores_what_it_reads_and_answers_with_contexts(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    said = (
        message("a", "user", "Hello")
        + message("a", "assistant", "Good day")
        + message("b", "user", "Elsewhere")
    )
    said += message("a", "user", "And now?")
    sure = {
        "conversation_id": "c",
        "remember": "Deploys happen on Tuesdays",
        "type": "fact",
        "confidence": 0.9,
    }
    facts = [
        json.dumps(line) for line in (sure, sure | {"remember": "A rumour", "confidence": 0.3})
    ]
    said += "\n".join([*facts, message("c", "user", "deploys?")])
    code, [*answers, remembered, rumour, asked], logged = run_app(
        tmp_path, clean_environment, said=said
    )
    assert (code, logged) == (0, "")
    assert [answer["stored"] for answer in (remembered, rumour, asked)] == [True, False, True]
    assert [item["text"] for item, _ in asked["memories"]] == ["Deploys happen on Tuesdays"]
    assert len(answers) == 4
    assert all(answer["stored"] for answer in answers)
    assert [answer["conversation_id"] for answer in answers] == ["a", "a", "b", "a"]
    assert [turn["text"] for turn in answers[3]["history"]] == ["Hello", "Good day"]
    assert answers[3]["latest_message"] == "And now?"
    assert answers[3]["prompt"].endswith("And now?")
    assert "history" not in answers[1]  # an assistant's message needs no answer
    assert answers[2]["history"] == []


@pytest.mark.thorough
def test_invalid_lines_do_not_end_the_app(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    refused = [
        b"nothing", b"[]", b'{"text": "x"}', message("", "user", "x").encode().strip(), b"[" * 100_000, b'"\xff"', b"3",
        b"{}", message("c", "robot", "x").encode().strip(),
        b'{"conversation_id": "c", "role": "assistant", "text": null}',
        b'{"conversation_id": "c", "remember": "x", "type": 3, "confidence": "high"}',
    ]  # fmt: skip
    said = b"\n".join([*refused, message("c", "user", "Hello").encode()])
    done = subprocess.run(
        [sys.executable, APP],
        input=said,
        capture_output=True,
        cwd=tmp_path,
        env=clean_environment,
        timeout=300,
    )
    *answers, last = map(json.loads, done.stdout.splitlines())
    assert len(answers) == len(refused)
    taken = [line for line, answer in zip(refused, answers, strict=True) if answer.get("stored")]
    silent = [
        line
        for line, answer in zip(refused, answers, strict=True)
        if not {"error", "stored"} & answer.keys()
    ]
    assert (taken, silent) == ([], [])
    assert ["error" in answer for answer in answers[:4]] == [True] * 4
    assert (done.returncode, last["stored"]) == (0, True)


def test_ac_deploy_003_the_app_reports_that_it_is_healthy(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    code, [health], logged = run_app(tmp_path, clean_environment, "--health")
    assert (code, logged) == (0, "")
    assert (health["status"], health["history"], health["memory"]) == ("healthy", "ok", "ok")


@pytest.mark.thorough
def test_the_app_ends_when_its_store_is_broken(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    file = tmp_path / "broken.db"
    file.write_bytes(b"this is no database, but it is long enough to be taken for one\n" * 100)
    broken = clean_environment | {"MEMORY_STORE": f"sqlite:///{file}"}
    code, [answer], logged = run_app(tmp_path, broken, said=message("a", "user", "Hello"))
    assert (code, answer["status"], logged) == (1, "unreachable", "")
    assert str(file) in answer["error"]
    code, [health], logged = run_app(tmp_path, broken, "--health")
    assert (code, health["status"], logged) == (1, "degraded", "")
    assert str(file) in health["history"]


@pytest.mark.thorough  # starts two more processes, which end as with a broken store
def test_the_app_is_unhealthy_if_its_endpoint_is_unreachable(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    elsewhere = clean_environment | {"MCP_ENDPOINT": "http://127.0.0.1:9/nobody"}
    for arguments in ([], ["--health"]):
        code, [answer], _ = run_app(tmp_path, elsewhere, *arguments)
        assert (code, answer["status"]) == (1, "unreachable")


def test_the_files_copied_by_the_image_exist() -> None:
    assert SERVICES["agent-app"]["build"] == {
        "context": "./agent-app",
        "additional_contexts": {"memories": "."},
    }
    assert SERVICES["agent-app"]["healthcheck"]["test"] == ["CMD", "python", "app.py", "--health"]
    copied = 0
    for line in (ROOT / "agent-app" / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY "):
            words = line.split()[1:-1]
            folder = ROOT if words[0] == "--from=memories" else APP.parent.parent
            files = [word for word in words if not word.startswith("--")]
            assert all((folder / file).exists() for file in files), line
            copied += len(files)
    assert copied > 2
    assert os.access(APP, os.R_OK)
