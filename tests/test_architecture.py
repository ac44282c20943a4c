"""What keeps the code readable and the command fast, checked on the sources themselves."""

import ast
import importlib
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import memories
from memories import stores
from memories.skins.cli import COMMANDS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "memories"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = [
    ".".join(("memories", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__") for file in FILES
]

# A module may import those of its own layer and of the layers before, by the longest of these names that fits it.
PACKAGES = ("memories", "memories.skins")  # they only hold others
LAYERS = (
    "errors models batches disk text",
    "validate times ids config decay logs stores.records",
    "versions http_client embedders.protocol stores.words",
    "stores.protocol stores.columns stores.copies turns lookup",
    "stores.documents",
    "stores stores.sqlite stores.postgres stores.chroma stores.qdrant stores.files",
    "embedders",
    "write search agent.fence agent.policy",
    "service",
    "transfer agent",
    "skins.shapes",
    "skins.cli skins.mcp",
    "__main__",
)
# Inside a store a module imports only those further to the left.
INSIDE = {
    "sqlite": "schema quantize < connection query < vectors words < spaces turns < store",
    "postgres": (
        "schema errors driver < transaction < connection query < vectors words < spaces turns < erasure < store"
    ),
    "documents": "driver http < schema < pending < changes < query spaces < search < store",
    "chroma": "driver < store",
    "qdrant": "driver index < local rest < folder < store",
}
BUILT_ON = {"chroma": "documents", "qdrant": "documents", "files": "sqlite"}  # no other store imports a store
HEAVY = "typer click pydantic fastapi numpy onnxruntime apsw chromadb qdrant_client langgraph mcp".split()
MAX_CODE_LINES, MAX_FUNCTION_LINES, MAX_DEPTH = 400, 50, 3


def place(module: str) -> str:
    """Return the name in `LAYERS` that a module belongs to: the longest one; empty if there is none."""
    known = [name for names in LAYERS for name in names.split() if f"{module}.".startswith(f"memories.{name}.")]
    return max(known, key=len, default="")


def layer(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if place(module) in names.split())


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of ours that a tree imports, for type checking and inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module or "" for name in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def code_lines(text: str) -> set[int]:
    """Return the numbers of lines with code: no blank ones, no comments, no docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def in_process(script: str, home: Path, *arguments: str) -> str:
    """Run a script in a process of its own, whose home is empty; return what it printed."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "EMBEDDER": "minilm"}
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", script, *arguments],
        capture_output=True, text=True, cwd=home, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("file", FILES, ids=MODULES)
def test_imports_point_inward(file: Path) -> None:
    module = MODULES[FILES.index(file)]
    if module in PACKAGES:
        return  # it only names what is exported; that importing it stays light is tested below
    for imported in imports(ast.parse(file.read_text())):
        if imported.startswith("memories."):
            assert layer(imported) <= layer(module), f"{module} imports {imported}"


def test_every_module_has_a_layer() -> None:
    assert [module for module in MODULES if module not in PACKAGES and not place(module)] == []


def step(store: str, module: str) -> int:
    return next(number for number, names in enumerate(INSIDE[store].split(" < ")) if module in names.split())


@pytest.mark.parametrize("store", INSIDE)
def test_inside_a_store_imports_point_down(store: str) -> None:
    for file in sorted((SOURCE / "stores" / store).glob("[a-z]*.py")):
        for imported in imports(ast.parse(file.read_text())):
            if imported.startswith(f"memories.stores.{store}."):
                name = imported.rpartition(".")[2]
                assert step(store, name) < step(store, file.stem), f"{store}.{file.stem} imports {name}"


def test_no_store_imports_another_but_those_that_are_built_on_one() -> None:
    for file in sorted((SOURCE / "stores").glob("*/*.py")):
        own = file.parent.name
        for imported in imports(ast.parse(file.read_text())):
            other = imported.removeprefix("memories.stores.").split(".")[0]
            if imported.startswith("memories.stores.") and (SOURCE / "stores" / other).is_dir():
                assert other in (own, BUILT_ON.get(own)), f"{own}.{file.stem} imports {imported}"


def test_what_opens_a_store_is_there() -> None:
    for name in stores._STORES.values():
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"memories.stores.{module}"), attribute))


def test_importing_memories_loads_nothing_heavy(empty: Path) -> None:
    script = "import sys, memories; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert in_process(script, empty, *HEAVY) == "[]\n"
    script = "import sys, memories; memories.Memories; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert in_process(script, empty, *HEAVY) == "[]\n"


