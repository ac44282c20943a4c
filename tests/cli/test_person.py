"""Decisions that only the user makes: no flag lets an agent make them, and a user's script needs
--yes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.test_foreign_files import FILE, FORGED, IDS, records
from cli.test_review_command import TEXTS, captured, waiting  # noqa: F401 - a fixture
from memories import Draft, Memories
from memories.errors import RequestError

Command = Callable[..., Any]
AGENTS = (
    "CLAUDECODE",
    "AI_AGENT",
    "CODEX",
    "CODEX_THREAD_ID",
    "GEMINI_CLI",
    "CURSOR_AGENT",
    "OPENCODE",
)
DECISIONS = (
    ("review", "accept", "ID"),
    ("review", "accept", "--all"),
    ("review", "accept", "--trust", "captured", "--suspicious"),
    ("review", "reject", "ID"),
    ("review", "reject", "--all"),
    ("review", "edit", "ID", "Deploys happen on Thursdays"),
    ("trust", "."),
)


@pytest.fixture
def settings(folder: Path) -> Path:
    """A settings file of a project."""
    file = folder / ".env"
    file.write_text("DEFAULT_LIMIT=50\n")
    return file


def trusted(memory: Command) -> list[dict[str, str]]:
    """Return the rows of `memory trust --list`."""
    rows: list[dict[str, str]] = memory("trust", "--list").json["trusted"]
    return rows


@pytest.mark.parametrize("decision", DECISIONS, ids=" ".join)
def test_no_flag_lets_an_agent_decide(
    memory: Command,
    terminal: Command,
    captured: list[str],  # noqa: F811
    settings: Path,
    decision: tuple[str, ...],
) -> None:
    arguments = [captured[0] if each == "ID" else each for each in decision]
    for variable in AGENTS if decision == DECISIONS[0] else AGENTS[:1]:
        for flags in ([], ["--yes"]):
            refused = memory(*arguments, *flags, env={variable: "1"})
            assert refused.code == 2
            assert f"{variable} is set" in refused.error
            assert "--yes" not in refused.error
    shown = terminal(*arguments, "--yes", typed="y\n", env={"CLAUDECODE": "1"})
    assert (shown.code, "CLAUDECODE is set" in " ".join(shown.out.split())) == (2, True)
    assert waiting(memory) == set(captured)
    assert trusted(memory) == []


@pytest.mark.first(3)
@pytest.mark.parametrize("decision", DECISIONS, ids=" ".join)
def test_a_script_can_decide_only_with_yes(
    memory: Command,
    captured: list[str],  # noqa: F811
    settings: Path,
    decision: tuple[str, ...],
) -> None:
    arguments = [captured[0] if each == "ID" else each for each in decision]
    refused = memory(*arguments)
    assert refused.code == 2
    assert "there is no terminal to ask on; add --yes to confirm" in refused.error
    assert waiting(memory) == set(captured)
    assert trusted(memory) == []
    assert memory(*arguments, "--yes").code == 0
    assert (waiting(memory) < set(captured)) is (decision[0] == "review")
    assert bool(trusted(memory)) is (decision[0] == "trust")


def test_a_user_at_a_terminal_is_not_asked_again(
    terminal: Command,
    memory: Command,
    captured: list[str],  # noqa: F811
) -> None:
    assert terminal("review", "accept", captured[0]).code == 0
    assert waiting(memory) == set(captured[1:])


def test_an_agent_may_list_and_make_dry_runs(
    memory: Command,
    captured: list[str],  # noqa: F811
) -> None:
    for env in ({}, {"CLAUDECODE": "1"}):
        assert memory("review", env=env).json["count"] == 3
        assert memory("review", "accept", "--all", "--dry-run", env=env).json["accepted"] == 3
    assert memory("trust", "--list", env={"CLAUDECODE": "1"}).code == 0
    assert waiting(memory) == set(captured)


def test_an_agent_cannot_decide_through_the_library(
    memory: Command,
    captured: list[str],  # noqa: F811
    settings: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from memories.config import registers
    from memories.core import trust

    monkeypatch.setenv("AI_AGENT", "helper")
    for channel in ("python", "myapp"):
        with (
            Memories(embedder="fake", channel=channel) as memories,
            pytest.raises(RequestError, match="AI_AGENT is set"),
        ):
            memories.review.accept(captured)
    with Memories(embedder="fake") as memories:
        for decide in (
            lambda: memories.review.accept(captured),
            lambda: memories.review.accept(captured[:1], content="Deploys happen on Thursdays"),
            lambda: memories.review.reject(captured),
            lambda: trust.approve(settings, registers()),
        ):
            with pytest.raises(RequestError, match="AI_AGENT is set"):
                decide()
    monkeypatch.delenv("AI_AGENT")
    assert waiting(memory) == set(captured)
    assert trusted(memory) == []
    with Memories(embedder="fake") as memories:
        assert len(memories.review.accept(captured)) == 3


# --- records with the trust of the user


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["bob", "ann"])
def test_a_scratchpad_edit_has_the_trust_of_the_command_that_applies_it(
    memory: Command, terminal: Command, home: Path, name: str
) -> None:
    memory("create", "The user prefers tabs", "--force", "-n", name)
    file = home / name / "scratchpad.yaml"

    def trust_of(text: str, run: Callable[[], Any]) -> str:
        file.write_text(f'{file.read_text()}- "{text}"\n')
        run()
        [found] = [
            each for each in memory("list", "-n", name).json["results"] if each["content"] == text
        ]
        return str(found["origin"]["trust"])

    for number, command in enumerate(
        (["prompt"], ["list"], ["scratchpad", "show"], ["search", "tabs"])
    ):
        for who, env in (("agent", {"CLAUDECODE": "1"}), ("cron", {"CLAUDECODE": ""})):
            assert (
                trust_of(f"Fact {number} by {who}", lambda: memory(*command, "-n", name, env=env))  # noqa: B023
                == "agent"
            )
        trust = trust_of(f"Fact {number} on a terminal", lambda: terminal(*command, "-n", name))  # noqa: B023
        assert trust == "user"
        trust = trust_of(
            f"Fact {number} by an agent on a terminal",
            lambda: terminal(*command, "-n", name, env={"AI_AGENT": "x"}),  # noqa: B023
        )
        assert trust == "agent"


@pytest.mark.parametrize(("variable", "trust"), [("", "user"), ("CLAUDECODE", "agent")])
def test_scratchpad_edit_has_the_trust_of_its_caller(
    memory: Command, terminal: Command, tmp_path: Path, variable: str, trust: str
) -> None:
    memory("create", "The user prefers tabs", "-n", "bob")
    script = tmp_path / "editor.sh"
    script.write_text("#!/bin/sh\nsed -i 's/prefers tabs/prefers spaces/' \"$1\"\n")
    script.chmod(0o700)
    env = {"EDITOR": str(script), "VISUAL": ""} | ({variable: "1"} if variable else {})
    assert terminal("scratchpad", "edit", "-n", "bob", env=env).code == 0
    [found] = memory("list", "-n", "bob").json["results"]
    assert (found["content"], found["origin"]["trust"]) == ("The user prefers spaces", trust)


@pytest.mark.first(3)
@pytest.mark.parametrize("channel", ["python", "mcp", "hook", "http", "page", "chat"])
def test_no_other_channel_applies_an_edit_with_user_trust(
    memory: Command, home: Path, monkeypatch: pytest.MonkeyPatch, channel: str
) -> None:
    """This holds even in a process that the user started at a terminal, such as `memory serve`."""
    memory("create", "The user prefers tabs", "-n", "bob")
    file = home / "bob" / "scratchpad.yaml"
    file.write_text(f'{file.read_text()}- "The user wants evil"\n')
    monkeypatch.setattr("memories.guard.origin.is_person", lambda: True)
    with Memories(namespace="bob", channel=channel, embedder="fake") as memories:
        memories.scratchpad()
    found = {
        each["content"]: each["origin"] for each in memory("list", "-n", "bob").json["results"]
    }
    assert found["The user wants evil"]["trust"] == "agent"


def test_an_import_that_an_agent_marks_as_trusted_has_only_agent_trust(
    memory: Command,
) -> None:
    done = memory("import", "-", "--trusted", stdin=FILE, env={"CLAUDECODE": "1"}).json
    assert (done["trusted"], done["imported"]) == (True, 6)
    for shape in records(memory):
        labels = shape["labels"]
        assert labels["=trust"] == "agent"
        assert labels["=by"] != FORGED["=by"]
        assert not {"accepted_at", "accepted_by"} & set(shape.get("fields", {}))
    assert memory("list", "--trust", "user").json["count"] == 0


def test_an_untrusted_import_by_an_agent_waits_for_review(memory: Command) -> None:
    done = memory("import", "-", stdin=FILE, env={"CLAUDECODE": "1"}).json
    assert (done["trusted"], done["pending"]) == (False, 3)
    assert waiting(memory) == {IDS[0], IDS[1], IDS[3]}


def test_an_agent_can_restore_the_users_own_export_unchanged(
    memory: Command, terminal: Command, folder: Path
) -> None:
    terminal("create", "The user drinks tea")
    memory("export", "--output", "own.jsonl")
    made = memory("list", "--trust", "user").json["results"][0]["id"]
    memory("forget", made, "--yes")
    memory("import", "own.jsonl", env={"CLAUDECODE": "1"})
    assert [each["id"] for each in memory("list", "--trust", "user").json["results"]] == [made]


def test_the_session_block_leaves_reviews_to_the_user(memory: Command) -> None:
    with Memories(channel="hook", namespace="bob", embedder="fake") as memories:
        memories.create_many([Draft(text) for text in TEXTS])
    said = json.loads(memory("prompt", "-n", "bob").out)["prompt"]
    assert "3 memories wait for the user's review. Only the user decides" in said
    assert "they run `memory review -n bob` in their own terminal" in said


def test_status_as_text_shows_the_path_of_the_store(memory: Command, home: Path) -> None:
    memory("create", "Deploys happen on Tuesdays")
    assert f"store     {home}/memories.db\n" in memory("status", "--format", "text").out
