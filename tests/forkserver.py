"""A process that has imported what scripts need, and forks a process for each: without an interpreter's start.

A script runs in a process of its own, with its own arguments, environment and pipes, and ends as `python -c` ends.
Started as a program, this file is that server: `forkserver.py SOCKET MODULE...`.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST = 1 << 20  # of a request


class Forked:
    """A process that runs a script; its pipes are text files, as those of `subprocess.Popen`."""

    def __init__(self, arguments: list[str], stdin: int, stdout: int, stderr: Any, status: int) -> None:
        self.arguments = arguments
        self.stdin = open(stdin, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115
        self._stderr, self._status = stderr, open(status, encoding="utf-8")  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = int(self._status.readline())

    def wait(self) -> int:
        """Return the exit status once the process has ended; minus the signal that killed it."""
        if self.returncode is None:
            self.returncode = int(self._status.readline())
        return self.returncode

    def kill(self) -> None:
        """Kill the process, if it still runs, and wait for its end."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def finish(self, written: str = "") -> subprocess.CompletedProcess[str]:
        """Write to the process, close its input, and return what it printed and how it ended."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(written)
            self.stdin.close()
        printed = self.stdout.read()
        code = self.wait()
        self._stderr.seek(0)
        return subprocess.CompletedProcess(self.arguments, code, printed, self._stderr.read())

    def close(self) -> None:
        """Kill the process and close the pipes."""
        self.kill()
        for file in (self.stdin, self.stdout, self._stderr, self._status):
            with contextlib.suppress(BrokenPipeError):
                file.close()


class ForkServer:
    """Starts scripts in processes that have imported `modules` already."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name in {"PATH", "TESTS_FOLDER"}}
        environment |= {"PYTHONWARNINGS": "error", "OPENBLAS_NUM_THREADS": "1"}  # a thread would not survive a fork
        command = [sys.executable, __file__, str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, script: str, *arguments: object, folder: Path, environment: Mapping[str, str]) -> Forked:
        """Run a script in a folder, with `sys.argv[1:]` of the arguments."""
        given = [str(each) for each in arguments]
        request = {"script": script, "arguments": given, "folder": str(folder), "environment": dict(environment)}
        stderr = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_stdin), (from_stdout, stdout), (from_status, status) = pipes
        theirs = [stdin, stdout, stderr.fileno(), status]
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for descriptor in (stdin, stdout, status):
            os.close(descriptor)
        return Forked(given, to_stdin, from_stdout, stderr, from_status)

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        self._process.wait(60)


def serve(requests: socket.socket) -> str:
    """Fork for each request until there are no more; return the script in the process that is to run it."""
    ended, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # so that collections in the children copy no pages
    reports: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, LARGEST)
            _report(reports)
        if requests not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
        if not message:
            requests.close()
            sys.exit(0)
        *standard, status = descriptors
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            for descriptor in (status, ended, signalled, *reports.values()):
                os.close(descriptor)
            return _become(json.loads(message), standard)
        for descriptor in standard:
            os.close(descriptor)
        os.write(status, f"{child}\n".encode())
        reports[child] = status


def _report(reports: dict[int, int]) -> None:
    """Write to the pipe of each process that has ended how it ended, and close it."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = reports.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                os.write(status, f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
            os.close(status)


def _become(request: dict[str, Any], standard: list[int]) -> str:
    """Take over the pipes, the folder, the environment and the arguments of a request; return its script."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    return request["script"]


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    exec(compile(serve(socket.socket(fileno=int(sys.argv[1]))), "<script>", "exec"))
