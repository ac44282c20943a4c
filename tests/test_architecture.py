"""Rules that keep the code readable and the command fast, checked on the source files."""

import ast
import functools
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import memories
from memories import stores
from memories.cli import COMMANDS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "memories"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = [
    ".".join(("memories", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for file in FILES
]
NAMES = frozenset(MODULES)

# The modules of each package in levels, from the bottom up. Every import, even inside a function,
# leads to a level further left, never to a neighbour on the same level, so there are no cycles. Of
# the stores, Chroma and Qdrant are drivers of the document store, and the files store uses the
# SQLite store as its index.
ORDER = {
    "memories": """errors languages < guard < models < settings < core < anchors < config < stores < embedders < read <
        search write < scratchpad transfer < memories < context < identity < answers < hooks < connect < warm < cli mcp <
        integrations < server langgraph skins < __main__""",
    "memories.languages": "days gloss text < dates",
    "memories.guard": "origin values < locators < rules < contexts < spoken < scan < redactor < validate",
    "memories.anchors": "tree < contents < grammar < checks discover < judge",
    "memories.core": "batches deadline disk installation logs prompts times urls < events http ids trust",
    "memories.stores": """records claims < damage words audit_log < protocol matches < wrapper wire <
        logged < sqlite postgres documents http < chroma qdrant files""",
    "memories.stores.sqlite": """errors rows < engine quantize query < whole_file words < schema < wal <
        connection < vectors < spaces turns backup salvage < derived < check < store""",
    "memories.stores.postgres": """schema errors patience url < query < connection < counts < rewrite vectors <
        search shared < store""",
    "memories.stores.documents": "driver < schema < changes < query < spaces < search < store",
    "memories.stores.qdrant": "driver < local < folder < store",
    "memories.stores.files": "connection log < index < local < move < store",
    "memories.embedders": "protocol < fake minilm scores service < e5",
    "memories.embedders.service": "providers < client < embedder",
    "memories.read": "expressions replacements turns versions < lookup names < selector < conversations listing",
    "memories.search": "filters relevance < ranking < candidates < noise surroundings results < search",
    "memories.write": """compare turn_queue accesses < captured suspicion links anchoring < change turns bulk < forget
        repetitions < write_context < similar < tidy < truth create < review rollback""",
    "memories.write.compare": "quick_checks vocabulary < reading grammar < word_order "
    "< duplicates < frames < corrections",
    "memories.scratchpad": """entries text < layout < file < hot_tier mirror < matching refresh <
        scratchpads""",
    "memories.transfer": """lines pages stats < audit bundle export intake migrate moves sources < importing foreign <
        backup < doctor""",
    "memories.transfer.sources": """items database < reader < sample < markdown < chats chroma
        plain_files sessions web_exports < memory_programs""",
    "memories.context": """fence policy tokens < protocol < admission rendering passages < memories_backend
        chroma_mcp fitting < gateway < gathering < context < memory""",
    "memories.identity": "git registry tokens < namespaces session_block project < place prompt",
    "memories.answers": "advice compare fields < compact shapes < conversation_shapes store_shapes",
    "memories.hooks": """files gate sentences < session inbox host_events < switch runs recall_strategy <
        prompt_recall < model_context < handler preview < transcripts hook < phrases < proposals < flush""",
    "memories.connect": "jsonc toml program files < hosts < entries < connect < status < report",
    "memories.cli": """output complete < text app < options < backup bulk < search turns stores
        status serve identities < review < agents connect memories
        transfer""",
    "memories.mcp": "answers < tools < server < stdio",
    "memories.skins": "agents_session amplifier anthropic_tool",
    "memories.integrations": "amplifier anthropic chat hermes langchain langgraph openai openclaw",
    "memories.integrations.amplifier": "session < context tool < capture",
    "memories.integrations.hermes": "provider __main__",
    "memories.integrations.openclaw": "__main__",
    "memories.integrations.chat": "settings < memory < agent demo < loop",
    "memories.server": "sockets group_commit < api < pages warm < app < http < serve",
    "memories.server.api": """problems < middleware idempotency < access < server < routes records <
        memory_routes openapi < conversation_routes bulk_routes store_routes""",
    "memories.server.pages": "request < results picture < views < agents < routes",
}
# Ring 1 is the core, ring 2 is what every user has, ring 3 is optional. No ring imports one further
# out; modules further out are loaded by name. Only the class `Memories` may use ring 2, since it
# has a method for each verb.
RING_2 = (
    "answers", "cli", "connect", "context", "hooks", "identity", "mcp", "scratchpad", "transfer", "warm", "__main__",
)  # fmt: skip
RING_3 = (
    "embedders.e5", "embedders.service", "integrations", "langgraph", "server", "skins",
    "stores.chroma", "stores.documents", "stores.files", "stores.http", "stores.postgres", "stores.qdrant",
)  # fmt: skip
CORE_TESTS = ("core", "languages", "read", "search", "write", "scratchpad", "test_service.py")
MAX_FILES_TO_ROWS = 16
# clients, servers and SDKs, which no command on a local store loads; see `test_promises`
CLIENTS = frozenset(
    "typer pydantic fastapi starlette uvicorn jinja2 mcp chromadb qdrant_client psycopg urllib3 langgraph".split()
)
HEAVY = (*CLIENTS, "click", "numpy", "onnxruntime", "apsw")
MAX_CODE_LINES, MAX_FUNCTION_LINES, MAX_DEPTH = 400, 50, 3
MAX_MODULES = 18  # in a folder
# for the one class with a method for each verb; most methods are three lines long
MAX_OF_MEMORIES = 736


@functools.cache
def source(file: Path) -> str:
    """Return the text of a source file."""
    return file.read_text()


@functools.cache
def tree(file: Path) -> ast.Module:
    """Return the syntax tree of a source file."""
    return ast.parse(source(file))


@pytest.fixture(scope="module", autouse=True)
def not_kept() -> Iterator[None]:
    """Free the syntax trees after the tests: they take 140 MB."""
    yield
    tree.cache_clear()


def level(package: str, name: str) -> int:
    """Return the level of a module, or of a subpackage, within its package."""
    return next(
        number for number, names in enumerate(ORDER[package].split("<")) if name in names.split()
    )


def leads_down(importer: str, imported: str) -> bool:
    """Return whether an import leads to a lower level of the innermost package that contains both
    modules.
    """
    here, there = importer.split("."), imported.split(".")
    both = next(
        (at for at, (one, other) in enumerate(zip(here, there, strict=False)) if one != other), None
    )
    if (
        both is None
    ):  # a package and what is in it: its `__init__` may be imported from there if it imports nothing of it
        return (
            len(here) < len(there)
            or imported in LEAVES
            or (imported == "memories" and here[1] in ABOVE_ALL)
        )
    package = ".".join(here[:both])
    return level(package, here[both]) > level(package, there[both])


LEAVES = (
    "memories.cli",
    "memories.languages",
)  # packages whose `__init__` imports nothing of their own
ABOVE_ALL = (
    "mcp",
    "integrations",
    "server",
    "langgraph",
    "skins",
    "__main__",
)  # may import names from `memories`


@functools.cache
def imports(file: Path) -> frozenset[str]:
    """Return the modules that a file imports, even for type checking or inside functions."""
    return frozenset(find_imports(file))


def lies_in(module: str, *places: str) -> bool:
    """Return whether a module is one of our modules `names`, or is in one of these packages."""
    return any(f"{module}.".startswith(f"memories.{place}.") for place in places)


def find_imports(file: Path) -> Iterator[str]:
    """Yield each module that a file imports."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in NAMES else node.module or "" for name in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def code_lines(file: Path) -> set[int]:
    """Return the numbers of the lines of code: without blank lines, comments and docstrings."""
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source(file)).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(file)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def in_process(script: str, home: Path, *arguments: str) -> str:
    """Run a script in a separate process with an empty home; return its output."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "EMBEDDER": "minilm"}
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", script, *arguments],
        capture_output=True, text=True, cwd=home, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_modules_import_only_from_lower_levels() -> None:
    wrong = []
    for file, module in zip(FILES, MODULES, strict=True):
        ours = {name for name in imports(file) if f"{name}.".startswith("memories.")}
        if module in LEAVES:
            wrong += [f"{module} imports {name}" for name in sorted(ours)]
        elif (
            module != "memories"
        ):  # it only lists the exported names; a test below checks that importing it stays light
            wrong += [
                f"{module} imports {name}" for name in sorted(ours) if not leads_down(module, name)
            ]
    assert wrong == []


def ring(module: str) -> int:
    """Return which ring a module is in."""
    if lies_in(module, *RING_3):
        return 3
    return 2 if lies_in(module, *RING_2) else 1


def test_modules_never_import_from_an_outer_ring() -> None:
    wrong = []
    for file, module in zip(FILES, MODULES, strict=True):
        if module not in ("memories", "memories.memories"):
            outer = {name for name in imports(file) if name in NAMES and ring(name) > ring(module)}
            wrong += [f"{module} imports {name}" for name in sorted(outer - {"memories.memories"})]
    assert wrong == []


def test_each_optional_folder_can_be_deleted_by_itself() -> None:
    users = {
        "stores.documents": ("stores.chroma", "stores.qdrant"),
        "integrations": ("langgraph", "skins"),
    }
    wrong = []
    for file, module in zip(FILES, MODULES, strict=True):
        for name in RING_3:
            if not lies_in(module, name, *users.get(name, ())):
                wrong += [
                    f"{module} imports {used}"
                    for used in sorted(imports(file))
                    if lies_in(used, name)
                ]
    assert wrong == []


@pytest.mark.thorough  # runs the tests of the core a second time
def test_the_core_works_without_the_optional_folders(tmp_path: Path) -> None:
    copy = tmp_path / "src"
    shutil.copytree(SOURCE, copy / "memories", ignore=shutil.ignore_patterns("__pycache__"))
    for name in RING_3:
        place = copy.joinpath("memories", *name.split("."))
        file = place.with_suffix(".py")
        assert file.exists() or (place / "__init__.py").exists(), f"{name} is gone"
        file.unlink(missing_ok=True)
        shutil.rmtree(
            place, ignore_errors=True
        )  # an empty folder may remain from before it became a file
    rooms = [str(ROOT / "tests" / name) for name in CORE_TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *rooms],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_the_table_of_levels_lists_every_module() -> None:
    held: dict[str, set[str]] = {}
    for module in MODULES:
        package, _, name = module.rpartition(".")
        held.setdefault(package, set()).add(name)
    del held[""]
    assert {
        package: set(levels.replace("<", " ").split()) for package, levels in ORDER.items()
    } == held


def test_a_search_passes_through_few_files_and_each_only_once(empty: Path) -> None:
    """Each call of `execute` is traced back to the command as a list of files. The list is short,
    and no file is in it twice.
    """
    script = """
import os, sys, threading
import memories.__main__
root = os.path.dirname(memories.__file__)
ways = set()
def watch(frame, event, called):
    if event == "c_call" and getattr(called, "__name__", "") == "execute":
        way = []
        while frame:
            name = frame.f_code.co_filename
            if name.startswith(root) and (not way or way[-1] != name):
                way.append(name)
            frame = frame.f_back
        ways.add(tuple(way))
memories.Memories().create("Deploys happen on Tuesdays")
threading.setprofile(watch)  # what has a deadline runs in a thread of its own
sys.setprofile(watch)
memories.__main__.run(["search", "when do we deploy?"])
sys.setprofile(None)
print(max(map(len, ways)), all(len(set(way)) == len(way) for way in ways))
"""
    *_, last = in_process(script, empty).splitlines()
    longest, straight = last.split()
    assert 5 < int(longest) <= MAX_FILES_TO_ROWS
    assert straight == "True"


def test_a_folder_has_few_modules() -> None:
    counts = {file.parent: 0 for file in FILES}
    for file in FILES:
        counts[file.parent] += file.name != "__init__.py"
    crowded = {str(folder): count for folder, count in counts.items() if count > MAX_MODULES}
    assert crowded == {}


def test_the_class_of_each_store_exists() -> None:
    for name in stores._STORES.values():
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"memories.stores.{module}"), attribute))


