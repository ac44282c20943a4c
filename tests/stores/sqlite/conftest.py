"""SQLite stores in the test's folder, and separate processes that use or inspect them."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from contract import SPACE, OpenStore, record
from sqlite_scripts import RunPython, StartPython

from forkserver import STRICT, ForkServer, Piped
from memories.stores.sqlite.store import SQLiteStore
from opening import opening

IMPORTED = (
    "memories.embedders.fake",
    "memories.memories",
    "memories.stores.sqlite.store",
    "memories.stores.sqlite.check",
    "memories.stores.sqlite.vectors",
    "memories.stores.sqlite.words",
    "threading",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store that doesn't exist yet, in a separate folder."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder / "memories.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[OpenStore]:
    """Open the store of `path`; each call uses a new connection."""
    with opening(lambda space: SQLiteStore(path, space)) as open_store:
        yield open_store


@pytest.fixture
def old(path: Path) -> Path:
    """A closed store file of the newest schema with three records."""
    store = SQLiteStore(path, SPACE)
    store.append(
        [record(f"m{number}", text="common words", labels={"who": "ann"}) for number in range(3)]
    )
    store.close()
    return path


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Runs code in processes that are forked from one that has imported the modules of stores."""
    server = ForkServer(f"{STRICT}; import {', '.join(IMPORTED)}")
    yield server
    server.close()


@pytest.fixture
def start_python(
    forks: ForkServer, tmp_path: Path, clean_environment: Mapping[str, str]
) -> Iterator[StartPython]:
    """Start a script in a separate process, which is killed at the end of the test."""
    started: list[Piped] = []

    def start(script: str, *arguments: object) -> Piped:
        started.append(
            forks.start(script, *arguments, folder=tmp_path, environment=clean_environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def run_python(run_python: RunPython, start_python: StartPython) -> RunPython:
    """Run a script in a separate process, which is forked unless a prefix must start the
    interpreter.
    """

    def run(
        script: str, *arguments: object, prefix: tuple[str, ...] = (), check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        if prefix:
            return run_python(script, *arguments, prefix=prefix, check=check)
        process = start_python(script, *arguments).finish()
        if check and process.returncode:
            raise AssertionError(f"the script ended with {process.returncode}: {process.stderr}")
        return process

    return run


@pytest.fixture(scope="session")
def mounting() -> None:
    """Skip the test if processes may not mount private filesystems."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            capture_output=True,
            timeout=300,
        ).returncode
    ):
        pytest.skip("processes may not mount filesystems here")
