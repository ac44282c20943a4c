"""How many memories a server stores per second, each acknowledged after its commit: from the
server's own threads, and over HTTP.

As a program, this module runs the clients: `python -m bench.writes PORT CLIENTS BATCH SECONDS`, the
token on standard input.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CLIENTS = 64
SECONDS = 8.0
BATCHES = (1, 10, 100)
_NAMES = {"fake": "embeddings given (fake)", "minilm": "with embedding (minilm)"}
_COLUMNS = (
    "embeddings",
    "a client is",
    "in a request",
    "creates/s",
    "per commit",
    "CPU µs each",
    "in a `pass`",
)

Row = tuple[str, str, int, str, str, float]


class _Counted(NamedTuple):
    """What a server has done: writes and commits of its queue, and seconds of CPU."""

    writes: int
    commits: int
    cpu: float


def run() -> None:
    """Measure and print a table."""
    from bench import report

    report.heading("Memories that a server stores a second")
    rows = [row for embedder in _NAMES for row in (_inside(embedder), *_over_http(embedder))]
    unit = min(_pass() for _ in range(5))
    report.table(
        _COLUMNS, [(*row, f"{each * 1e6:,.0f}", f"{unit / each:.0f}") for *row, each in rows]
    )
    report.note(
        f"{CLIENTS} clients at once, {SECONDS:g} s each, without comparing (force); each waits for the answer, which "
        "comes after the commit, before it sends more. HTTP clients are threads of one other process on the same "
        "machine, each with a connection that it keeps; CPU is that of the server. The last column is how many creates "
        f"take the CPU time of `python -c pass`, here {unit * 1000:.1f} ms, which a busy machine changes less. "
        "Targets: 3,000/s with embeddings given, 150/s with embedding on two cores."
    )


def _inside(name: str) -> Row:
    """Measure threads of the server's own process, each with its own `Memories`, only through the
    queue.
    """
    from memories import Draft, Memories, load_config
    from memories.embedders import open_embedder
    from memories.server.group_commit import GroupCommit
    from memories.stores import open_store

    with tempfile.TemporaryDirectory(prefix="bench-writes-") as folder:
        config = load_config(
            {"store": f"sqlite:///{folder}/m.db", "embedder": name},
            environment={"MEMORY_HOME": str(folder)},
        )
        embedder = open_embedder(name, config)
        assert embedder is not None
        embedder.embed("warm")
        store = open_store(config.store, embedder.space, config)
        group_commit, done, stop = GroupCommit(store), [0] * CLIENTS, threading.Event()

        def client(number: int) -> None:
            memories = Memories(store, embedder=embedder, config=config, channel="http")
            while not stop.is_set():
                group_commit.create(memories, [Draft(_text(number, done[number]))], True, True)
                done[number] += 1

        threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        cpu, began = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        group_commit.close()
        store.close()
        return _row(
            name,
            "a thread of the server",
            1,
            (sum(done), seconds),
            _Counted(group_commit.writes, group_commit.commits, cpu),
        )


def _over_http(name: str) -> Iterator[Row]:
    """Measure `memory serve` as a separate process: single creates, then the route for many."""
    for batch in BATCHES:
        with (
            tempfile.TemporaryDirectory(prefix="bench-writes-") as folder,
            _serving(Path(folder), name) as server,
        ):
            command = [
                sys.executable,
                "-m",
                "bench.writes",
                str(server.port),
                str(CLIENTS),
                str(batch),
            ]
            _asked(server, [*command, "1"])  # load everything that is loaded on first use
            before = server.counted()
            done, seconds = _asked(server, [*command, str(SECONDS)])
            after = server.counted()
            counted = _Counted(*(late - early for late, early in zip(after, before, strict=True)))
            yield _row(name, "an HTTP connection", batch, (done, seconds), counted)


def _row(name: str, client: str, batch: int, made: tuple[int, float], counted: _Counted) -> Row:
    done, seconds = made
    share = (
        f"{done / counted.commits:.0f}" if counted.commits else "-"
    )  # large requests have their own commits
    return _NAMES[name], client, batch, f"{done / seconds:,.0f}", share, counted.cpu / done


def _pass() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _asked(server: "_Server", command: list[str]) -> tuple[int, float]:
    told = subprocess.run(
        command, input=server.token, capture_output=True, text=True, check=True
    ).stdout
    done, seconds = json.loads(told)
    return done, seconds


class _Server(NamedTuple):
    """A server that runs."""

    process: "subprocess.Popen[str]"
    environment: dict[str, str]
    port: int
    token: str

    def counted(self) -> _Counted:
        command = [sys.executable, "-m", "memories", "serve", "--status"]
        told = json.loads(
            subprocess.run(command, env=self.environment, capture_output=True, check=True).stdout
        )
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return _Counted(
            told["writes"], told["commits"], sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        )


@contextmanager
def _serving(home: Path, embedder: str) -> Iterator[_Server]:
    from memories.identity import tokens

    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"MEMORY_HOME": str(home), "XDG_RUNTIME_DIR": str(home), "EMBEDDER": embedder}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "memories", "serve", "--port", str(port)]
    options: dict[str, Any] = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as process:
        assert process.stderr is not None
        process.stderr.readline()
        threading.Thread(target=process.stderr.read, daemon=True).start()  # its log of requests
        try:
            yield _Server(process, environment, port, tokens.own(home))
        finally:
            process.terminate()


# --- the clients


def _text(client: int, number: int) -> str:
    return f"client {client} says {number} things"


def _clients(port: int, count: int, batch: int, seconds: float) -> None:
    """Store memories from many connections; print the number of acknowledged memories and the
    seconds.
    """
    token, done, until = sys.stdin.read().strip(), [0] * count, time.perf_counter() + seconds
    head = (
        f"POST /api/memories{'/batch' if batch > 1 else ''} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    )
    head += f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: "

    def client(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while time.perf_counter() < until:
                drafts = [{"content": _text(number, done[number] + n)} for n in range(batch)]
                body = json.dumps(
                    {"memories": drafts, "force": True}
                    if batch > 1
                    else drafts[0] | {"force": True}
                )
                line.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode())
                status, answer = _answer(line)
                stored = answer.count(b'"stored": true') + answer.count(b'"stored":true')
                if status not in (200, 201) or stored != batch:
                    raise RuntimeError(f"the server answered {status}: {answer[:200]!r}")
                done[number] += batch

    threads = [threading.Thread(target=client, args=(number,)) for number in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([sum(done), time.perf_counter() - began]))


def _answer(line: socket.socket) -> tuple[int, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(line)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(
        next(
            each for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:")
        ).split(b":")[1]
    )
    while len(body) < length:
        body += _some(line)
    return int(head.split()[1]), body


def _some(line: socket.socket) -> bytes:
    received = line.recv(262_144)
    if not received:
        raise RuntimeError("the server closed the connection")
    return received


if __name__ == "__main__":
    _clients(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