def test_importing_memories_loads_nothing_heavy(empty: Path) -> None:
    script = "import sys, memories; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert in_process(script, empty, *HEAVY) == "[]\n"
    script = "import sys, memories; memories.Memories; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert in_process(script, empty, *HEAVY) == "[]\n"


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "search --help",
        "status",
        "config",
        "list",
        "tags",
        "get ID",
        "history ID",
        "delete ID",
        "export -o x",
    ],
)
def test_commands_without_vectors_do_not_load_heavy_libraries(command: str, empty: Path) -> None:
    store = f"sqlite:///{empty}/m.db"
    with memories.Memories(store, embedder="none") as found:
        made = found.create("content").memory
    assert made is not None
    if command.split(maxsplit=1)[0] not in ("--help", "search"):
        command += f" --store {store}"
    script = (
        "import sys\nfrom memories.__main__ import run\ncode = run(sys.argv[1].split())\n"
        "heavy = sys.modules.keys() & {'numpy', 'onnxruntime', 'typer', 'pydantic', 'urllib3'}\n"
        "sys.stderr.write(repr(heavy)) if heavy else None\nsys.exit(code or len(heavy))"
    )
    assert in_process(script, empty, command.replace("ID", made.id))


def test_creating_an_unrelated_memory_reads_no_word_lists(empty: Path) -> None:
    script = """
import sys
from memories import Memories
with Memories(embedder="minilm") as memories:
    for text in ("The API listens on port 8080", "Bert leads the payments team", sys.argv[1]):
        memories.create(text)
print("memories.write.compare.vocabulary" in sys.modules)
"""
    assert in_process(script, empty, "Deploys happen on Tuesdays") == "False\n"
    assert in_process(script, empty, "The API listens on port 9090") == "True\n"


