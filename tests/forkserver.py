"""Forks processes from one that has already imported their modules, which skips the startup of an
interpreter.

A new process takes 0.2 to 0.4 s to import its modules; a fork takes a tenth of that. It ends like
`python -c`. A test of the interpreter's startup needs a real process. Run as a program, this file
is the server that forks: `forkserver.py SOCKET PRELUDE`.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LARGEST = 1 << 20  # maximum number of bytes in a request
STRICT = "import warnings; warnings.simplefilter('error')"


class Process:
    """A process that runs a script."""

    def __init__(self, arguments: list[str], status: int) -> None:
        self.arguments = arguments
        self._status = open(status, encoding="utf-8")  # noqa: SIM115 - closed by `wait`
        self.returncode: int | None = None
        self.pid = int(self._status.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit status, or minus the number of the signal
        that killed it.

        Raises:
            TimeoutError: It did not end within this many seconds, and was killed.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                self.kill()
                raise TimeoutError(f"the script did not end in {timeout} s")
            with self._status:
                self.returncode = int(self._status.readline())
        return self.returncode

    def kill(self) -> None:
        """Kill the process if it is still running, and wait for its end."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        """Kill the process if it is still running."""
        self.kill()


class Piped(Process):
    """A process whose input and output are pipes, opened as text files like those of
    `subprocess.Popen`.
    """

    def __init__(
        self, arguments: list[str], status: int, stdin: int, stdout: int, stderr: Any
    ) -> None:
        super().__init__(arguments, status)
        self.stdin = open(stdin, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115
        self._stderr = stderr

    def finish(self, written: str = "") -> subprocess.CompletedProcess[str]:
        """Write to the process, close its input, and return its output and exit status."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(written)
            self.stdin.close()
        printed = self.stdout.read()
        code = self.wait()
        self._stderr.seek(0)
        return subprocess.CompletedProcess(self.arguments, code, printed, self._stderr.read())

    def close(self) -> None:
        """Kill the process and close the pipes."""
        super().close()
        for file in (self.stdin, self.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()


class ForkServer:
    """Runs scripts in processes that are forked from one that has run a prelude (imports)."""

    def __init__(self, prelude: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
        }  # a thread does not survive a fork
        command = [sys.executable, __file__, str(theirs.fileno()), prelude]
        self._server = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """End the server; processes that it forked continue."""
        self._socket.close()
        self._server.wait(60)

    def fork(
        self,
        script: str,
        *arguments: object,
        streams: Sequence[int],
        folder: Path | str,
        environment: Mapping[str, str],
    ) -> Process:
        """Start a script with the arguments in `sys.argv[1:]` and three open files as its streams;
        the caller closes them.
        """
        given = [str(each) for each in arguments]
        return Process(given, self._request(script, given, streams, folder, environment))

    def start(
        self, script: str, *arguments: object, folder: Path | str, environment: Mapping[str, str]
    ) -> Piped:
        """Start a script on pipes."""
        given = [str(each) for each in arguments]
        (stdin, to_stdin), (from_stdout, stdout) = os.pipe(), os.pipe()
        stderr = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by `Piped.close`
        status = self._request(script, given, (stdin, stdout, stderr.fileno()), folder, environment)
        os.close(stdin)
        os.close(stdout)
        return Piped(given, status, to_stdin, from_stdout, stderr)

    def _request(
        self,
        script: str,
        arguments: list[str],
        streams: Sequence[int],
        folder: Path | str,
        environment: Mapping[str, str],
    ) -> int:
        """Request a process; return the pipe that reports its id and, at its end, its exit
        status.
        """
        request = {
            "script": script,
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
        }
        from_status, status = os.pipe()
        socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, status])
        os.close(status)
        return from_status


def together(
    script: str, runs: Sequence[Sequence[object]], *, environment: Mapping[str, str], folder: Path
) -> list[str]:
    """Run a script once for each list of arguments, in parallel processes; return the output of
    each.

    Each must end with 0 and write no error.
    """
    server = ForkServer(
        f"{STRICT}; import memories.embedders.fake, memories.search.search, memories.memories, memories.write.create"
    )
    ready, begin = os.pipe()
    with contextlib.ExitStack() as opened:
        opened.callback(server.close)
        *outputs, errors = (
            opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(len(runs) + 1)
        )
        processes = [
            server.fork(
                f"import os; os.read(0, 1)\n{script}", *run,
                streams=(ready, output.fileno(), errors.fileno()), folder=folder, environment=environment,
            )
            for run, output in zip(runs, outputs, strict=True)
        ]  # fmt: skip
        for process in processes:
            opened.callback(process.close)
        os.close(ready)
        os.close(begin)  # lets all of them begin, now that each has been started
        ended = [process.wait() for process in processes]
        for file in (*outputs, errors):
            file.seek(0)
        assert (ended, errors.read()) == ([0] * len(runs), "")
        return [output.read() for output in outputs]


# --- the server


def serve(requests: socket.socket) -> str:
    """Fork for each request until the socket is closed; in a forked process, return the script to
    run.
    """
    ended, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # so that garbage collection in the children copies no pages
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
        *streams, status = descriptors
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            requests.close()
            for descriptor in (status, ended, signalled, *reports.values()):
                os.close(descriptor)
            return _become(json.loads(message), streams)
        for descriptor in streams:
            os.close(descriptor)
        os.write(status, f"{child}\n".encode())
        reports[child] = status


def _report(reports: dict[int, int]) -> None:
    """Write the exit status of each ended process to its pipe, and close the pipe."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = reports.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):  # its reader is gone
                os.write(status, f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
            os.close(status)


def _become(request: dict[str, Any], streams: list[int]) -> str:
    """Apply the streams, folder, environment and arguments of a request to this process; return its
    script.
    """
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    errors = sys.stdin.errors
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors=errors, closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors=errors, closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc] # noqa: SIM115
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["-c", *request["arguments"]]
    script: str = request["script"]
    return script


if __name__ == "__main__":
    exec(sys.argv[2])
    exec(compile(serve(socket.socket(fileno=int(sys.argv[1]))), "<script>", "exec"))
