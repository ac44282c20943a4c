"""Fixtures and options that several test folders share."""

import contextlib
import copy
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from forked import Forked
from memories import Memories
from memories.embedders import minilm
from memories.guard.origin import agent_variable
from memories.scratchpad.text import seal
from memories.settings import SETTINGS

RunPython = Callable[..., subprocess.CompletedProcess[str]]
Once = Callable[[Callable[[], Any]], Any]

# Variables that would lead programs out of the test's home, to folders of the machine's user or an
# editor.
ELSEWHERE = (
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME",
    "OPENCODE_CONFIG_DIR", "GIT_CONFIG_GLOBAL", "APPDATA", "LOCALAPPDATA", "VISUAL",
)  # fmt: skip

TESTS = Path(__file__).parent
# The folder for the core tests, if it exists: a flush to disk takes 1.5 ms, and a new store flushes
# six times. `make check` runs the same tests on disk.
IN_MEMORY = Path("/dev/shm")
ROOM = 1 << 30  # bytes; a run uses an eighth of it if nothing is removed
SURFACES = (
    "cli",
    "connect",
    "hooks",
    "integrations",
    "mcp",
    "server",
)  # folders whose tests use the default store
# Files that `make test` leaves out because they need a server, a browser or another program. All
# others are the core.
TIERS = {
    "stores": (
        "processes/test_postgres*",
        "stores/test_chroma*",
        "stores/test_files*",
        "stores/test_http*",
        "stores/postgres/*",
        "stores/test_qdrant*",
    ),
    "integrations": (
        "context/test_chroma_mcp*",
        "hooks/test_cursor*",
        "processes/test_chroma_mcp*",
        "processes/test_connected_agents*",
        "processes/test_images*",
        "processes/test_mcp_clients*",
        "processes/test_plugins_real*",
        "integrations/*",
        "server/pages/test_browser*",
        "server/test_oauth*",
        "server/test_openapi*",
    ),
}


# Examples have no deadline, since the machine may be busy.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", PATIENT)
settings.register_profile("few", PATIENT, max_examples=40)  # of the 100 of `make check`
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def new_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the tests as on a new machine, without the user's settings, agents and home."""
    nowhere = tmp_path_factory.mktemp("nowhere") / "file"
    nowhere.touch()  # no folder can be created below a file
    with (
        tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as sockets,
        pytest.MonkeyPatch.context() as patch,
    ):
        for variable in (*(setting.variable for setting in SETTINGS), *ELSEWHERE):
            patch.delenv(variable, raising=False)
        while variable := agent_variable():
            patch.delenv(variable)
        # For homes whose paths are too long for a socket. A folder for each run, since a later run
        # may have homes with the same paths.
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        patch.setenv("HOME", str(nowhere))
        patch.setenv("MEMORY_HOME", str(nowhere / "memories"))
        patch.setenv("MEMORY_SERVE", "off")  # tests must not leave servers running
        patch.setenv("EDITOR", "false")  # a test that needs an editor provides one
        patch.setenv(
            "PROJECT_DETECTION", "false"
        )  # the tests run in a repository, but don't expect its project
        models: list[tuple[Any, Callable[[], Path]]] = [(minilm, lambda: minilm._WEIGHTS)]
        with contextlib.suppress(ImportError):  # the optional model may be missing
            from memories.embedders import e5

            models.append((e5, lambda: e5._folder()))  # noqa: PLW0108 - tests replace the function
        for module, folder in models:
            patch.setattr(module, "_load_model", _loading_once(module._load_model, folder))
        yield


