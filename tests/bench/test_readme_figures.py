"""The figures of the README are those of the results, and each page of figures names its commands."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench import readme

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"`(python -m bench|make )|\*Once\*|measured once")


def test_the_tables_of_the_readme_are_what_the_results_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- begin figures -->" in text
    assert readme.update(text) == text, "run `python -m bench.readme`"


def test_a_figure_that_differs_is_replaced() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    differing = text.replace("without an LLM |", "with an LLM |")
    assert differing != text
    assert readme.update(differing) == text


def test_the_figures_are_those_of_their_tables() -> None:
    figures = readme.render_figures()
    share = re.search(r"for (\d+) % of the questions", figures)
    assert share
    assert 50 < int(share[1]) < 100
    turn_level = (ROOT / "docs" / "benchmarks.md").read_text().partition("\nTurn level")[2]
    row = next(line for line in turn_level.splitlines() if line.startswith("| LoCoMo | **Mem"))
    assert f"{float(row.split('|')[4]):.0f}" == share[1]


def test_a_page_without_the_row_of_a_figure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme, "ROOT", ROOT / "tests")
    with pytest.raises(OSError, match="reliability"):
        readme.render_figures()


def test_each_section_with_a_table_of_benchmarks_names_its_command() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    with_tables = [section for section in sections if "\n|--" in section]
    silent = [section.split("\n")[0] for section in with_tables if not _COMMAND.search(section)]
    assert silent == ["Corrected figures"]