@pytest.mark.thorough  # imports the libraries of each host
def test_importing_any_module_has_no_side_effects(empty: Path) -> None:
    script = """
import importlib, logging, os, sys
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
assert dict(os.environ) == before
assert not logging.getLogger().handlers
"""
    left_out = ("memories.__main__", "memories.integrations.hermes.provider")  # which needs Hermes
    modules = [module for module in MODULES if module not in left_out]
    assert in_process(script, empty, *modules) == ""
    assert list(empty.iterdir()) == []


def test_the_public_names_are_exactly_those_in_all(empty: Path) -> None:
    assert sorted(memories.__all__) == list(memories.__all__)
    assert dir(memories) == sorted(memories.__all__)
    for name in memories.__all__:
        assert getattr(memories, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = memories.Nothing
    exported = {
        alias.name
        for node in ast.walk(tree(SOURCE / "__init__.py"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memories.")
        for alias in node.names
    }
    assert exported == set(memories.__all__) - {"__version__"}
    raised = {name for name, value in vars(memories.errors).items() if isinstance(value, type)}
    assert raised <= set(memories.__all__)


def test_files_functions_and_folders_stay_within_their_limits() -> None:
    over = []
    for file, module in zip(FILES, MODULES, strict=True):
        if len(file.relative_to(SOURCE).parts) > MAX_DEPTH:
            over.append(f"{module} is too deep")
        long = [
            (node, range(node.lineno, (node.end_lineno or 0) + 1))
            for node in ast.walk(tree(file))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
        ]
        if not long and source(file).count("\n") <= MAX_CODE_LINES:
            continue  # short enough even with comments, which are slow to count
        lines = code_lines(file)
        if len(lines) > (MAX_OF_MEMORIES if module == "memories.memories" else MAX_CODE_LINES):
            over.append(f"{module} has {len(lines)} lines of code")
        for node, spanned in long:
            if (length := len(lines & {*spanned})) > MAX_FUNCTION_LINES:
                over.append(f"{module}.{node.name} has {length} lines")
    assert over == []


def test_every_module_and_public_function_has_a_docstring() -> None:
    for file in FILES:
        assert ast.get_docstring(tree(file)), file
        for node in tree(file).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node) or node.name in UNDOCUMENTED, f"{file}: {node.name}"


UNDOCUMENTED = {"fetch", "fetch_value"}  # their names and types say everything


@pytest.mark.thorough
def test_every_helper_and_fixture_of_the_tests_has_a_docstring() -> None:
    undocumented = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for node in tree(file).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.lower().startswith("test") and ast.get_docstring(node) is None
    ]
    assert undocumented == []


def test_stores_are_opened_in_only_one_source_file() -> None:
    """Apart from `engine.py`: idempotency keys are in a separate database, and an import reads
    copies of other programs' databases.
    """
    opening = [
        file.name
        for file in FILES
        if re.search(r'apsw\.Connection\((?!":memory:"\))', source(file))
    ]
    assert opening == ["idempotency.py", "engine.py", "database.py"]


def test_no_other_code_accesses_a_store_file() -> None:
    """Python's own sqlite3 loses acknowledged writes, and closing a plain file handle cancels
    SQLite's locks.
    """
    for file in FILES:
        text = source(file)
        assert not re.search(r"^\s*(import|from) (sqlite3|pysqlite3)\b", text, re.M), file
        if "stores" in file.relative_to(SOURCE).parts:
            assert not re.search(
                r"(?<![.\w])open\(|\.(read_bytes|write_bytes|write_text)\(|copyfile|copy2", text
            ), file


def test_errors_are_shown_once_and_never_swallowed() -> None:
    def passed_on(handler: ast.ExceptHandler, part: ast.AST) -> bool:
        if isinstance(part, ast.Raise):
            return part.cause is not None
        return isinstance(part, ast.Call) and handler.name in {
            name.id for name in part.args if type(name) is ast.Name
        }

    for file in FILES:
        for node in ast.walk(tree(file)):
            if (
                isinstance(node, ast.ExceptHandler)
                and isinstance(node.type, ast.Name)
                and node.type.id == "Exception"
            ):
                assert any(passed_on(node, part) for part in ast.walk(node)), (
                    f"{file}:{node.lineno}"
                )
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), (
                f"{file}:{node.lineno}"
            )


def test_every_command_is_in_the_documentation() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    assert [name for name in COMMANDS if f"memory {name}" not in text] == []


def test_no_test_depends_on_measured_time() -> None:
    """A busy machine can take any time: `bench/` measures time; a test counts steps or waits for an
    event.
    """
    clock = re.compile(r"\b(monotonic|perf_counter|process_time|time\.time)\(\)")
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(tree(file)) if clock.search(source(file)) else ():
            if isinstance(node, ast.Assert):
                parts = [
                    part
                    for part in ast.walk(node)
                    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)
                ]
                assert not [part for part in parts if clock.search(ast.unparse(part))], (
                    f"{file}:{node.lineno}"
                )
