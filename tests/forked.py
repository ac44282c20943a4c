"""The `memory` command in processes forked from one that has imported it: each is one of its own, without the imports.

A process that is started takes 0.2 to 0.4 s to import what it needs; one that is forked takes a tenth of that. What the
interpreter itself does at its start is not in it: a test of that starts a real process.
"""

import contextlib
import importlib
import os
import pickle
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PRELOADED = ("agent", "embedders.fake", "hot", "redaction", "search", "skins.capture", "stores", "transfer", "write")
_LEFT_OUT = ("chroma", "files", "postgres", "qdrant", "http")  # stores and services that the command seldom uses
_INTERPRETER = ("PYTHON", "LC_", "LANG")  # variables that the interpreter reads when it starts


class Forked:
    """Starts processes of the command, as `subprocess` does."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        self._socket = ours
        self._read_at_start = _interpreter(os.environ)
        script = [sys.executable, str(Path(__file__)), str(its.fileno())]
        self._parent = subprocess.Popen(script, pass_fds=[its.fileno()])
        its.close()

    def close(self) -> None:
        """End the process that the others are forked from; those that run go on."""
        self._socket.close()
        self._parent.wait(60)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a forked process is as one that is started with this environment."""
        return _interpreter(environment) == self._read_at_start

    def start(self, arguments: Sequence[str], streams: Sequence[int], env: Mapping[str, str], cwd: str) -> "Running":
        """Start the command on three open files, which stay open here."""
        ours, its = socket.socketpair()
        with its:
            socket.send_fds(self._socket, [b"."], [its.fileno(), *streams])
        request = pickle.dumps((list(arguments), dict(env), cwd))
        ours.sendall(struct.pack("<I", len(request)) + request)
        return Running(ours, struct.unpack("<i", _received(ours, 4))[0])

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
        """Run the command with pipes for its streams; in a real process if the environment is about the interpreter.

        Args:
            arguments: Of the command.
            input: What is on its standard input.
            env: Its environment.
            cwd: The folder in which it runs.
            stdout: The file to which its standard output goes, if not to a pipe.
            timeout: After how many seconds it is killed.
        """
        environment = os.environ if env is None else env
        if not self.fits(environment):
            command = [sys.executable, "-m", "memories", *arguments]
            return subprocess.run(command, input=input, capture_output=True, env=env, cwd=cwd, timeout=timeout)
        (stdin, feed), (out, written), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        if stdout:
            os.close(written)
            written = os.open(stdout, os.O_WRONLY)
        running = self.start(arguments, (stdin, written, stderr), environment, str(cwd or os.getcwd()))  # noqa: PTH109
        for each in (stdin, written, stderr):
            os.close(each)
        said = _exchanged(feed, input or b"", (out, err), time.monotonic() + timeout, running)
        return subprocess.CompletedProcess(list(arguments), running.wait(timeout), *said)


class Running:
    """A process of the command."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    def wait(self, timeout: float = 300) -> int:
        """Return its exit code, negative if a signal ended it."""
        self._connection.settimeout(timeout)
        with self._connection:
            code: int = struct.unpack("<i", _received(self._connection, 4))[0]
        return code

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_INTERPRETER)}


def _exchanged(feed: int, given: bytes, ends: tuple[int, int], until: float, running: Running) -> list[bytes]:
    """Write to a process and read what it says, until it has closed both of its streams."""
    os.set_blocking(feed, False)
    left = memoryview(given)
    said: dict[int, list[bytes]] = {end: [] for end in ends}
    reading = set(ends)
    while reading or feed >= 0:
        if feed >= 0 and not left:
            os.close(feed)
            feed = -1
        readable, writable, _ = select.select(reading, [feed] if feed >= 0 else [], [], until - time.monotonic())
        if not readable and not writable and time.monotonic() > until:
            running.kill()
            raise TimeoutError("the command did not end")
        for end in readable:
            part = os.read(end, 1 << 16)
            said[end].append(part)
            if not part:
                reading.remove(end)
                os.close(end)
        if writable:
            try:
                left = left[os.write(feed, left[: 1 << 16]) :]
            except BrokenPipeError:
                left = left[:0]
    return [b"".join(said[end]) for end in ends]


def _received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the process that the command is forked from has ended")
        data += part
    return data


# --- the process that the others are forked from ----------------------------------------------------------------------


def _serve(control: socket.socket) -> None:
    """Fork a command for each request; report the exit code of each."""
    wakes, woken = os.pipe()
    for each in (wakes, woken):
        os.set_blocking(each, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([control, wakes], [], [])
        if wakes in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 1 << 10)
            _report(running)
        if control in readable:
            data, files, _, _ = socket.recv_fds(control, 1, 4)
            if not data:
                break
            child = os.fork()
            if not child:
                _become(files)
            for each in files[1:]:
                os.close(each)
            running[child] = socket.socket(fileno=files[0])
            running[child].sendall(struct.pack("<i", child))
    for child in list(running):
        os.waitpid(child, 0)


def _report(running: dict[int, socket.socket]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as connection, contextlib.suppress(OSError):
            connection.sendall(struct.pack("<i", os.waitstatus_to_exitcode(status)))


def _become(files: Sequence[int]) -> None:
    """Be the command, in a process that was just forked; never return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files[1:]):
            os.dup2(file, number)
        with socket.socket(fileno=os.dup(files[0])) as connection:
            size = struct.unpack("<I", _received(connection, 4))[0]
            arguments, environment, folder = pickle.loads(_received(connection, size))
        os.closerange(3, 256)
        errors = sys.__stdin__.errors if sys.__stdin__ else "strict"
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors=errors, closefd=False)  # type: ignore[misc] # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors=errors, closefd=False)  # type: ignore[misc] # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(  # type: ignore[misc] # noqa: SIM115
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        os.chdir(folder)
        os.execv = _instead_of_exec  # type: ignore[assignment]
        _run(arguments)
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(1)


def _instead_of_exec(program: str, command: Sequence[str]) -> Any:
    """Be the flusher that a hook starts, without the imports; any other program as it is."""
    if program == sys.executable and tuple(command[1:4]) == ("-P", "-m", "memories"):
        _run(command[4:])
    os.execve(program, command, os.environ)


def _run(arguments: Sequence[str]) -> None:
    from memories import __main__ as front_door

    sys.argv = [front_door.__file__, *arguments]
    front_door.main()


def _preload() -> None:
    """Import what commands and hooks need."""
    from memories import __main__ as front_door

    front_door.load_commands()
    for name in _PRELOADED:
        package = importlib.import_module(f"memories.{name}")
        for each in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
            if not {*each.name.split(".")} & {*_LEFT_OUT}:
                importlib.import_module(each.name)


if __name__ == "__main__":
    import gc

    _preload()
    gc.freeze()  # so that a forked process does not look through what was imported, which copies its pages
    _serve(socket.socket(fileno=int(sys.argv[1])))
