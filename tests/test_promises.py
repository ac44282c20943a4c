"""Proves each promise of the README once, with real parts; the tests of each folder cover the
details.

The table below lists the promises. A promise of the README without a test fails, and so does a test
without a promise.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from forkserver import together
from memories import Memories, NotFound
from test_architecture import CLIENTS

RunPython = Callable[..., subprocess.CompletedProcess[str]]
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

# The beginning of a sentence in the README, and the tests that prove it.
PROMISES = {
    "neither `kill -9`": ["test_an_acknowledged_write_survives_kill_9"],
    "nor a power cut undoes it": ["test_an_acknowledged_write_survives_a_power_cut"],
    "sixteen processes writing at once": ["test_processes_that_write_simultaneously_lose_nothing"],
    "Nothing is deleted, merged or rebuilt unless": [
        "test_nothing_is_deleted_merged_or_rebuilt_on_its_own"
    ],
    "**Corrections are kept**": ["test_a_correction_is_kept"],
    "No text is silently refused as a duplicate": [
        "test_a_refused_duplicate_names_the_memory_and_the_options"
    ],
    "**It finds what was said**": ["test_a_search_finds_facts_by_their_meaning"],
    "**Commands start fast**": ["test_a_cold_command_loads_only_the_modules_that_it_needs"],
    "one SQLite file with mode 0600": ["test_the_store_is_one_private_file"],
    "no telemetry and no network": ["test_no_command_opens_a_network_connection"],
    "`memory forget` removes every byte": ["test_forget_leaves_no_bytes"],
    "an agent with its own namespace reads only that and the shared one": [
        "test_an_agent_never_sees_the_memories_of_another"
    ],
    "`memory migrate` verify each copy": ["test_a_migration_is_verified"],
    "`memory backup` and": ["test_a_backup_is_verified_and_restores"],
    "ten tools over MCP": ["test_an_agent_connects_over_mcp"],
    "`memory serve` serves a web page": ["test_a_person_searches_on_the_page"],
    "`memory disconnect claude-code` restores": ["test_disconnect_restores_the_hosts_settings"],
}

WRITER = """
import sys
from memories import Memories
with Memories() as memories:
    for number in range(int(sys.argv[2])):
        created = memories.create(f"Writer {sys.argv[1]} noted fact {number}", force=True)
        print(created.id, flush=True)
"""


def test_every_promise_of_the_readme_has_a_test() -> None:
    """Checks every bold sentence of the list of promises, and every other entry of the table."""
    listed = README.partition("## What it promises")[2].partition("\n## ")[0]
    text = " ".join(README.split())
    leads = re.findall(r"^- (\*\*[^*]+\*\*)", listed, re.MULTILINE)
    items = [" ".join(item.split()) for item in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]]
    assert len(leads) == len(items) >= 5
    missing = [promise for promise in PROMISES if promise not in text]
    unproven = [item for item in items if not any(promise in item for promise in PROMISES)]
    tests = {name for name in globals() if name.startswith("test_")}
    named = {name for names in PROMISES.values() for name in names}
    assert (missing, unproven) == ([], [])
    assert named == tests - {"test_every_promise_of_the_readme_has_a_test"}


def stored_ids(count: int = 100_000) -> set[str]:
    """Return the ids of the memories in the default store."""
    with Memories(embedder="fake") as memories:
        return {memory.id for memory in memories.list(limit=min(count, 1000)).memories}


def start_writer(environment: Mapping[str, str], name: str, count: int) -> "subprocess.Popen[str]":
    """Start a process that creates memories and prints the id of each when it is acknowledged."""
    command = [sys.executable, "-c", WRITER, name, str(count)]
    return subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True)


def test_an_acknowledged_write_survives_kill_9(
    clean_environment: dict[str, str], home: Path
) -> None:
    environment = {**clean_environment, "MEMORY_HOME": str(home)}
    for round_ in range(2):
        with start_writer(environment, f"k{round_}", 10_000) as writer:
            assert writer.stdout is not None
            acknowledged = {writer.stdout.readline().strip() for _ in range(5 + 14 * round_)}
            writer.send_signal(signal.SIGKILL)
            acknowledged |= {line.strip() for line in writer.stdout if line.endswith("\n")}
        assert acknowledged <= stored_ids()


def test_an_acknowledged_write_survives_a_power_cut(run_python: RunPython, tmp_path: Path) -> None:
    """After a power failure, a file contains what was flushed to disk and nothing that was written
    later.
    """
    script = """