@pytest.mark.parametrize(
    "command",
    ["--help", "search --help", "status", "config", "list", "tags", "get ID", "history ID", "delete ID", "export -o x"],
)
def test_what_needs_no_vectors_does_not_load_their_libraries(command: str, empty: Path) -> None:
    store = f"sqlite:///{empty}/m.db"
    with memories.Memories(store, embedder="none") as found:
        made = found.create("content").memory
    assert made is not None
    if command.split(maxsplit=1)[0] not in ("--help", "search"):
        command += f" --store {store}"
    script = (
        "import sys\nfrom memories.__main__ import run\ncode = run(sys.argv[1].split())\n"
        "heavy = sys.modules.keys() & {'numpy', 'onnxruntime', 'typer', 'pydantic'}\n"
        "sys.stderr.write(repr(heavy)) if heavy else None\nsys.exit(code or len(heavy))"
    )
    assert in_process(script, empty, command.replace("ID", made.id))


def test_importing_every_module_does_nothing(empty: Path) -> None:
    script = """
import importlib, logging, os, sys
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
assert dict(os.environ) == before
assert not logging.getLogger().handlers
"""
    modules = [module for module in MODULES if module != "memories.__main__"]
    assert in_process(script, empty, *modules) == ""
    assert list(empty.iterdir()) == []


def test_the_public_names_are_all_there_and_no_others(empty: Path) -> None:
    assert sorted(memories.__all__) == list(memories.__all__)
    assert dir(memories) == sorted(memories.__all__)
    for name in memories.__all__:
        assert getattr(memories, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = memories.Nothing
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    exported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memories.")
        for alias in node.names
    }
    assert exported == set(memories.__all__) - {"__version__"}
    raised = {name for name, value in vars(memories.errors).items() if isinstance(value, type)}
    assert raised <= set(memories.__all__)


@pytest.mark.parametrize("file", FILES, ids=MODULES)
def test_budgets(file: Path) -> None:
    text = file.read_text()
    lines = code_lines(text)
    assert len(lines) <= MAX_CODE_LINES
    assert len(file.relative_to(SOURCE).parts) <= MAX_DEPTH
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_every_module_and_public_function_says_what_it_is() -> None:
    for file in FILES:
        tree = ast.parse(file.read_text())
        assert ast.get_docstring(tree), file
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node) or node.name in UNDOCUMENTED, f"{file}: {node.name}"


UNDOCUMENTED = {"fetch", "fetch_value"}  # their names and types say it all


def test_one_file_only_opens_stores() -> None:
    opening = [file.name for file in FILES if re.search(r'apsw\.Connection\((?!":memory:"\))', file.read_text())]
    assert opening == ["connection.py"]


def test_nothing_else_touches_a_store_file() -> None:
    """Python's own sqlite3 loses acknowledged writes, and closing a plain file handle cancels SQLite's locks."""
    for file in FILES:
        text = file.read_text()
        assert not re.search(r"^\s*(import|from) (sqlite3|pysqlite3)\b", text, re.M), file
        if "stores" in file.relative_to(SOURCE).parts:
            assert not re.search(r"(?<![.\w])open\(|\.(read_bytes|write_bytes|write_text)\(|copyfile|copy2", text), file


def test_errors_are_shown_once_and_swallowed_nowhere() -> None:
    def passed_on(handler: ast.ExceptHandler, part: ast.AST) -> bool:
        if isinstance(part, ast.Raise):
            return part.cause is not None
        return isinstance(part, ast.Call) and handler.name in {name.id for name in part.args if type(name) is ast.Name}

    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name) and node.type.id == "Exception":
                assert any(passed_on(node, part) for part in ast.walk(node)), f"{file}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{file}:{node.lineno}"


def test_every_command_is_in_the_documentation() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    if not text.strip():
        pytest.skip("there is no documentation yet")
    assert [name for name in COMMANDS if f"memory {name}" not in text] == []


def test_no_test_asserts_on_time() -> None:
    """A busy machine takes as long as it takes: `bench/` measures, and a test counts steps or waits for what comes."""
    clock = re.compile(r"\b(monotonic|perf_counter|process_time|time\.time)\(\)")
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            taken = [part for part in ast.walk(node) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)]
            if isinstance(node, ast.Assert):
                assert not [part for part in taken if clock.search(ast.unparse(part))], f"{file}:{node.lineno}"
