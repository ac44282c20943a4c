"""`memory serve` in processes that end with their test."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Serve = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def servers(**given: Any) -> Iterator[Serve]:
    """Yield a function that starts a server and waits until it answers; its arguments are for
    `Popen`.
    """
    started: list[subprocess.Popen[str]] = []

    def serve(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "memories", "serve", "--no-http", *arguments]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **given)
        started.append(server)
        assert server.stderr is not None
        assert "memory serve: sqlite:///" in server.stderr.readline()
        return server

    try:
        yield serve
    finally:
        for server in started:
            server.kill()
            server.communicate(timeout=60)
