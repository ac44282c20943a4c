"""A process that has imported what scripts need, and forks a process for each: without an interpreter's start.

A script runs in a process of its own, with its own arguments, environment and pipes, and ends as `python -c` ends.
Started as a program, this file is that server: `forkserver.py SOCKET MODULE...`.
"""

import contextlib
import importlib
import json
import os
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
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
        if not message:
            sys.exit(0)
        if os.fork() == 0:
            requests.close()
            return _become(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(request: dict[str, Any], descriptors: list[int]) -> str:
    """Return the script in a child of this process; this one reports the child's id and end, and ends."""
    *standard, status = descriptors
    child = os.fork()
    if child:
        for descriptor in standard:
            os.close(descriptor)
        os.write(status, f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(status, f"{code}\n".encode())
        os._exit(0)
    os.close(status)
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
