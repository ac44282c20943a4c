"""The figures in the README come from the results, and each page of figures names its commands."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench import readme

ROOT = Path(__file__).parents[2]
_WORDS = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve", 16: "sixteen"}
_COMMAND = re.compile(r"`(python -m bench|make )|\*[Mm]easured once\*")


def test_the_tables_of_the_readme_show_the_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- begin figures -->" in text
    assert readme.update(text) == text, "run `python -m bench.readme`"


def test_an_outdated_figure_is_replaced() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    differing = text.replace("without an LLM |", "with an LLM |")
    assert differing != text
    assert readme.update(differing) == text


def test_a_figure_in_the_readme_matches_its_table() -> None:
    figures = readme.render_figures()
    share = re.search(r"for (\d+)% of the questions", figures)
    assert share
    assert 50 < int(share[1]) < 100
    turn_level = (ROOT / "docs" / "benchmarks.md").read_text().partition("\nTurn level")[2]
    row = next(line for line in turn_level.splitlines() if line.startswith("| LoCoMo | **Mem"))
    assert f"{float(row.split('|')[4]):.0f}" == share[1]


def test_a_page_that_lacks_the_row_of_a_figure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme, "ROOT", ROOT / "tests")
    with pytest.raises(OSError, match="reliability"):
        readme.render_figures()


def test_each_section_with_a_benchmark_table_names_its_command() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    with_tables = [section for section in sections if "\n|--" in section]
    silent = [section.split("\n")[0] for section in with_tables if not _COMMAND.search(section)]
    assert silent == ["Corrected figures"]


def read_sentences() -> str:
    """Return the sentences of the README, without tables, code, URLs or comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(?s)<!--.*?-->|```.*?```|`[^`]*`|\]\([^)]*\)|https?://\S+", " ", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def test_every_number_in_the_text_of_the_readme_has_a_known_source() -> None:
    """Measured figures belong in a table, which is generated from the results."""
    from memories.mcp.server import TOOLS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    many = (ROOT / "tests" / "processes" / "test_many_processes.py").read_text(encoding="utf-8")
    model = (ROOT / "packages" / "memoriae-e5" / "README.md").read_text(encoding="utf-8")
    results = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    sources = {
        project["requires-python"].removeprefix(">="): "Python",
        _WORDS[len(TOOLS)]: "tools over MCP",
        "sixteen" if re.search(r"\b16\b", many) else "": "processes writing at once",
        "100" if "100 languages" in model else "": "languages",
        "80": "MB",  # the wheels of an installation, measured once
        "4" if "(characters / 4)" in results else "": "characters",
        "0600": "mode",
        "2026": "November",
        "2.0": "Apache",
    }
    pattern = rf"(?<![\w.])\d(?:[\d.,]*\d)?|\b(?:{'|'.join(_WORDS.values())})\b"
    sentences = " ".join(read_sentences().split())
    figures = {
        match[0]: sentences[match.start() - 20 : match.end() + 30]
        for match in re.finditer(pattern, sentences)
    }
    assert figures.keys() == sources.keys()
    assert [name for name, near in sources.items() if near not in figures[name]] == []