import shutil, sys
from pathlib import Path
import apsw
flushed = {}
class Disk(apsw.VFS):
    def __init__(self):
        super().__init__("disk", "unix", makedefault=True)
    def xOpen(self, name, flags):
        return File(name, flags)
class File(apsw.VFSFile):
    def __init__(self, name, flags):
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)
    def xSync(self, flags):
        super().xSync(flags)
        flushed[self.path] = self.xRead(self.xFileSize(), 0) if self.xFileSize() else b""
disk = Disk()
def moved(event, arguments):  # a store is made under another name
    if event in {"os.rename", "os.link"} and str(arguments[0]) in flushed:
        flushed[str(arguments[1])] = flushed[str(arguments[0])]
sys.addaudithook(moved)
from memories import Memories
store, after = Path(sys.argv[1]) / "memories.db", Path(sys.argv[2])
for number in range(12):
    with Memories(f"sqlite:///{store}", embedder="fake") as memories:
        created = [memories.create(f"Fact {number}.{part} of the logbook", force=True).id for part in range(3)]
        cut = dict(flushed)  # the power is cut here: every write is acknowledged, and nothing was closed
    shutil.rmtree(after, ignore_errors=True)
    after.mkdir(mode=0o700)
    for path, data in cut.items():
        if Path(path).parent == store.parent:
            (after / Path(path).name).write_bytes(data)
            (after / Path(path).name).chmod(0o600)
    with Memories(f"sqlite:///{after}/memories.db", embedder="fake") as memories:
        found = {memory.id for memory in memories.list(limit=1000).memories}
    assert set(created) <= found, (number, sorted(cut))
    assert len(found) == 3 * (number + 1)
print(len(flushed))
"""
    folder = tmp_path / "before"
    folder.mkdir(mode=0o700)
    assert int(run_python(script, folder, tmp_path / "after").stdout) >= 2  # the file and its log


def test_processes_that_write_simultaneously_lose_nothing(
    clean_environment: dict[str, str], home: Path, tmp_path: Path
) -> None:
    environment = {**clean_environment, "MEMORY_HOME": str(home)}
    told = together(
        WRITER,
        [(f"w{number}", 3) for number in range(16)],
        environment=environment,
        folder=tmp_path,
    )
    acknowledged = [memory_id for out in told for memory_id in out.split()]
    assert len(acknowledged) == 16 * 3
    assert stored_ids() == set(acknowledged)


def test_nothing_is_deleted_merged_or_rebuilt_on_its_own(
    run_python: RunPython, tmp_path: Path
) -> None:
    """Years pass and every read-only command runs; every record still exists unchanged."""
    script = """
import json, sys
from datetime import datetime, timedelta, UTC
from memories import Memories
from memories.transfer.export import export
day = datetime(2026, 1, 5, tzinfo=UTC)
def records(memories):
    lines = []
    export(memories._store, lines.append, namespaces=None, progress=lambda *_: None)
    records = [json.loads(line) for line in lines]
    kept = [record for record in records if "text" in record]
    return [{key: value for key, value in record.items() if key != "accesses"} for record in kept]
with Memories(embedder="fake", clock=lambda: day) as memories:
    for text in ("Deploys are on Monday", "Deploys are on Tuesday", "The port is 80", "The port is 8080"):
        memories.create(text, decay="contextual", force=True)
    memories.delete(memories.create("The office is in Cologne").id)
    before = records(memories)
later = day + timedelta(days=3650)
with Memories(embedder="fake", clock=lambda: later) as memories:
    memories.search("deploys"), memories.list(deleted=True), memories.tags(), memories.status(), memories.duplicates()
    assert records(memories) == before
    assert len(before) == 5
