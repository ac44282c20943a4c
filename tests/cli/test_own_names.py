"""No namespace can have the name of one of the program's files, since the folders of namespaces are
next to these files in the home.

The names are found twice: in the sources, wherever a path below the home is built, and in a run.
"""

import ast
import functools
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import Command
from memories import Memories
from memories.config import load_config
from memories.connect import files
from memories.errors import InvalidInput
from memories.guard import validate
from memories.hooks import inbox, runs, session
from memories.identity import tokens
from memories.identity.registry import set_alias
from memories.server.api.idempotency import FileClaims, file_of
from memories.stores.records import SEARCHED, Collection, Filter
from memories.stores.sqlite.store import SQLiteStore
from memories.warm import socket_of
from memories.write.turn_queue import RetryQueue, files_of

Stored = Callable[..., str]

SOURCE = Path(__file__).parents[2] / "src" / "memories"
OF_NAMESPACES = {
    "namespace",
    "self.namespace",
    "name",
    "into",
}  # variables in paths below the home that contain the name of a namespace
BESIDE_A_STORE = ["", "-wal", "-shm", "-journal", "-requests", ".lock", ".v3.backup", ".replaced-20260101T000000Z",
                  ".before-fix-20260101T000000Z-0a1b", ".bob.turns.jsonl", ".bob.turns.jsonl.refused",
                  ".bob.windows.lock"]  # fmt: skip


