"""The benchmark of memory systems in operation: its rows count what they claim, and its page shows
the results.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from bench.operations import inputs, measures, page, rows, systems
from bench.operations.__main__ import main
from bench.operations.server import unescape

BASELINES = ("CLAUDE.md", "SQLite FTS5")


@pytest.fixture(params=BASELINES)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[rows.Room]:
    """A room of a plain baseline, which needs no server."""
    with rows.room(systems.load(request.param)(tmp_path, None), tmp_path) as room:
        yield room


def count(room: rows.Room, row: str, measure: str = "") -> tuple[float, int]:
    """Return a row's count, and the maximum of the count."""
    cases = [case for case in rows.ROWS[row](room) if case.measure == measure]
    return sum(case.value for case in cases), sum(case.out_of for case in cases)


def test_every_write_by_eight_sessions_is_counted(room: rows.Room) -> None:
    assert count(room, "writes", "acknowledged") == (200, 200)
    assert count(room, "writes", "kept") == (200, 200)


def test_a_lost_write_lowers_the_count(room: rows.Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = type(room.system).stored
    monkeypatch.setattr(type(room.system), "stored", lambda self, home: stored(self, home)[1:])
    assert count(room, "writes", "kept") == (199, 200)


def test_a_text_that_stays_in_a_file_lowers_the_count(
    room: rows.Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count(room, "erased") == (10, 10)
    monkeypatch.setattr(type(room.system), "erase", lambda *_: None)
    assert count(room, "erased") == (0, 10)


def test_plain_stores_keep_secrets_and_repetitions(room: rows.Room) -> None:
    assert count(room, "secrets") == (0, 30)
    assert count(room, "repeated") == (0, 10)
    assert count(room, "numbers") == (10, 10)


def test_an_update_replaces_the_answer(room: rows.Room) -> None:
    assert count(room, "update", "old") == (10, 10)
    assert count(room, "update", "new") == (10, 10)


def test_a_row_without_a_server_is_left_out(room: rows.Room) -> None:
    assert count(room, "kills") == (0, 0)


def test_inputs_are_unique_and_identical_in_every_run() -> None:
    assert len(set(inputs.statements(11_000))) == 11_000
    assert inputs.statements(50) == inputs.statements(100)[:50]
    assert inputs.secrets() == inputs.secrets()
    assert len({secret for _, secret in inputs.secrets()}) == 30
    assert all(secret in text for text, secret in inputs.secrets())


def test_json_escapes_are_decoded() -> None:
    assert unescape(r"Z\u00fcrich \"quoted\" C:\\x") == 'Zürich "quoted" C:\\x'


def test_each_adapter_is_short_and_documented() -> None:
    folder = Path(systems.__file__).parent
    for module in systems.MODULES.values():
        assert len((folder / f"{module}.py").read_text().splitlines()) <= 80, module


def test_an_unknown_system_is_refused() -> None:
    assert systems.names("omega,claude.md") == ["OMEGA", "CLAUDE.md"]
    with pytest.raises(ValueError, match="no system is called nothing"):
        systems.names("omega,nothing")


def test_each_row_is_on_the_page() -> None:
    assert {line.row for line in page.LINES} == {*rows.ROWS, *measures.MEASURES}


CASES = [
    {"system": "memories", "version": "1", "row": "kills", "value": 9, "out_of": 10},
    {"system": "OMEGA", "version": "2", "row": "kills", "value": 10, "out_of": 10},
    {"system": "memories", "version": "1", "row": "tools", "measure": "tools", "value": 10, "out_of": 0},
    {"system": "OMEGA", "version": "2", "row": "tools", "measure": "tools", "value": 5, "out_of": 0},
    {"system": "OMEGA", "version": "2", "row": "copy", "failed": "no command"},
]  # fmt: skip


def test_rows_where_a_peer_is_better_come_first() -> None:
    text = page.render({"date": "2026-01-01", "machine": "a machine"}, CASES)
    better, _, table = text.partition("## All rows")
    assert "all acknowledged texts are kept**: we 9 of 10; OMEGA (10 of 10)" in better
    assert "**tools**: we 10; OMEGA (5)" in better
    assert "| tools | 10 | 5 |" in table
    assert "- OMEGA, copy: no command" in table


def test_counts_that_differ_between_runs_are_listed() -> None:
    again = [CASES[0] | {"value": 8}, *CASES[1:2], CASES[2] | {"value": 11}]
    kept = "memories, `kill -9` while writing: all acknowledged texts are kept"
    assert page.find_differences(CASES, CASES) == []
    assert page.find_differences(CASES, again) == [f"{kept}: 9 of 10, then 8 of 10"]


def test_a_run_with_add_replaces_only_its_own_systems_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.jsonl"
    other = {"system": "CLAUDE.md", "version": "a file", "row": "copy", "failed": "no file"}
    replaced = {**other, "row": "repeated"}
    file.write_text("\n".join(map(json.dumps, ({"date": "", "machine": ""}, other, replaced))))
    options = f"--systems CLAUDE.md --rows repeated --add --results {file}"
    monkeypatch.setattr(sys, "argv", ["operations", *options.split()])
    monkeypatch.chdir(tmp_path)
    main()
    _, cases = page.read(file)
    assert other in cases
    assert {case["row"]: len(case) for case in cases} == {"copy": 4, "repeated": 8}


@pytest.mark.thorough
def test_the_page_shows_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(*page.read())