"""
    run_python(script)


def test_a_correction_is_kept(home: Path) -> None:
    pairs = [
        ("The server listens on port 5432", "The server listens on port 5433"),
        ("The release is on 3 May 2026", "The release is on 4 May 2026"),
        ("We run version 1.9.2 of the gateway", "We run version 1.10.2 of the gateway"),
        ("The config is in /etc/app/main.toml", "The config is in /etc/app/prod.toml"),
        ("Ann leads the platform team", "Bob leads the platform team"),
        ("The user likes dark mode", "The user does not like dark mode"),
    ]
    with Memories() as memories:
        for old, new in pairs:
            assert memories.create(old).stored, old
            assert memories.create(new).stored, new
        contents = {memory.content for memory in memories.list(limit=100).memories}
    assert contents == {text for pair in pairs for text in pair}


def test_a_refused_duplicate_names_the_memory_and_the_options(home: Path) -> None:
    with Memories(embedder="minilm") as memories:
        first = memories.create("Deploys happen on Tuesdays at 09:30").id
    command = [sys.executable, "-m", "memories", "create", "Deploys happen on Tuesdays at 9:30."]
    environment = {**os.environ, "EMBEDDER": "minilm"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["stored"]) == (3, False)
    [duplicate] = answer["duplicates"]
    assert duplicate["id"] == first
    assert "--force" in str(answer["hint"])
    assert f"memory update {first}" in str(answer["hint"])


def test_a_search_finds_facts_by_their_meaning(home: Path) -> None:
    """Each question finds its fact among the first five of many, although question and fact share
    few words.
    """
    facts = {
        "Which day do we release?": "Deploys happen every Thursday morning",
        "What does the boss eat?": "Maria, who runs the company, is vegetarian",
        "Where is the database?": "PostgreSQL runs on the machine called heron",
        "How do I get paid?": "Salaries are transferred on the 25th of each month",
        "Is there a pet in the house?": "The family adopted a small dog named Pixel",
    }
    with Memories(embedder="minilm") as memories:
        memories.create_many(facts.values(), force=True)
        memories.create_many(
            [f"Service {number} listens on port {8000 + number}" for number in range(60)],
            force=True,
        )
        memories.create_many(
            [f"Room {number} has a projector and {number} chairs" for number in range(40)],
            force=True,
        )
        found = {
            question: [hit.memory.content for hit in memories.search(question, limit=5)]
            for question in facts
        }
    assert [question for question, fact in facts.items() if fact not in found[question]] == []


def test_a_cold_command_loads_only_the_modules_that_it_needs(run_python: RunPython) -> None:
    """Slow modules are loaded only when needed: help loads almost nothing, and no command loads a
    server.
    """
    script = """
import os, sys
from memories.__main__ import run
answers, sys.stdout = sys.stdout, open(os.devnull, "w")
assert run(sys.argv[1:]) == 0
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=answers)
"""
    loaded = {
        name: set(run_python(script, name).stdout.split()) for name in ("--help", "list", "status")
    }
    assert {name: modules & CLIENTS for name, modules in loaded.items()} == {
        name: set() for name in loaded
    }
    assert loaded["--help"] & {"click", "numpy", "apsw", "yaml", "onnxruntime"} <= {"click"}
    assert loaded["list"] & {"numpy", "onnxruntime"} == set()


def test_the_store_is_one_private_file(home: Path) -> None:
    before = os.umask(0)
    try:
        with Memories(embedder="fake") as memories:
            memories.create("The user prefers Python")
    finally:
        os.umask(before)
    assert (home / "memories.db").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    with_text = [
        file
        for file in home.rglob("*")
        if file.is_file() and b"prefers Python" in file.read_bytes()
    ]
    assert {file.name for file in with_text} <= {"memories.db", "scratchpad.yaml"}


def test_no_command_opens_a_network_connection(run_python: RunPython) -> None:
    script = """
