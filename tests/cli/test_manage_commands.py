"""status, config, and where settings come from."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories.settings import SETTINGS
from memories.stores.sqlite.engine import SCHEMA_VERSION

Command = Callable[..., Any]


def setting(
    memory: Command, name: str, *options: str, env: dict[str, str] | None = None
) -> tuple[Any, str]:
    """Return the value of a setting and where it comes from."""
    shape = memory("config", *options, env=env).json
    [row] = [row for row in shape["settings"] if row["name"] == name]
    return row["value"], row["source"]


# --- status


def test_status_reports_a_healthy_memory(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    stored("one")
    memory("delete", stored("two"))
    shape = memory("status").json
    assert shape["status"] == "healthy"
    assert shape["store"] == f"sqlite:///{home}/memories.db"
    assert (shape["collection"], shape["memory_count"], shape["deleted_count"]) == (
        "memories",
        1,
        1,
    )
    assert (shape["namespace"], shape["namespaces_read"]) == ("shared", ["shared"])
    assert (shape["embedder"], shape["store_model"], shape["without_vector_count"]) == (
        "fake/1",
        "fake/1",
        0,
    )
    assert shape["schema_version"] == SCHEMA_VERSION
    assert shape["size_bytes"] > 0


@pytest.mark.cold
def test_status_creates_nothing(memory: Command, home: Path) -> None:
    shape = memory("status").json
    assert (shape["status"], shape["memory_count"], shape["schema_version"]) == ("healthy", 0, None)
    assert not home.exists()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs a folder in which not even root can write"
)
@pytest.mark.parametrize("output", ["json", "text"])
def test_status_reports_a_store_that_cannot_be_created(memory: Command, output: str) -> None:
    env = {"MEMORY_HOME": "/proc/memories"}
    shown = memory("status", "--format", output, env=env)
    assert (shown.code, shown.err) == (1, "")
    assert "cannot create /proc/memories/memories.db: " in shown.out
    assert "set MEMORY_HOME or MEMORY_STORE to a writable place" in shown.out
    assert "unhealthy" in shown.out
    assert memory("create", "content", env=env).code == 1


def test_status_counts_memories_without_vectors(memory: Command) -> None:
    memory("create", "content", env={"EMBEDDER": "none"})
    assert memory("status").json["without_vector_count"] == 1


def test_status_of_a_file_that_is_not_a_store_is_unhealthy(memory: Command, home: Path) -> None:
    home.mkdir(mode=0o700, parents=True)
    (home / "memories.db").write_bytes(b"this is a text and no database\n" * 200)
    answer = memory("status")
    assert (answer.code, answer.out) == (1, "")
    shape = json.loads(answer.err)
    assert shape["status"] == "unhealthy"
    assert "is not a SQLite database" in shape["error"]
    shown = memory("status", "--format", "text")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("unhealthy: ")


# --- settings


def test_config_shows_every_setting(memory: Command) -> None:
    rows = memory("config").json["settings"]
    assert [row["name"] for row in rows] == [setting.name for setting in SETTINGS]
    assert all(list(row) == ["name", "value", "source", "variable", "purpose"] for row in rows)


@pytest.mark.parametrize(
    ("variable", "default", "given", "value"),
    [
        ("CHROMADB_HOST", "localhost", "vectors.example", "vectors.example"),
        ("CHROMADB_PORT", 8000, "8123", 8123),
        ("COLLECTION_NAME", "memories", "team-memories", "team-memories"),
        ("DEFAULT_LIMIT", 10, "25", 25),
        ("MIN_CONFIDENCE", 0.3, "0.5", 0.5),
        ("DECAY_HALF_LIFE_HOURS", 720.0, "24.5", 24.5),
    ],
)
def test_variables_have_the_specified_defaults(
    memory: Command, variable: str, default: Any, given: str, value: Any
) -> None:
    name = variable.lower()
    assert setting(memory, name) == (default, "default")
    assert setting(memory, name, env={variable: given}) == (value, "environment")


def test_the_collection_setting_names_the_file(memory: Command, home: Path) -> None:
    env = {"COLLECTION_NAME": "team"}
    memory("create", "content", env=env)
    assert (home / "team.db").exists()
    assert memory("status", env=env).json["collection"] == "team"
    assert memory("status").json["memory_count"] == 0


@pytest.mark.parametrize("variable", ["CHROMADB_HOST", "CHROMADB_PORT"])
def test_the_chroma_variables_select_chroma(memory: Command, variable: str) -> None:
    value = {"CHROMADB_HOST": "vectors.example", "CHROMADB_PORT": "8123"}[variable]
    expected = {
        "CHROMADB_HOST": "chroma://vectors.example:8000",
        "CHROMADB_PORT": "chroma://localhost:8123",
    }[variable]
    assert setting(memory, "store", env={variable: value}) == (expected, "environment")


def test_a_flag_overrides_the_environment_then_dotenv_then_toml_then_the_default(
    memory: Command, folder: Path, home: Path
) -> None:
    assert setting(memory, "namespace") == ("shared", "default")
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        'namespace = "from-toml"\ndefault_limit = 7\nreinforce_on_retrieval = true\n'
    )
    assert setting(memory, "namespace") == ("from-toml", str(home / "config.toml"))
    assert setting(memory, "default_limit") == (7, str(home / "config.toml"))
    assert setting(memory, "reinforce_on_retrieval") == (True, str(home / "config.toml"))
    (folder / ".env").write_text("MEMORY_NAMESPACE=from-dotenv\nUNRELATED=1\n")
    memory("trust", "--yes")
    assert setting(memory, "namespace") == ("from-dotenv", ".env")
    env = {"MEMORY_NAMESPACE": "from-environment"}
    assert setting(memory, "namespace", env=env) == ("from-environment", "environment")
    assert setting(memory, "namespace", "--namespace", "from-flag", env=env) == (
        "from-flag",
        "flag",
    )


def test_the_dotenv_file_of_a_parent_folder_is_not_read(
    memory: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("MEMORY_NAMESPACE=parent\n")
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    assert setting(memory, "namespace") == ("shared", "default")


def test_dotenv_lines_of_other_programs_are_ignored(memory: Command, folder: Path) -> None:
    (folder / ".env").write_text("this is no assignment\n=x\nMEMORY_NAMESPACE=bob\n")
    memory("trust", "--yes")
    answer = memory("config")
    assert answer.err == ""
    assert setting(memory, "namespace") == ("bob", ".env")


def test_the_store_and_format_flags_are_settings(memory: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    assert setting(memory, "store", "--store", url) == (url, "flag")
    memory("create", "content", "--store", url)
    assert (tmp_path / "other.db").exists()
    assert setting(memory, "format", "--format", "json") == ("json", "flag")


def test_passwords_are_not_shown(memory: Command) -> None:
    env = {"MEMORY_STORE": "postgresql://memories:s3cr@t:x@db.example/memories"}
    for output in ("json", "text"):
        answer = memory("config", "--format", output, env=env)
        assert "postgresql://memories:***@db.example/memories" in answer.out
        assert "s3cr" not in answer.out + answer.err
    assert "s3cr" not in memory("status", env=env).err


def test_passwords_are_not_shown_in_errors(memory: Command) -> None:
    assert (
        "s3cret"
        not in memory("status", env={"MEMORY_STORE": "ftp://memories:s3cret@db.example/"}).error
    )


def test_commands_work_in_a_removed_working_folder(memory: Command, folder: Path) -> None:
    folder.rmdir()
    assert memory("status").json["status"] == "healthy"


@pytest.mark.parametrize("command", ["connect", "off", "trust"])
def test_a_command_that_needs_the_removed_working_folder_reports_that(
    memory: Command, folder: Path, command: str
) -> None:
    folder.rmdir()
    answer = memory(*command.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.error == (
        "the working folder no longer exists; change to another one, and try again"
    )


def test_status_of_a_store_with_another_model_is_unhealthy(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("create", "made with the embedder for tests")
    monkeypatch.setenv("EMBEDDER", "minilm")
    shown = memory("status")
    assert shown.code == 1
    shape = json.loads(shown.out)
    assert (shape["status"], shape["memory_count"], shape["store_model"]) == (
        "unhealthy",
        1,
        "fake/1",
    )
    assert "memory reembed" in shape["error"]
    assert memory("status", "--format", "text").out.count("memory reembed") == 1
    monkeypatch.setenv("EMBEDDER", "none")
    assert json.loads(memory("status").out)["status"] == "healthy"


def test_status_of_an_unreachable_chroma_server_has_the_specified_error(memory: Command) -> None:
    shown = memory("status", "--store", "chroma://:secret@localhost:1")
    shape = json.loads(shown.err)
    assert (shown.code, shown.out, shape["status"], shape["chromadb_host"]) == (
        1,
        "",
        "unhealthy",
        "localhost:1",
    )
    assert shape["error"] == "Cannot connect to ChromaDB at localhost:1. Is Docker running?"
    assert "secret" not in shown.err


# --- serve


@pytest.mark.parametrize(
    "options", [("--install",), ("--install", "--dry-run"), ("--install", "--port", "9000")]
)
def test_serve_refuses_the_former_install_options(
    memory: Command, folder: Path, options: tuple[str, ...]
) -> None:
    answer = memory("serve", *options)
    assert (answer.code, "docs/server.md has unit files" in answer.error) == (2, True)
    assert list(folder.iterdir()) == []


def test_serve_uninstall_prints_the_commands_that_unload_it(
    memory: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    options = ("serve", "--uninstall", "--store", "sqlite:////nowhere/m.db")
    assert memory(*options).code == 1
    unit = tmp_path / "config" / "systemd" / "user" / "memories-fe2468b5.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("text")
    commands = [
        "systemctl --user disable --now memories-fe2468b5.service",
        "systemctl --user daemon-reload",
    ]
    assert memory(*options).json == {
        "file": str(unit),
        "done": "removed",
        "text": "text",
        "commands": commands,
    }
    assert not unit.exists()
