"""The `memory` command, and the server that answers it, in forked processes: see `forkserver`."""

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forkserver import ForkServer, Piped, Process

_PRELOADED = (
    "context", "embedders.fake", "guard", "hooks", "scratchpad", "search", "server.serve", "stores", "transfer",
    "warm", "write",
)  # fmt: skip
_LEFT_OUT = (
    "chroma",
    "files",
    "postgres",
    "qdrant",
    "http",
)  # modules for stores and services that the command rarely uses
_INTERPRETER = ("PYTHON", "LC_", "LANG")  # variables that the interpreter reads at startup
_COMMAND = "import forked; forked.run_command()"
# Prints "ready" once it answers commands.
_SERVER = """
import os, sys
from memories import __main__ as front_door
from memories.config import load_config
from memories.server import serve, sockets
config = load_config({"store": sys.argv[1] or None}, tell=lambda _: None)
os.chdir("/")
sys.exit(serve.serve(config, sockets.ServeOptions(http=False), front_door.answer, lambda: print("ready", flush=True)))
"""


class Forked:
    """Runs the command in forked processes, like `subprocess`."""

    def __init__(self) -> None:
        self._read_at_start = _interpreter(os.environ)
        self._server = ForkServer("import forked; forked.preload()")

    def close(self) -> None:
        """End the fork server; processes that it forked continue."""
        self._server.close()

    def start(
        self, arguments: Sequence[str], streams: Sequence[int], env: Mapping[str, str], cwd: str
    ) -> Process:
        """Start the command with three open files as its streams; the caller closes them."""
        return self._server.fork(_COMMAND, *arguments, streams=streams, folder=cwd, environment=env)

    def serve(self, store: str, env: Mapping[str, str], cwd: str) -> Piped:
        """Start a server for a store; wait until it answers commands, or has ended."""
        server = self._server.start(_SERVER, store, folder=cwd, environment=env)
        server.stdout.readline()
        return server

    def run(
        self,
        arguments: Sequence[str],
        *,
        input: bytes | None = b"",  # noqa: A002 - as `subprocess.run` calls it
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdout: str = "",
        timeout: float = 300,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run the command with files as its streams; in a new interpreter if the environment
        affects the interpreter.

        Args:
            arguments: Of the command.
            input: The content of its standard input.
            env: Its environment.
            cwd: The folder in which it runs.
            stdout: The file for its standard output; None to return the output.
            timeout: The number of seconds after which it is killed.
        """
        environment = os.environ if env is None else env
        if _interpreter(environment) != self._read_at_start:
            command = [sys.executable, "-m", "memories", *arguments]
            return subprocess.run(
                command, input=input, capture_output=True, env=env, cwd=cwd, timeout=timeout
            )
        with contextlib.ExitStack() as opened:
            given, printed, said = (
                opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)
            )
            given.write(input or b"")
            given.seek(0)
            output = opened.enter_context(Path(stdout).open("wb")) if stdout else printed
            streams = (given.fileno(), output.fileno(), said.fileno())
            process = self.start(arguments, streams, environment, str(cwd or os.getcwd()))  # noqa: PTH109
            opened.callback(process.close)
            code = process.wait(timeout)
            printed.seek(0)
            said.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, printed.read(), said.read())


def _interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that only a new interpreter reads."""
    return {name: value for name, value in environment.items() if name.startswith(_INTERPRETER)}


# --- in the forked processes


def preload() -> None:
    """Import the modules of commands, hooks and servers, load the default embedder's model, which
    runs on one thread, and create the template of new stores.
    """
    from memories import __main__ as front_door
    from memories.embedders import minilm
    from memories.stores.sqlite import schema

    front_door.load_commands()
    for name in _PRELOADED:
        package = importlib.import_module(f"memories.{name}")
        for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
            if not {*each.name.split(".")} & {*_LEFT_OUT}:
                importlib.import_module(each.name)
    schema.empty()
    model = minilm._load_model()
    minilm._load_model = lambda: model


def run_command(arguments: Sequence[str] | None = None) -> None:
    """Act as the command, with these arguments, or else those of the process."""
    from memories import __main__ as front_door

    os.execv = _instead_of_exec  # type: ignore[assignment]
    sys.argv = [front_door.__file__, *(sys.argv[1:] if arguments is None else arguments)]
    front_door.main()


def _instead_of_exec(program: str, command: Sequence[str]) -> Any:
    """Act as the flusher that a hook starts, without the imports; run any other program
    unchanged.
    """
    if program == sys.executable and tuple(command[1:4]) == ("-P", "-m", "memories"):
        run_command(command[4:])
    os.execve(program, command, os.environ)
