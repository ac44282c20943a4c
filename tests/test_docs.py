"""The code blocks of the README and the docs run as printed, and the pages' links, tables and lists
are right.

A block that needs another program, a network or a person has a comment before it that says so:
`<!-- not run: needs PostgreSQL -->`. The blocks of a page run in order, in one home; its Python
blocks form one program.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(sh|python)\n(.*?)^```", re.M | re.S)
_CELL = re.compile(r"(?<!\\)\|")
MAX_CELL = 200


class Block(NamedTuple):
    """A block of code: its language, its code, and whether a test runs it."""

    language: str
    code: str
    is_run: bool


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(language, code, not mark) for mark, language, code in _BLOCK.findall(text)]


def run(block: Block, folder: Path) -> None:
    """Run a block in a folder that contains its home; the block must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(folder), "MEMORY_HOME": str(folder / "memories"), "PATH": path}
    command = ["bash", "-e", "-o", "pipefail", "-c", block.code]
    if block.language == "python":
        command = [sys.executable, "-c", block.code]
    done = subprocess.run(
        command,
        env={**os.environ, **home},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"


def runnable() -> list[object]:
    """Return the pages with blocks to run; `make test` runs only those of the README."""
    pages: list[object] = []
    for page in PAGES:
        if any(block.is_run for block in blocks(page)):
            is_first = page.stem == "README"
            marks = [] if is_first else [pytest.mark.thorough]
            pages.append(pytest.param(page, id=page.stem, marks=marks))
    return pages


@pytest.mark.parametrize("page", runnable())
def test_every_block_runs_as_printed(page: Path, tmp_path: Path) -> None:
    listed = [block for block in blocks(page) if block.is_run]
    program = "\n".join(block.code for block in listed if block.language == "python")
    for block in [row for row in listed if row.language == "sh"]:
        run(block, tmp_path)
    if program:
        run(Block("python", program, is_run=True), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_table_has_a_paragraph_in_a_cell(page: Path) -> None:
    is_code, long_cells = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_code = not is_code
        elif line.startswith("|") and not is_code:
            long_cells += [cell for cell in _CELL.split(line) if len(cell.strip()) > MAX_CELL]
    assert long_cells == []


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+\.md)", index))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_links_between_pages_are_not_broken() -> None:
    broken = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
        lost = [target for target in targets if not (page.parent / target).exists()]
        broken += [f"{page.name}: {target}" for target in lost]
    assert broken == []


def printed_commands(text: str) -> list[list[str]]:
    """Return the words of each command in the blocks and code spans of a page, up to a pipe."""
    fenced = re.findall(r"^```(?:sh|console|text)\n(.*?)^```", text, re.M | re.S)
    lines = re.findall(r"^(?:\$ )?memor(?:y|iae) (.*)$", "\n".join(fenced), re.M)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    lines += [" ".join(span.split()) for span in re.findall(r"`memor(?:y|iae) ([^`]+)`", prose)]
    commands = []
    for line in lines:
        unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", line.partition(" #")[0])
        commands.append(re.split(r"[|;>]|&&| -- ", unquoted)[0].split())
    return [words for words in commands if words]


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "INSTALL_FOR_AGENTS.md"], ids=lambda page: page.stem
)
def test_every_printed_command_and_its_options_exist(page: Path) -> None:
    import click

    from memories.cli import ALIASES
    from memories.cli.app import app

    wrong = []
    context = click.Context(app, help_option_names=["-h", "--help"])
    for name, *words in printed_commands(page.read_text(encoding="utf-8")):
        if name in ("COMMAND", "help", "--help", "--version", "-h"):
            continue
        command = app.get_command(context, ALIASES.get(name, name))
        if command is None:
            wrong.append(name)
            continue
        commands = [command]
        if isinstance(command, click.Group):
            inner = command.commands.get(words[0]) if words else None
            commands = [command, *command.commands.values()] if inner is None else [inner]
        parameters = [each for one in commands for each in one.get_params(context)]
        flags = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
        used = [
            word.partition("=")[0].rstrip(".,:)") for word in words if re.match(r"--?[a-z]", word)
        ]
        wrong += [f"{name} {flag}" for flag in used if flag not in flags]
    assert wrong == []


def test_the_guide_names_each_setting_with_its_default() -> None:
    from memories.settings import SETTINGS

    guide = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    defaults: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`[A-Z_`, ]+`) \| ([^|]+) \|", guide, re.M):
        variables = re.findall(r"[A-Z_]+", names)
        named = values.split(", ") if values.count(",") + 1 == len(variables) else [values] * 9
        defaults |= zip(variables, named, strict=False)
    assert {setting.variable for setting in SETTINGS} <= defaults.keys()
    wrong = []
    for setting in SETTINGS:
        written, default = (
            defaults[setting.variable].strip("`").lower(),
            str(setting.default).lower(),
        )
        in_words = setting.default in (None, "") and written != "none"
        if not in_words and default.removesuffix(".0") != written:
            wrong.append((setting.variable, default, written))
    assert wrong == []


def test_the_commands_page_matches_the_program() -> None:
    spec = importlib.util.spec_from_file_location("tables_of_docs", ROOT / "tools" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == tables.commands_page(), (
        "run: python tools/tables.py"
    )


def test_the_navigation_of_the_site_lists_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    listed = re.findall(r"[\w-]+\.md", navigation)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_the_site_links_to_files_outside_of_the_docs_in_the_repository() -> None:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    page = "[policy](../SECURITY.md), [stores](stores.md)"
    address = "https://github.com/acme/memories"
    shown = f"[policy]({address}/blob/main/SECURITY.md), [stores](stores.md)"
    assert site.with_addresses(page, address) == shown
