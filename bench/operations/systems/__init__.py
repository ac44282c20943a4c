"""The systems that are compared: an adapter for each, and what an adapter offers."""

import shutil
import sqlite3
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from bench.operations import environments
from bench.operations.server import Refused, Server, Start

MODULES = {
    "memories": "ours",
    "server-memory": "server_memory",
    "mcp-memory-service": "mcp_memory_service",
    "MemPalace": "mempalace",
    "OMEGA": "omega",
    "basic-memory": "basic_memory",
    "CLAUDE.md": "claude_md",
    "SQLite FTS5": "fts",
}
"""Names with the modules of their adapters, in the order of the page."""

NOT_RUN = {
    "mem0 OSS": "an LLM with a key: it extracts facts before it stores them",
    "Zep, Graphiti": "an LLM with a key and a graph database",
    "cognee": "an LLM with a key",
    "Letta": "an LLM with a key and a server",
    "Hindsight": "an LLM with a key and PostgreSQL",
    "claude-mem": "a Claude account: it summarizes what hooks capture",
    "TrueMemory": "PyTorch and the download of a model from Hugging Face",
    "agentmemory": "the download of a prebuilt engine",
    "engram (Go)": "a binary that no package index offers",
}
"""Systems that don't run here, and what they need."""


class System(ABC):
    """A memory for agents: how it is installed, started, called and counted.

    A row of the benchmark opens one or several sessions on a home, which is a fresh folder. Each
    session has its own server, as each agent starts one. All methods that take a session raise
    `Refused` if the system answers with an error.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    python: ClassVar[str] = "3.11"
    remark: ClassVar[str] = ""
    """What readers must know about the set-up."""

    def __init__(self, cache: Path, model: Path | None) -> None:
        """Install the system below a cache.

        Args:
            cache: The folder for environments.
            model: The folder of all-MiniLM-L6-v2; see `model.make`.

        Raises:
            NotInstalled: It could not be installed.
        """
        self.environment = cache / self.name
        self.model = model
        self.install()

    def install(self) -> None:
        """Install the packages."""
        environments.make(self.environment, self.packages, self.python)

    def version(self) -> str:
        """Return the version that is installed."""
        name, _, version = self.packages[0].partition("==")
        return version or name

    @abstractmethod
    def start(self, home: Path, project: Path) -> Start:
        """Return how a session begins: with its data in `home`, in the folder of a project."""

    def open(self, home: Path, project: Path) -> Any:
        """Start a session. The server's standard error goes to a file next to the home."""
        log = home.with_name(f"{home.name}-{project.name}-{uuid4().hex[:8]}.log")
        return Server(self.start(home, project), log)

    @abstractmethod
    def add(self, session: Any, text: str) -> str:
        """Store a text; return its id."""

    @abstractmethod
    def search(self, session: Any, question: str, limit: int = 5) -> str:
        """Return the answer to a question as a model gets it, with the best text first."""

    @abstractmethod
    def update(self, session: Any, identifier: str, text: str) -> None:
        """Replace the text of a memory."""

    @abstractmethod
    def delete(self, session: Any, identifier: str) -> None:
        """Delete a memory as an agent does."""

    def fill(self, session: Any, home: Path, texts: Sequence[str]) -> None:
        """Store many texts, with a command for it if there is one."""
        for text in texts:
            try:
                self.add(session, text)
            except Refused:
                continue

    def erase(self, session: Any, home: Path, identifier: str) -> None:
        """Delete a memory in the most thorough way that the system offers."""
        self.delete(session, identifier)

    @abstractmethod
    def stored(self, home: Path) -> list[str]:
        """Return the current texts in a home, read without a session."""

    def copy(self, home: Path, target: Path) -> bool:
        """Export a home and import it into another one; False if there is no command for it."""
        return False

    def bin(self, name: str) -> str:
        """Return the path of a command of the environment."""
        return str(self.environment.absolute() / "bin" / name)


def names(chosen: str | None = None) -> list[str]:
    """Return the names of systems: all of them, or those in a list with commas.

    Raises:
        ValueError: There is no such system.
    """
    if not chosen:
        return list(MODULES)
    by_lower_case = {name.lower(): name for name in MODULES}
    unknown = [name for name in chosen.lower().split(",") if name not in by_lower_case]
    if unknown:
        raise ValueError(f"no system is called {unknown[0]}; there are {', '.join(MODULES)}")
    return [by_lower_case[name] for name in chosen.lower().split(",")]


def load(name: str) -> type[System]:
    """Return the adapter of a system."""
    module = import_module(f"bench.operations.systems.{MODULES[name]}")
    adapter: type[System] = module.Adapter
    return adapter


def query(file: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a query on a copy of an SQLite file, since the file may be in use."""
    if not file.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        for part in file.parent.glob(f"{file.name}*"):
            shutil.copy(part, folder)
        with _connect(Path(folder) / file.name) as db:
            return db.execute(sql, values).fetchall()


@contextmanager
def _connect(file: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(file)
    try:
        yield db
    finally:
        db.close()


def output(start: Start, *command: str) -> str:
    """Return the output of another command of a system, run in its server's environment."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=start.folder,
        env={"PATH": "/usr/bin:/bin", **start.environment},
    )  # fmt: skip
    return done.stdout