NAMES_A_HOME = re.compile("home|registers")  # `is_home` finds nothing in files without these words


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every source file."""
    return {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


@pytest.fixture(scope="module", autouse=True)
def not_kept() -> Iterator[None]:
    """Drop the syntax trees after the tests; they take 140 MB."""
    yield
    trees.cache_clear()


@functools.cache
def constants() -> dict[tuple[str, str], str]:
    """Return the string constants of all modules, by module and name."""
    return {
        (file.stem, target.id): value.value
        for file, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for targets in node.targets
        for target, value in (
            zip(targets.elts, node.value.elts, strict=False)
            if isinstance(targets, ast.Tuple) and isinstance(node.value, ast.Tuple)
            else [(targets, node.value)]
        )
        if isinstance(target, ast.Name)
        and isinstance(value, ast.Constant)
        and isinstance(value.value, str)
    }


def is_home(node: ast.AST) -> bool:
    """Return whether an expression is the path of the home."""
    text = ast.unparse(node)
    return bool(re.fullmatch(r"(\w+\.)*_?home|registers(\(\))?|\(?\(?home or .*", text))


def below_the_home() -> Iterator[tuple[Path, ast.expr]]:
    """Yield the file and the part after the home of each path that is built."""
    for file, tree in trees().items():
        is_of_user = "sources" in file.parts or file.stem in ("hosts", "installation", "conflicts")
        if is_of_user or not NAMES_A_HOME.search(file.read_text()):
            continue  # the home of the user, not ours
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and is_home(node.left):
                yield file, node.right
            if isinstance(node, ast.Call) and len(node.args) > 1:
                joins = ast.unparse(node.func) in ("os.path.join", "place.private", "Path")
                if joins and is_home(node.args[0]):
                    yield file, node.args[1]


def text_of(file: Path, node: ast.expr) -> str:
    """Return the value of an expression, with a number in place of parts that are only known at
    run time.
    """
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(file, each) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value).rpartition(".")[2]
        return text_of(file, node.value) if name.strip("_").isupper() else "0a1b2c3d"
    module, _, name = ast.unparse(node).rpartition(".")
    return constants()[module or file.stem, name]


def is_refused(name: str) -> bool:
    """Return whether a name is refused for namespaces."""
    try:
        validate.namespace(name)
    except InvalidInput:
        return True
    return False


def test_every_name_that_the_sources_use_below_the_home_is_refused() -> None:
    found = [
        (file, node) for file, node in below_the_home() if ast.unparse(node) not in OF_NAMESPACES
    ]
    names = {
        text_of(file, node) for file, node in found if "collection_name" not in ast.unparse(node)
    }
    assert names > {
        "backups",
        "inbox",
        "off",
        "off.lock",
        "tokens.json",
        "events.0a1b2c3d.jsonl",
        "requests-0a1b2c3d",
    }
    assert [name for name in sorted(names) if not is_refused(name)] == []


def test_every_file_that_a_run_creates_in_the_home_has_a_refused_name(
    memory: Command, stored: Stored, home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stored("Deploys happen on Tuesdays", "--namespace", "bob")
    for command in (
        ["get", first, "-n", "bob"], ["search", "deploys", "-n", "bob"], ["export", "-o", f"{folder}/e.jsonl"], ["off"],
        ["backup"], ["tokens", "create", "reader", "--allow", "bob:r"], ["prompt"], ["trust", "--help"],
        ["off", "--all"], ["doctor"], ["capture", "status"], ["scratchpad", "show", "-n", "bob"],
    ):  # fmt: skip
        assert memory(*command).code == 0, command
    tokens.own(home)
    config = load_config()
    RetryQueue.of_turns(*files_of(config, "bob")).add({"conversation_id": "talk"})
    RetryQueue.of_turns(*files_of(config._replace(store="postgresql://host/one"), "bob")).add(
        {"conversation_id": "t"}
    )
    FileClaims(file_of(config))
    FileClaims(file_of(config._replace(store="postgresql://host/one")))
    set_alias(home, "shop", "store")
    inbox.add(str(home), "codex.s1", {"event": "stop"})
    session.append(str(home), "codex.s1", folder="/")
    runs.record_run(str(home), "codex", "stop", "it failed")
    files.keep_receipt(
        home, ("codex", "user", ""), [files.WrittenFile("x", None, False, True, "", ())]
    )
    with Memories() as memories:
        memories.create("The office is in Berlin")
        names = {each.name for each in home.iterdir() if not each.name.startswith(".")}
    names.add(Path(socket_of("", {"MEMORY_HOME": "/home"})).parent.name)
    assert names > {
        "bob",
        "memories.db",
        "memories.db-wal",
        "memories.db.lock",
        "memories.db-requests",
    }
    assert names > {
        "backups",
        "hooks",
        "hooks.log",
        "inbox",
        "sessions",
        "off",
        "tokens.json",
        "events.jsonl",
    }
    assert [name for name in sorted(names - {"bob", "shared"}) if not is_refused(name)] == []
    monkeypatch.setenv(
        "MEMORY_STORE", f"sqlite:///{home}/Notes"
    )  # a store with a name of the user's choice
    stored("The office is in Berlin")
    for name in (each.name for each in home.iterdir() if each.name.startswith("Notes")):
        assert "name of one of this program's files" in memory("list", "-n", name).error
    assert memory("list", "-n", "notes-of-ann").code == 0


def test_the_names_of_files_next_to_a_store_are_refused() -> None:
    for end in BESIDE_A_STORE:
        for name in ("memories", "team"):
            assert is_refused(f"{name}.db{end}"), end
            assert is_refused(f"{name}.DB{end}".upper()), end


@pytest.mark.parametrize("name", ["shared", "bob", "alice.smith", "node.js", "db", "journal", "off-road", "my-inbox",
                                  "lock", "json-api", "requests", "v1.2", "user_1", "keyboard.keys"])  # fmt: skip
def test_all_other_names_are_accepted(name: str) -> None:
    assert validate.namespace(name) == name


# --- commands that name a namespace

OWN = ["memories.db-journal", "Tokens.JSON", "off", "inbox", "requests-0a1b2c3d"]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", OWN)
def test_the_name_of_a_file_is_refused_by_every_command_and_creates_nothing(
    memory: Command, home: Path, folder: Path, name: str
) -> None:
    commands = [
        ["create", "x"], ["list"], ["search", "x"], ["prompt"], ["scratchpad", "show"], ["scratchpad", "rebuild"],
        ["turns", "add", "talk", "x"], ["turns", "list"], ["export"], ["context", "x"], ["tags"], ["stats"],
    ]  # fmt: skip
    for command in commands if name == OWN[0] else commands[:2]:
        for answer in (
            memory(*command, "-n", name),
            memory(*command, env={"MEMORY_NAMESPACE": name}),
        ):
            assert (answer.code, "has the name of one of this program's files" in answer.error) == (
                2,
                True,
            ), command
    with pytest.raises(InvalidInput, match="name of one of this program's files"):
        Memories(namespace=name)
    assert not home.exists()
    memory("create", "x", "-n", "bob")
    memory("export", "-n", "bob", "-o", f"{folder}/e.jsonl")
    for command in (
        ["namespaces", "rename", "bob", name], ["namespaces", "merge", "bob", name],
        ["import", f"{folder}/e.jsonl", "--as", name], ["tokens", "create", "t", "--allow", f"{name}:rw"],
    ):  # fmt: skip
        answer = memory(*command)
        assert (answer.code, "has the name of one of this program's files" in answer.error) == (
            2,
            True,
        ), command
    assert not (home / name.lower()).exists()
    (home / "config.toml").write_text(f'namespace = "{name}"\n')
    assert "has the name of one of this program's files" in memory("list").error


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["inbox", "memories.db-journal"])
def test_a_namespace_from_an_earlier_version_can_be_read_and_renamed(
    memory: Command,
    stored: Stored,
    home: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    stored("Ann likes tea", "-n", "ann")
    memory("turns", "add", "talk", "We ship on Friday", "-n", "ann")
    store = SQLiteStore(home / "memories.db", None)
    for collection in SEARCHED:
        records = store.scan(Filter(collection, ("ann",), state="any"), limit=10)
        store.append([each._replace(ref=each.ref._replace(namespace=name)) for each in records])
    store.close()
    monkeypatch.setenv("MEMORY_NAMESPACE", name)
    for command in (["list"], ["search", "tea"], ["scratchpad", "show"], ["turns", "show", "talk"]):
        shown = memory(*command)
        assert (shown.code, "tea" in shown.out or "Friday" in shown.out) == (0, True), (
            command,
            shown,
        )
    assert memory("export", "-o", f"{folder}/e.jsonl").json["exported"] == 2
    assert memory("prompt").code == 0
    assert memory("create", "Ann likes coffee, too").code == 0
    assert not (home / name).exists()
    assert f'namespace "{name}"' in str(json.loads(memory("doctor").out)["findings"])
    assert f"memory namespaces rename {name} NEW" in str(
        json.loads(memory("doctor").out)["findings"]
    )
    assert memory("namespaces", "rename", name, "tea").json["versions"] == 2
    assert memory("list").code == 2
    assert memory("list", "-n", "tea").json["count"] == 2
    assert memory("doctor", env={"EMBEDDER": "none"}).json["findings"] == []


READING = [
    ["list"], ["search", "x"], ["search", "x", "--tier", "hot"], ["prompt"], ["scratchpad", "show"], ["context", "x"],
    ["tags"], ["stats"], ["turns", "list"], ["review"], ["export"], ["duplicates"], ["status"], ["log"],
]  # fmt: skip


def test_reading_a_namespace_that_was_never_written_creates_nothing(
    memory: Command, stored: Stored, home: Path
) -> None:
    for command in READING:
        assert (memory(*command, "-n", "carol").code, home.exists()) == (0, False), command
    stored("The office is in Berlin", "-n", "bob")
    before = {each.name for each in home.iterdir()}
    for command in READING:
        assert memory(*command, "-n", "carol").code == 0, command
    assert {each.name for each in home.iterdir()} - before <= {
        "accesses-0",
        "export.key",
        "memories.db-shm",
    }
    assert memory("scratchpad", "show", "-n", "bob").json["file"] == str(
        home / "bob" / "scratchpad.yaml"
    )


@pytest.mark.first(2)
@pytest.mark.cold
@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm", ".lock"])
def test_doctor_names_the_remedy_for_a_folder_in_place_of_a_stores_file(
    memory: Command, stored: Stored, home: Path, end: str
) -> None:
    stored("The office is in Berlin", "-n", "bob")
    name = f"memories.db{end}"
    store = SQLiteStore(
        home / "memories.db", None
    )  # an earlier version created the memory, then the folder
    [record] = store.scan(Filter(Collection.MEMORY, ("bob",)), limit=1)
    store.append([record._replace(ref=record.ref._replace(namespace=name))])
    store.close()
    (home / name).unlink(missing_ok=True)
    (home / "bob" / "scratchpad.yaml").rename(
        (home / name).mkdir() or home / name / "scratchpad.yaml"
    )
    failed = memory("create", "The office is in Bonn", "-n", "bob")
    assert (failed.code, name in failed.error) == (1, True)
    findings = json.loads(memory("doctor").out)["findings"]
    finding = next(each for each in findings if "but should be a file" in each["what"])
    assert "so nothing can be written to the store" in finding["what"]
    move, rename = (
        finding["remedy"]
        .removeprefix("run: ")
        .split("; then rename the namespace, whose memories are in the store: ")
    )
    subprocess.run(move, shell=True, check=True, timeout=60)
    assert memory("create", "The office is in Bonn", "-n", "bob").json["stored"]
    assert memory(*shlex.split(rename.replace("NEW", "old"))[1:]).json["versions"] == 1
    assert memory("list", "-n", "old").json["results"][0]["content"] == "The office is in Berlin"
    assert memory("doctor", env={"EMBEDDER": "none"}).json["findings"] == []
    assert list(home.rglob(f".{name}.moved/scratchpad.yaml"))
