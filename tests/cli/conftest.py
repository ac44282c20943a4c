"""Runs the `memory` command for tests: in this process, in a separate one, or on a terminal."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from forked import Forked
from memories import __main__ as front_door
from memories import warm as client

if TYPE_CHECKING:
    from forkserver import Piped


@dataclass(frozen=True)
class Answer:
    """The result of running the command."""

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
Once = Callable[[Callable[[], Any]], Any]


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

    def __init__(self, forked: Forked | None) -> None:
        self._forked = forked
        self._started: dict[str, Piped] = {}

    def begin(self, arguments: Sequence[str]) -> None:
        """Start the server for a command, unless one is running."""
        if self._forked is None or not client.can_be_served(arguments):
            return
        store = client.store_of(arguments)
        path = client.socket_of(store, os.environ)
        if path not in self._started:
            self._started[path] = self._forked.serve(store, os.environ, _here())

    def end(self) -> None:
        """Stop all of them."""
        for server in self._started.values():
            server.close()


def _here() -> str:
    """Return the working directory, or the root if it was removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The servers of one test, if commands should use them (`--warm`); none if the test is about a
    machine without a server.
    """
    is_cold = not request.config.getoption("--warm") or request.node.get_closest_marker("cold")
    found = Servers(None if is_cold else request.getfixturevalue("forked"))
    yield found
    found.end()


@pytest.fixture
def memory(servers: Servers) -> Command:
    """Run the command in this process, with pipes as its streams."""

    def run(
        *arguments: str, stdin: bytes | str = b"", env: Mapping[str, str | None] | None = None
    ) -> Answer:
        with CliRunner().isolation(input=stdin, env=env) as (out, err, _):
            servers.begin(arguments)
            code = front_door.run_by_server_or_here(list(arguments))
            sys.stdout.flush()
            sys.stderr.flush()
            printed, said = out.getvalue(), err.getvalue()
        return Answer(code, printed.decode(), said.decode())

    return run


@pytest.fixture
def stored(memory: Command) -> Callable[..., str]:
    """Store a memory without the duplicate check; return its id."""

    def store(content: str, *options: str) -> str:
        return str(memory("create", content, "--force", *options).json["id"])

    return store


@pytest.fixture
def process(forked: Forked) -> Command:
    """Run the command in a separate process."""

    def run(*arguments: str, stdin: bytes | None = b"", shell: str = "", **options: Any) -> Answer:
        if shell.startswith(">/"):
            done = forked.run(arguments, input=stdin, stdout=shell[1:], **options)
        elif shell:
            command = [
                "sh",
                "-c",
                f'exec "$@" {shell}',
                "sh",
                sys.executable,
                "-m",
                "memories",
                *arguments,
            ]
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=300, **options)
        else:
            done = forked.run(arguments, input=stdin, **options)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def terminal(forked: Forked) -> Command:
    """Run the command on a terminal; `out` is everything that appears there."""

    def run(*arguments: str, typed: str = "", env: Mapping[str, str] | None = None) -> Answer:
        ours, its = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", **(env or {})}
        environment.pop("NO_COLOR", None) if not env or "NO_COLOR" not in env else None
        running = forked.start(arguments, (its, its, its), environment, _here())
        os.close(its)
        shown = b""
        try:
            os.write(ours, typed.encode())
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass  # how Linux reports that the other side was closed
        except BaseException:
            running.kill()
            raise
        finally:
            os.close(ours)
            code = running.wait(300)
        return Answer(code, shown.decode().replace("\r\n", "\n"), "")

    return run