import sys
def refuse(event, arguments):
    if event in {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"}:
        address = arguments[1] if event != "socket.getaddrinfo" else arguments[0]
        assert isinstance(address, (str, bytes)) and event != "socket.getaddrinfo", (event, arguments)
sys.addaudithook(refuse)
from memories.__main__ import run
for arguments in (["create", "The user prefers Python"], ["search", "which?"], ["list"], ["status"], ["doctor"]):
    assert run(arguments) == 0, arguments
"""
    run_python(script)


def test_forget_leaves_no_bytes(home: Path) -> None:
    """No file contains the text, a word of it in any encoding, or a copy of its vector."""
    secret = "Zyxomark quibbles under the vermilion aqueduct"
    with Memories(embedder="minilm") as memories:
        memories.create_many(
            [f"Service {number} listens on port {8000 + number}" for number in range(50)],
            force=True,
        )
        created = memories.create(secret, tags={"about": "zyxotag"})
        memories.update(created.id, f"{secret}, twice")
        memories.search("zyxomark")
        memories.forget(created.id)
    words = [*secret.casefold().split()[:1], "quibbles", "vermilion", "aqueduct", "zyxotag"]
    left = [
        (file.name, word, encoding)
        for file in home.rglob("*")
        if file.is_file()
        for word in words
        for encoding in ("utf-8", "utf-16-le")
        if word.encode(encoding) in file.read_bytes().lower()
    ]
    assert left == []


def test_an_agent_never_sees_the_memories_of_another(home: Path) -> None:
    with (
        Memories(namespace="ann", embedder="fake") as ann,
        Memories(namespace="bob", embedder="fake") as bob,
    ):
        own = ann.create("Ann's salary talk is on Monday", key="talk").memory
        Memories(embedder="fake").create("The office closes at noon")
        assert own is not None
        assert [memory.content for memory in bob.list().memories] == ["The office closes at noon"]
        assert [hit.memory.content for hit in bob.search("salary talk on Monday")] in (
            [],
            ["The office closes at noon"],
        )
        for forbidden in (bob.get, bob.history, bob.delete, bob.forget):
            with pytest.raises(NotFound):
                forbidden(own.id)
        assert ann.get(own.id).content == "Ann's salary talk is on Monday"


def test_a_migration_is_verified(run_python: RunPython, tmp_path: Path, home: Path) -> None:
    with Memories(embedder="fake") as memories:
        kept = memories.create("The user prefers Python", tags={"type": "preference"})
        memories.update(kept.id, "The user prefers Rust")
        memories.add_turns("standup", ["We ship on Friday"])
    target = f"files:///{tmp_path}/notes"
    command = [sys.executable, "-m", "memories", "migrate", "--to", target]
    environment = {**os.environ, "EMBEDDER": "fake"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verified"] is True
    with Memories(target, embedder="fake") as memories:
        assert [version.content for version in memories.history(kept.id).versions] == [
            "The user prefers Python",
            "The user prefers Rust",
        ]
        assert [turn.content for turn in memories.turns("standup")] == ["We ship on Friday"]


def test_a_backup_is_verified_and_restores(tmp_path: Path, home: Path) -> None:
    command = [sys.executable, "-m", "memories"]
    environment = {**os.environ, "EMBEDDER": "fake"}

    def run(*arguments: str) -> dict[str, object]:
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    with Memories(embedder="fake") as memories:  # the store stays in use
        kept = memories.create("The user prefers Python").id
        backup = run("backup")
        memories.forget(kept)
        assert backup["verified"] is True
        assert (
            run(
                "restore",
                str(backup["backup"]),
                "--store",
                f"sqlite:///{tmp_path}/back/memories.db",
            )["verified"]
            is True
        )
    with Memories(f"sqlite:///{tmp_path}/back/memories.db", embedder="fake") as memories:
        assert memories.get(kept).content == "The user prefers Python"


def test_an_agent_connects_over_mcp(home: Path, tmp_path: Path) -> None:
    """The real SDK starts the server like a host, initializes the session, lists ten tools, and
    stores and finds a fact.
    """
    import asyncio

    from mcp import Client, StdioServerParameters

    async def talk() -> tuple[int, str]:
        environment = {**os.environ, "EMBEDDER": "minilm"}
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "memories", "mcp"], env=environment
        )
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            await client.call_tool(
                "create_memory", {"content": "The staging database is called heron"}
            )
            found = await client.call_tool("search_memories", {"query": "staging database"})
            return len(tools), str(found.content)

    count, answer = asyncio.run(asyncio.wait_for(talk(), 120))
    assert count == 10
    assert "heron" in answer


def test_a_person_searches_on_the_page(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path
) -> None:
    """A browser, if one is installed, signs in with a token and finds a memory by typing."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("no Chromium is installed; Debian has it as the package chromium")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    with Memories(embedder="fake") as memories:
        memories.create("Deploys happen on Fridays")
    from live_server import running
    from memories import load_config
    from memories.server.app import Options
    from memories.server.pages import routes as pages

    config = load_config(
        {"embedder": "none"}, environment={"MEMORY_HOME": str(home)}, folder=tmp_path
    )
    with (
        running(config, Options(routes=pages.routes())) as live,
        sync_api.sync_playwright() as started,
    ):
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.goto(f"{live.url}/login#{live.token}")
        page.locator("#q").press_sequentially("deploys")
        page.locator("mark").first.wait_for()
        assert "Deploys happen on Fridays" in page.locator("article").inner_text()
        browser.close()


PATIENT = """
from memories.connect import status
from memories.__main__ import main
status._SERVER_SECONDS = status._HOOK_SECONDS = status.HOOK_SECONDS = 300.0  # on a busy machine too
main()
"""


def test_disconnect_restores_the_hosts_settings(tmp_path: Path, home: Path) -> None:
    user = tmp_path / "user"
    settings = user / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{\n  "model": "opus" \n}')
    environment = {**os.environ, "HOME": str(user)}
    for verb in ("connect", "disconnect"):
        command = [sys.executable, "-c", PATIENT, verb, "claude-code"]
        done = subprocess.run(
            command, env=environment, cwd=user, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (settings.read_text() == '{\n  "model": "opus" \n}') is (verb == "disconnect")