def _loading_once(load: Callable[[], Any], folder_of: Callable[[], Path]) -> Callable[[], Any]:
    """Return a function that loads a model once from each folder, since each load takes 0.3 s and
    up to 80 MB that are never freed.
    """
    load_from = functools.cache(lambda _: load())
    return functools.wraps(load)(lambda: load_from(folder_of()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a home; return the folder of its default store, which doesn't exist yet."""
    folder = tmp_path / "home" / "memories"
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("MEMORY_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def own_home(request: pytest.FixtureRequest) -> None:
    """Give each test of a surface a home, since commands, hooks and servers use the default
    store.
    """
    if any(request.path.is_relative_to(TESTS / surface) for surface in SURFACES):
        request.getfixturevalue("home")


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[Memories]:
    """An empty SQLite store; a folder or file that needs a different one overrides this fixture."""
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="fake") as opened:
        yield opened


class Kept(NamedTuple):
    """A filled home: its original path, a copy of it, and the result of the function that filled
    it.
    """

    home: Path
    copy: Path
    made: Any


@pytest.fixture(scope="module")
def homes() -> dict[str, Kept]:
    """The homes that `once` has filled for the tests of a module, by function name."""
    return {}


@pytest.fixture
def once(
    home: Path,
    homes: dict[str, Kept],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Once:
    """Fill the home with a function once for the tests of a module, then copy it, since copying is
    faster than running commands.
    """

    def fill(how: Callable[[], Any]) -> Any:
        if home.exists() or request.config.getoption("--warm"):  # a server has the store open
            return how()
        name = how.__qualname__
        if name not in homes:
            homes[name] = Kept(home, tmp_path_factory.mktemp("home") / "memories", how())
            shutil.copytree(home, homes[name].copy)
            return homes[name].made
        kept = homes[name]
        shutil.copytree(kept.copy, home)
        for file in home.rglob("scratchpad.yaml"):  # which names its store
            file.write_text(seal(file.read_text().replace(str(kept.home), str(home))))
        return copy.deepcopy(kept.made)

    return fill


@pytest.fixture
def bob(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memories]:
    """The memories of bob in the default store."""
    monkeypatch.setenv("EMBEDDER", "fake")
    with Memories(namespace="bob") as opened:
        yield opened


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Runs the command in separate processes."""
    command = Forked()
    yield command
    command.close()


@pytest.fixture
def clean_environment(tmp_path: Path) -> dict[str, str]:
    """The environment for a command, without the settings of the machine's user."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MEMORY_HOME": str(tmp_path / "memories"),
        "MEMORY_SERVE": "off",
        "EMBEDDER": "fake",
        "PROJECT_DETECTION": "false",
        "PYTHONWARNINGS": "error",
        "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
    }


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Allow child processes to be interrupted: a process in the background of a shell (`&`) ignores
    SIGINT, and its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_python(tmp_path: Path, clean_environment: Mapping[str, str]) -> RunPython:
    """Run a script in a separate process, with `prefix` before the interpreter; its failure fails
    the test.

    Only such processes inspect store files, since opening a file in a process with an open
    connection would cancel the connection's locks.
    """

    def run(
        script: str, *arguments: object, prefix: tuple[str, ...] = (), check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean_environment,
            timeout=900,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"the script ended with {done.returncode}: {done.stderr}")
        return done

    return run


# --- bounds: a test that hangs fails, and no process outlives the tests


class TookTooLong(BaseException):
    """A test took longer than `--longest`. Not an `Exception`, so that code under test doesn't
    catch it.
    """


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Bound the setup of a test, the test, and its teardown, each by `--longest`."""
    seconds = item.config.getoption("--longest")

    def end(*_: object) -> None:
        raise TookTooLong(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 30)  # every 30 s, in case `finally` hangs too
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.fixture(scope="session", autouse=True)
def swept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kill all processes that tests started when this process ends, even if it is killed."""
    if hasattr(os, "pidfd_open"):
        folder = f"{tmp_path_factory.getbasetemp()}/"
        os.environ["TESTS_FOLDER"] = folder
        sweep = [
            sys.executable,
            str(Path(__file__).with_name("sweep.py")),
            str(os.getpid()),
            folder,
        ]
        os.posix_spawn(sys.executable, sweep, {"PATH": os.environ["PATH"]}, setsid=True)


# --- campaigns: `make torture` runs them at full size, the default suite at a small one

FULL = os.environ.get("TORTURE")  # the share of the full size; set only by `make torture`
_ENDED, _BEGINS = pytest.StashKey[str](), pytest.StashKey[int]()


@pytest.fixture
def size() -> Callable[[int, int], int]:
    """Return a function that chooses the size of a campaign: `size(small, full)`."""
    return lambda small, full: small if FULL is None else max(small, round(full * float(FULL)))


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The figures of a campaign. `make torture` appends them to a file, even if the campaign fails
    or is interrupted.
    """
    begun = time.monotonic()
    counted: dict[str, Any] = {}
    yield counted
    if FULL is not None:
        head = {
            "campaign": request.node.nodeid.removeprefix("tests/"),
            "ended": request.node.stash.get(_ENDED, "interrupted"),
            "seconds": round(time.monotonic() - begun),
        }
        report = _report(request.config)
        report.parent.mkdir(exist_ok=True)
        with report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(head | counted) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--tier` (which tests run), `--warm` (commands run through a server) and
    `--longest`.
    """
    parser.addoption(
        "--tier", choices=["core", *TIERS, "all"], default="core", help="the tests to run [core]"
    )
    parser.addoption("--warm", action="store_true", help="run memory commands through a server")
    parser.addoption(
        "--longest", type=int, default=300, metavar="SECONDS", help="fail a test that takes longer"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files of other tiers without importing them; files named on the command line always
    run.
    """
    wanted = config.getoption("--tier")
    if wanted == "all":
        return None
    if not collection_path.name.startswith("test_"):  # a folder of another tier is skipped entirely
        return True if tier_of(collection_path / "test_") not in ("core", wanted) else None
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args} - {
        TESTS,
        *TESTS.parents,
    }
    if named & {collection_path, *collection_path.parents}:
        return None
    return True if tier_of(collection_path) != wanted else None


def tier_of(path: Path) -> str:
    """Return the tier that a test file belongs to; a file outside this folder belongs to the
    core.
    """
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    patterns = ((tier, pattern) for tier, patterns in TIERS.items() for pattern in patterns)
    return next((tier for tier, pattern in patterns if fnmatch(name, pattern)), "core")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of the core tests in memory; let a terminated campaign print its figures."""
    gc.disable()  # hardly anything becomes garbage while tests are collected
    if config.getoption("--tier") == "core" and FULL is None:
        settings.load_profile("few")
    if config.getoption("--tier") == "core" and FULL is None and has_room(IN_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    if FULL is not None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        config.stash[_BEGINS] = _report(config).stat().st_size if _report(config).exists() else 0


def has_room(folder: Path) -> bool:
    """Return whether a folder has enough space for a run."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM


def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector, since they live until the end."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # garbage collection takes a twentieth of the tests' time
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the later cases of a table as thorough (see the mark `first`), and run the campaigns on
    the default store first: they matter most if time runs out.
    """
    seen: Counter[str] = Counter()
    for item in items:
        first = item.get_closest_marker("first")
        if first is not None and item.get_closest_marker("thorough") is None:
            name = item.nodeid.partition("[")[0]
            seen[name] += 1
            if seen[name] > first.args[0]:
                item.add_marker(pytest.mark.thorough)
    if FULL is not None:
        items.sort(key=lambda item: not item.nodeid.startswith("tests/torture/"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Record the outcome of a test for a campaign's figures."""
    report = yield
    if call.when == "call":
        item.stash[_ENDED] = report.outcome
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the skipped tests, and a campaign's figures as a table."""
    if config.getoption("--tier") == "core" and not config.option.file_or_dir:
        terminalreporter.write_line(
            "Not run: other stores (make test-stores), programs of others (make test-integrations), slow and thorough "
            "tests (make test-slow, make check), campaigns at full size (make torture)"
        )
    if FULL is None or not _report(config).exists():
        return
    terminalreporter.section(f"figures at {FULL} of the full size (also in {_report(config)})")
    with _report(config).open(encoding="utf-8") as file:
        file.seek(config.stash[_BEGINS])
        for line in file:
            told = json.loads(line)
            name, ended, seconds = (told.pop(key) for key in ("campaign", "ended", "seconds"))
            counts = ", ".join(f"{key} {value}" for key, value in told.items())
            terminalreporter.write_line(f"{ended:12}{seconds:6} s  {name}: {counts}")


def _report(config: pytest.Config) -> Path:
    """Return the file that receives the figures of campaigns."""
    return config.rootpath / ".torture" / "figures.jsonl"
