"""Tests can't hang: a test that hangs fails, and the processes that it started end with it."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
WAIT_SECONDS = 120

HANGING = """
import subprocess, sys, time
from hypothesis import given, strategies as st

def test_that_waits_for_a_server():
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("server", server.pid, file=sys.__stderr__, flush=True)
    server.wait()

@given(st.integers())
def test_that_hangs_in_an_example(number):
    try:
        time.sleep(600)
    except Exception:
        pass

def test_that_passes():
    pass
"""

TABLES = """
import pytest

@pytest.mark.first(2)
@pytest.mark.parametrize("case", ["a", pytest.param("b", marks=pytest.mark.thorough), "c", "d", "e"])
def test_it(case):
    print("ran", case)
"""


@contextmanager
def run_of(script: str, folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run tests in a separate process, with the shared `conftest.py`."""
    (folder / "test_it.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    places = [
        "-c",
        TESTS.parent / "pyproject.toml",
        "--rootdir",
        folder,
        "--basetemp",
        folder / "work",
    ]
    running = subprocess.Popen(
        [*command, *places, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=WAIT_SECONDS)


def has_ended(process: int) -> bool:
    """Wait for the end of a process that isn't our child; return whether it has ended."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], WAIT_SECONDS)[0])
    finally:
        os.close(handle)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors of Linux")
def test_a_hanging_test_fails_and_the_others_run(tmp_path: Path) -> None:
    with run_of(HANGING, tmp_path, "--longest", "1") as running:
        out, err = running.communicate(timeout=WAIT_SECONDS)
    assert "2 failed, 1 passed" in out
    assert out.count("TookTooLong: more than 1 s") >= 2
    assert has_ended(int(re.findall(r"server (\d+)", err)[0]))


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors of Linux")
def test_a_killed_run_leaves_no_server(tmp_path: Path) -> None:
    with run_of(HANGING, tmp_path) as running:
        assert running.stderr is not None
        server = int(running.stderr.readline().split()[1])
        running.send_signal(signal.SIGKILL)
        assert has_ended(server)


def has_open(process: "subprocess.Popen[bytes]", folder: Path) -> bool:
    """Return whether a process has a folder open."""
    with suppress(FileNotFoundError):  # the process has closed a file in the meantime
        links = Path(f"/proc/{process.pid}/fd").iterdir()
        return folder in [link.readlink() for link in links]
    return False


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors of Linux")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_sweep_spares_a_later_run_in_a_folder_with_the_same_name(
    tmp_path: Path, is_replaced: bool
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sleep = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    tests = subprocess.Popen(sleep, stdin=subprocess.PIPE)
    sweep = subprocess.Popen(
        [sys.executable, TESTS / "sweep.py", str(tests.pid), f"{folder}/"], stdin=subprocess.DEVNULL
    )
    while not has_open(sweep, folder):
        assert sweep.poll() is None
        time.sleep(0.01)
    if is_replaced:
        folder.rmdir()
        folder.mkdir()
    started = subprocess.Popen(sleep, stdin=subprocess.PIPE, env={"HOME": f"{folder}/home"})
    tests.communicate(timeout=WAIT_SECONDS)
    assert sweep.wait(WAIT_SECONDS) == 0
    started.communicate(timeout=WAIT_SECONDS)
    assert started.returncode == (0 if is_replaced else -signal.SIGKILL)


WAITS = re.compile(r"\bsubprocess\.(?:run|call|check_call|check_output)\(|\.communicate\(")


def arguments(call: str) -> Iterator[str]:
    """Yield the names of a call's arguments, and `**` for a mapping, from the text after its
    `(`.
    """
    depth, name = 0, ""
    for kind, token, *_ in tokenize.generate_tokens(io.StringIO(call).readline):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if depth == 0:
            return
        if depth == 1 and token in ("=", "**"):
            yield name if token == "=" else token
        name = token if kind == tokenize.NAME else ""


def test_every_subprocess_of_a_test_has_a_timeout() -> None:
    """Only the calls are parsed, since parsing all tests takes seconds."""
    unbounded = [
        f"{file.relative_to(TESTS)}:{text.count(chr(10), 0, found.start()) + 1}"
        for file in TESTS.rglob("*.py")
        for text in [file.read_text(encoding="utf-8")]
        for found in WAITS.finditer(text)
        if not {"timeout", "**"} & {*arguments(text[found.end() - 1 :])}
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    ("options", "cases"),
    [((), ["a", "c"]), pytest.param(("-m", "not slow"), list("abcde"), marks=pytest.mark.thorough)],
)
def test_a_table_runs_its_first_cases_by_default_and_all_cases_in_the_check(
    tmp_path: Path, options: tuple[str, ...], cases: list[str]
) -> None:
    with run_of(TABLES, tmp_path, *options) as running:
        out, _ = running.communicate(timeout=WAIT_SECONDS)
    assert re.findall(r"ran (\w)", out) == cases
