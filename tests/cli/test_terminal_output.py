"""Answers on a terminal are short, cut and wrapped, with local times; on a pipe nothing is cut."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Answer, Command
from memories.cli.output import wrap

LONG = "\n".join("the port is 5433" if n == 12 else f"note {n} on things" for n in range(20))
MINILM = {"EMBEDDER": "minilm"}


def plain(answer: Answer) -> str:
    """Return an answer without colours and with Unix line endings."""
    return re.sub(r"\x1b\[\d+m", "", answer.out).replace("\r\n", "\n")


def test_a_create_names_the_corrected_memory_and_the_command_to_undo_it(terminal: Command) -> None:
    first = plain(terminal("create", "Deploys happen on Thursdays", env=MINILM))
    assert re.fullmatch(r"✓ stored [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}\n", first)
    second = plain(terminal("create", "Deploys happen on Mondays", env=MINILM))
    name = first.split()[-1]
    assert re.fullmatch(
        rf"✓ stored (\S+) · corrects {name}: Thursdays → Mondays\n"
        rf"  both true\? memory update \1 --not-corrects {name}\n",
        second,
    )


def test_the_kind_of_a_change_is_shown_before_the_memory(
    terminal: Command, stored: Callable[..., str]
) -> None:
    name = stored("Deploys happen on Mondays")
    assert plain(terminal("update", name, "Deploys happen by hand")).startswith("✓ updated\n│ ")
    terminal("delete", name)
    assert plain(terminal("restore", name)).startswith("✓ restored\n│ Deploys happen by hand\n")


def test_scores_are_shown_only_if_the_order_is_explained(
    terminal: Command, stored: Callable[..., str]
) -> None:
    stored("Deploys happen on Mondays")
    assert "score" not in plain(terminal("search", "deploys"))
    assert "score" in plain(terminal("search", "deploys", "--explain"))


def test_a_repetition_is_one_line_with_what_it_added(terminal: Command, memory: Command) -> None:
    name = memory("create", "Deploys happen on Mondays").json["id"][:18]
    shown = plain(terminal("create", "Deploys happen on Mondays", "--tag", "a=b"))
    assert shown == f"= already stored as {name} · merged into it: tags, trust\n"


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC"])
def test_times_are_local_on_a_terminal_and_utc_in_json(
    terminal: Command, memory: Command, zone: str
) -> None:
    made = memory("create", "Deploys happen on Mondays").json
    shown = plain(terminal("get", made["id"], env={"TZ": zone}))
    assert ("+09:00 (just now)" in shown) is (zone == "Asia/Tokyo")
    assert ("UTC (just now)" in shown) is (zone == "UTC")
    assert made["created_at"].endswith("Z")


def test_a_long_memory_is_cut_around_the_hit_only_on_a_terminal(
    terminal: Command, memory: Command, stored: Callable[..., str]
) -> None:
    name = stored(LONG)[:18]
    hit = plain(terminal("search", "port 5433"))
    assert "│ note 11 on things\n    │ the port is 5433\n    │ note 13 on things\n" in hit
    assert f"… 17 more lines (memory get {name})" in hit
    assert "│ note 0 on things\n│ note 1 on things\n│ note 2 on things\n…" in plain(
        terminal("list")
    )
    assert plain(terminal("get", name)).count("│") == 20
    assert memory("list", "--format", "text").out.count("│") == 20


def test_nothing_is_wider_than_the_terminal(terminal: Command, stored: Callable[..., str]) -> None:
    name = stored("Deploys happen on Mondays", "--tag", "team=the web team of the shop")
    terminal("update", name, "Deploys happen on Fridays")
    for command in (
        ("history", name),
        ("list",),
        ("get", name),
        ("create", "x", "--limit"),
        ("get", "ffffffff-0000"),
        ("list", "--where", "project == shop and then something else that can't be read"),
        ("connect",),
        ("doctor",),
    ):
        for line in plain(terminal(*command, env={"COLUMNS": "60"})).splitlines():
            assert len(line) <= 60, line


def test_the_command_at_the_end_of_an_error_can_be_copied(terminal: Command) -> None:
    words = "The port is 5433 and not 5432 as we said in the meeting of last Tuesday".split()
    shown = plain(terminal("create", *words, env={"COLUMNS": "60"}))
    assert f'memory create "{" ".join(words)}"' in [line.strip() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("sentence", "command"),
    [
        ("the model is missing; run: uv tool install --force 'memoriae[multilingual]'", "uv tool"),
        ("it waits for your review; decide with: memory review accept 01a1fdf1-92cd", "memory re"),
    ],
)
def test_the_command_at_the_end_of_a_sentence_has_its_own_line(
    monkeypatch: pytest.MonkeyPatch, sentence: str, command: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    *text, last = wrap(sentence)
    assert last.strip().startswith(command)
    assert " ".join([*text, last.strip()]) == sentence


@pytest.mark.thorough
def test_a_bulk_create_shows_a_progress_bar_and_only_the_lines_not_stored(
    terminal: Command, memory: Command, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(
        "".join(f"Fact {n} is on record\n" for n in range(50)) + "Fact 1 is on record\n"
    )
    shown = plain(terminal("create", "--lines", str(file)))
    assert "Storing  [" in shown
    assert shown.endswith("51 lines, 50 stored, 1 known, 0 duplicates, 0 refused\n")
    assert shown.count("  stored  ") == 0
    assert shown.count("  known  ") == 1
    piped = memory("create", "--lines", str(file)).out
    assert piped.count('"line"') == 51
