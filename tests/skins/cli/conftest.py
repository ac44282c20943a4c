"""The `memory` command as tests run it: in this process, in one of its own, or on a terminal."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from memories import __main__ as front_door
from memories.skins.warm import client, place


@dataclass(frozen=True)
class Answer:
    """What a run of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 3, 4), self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        assert self.out == ""
        assert self.err.count("\n") == 1
        shape = json.loads(self.err)
        assert list(shape) in (["error"], ["error", "matches"])
        return str(shape["error"])


Command = Callable[..., Answer]


@pytest.fixture(autouse=True)
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder without a `.env`, with the embedder for tests."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("EMBEDDER", "fake")
    return work


class Servers:
    """Servers for the stores of one test, each started when a command first asks for its store."""

    def __init__(self, zygote: "subprocess.Popen[str] | None") -> None:
        self._zygote = zygote
        self._tried: set[str] = set()
        self._children: list[int] = []

    def begin(self, arguments: Sequence[str]) -> None:
        """Start the server that a command will ask, unless there is one."""
        if self._zygote is None or not client.is_warm(arguments):
            return
        store = client.store_of(arguments)
        path = place.socket_of(store, os.environ)
        if path in self._tried:
            return
        self._tried.add(path)
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        asked = {"environment": dict(os.environ), "folder": _here(), "store": store}
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        if child := int(self._zygote.stdout.readline()):
            self._children.append(child)

    def end(self) -> None:
        """End them all."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


@pytest.fixture(scope="session")
def zygote(request: pytest.FixtureRequest) -> "Iterator[subprocess.Popen[str] | None]":
    """What starts servers, if the commands of this run are to ask them (`--warm`)."""
    if not request.config.getoption("--warm"):
        yield None
        return
    script = Path(__file__).parent.parent / "server_zygote.py"
    started = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started:
        yield started
        started.stdin.close()  # type: ignore[union-attr]


@pytest.fixture
def servers(zygote: "subprocess.Popen[str] | None", request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The servers of one test; none if it is about a machine on which none runs."""
    found = Servers(None if request.node.get_closest_marker("cold") else zygote)
    yield found
    found.end()


@pytest.fixture
def memory(servers: Servers) -> Command:
    """Run the command in this process, its streams being pipes."""

    def run(*arguments: str, stdin: bytes | str = b"", env: Mapping[str, str | None] | None = None) -> Answer:
        with CliRunner().isolation(input=stdin, env=env) as (out, err, _):
            servers.begin(arguments)
            code = front_door.ask(list(arguments))
            sys.stdout.flush()
            sys.stderr.flush()
            printed, said = out.getvalue(), err.getvalue()
        return Answer(code, printed.decode(), said.decode())

    return run


@pytest.fixture
def stored(memory: Command) -> Callable[..., str]:
    """Store a memory whatever is there already; return its id."""

    def store(content: str, *options: str) -> str:
        return str(memory("create", content, "--force", *options).json["id"])

    return store


@pytest.fixture
def process() -> Command:
    """Run the command in a process of its own."""

    def run(*arguments: str, stdin: bytes | None = b"", shell: str = "", **options: Any) -> Answer:
        command = [sys.executable, "-m", "memories", *arguments]
        if shell:
            command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=300, **options)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def terminal() -> Command:
    """Run the command on a terminal; `out` is all that appears there."""

    def run(*arguments: str, typed: str = "", env: Mapping[str, str] | None = None) -> Answer:
        ours, its = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", **(env or {})}
        environment.pop("NO_COLOR", None) if not env or "NO_COLOR" not in env else None
        command = [sys.executable, "-m", "memories", *arguments]
        running = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
        os.close(its)
        shown = b""
        try:
            os.write(ours, typed.encode())
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass  # how Linux says that the other side was closed
        except BaseException:
            running.kill()
            raise
        finally:
            os.close(ours)
            running.wait(300)
        return Answer(running.returncode, shown.decode().replace("\r\n", "\n"), "")

    return run
