"""The front door: errors before the command is known, and interrupted runs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories.cli.output import IN_DOUBT, INTERRUPTED

Command = Callable[..., Any]

# Presses Ctrl-C when the module in the first argument is about to be imported, and runs `memory`.
_INTERRUPTING = """
import os, signal, sys
from memories.__main__ import main

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

moment = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs the tests may ignore it
sys.meta_path.insert(0, CtrlC())
main()
"""


def interrupted(moment: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that is interrupted at a given point."""
    return subprocess.run(
        [sys.executable, "-c", _INTERRUPTING, moment, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("memories.cli", ["--help"]),
        ("memories.cli.output", ["list"]),
        ("click", ["list"]),
        ("click.types", ["list"]),
        ("memories.cli.search", ["list"]),
        ("memories.config", ["list"]),
        ("memories.memories", ["list"]),
        ("memories.stores.sqlite.store", ["list"]),
        ("memories.transfer.export", ["export"]),
    ],
)
def test_ctrl_c_gets_a_one_sentence_message_at_any_moment(
    moment: str, arguments: list[str]
) -> None:
    done = interrupted(moment, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr) == {"error": INTERRUPTED}
    assert done.stderr.count("\n") == 1


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("memories.write.create", ["create", "content"]),
        ("memories.write.turns", ["turns", "add", "talk", "content"]),
    ],
)
def test_ctrl_c_during_a_change_reports_that_it_may_have_been_made(
    moment: str, arguments: list[str]
) -> None:
    done = interrupted(moment, *arguments)
    assert (done.returncode, json.loads(done.stderr)) == (1, {"error": IN_DOUBT})


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_after_the_commit_reports_the_stored_memory(memory: Command) -> None:
    """The answer is larger than a pipe's buffer, and nothing reads it."""
    running = subprocess.Popen(
        [sys.executable, "-m", "memories", "create", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdin is not None
    running.stdin.write(b"word " * 100_000)
    running.stdin.close()
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.read(1) == b"{"  # it has begun to answer
    running.send_signal(signal.SIGINT)
    error = json.loads(running.stderr.read())["error"]
    [found] = memory("list").json["results"]
    assert error.startswith(
        f"stored as {found['id']}, but the command was interrupted before it answered"
    )
    assert running.wait(60) == 1
    running.stderr.close()
    running.stdout.close()


def test_ctrl_c_during_the_check_of_a_connection_says_what_is_connected() -> None:
    done = interrupted("anyio", "connect", "zed")
    reason = "the command was interrupted before it answered"
    assert (done.returncode, json.loads(done.stderr)) == (
        1,
        {"error": f"connected Zed, but {reason}"},
    )


def test_ctrl_c_is_reported_in_the_chosen_format() -> None:
    done = interrupted("memories.memories", "list", "--format", "text")
    assert (done.returncode, done.stderr) == (1, f"error: {INTERRUPTED}\n")


def test_ctrl_c_while_waiting_for_standard_input_gets_a_one_sentence_message(folder: Path) -> None:
    script = f"import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n{_WAITING}"
    running = subprocess.Popen(
        [sys.executable, "-c", script, "create", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "waiting\n"
    running.send_signal(signal.SIGINT)
    printed, error = running.communicate(timeout=60)
    assert (running.returncode, printed, json.loads(error)) == (1, "", {"error": INTERRUPTED})


# Reports that it is about to read, and runs `memory`.
_WAITING = """
import sys
from memories.__main__ import main
from memories.cli import options

class Waiting:
    def read(self, size):
        print("waiting", flush=True)
        return sys.stdin.buffer.raw.read(size)

class Stdin:
    buffer = Waiting()

true_stdin, options.sys = sys.stdin, type("sys", (), {"stdin": Stdin})
sys.stdin = true_stdin
main()
"""


def test_a_pipe_that_closes_during_help_is_not_an_error(process: Command) -> None:
    answer = process("--help", shell="| true")
    assert (answer.code, answer.err) == (0, "")
    assert "No space left" in process("--help", shell=">/dev/full").err


def test_operating_system_errors_are_one_sentence(process: Command) -> None:
    answer = process("--version", shell=">/dev/full")
    assert (answer.code, answer.error) == (
        1,
        "the output could not be printed: No space left on device",
    )
