"""Damage in the home apart from the store: doctor names each problem with a remedy, and every
command reports it in one sentence.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Command
from memories.identity import tokens


def garbage(*parts: str) -> Callable[[Path], Path]:
    """Return a function that writes unreadable bytes to a file of the home."""

    def write(home: Path) -> Path:
        home.joinpath(*parts).write_bytes(b"\x00{garbage")
        return home.joinpath(*parts)

    return write


def readable_token(home: Path) -> Path:
    """Make the token in the home readable by other users."""
    tokens.own(home)
    tokens.own_file(home).chmod(0o644)
    return tokens.own_file(home)


def folder_of_requests(home: Path) -> Path:
    """Replace the file of requests with a folder."""
    (home / "memories.db-requests").mkdir()
    return home / "memories.db-requests"


def writable_scratchpad(home: Path) -> Path:
    """Make a scratchpad writable by other users."""
    (home / "bob" / "scratchpad.yaml").chmod(0o666)
    return home / "bob" / "scratchpad.yaml"


DAMAGE = [
    garbage("tokens.json"), garbage("bob", "scratchpad.yaml"), garbage("trusted.json"),
    garbage("connected.json"), garbage("export.key"), garbage("server.token"),
    readable_token, folder_of_requests, writable_scratchpad,
]  # fmt: skip


@pytest.mark.first(4)
@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_doctor_names_damaged_files_next_to_the_store(
    memory: Command, home: Path, damage: Callable[[Path], Path]
) -> None:
    memory("create", "The office is in Berlin", "-n", "bob")
    assert memory("doctor").json["findings"] == []
    file = damage(home)
    answer = memory("doctor")
    findings: list[dict[str, Any]] = json.loads(answer.out)["findings"]
    assert (answer.code, len(findings)) == (1, 1), findings
    assert str(file) in findings[0]["what"]
    assert findings[0]["remedy"]
    remedy = findings[0]["remedy"].removeprefix("run: ")
    if remedy.startswith(("chmod", "mv")):
        subprocess.run(shlex.split(remedy), check=True, timeout=60)
    else:
        assert "remove" in remedy
        file.unlink()
    assert memory("doctor").json["findings"] == []


def test_a_config_that_is_not_utf_8_is_reported_in_one_sentence(
    memory: Command, home: Path
) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_bytes(b'namespace = "b\xe4r"\n')
    for command in ("doctor", "list", "config"):
        answer = memory(command)
        assert (answer.code, answer.error) == (
            2,
            f"{home / 'config.toml'} is not UTF-8 (byte 14); save it as UTF-8",
        )


@pytest.mark.cold
def test_the_error_names_an_overlong_path(memory: Command, tmp_path: Path) -> None:
    for long in (tmp_path / ("a" * 300), tmp_path.joinpath(*["b" * 200] * 25)):
        answers = [
            memory("create", "x", env={"MEMORY_HOME": str(long)}),
            memory("list", "--store", f"sqlite:///{long}/m.db"),
            memory("create", "x", "--store", f"files:///{long}"),
            memory("export", "-o", f"{long}/e.jsonl"),
        ]
        for answer in answers:
            assert answer.code in (1, 2), answer
            assert str(long)[:150] in answer.error
            assert "too long" in answer.error


@pytest.mark.cold
def test_a_path_that_is_not_utf_8_is_refused_in_one_sentence(
    memory: Command, tmp_path: Path
) -> None:
    bad = tmp_path / os.fsdecode(b"bad\xff")
    bad.mkdir()
    memory("create", "The office is in Berlin")
    answers = [
        memory("list", env={"MEMORY_HOME": None, "XDG_DATA_HOME": str(bad)}),
        memory("migrate", "--to", f"sqlite:///{bad}/m.db"),
        memory("migrate", "--to", f"files:///{bad}/m"),
        memory("backup", f"{bad}/m.db"),
    ]
    for answer in answers:
        assert answer.code == 2, answer
        assert "is not valid Unicode at position" in answer.error
    assert [*bad.iterdir()] == []


@pytest.mark.cold
def test_a_home_that_links_to_a_missing_folder_does_not_look_empty(
    memory: Command, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "drive")
    for home in (link, link / "memories"):
        for command in (["list"], ["status"], ["create", "x"]):
            answer = memory(*command, env={"MEMORY_HOME": str(home)})
            assert (answer.code, answer.error) == (
                2,
                f"{link} is a symbolic link to {tmp_path}/drive, which is missing; is it mounted?",
            )
    (tmp_path / "drive").mkdir()
    assert memory("list", env={"MEMORY_HOME": str(home)}).code == 0


@pytest.mark.cold
def test_an_unknown_home_folder_is_reported_in_one_sentence(
    memory: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_entry(_: object) -> None:
        raise KeyError

    memory("create", "The office is in Berlin")
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    without_home = {"HOME": None}
    answers = [
        memory("list", env={**without_home, "MEMORY_HOME": None}),
        memory("connect", env=without_home),
        memory("list", "--store", "sqlite:///~nobody-of-that-name/m.db"),
        memory("backup", "~nobody-of-that-name/m.db"),
    ]
    for answer in answers:
        assert (answer.code, answer.error) == (
            2,
            "the home folder is unknown; set HOME, and use no path that begins with ~USER",
        )


def test_doctor_reports_a_second_name_for_the_store(memory: Command, home: Path) -> None:
    memory("create", "The office is in Berlin")
    os.link(home / "memories.db", home / "other.db")
    [finding] = json.loads(memory("doctor").out)["findings"]
    assert "memories.db has 2 names (hard links)" in finding["what"]
    found = subprocess.run(
        finding["remedy"].partition(": ")[2],
        shell=True,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert {Path(line).name for line in found.stdout.split()} == {"memories.db", "other.db"}
    (home / "other.db").unlink()
    assert memory("doctor").json["findings"] == []


def run_limited(limit: str) -> "subprocess.CompletedProcess[str]":
    """Run a search under a limit of the shell."""
    command = f'{limit}; exec "$0" -m memories search x'
    return subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, timeout=300
    )


def test_running_out_of_memory_is_reported_in_one_sentence() -> None:
    done = run_limited("ulimit -v 60000")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"].startswith("out of memory; close other programs")


@pytest.mark.first(1)
@pytest.mark.parametrize("most", [5, 6, 7])
def test_too_many_open_files_are_reported_in_one_sentence(most: int) -> None:
    done = run_limited(f"ulimit -n {most}")
    assert done.returncode == 0 or "too many open files" in json.loads(done.stderr)["error"]
