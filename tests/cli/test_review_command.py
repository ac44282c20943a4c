"""`memory review`, and where memories that wait for it are shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Once
from memories import Draft, Memories
from memories.stores.records import Patch

Command = Callable[..., Any]

TEXTS = [
    "Deploys of the harbour service happen on Tuesdays",
    "The user prefers Python for command line tools",
    "The payments team is led by Alice Miller",
]


@pytest.fixture
def captured(once: Once) -> list[str]:
    """The ids of memories that a hook has captured, in the order of `TEXTS`."""

    def fill() -> list[str]:
        with Memories(channel="hook", embedder="fake") as memories:
            drafts = [
                Draft(text, tags={"number": str(number)}) for number, text in enumerate(TEXTS)
            ]
            return [created.memory.id for created in memories.create_many(drafts) if created.memory]

    kept: list[str] = once(fill)
    return kept


def mark(memory_id: str) -> None:
    """Mark a memory as suspicious."""
    with Memories(embedder="fake") as memories:
        latest = memories._lookup.find(memory_id)
        patch = Patch(latest.ref, latest.ended_at, latest.ended_by, {"suspicious": "orders"})
        memories._store.patch([patch])


def ids(answer: Any) -> list[str]:
    """Return the ids in an answer."""
    return [shape["id"] for shape in answer.json["results"]]


def waiting(memory: Command) -> set[str]:
    """Return the ids of all memories that wait for review."""
    return set(ids(memory("review", "--limit", "1000")))


def test_only_the_requested_fields_are_listed(memory: Command, captured: list[str]) -> None:
    shapes = memory("review", "--fields", "id,content").json["results"]
    assert [list(shape) for shape in shapes] == [["id", "content"]] * 3
    lines = memory("review", "list", "--fields", "id,content", "--format", "text").out.splitlines()
    assert [line.split()[0] for line in lines] == captured[::-1]
    assert memory("review", "--fields", "nothing").code == 2


def test_captured_memories_are_listed_only_for_review(memory: Command, captured: list[str]) -> None:
    listed = memory("review").json
    assert ids(memory("review")) == ids(memory("review", "list")) == captured[::-1]
    assert (listed["count"], listed["next_cursor"]) == (3, None)
    assert [shape["pending"] for shape in listed["results"]] == [True] * 3
    assert memory("list").json["count"] == memory("list", "--deleted").json["count"] == 0
    assert memory("search", TEXTS[0]).json["count"] == 0
    assert ids(memory("list", "--pending")) == captured[::-1]
    assert ids(memory("search", TEXTS[0], "--pending"))[0] == captured[0]
    assert memory("get", captured[0]).json["pending"] is True
    history = memory("history", captured[0]).json
    assert (history["pending"], history["versions"][0]["ended_by"]) == (True, "pending")
    assert memory("status").json["pending_count"] == 3
    assert memory("tags").json["keys"] == []
    for arguments in (
        ["get", captured[0]],
        ["history", captured[0]],
        ["list", "--pending"],
        ["review"],
    ):
        assert "waiting for review" in memory(*arguments, "--format", "text").out
    assert "memory review" in memory("status", "--format", "text").out


def test_waiting_memories_are_listed_in_pages(memory: Command, captured: list[str]) -> None:
    first = memory("review", "--limit", "2").json
    assert [shape["id"] for shape in first["results"]] == captured[:0:-1]
    rest = memory("review", "--limit", "2", "--cursor", first["next_cursor"]).json
    assert ([shape["id"] for shape in rest["results"]], rest["next_cursor"]) == (captured[:1], None)


def test_accepted_memories_are_found(memory: Command, captured: list[str]) -> None:
    answer = memory("review", "accept", "--yes", captured[0], captured[2])
    assert answer.code == 0
    assert {name: answer.json[name] for name in ("accepted", "left", "dry_run")} == {
        "accepted": 2, "left": 0, "dry_run": False,
    }  # fmt: skip
    assert [(each["id"], each["accepted"]) for each in answer.json["results"]] == [
        (captured[0], True), (captured[2], True),
    ]  # fmt: skip
    shape = memory("get", captured[0]).json
    assert "pending" not in shape
    assert shape["accepted_at"]
    assert "cli" in shape["accepted_by"]
    assert set(ids(memory("list"))) == {captured[0], captured[2]}
    assert waiting(memory) == {captured[1]}
    assert "accepted" in memory("history", captured[0], "--format", "text").out


@pytest.mark.first(10)
@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        (["--all"], {0, 1, 2}),
        (["--tag", "number=1"], {1}),
        (["--trust", "captured"], {0, 1, 2}),
        (["--trust", "agent"], set()),
        (["--trust", "captured", "--tag", "number=2"], {2}),
        (["--written-by", "nobody"], set()),
        (["--match", "PYTHON user"], {1}),
        (["--match", "Python Alice"], set()),
        (["--match", "Alic"], set()),
        (["--since", "1h"], {0, 1, 2}),
        (["--until", "1h"], set()),
        (["--import", "01a1fe00-17ab-7c55-8000-000000000000"], set()),
    ],
)
@pytest.mark.parametrize("verb", ["accept", "reject"])
def test_rules_select_the_memories_to_decide_on(
    memory: Command, captured: list[str], verb: str, rule: list[str], chosen: set[int]
) -> None:
    dry = memory("review", verb, *rule, "--dry-run")
    assert (dry.json["dry_run"], set(ids(dry))) == (True, {captured[number] for number in chosen})
    assert waiting(memory) == set(captured)
    if "--all" not in rule:
        assert set(ids(memory("review", *rule))) == set(ids(dry))
    done = memory("review", verb, "--yes", *rule)
    assert set(ids(done)) == {captured[number] for number in chosen}
    assert waiting(memory) == set(captured) - set(ids(done))
    shown = memory("list").json if verb == "accept" else memory("list", "--deleted").json
    assert {shape["id"] for shape in shown["results"]} == set(ids(done))


def test_ids_come_from_standard_input(memory: Command, captured: list[str]) -> None:
    assert (
        memory("review", "accept", "--yes", "-", stdin=f"{captured[0]}\n{captured[1]}\n").json[
            "accepted"
        ]
        == 2
    )
    assert memory("review", "reject", "--yes", "-", stdin="").json["rejected"] == 0
    assert waiting(memory) == {captured[2]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["accept", "--yes"],
            "name the memories by their ids, or select them with --all or a filter, such",
        ),
        (
            ["reject", "--yes"],
            "name the memories by their ids, or select them with --all or a filter, such",
        ),
        (
            ["accept", "--yes", "ID", "--all"],
            "name memories, or select them with --all and filters, not both",
        ),
        (
            ["reject", "--yes", "ID", "--tag", "a=b"],
            "name memories, or select them with --all and filters, not both",
        ),
        (
            ["edit", "--yes", "ID"],
            "there is no terminal to edit on; give the new text: memory review edit ",
        ),
        (["edit", "--yes", "ID", ""], "content is empty"),
        (["accept", "--yes", "nothing"], "id"),
        (["--limit", "0"], "limit must be a whole number from 1 to 1000"),
        (["--cursor", "x"], "the cursor was not returned by an earlier list"),
    ],
)
def test_unclear_requests_change_nothing(
    memory: Command, captured: list[str], arguments: list[str], complaint: str
) -> None:
    answer = memory("review", *(captured[0] if each == "ID" else each for each in arguments))
    assert answer.code == 2
    assert complaint in answer.error
    assert waiting(memory) == set(captured)


def test_a_memory_can_be_decided_on_only_once(memory: Command, captured: list[str]) -> None:
    memory("review", "accept", "--yes", captured[0])
    memory("review", "reject", "--yes", captured[1])
    for verb in ("accept", "reject"):
        for decided in captured[:2]:
            answer = memory("review", verb, "--yes", captured[2], decided)
            assert answer.code == 1
            assert decided in answer.error
            assert "to list the memories that are waiting, run memory review" in answer.error
    assert waiting(memory) == {captured[2]}
    missing = memory("review", "accept", "--yes", "01a1fe00-17ab-7c55-8000-000000000000")
    assert (missing.code, missing.error) == (1, "Memory not found")


def test_an_edited_memory_becomes_a_version_with_the_editor_as_writer(
    memory: Command, captured: list[str]
) -> None:
    answer = memory(
        "review", "edit", "--yes", captured[0], "-", stdin="Deploys happen on Thursdays\n"
    )
    shape = answer.json["results"][0]
    assert (shape["memory"]["id"], shape["memory"]["content"]) == (
        captured[0],
        "Deploys happen on Thursdays",
    )
    history = memory("history", captured[0]).json
    assert [version["content"] for version in history["versions"]] == [
        TEXTS[0],
        "Deploys happen on Thursdays",
    ]
    assert "pending" not in history
    assert (
        memory("review", "edit", "--yes", captured[1], TEXTS[1]).json["results"][0]["memory"][
            "version"
        ]
        == 1
    )


def test_review_edit_opens_the_editor_on_a_terminal(
    terminal: Command, memory: Command, captured: list[str], tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/Tuesdays/Sundays/ "$1"\n')
    editor.chmod(0o755)
    answer = terminal(
        "review", "edit", "--yes", captured[0], env={"EDITOR": str(editor), "VISUAL": ""}
    )
    assert answer.code == 0, answer.out
    assert memory("get", captured[0]).json["content"] == TEXTS[0].replace("Tuesdays", "Sundays")
    editor.write_text("#!/bin/sh\nexit 0\n")
    answer = terminal(
        "review", "edit", "--yes", captured[1], env={"EDITOR": str(editor), "VISUAL": ""}
    )
    assert (answer.code, "Nothing was accepted." in answer.out) == (1, True)
    assert waiting(memory) == set(captured[1:])


def test_a_duplicate_is_reported_and_keeps_waiting(memory: Command, captured: list[str]) -> None:
    there = memory("create", f"The {TEXTS[0].replace('Deploys', 'deploys')}").json
    same = memory("create", TEXTS[1]).json["id"]
    answer = memory("review", "accept", "--yes", "--all")
    left = {each["id"]: each for each in answer.json["results"]}
    assert left[captured[1]]["accepted"] is True
    assert left[captured[1]]["memory"]["id"] == same
    assert answer.code == 3
    assert left[captured[0]]["accepted"] is False
    assert [found["id"] for found in left[captured[0]]["duplicates"]] == [there["id"]]
    assert "--force" in left[captured[0]]["hint"]
    assert waiting(memory) == {captured[0]}
    assert memory("review", "accept", "--yes", captured[0], "--force").json["accepted"] == 1
    assert waiting(memory) == set()


def test_a_suspicious_memory_is_accepted_only_by_its_id(
    memory: Command, captured: list[str]
) -> None:
    mark(captured[1])
    assert ids(memory("review", "--suspicious")) == [captured[1]]
    answer = memory("review", "accept", "--yes", "--all")
    assert (answer.code, answer.json["accepted"], answer.json["left"]) == (0, 2, 1)
    [left] = [each for each in answer.json["results"] if not each["accepted"]]
    assert (left["id"], captured[1] in left["hint"]) == (captured[1], True)
    assert memory("review", "accept", "--yes", "-", stdin=captured[1]).json["left"] == 1
    assert waiting(memory) == {captured[1]}
    assert memory("review", "accept", "--yes", captured[1]).json["accepted"] == 1
    assert waiting(memory) == set()


@pytest.mark.parametrize("verb", ["accept", "reject"])
def test_suspicious_memories_can_be_selected_by_a_rule(
    memory: Command, captured: list[str], verb: str
) -> None:
    mark(captured[1])
    done = memory("review", verb, "--yes", "--all", "--suspicious")
    assert set(ids(done)) == (set(captured) if verb == "accept" else {captured[1]})


def test_only_a_review_changes_waiting_memories(memory: Command, captured: list[str]) -> None:
    for arguments in (
        ["update", captured[0], "other words"],
        ["update", captured[0], "--tag", "a=b"],
        ["reinforce", captured[0]],
        ["restore", captured[0]],
        ["create", "Something else entirely", "--supersedes", captured[0]],
    ):
        answer = memory(*arguments)
        assert answer.code == 1
        assert f"memory review accept {captured[0]}" in answer.error
    assert memory("delete", captured[0]).code == 0
    restored = memory("restore", captured[0]).json
    hint = "it was rejected, and is waiting for review again"
    assert (restored["pending"], restored["hint"]) == (True, hint)
    assert memory("forget", captured[0], "--yes").code == 0
    assert waiting(memory) == set(captured[1:])


@pytest.mark.parametrize("channel", ["mcp", "hook"])
def test_agent_channels_cannot_decide(memory: Command, captured: list[str], channel: str) -> None:
    with Memories(channel=channel, embedder="fake") as memories:
        for decide in (memories.review.accept, memories.review.reject):
            with pytest.raises(Exception, match="only a person can accept or reject"):
                decide(captured)
    assert waiting(memory) == set(captured)


def test_mutually_exclusive_options_are_refused(memory: Command, captured: list[str]) -> None:
    for arguments in (
        ["list", "--pending", "--deleted"],
        ["list", "--pending", "--as-of", "1d"],
        ["search", "x", "--pending", "--as-of", "1d"],
        ["search", "x", "--pending", "--in", "all"],
        ["search", "x", "--pending", "--in", "history"],
    ):
        assert memory(*arguments).code == 2
    assert waiting(memory) == set(captured)


def test_each_namespace_is_reviewed_separately(memory: Command, captured: list[str]) -> None:
    assert memory("review", "-n", "bob").json["count"] == 0
    assert (
        memory("list", "--pending", "-n", "bob").json["count"] == 3
    )  # bob reads the shared memories too
    refused = memory("review", "accept", "--yes", captured[0], "-n", "bob")
    assert (refused.code, "is in namespace shared" in refused.error) == (1, True)
    assert waiting(memory) == set(captured)


def test_the_text_output_of_a_review_counts_its_decisions(
    memory: Command, captured: list[str]
) -> None:
    mark(captured[1])
    dry = memory("review", "accept", "--all", "--dry-run", "--format", "text").out
    assert "Would accept 2, 1 left waiting." in dry
    assert f"give its id: memory review accept {captured[1][:18]}" in dry
    assert "Rejected 1;" in memory("review", "reject", "--yes", captured[0], "--format", "text").out
    memory("review", "reject", "--yes", *captured[1:])
    assert memory("review", "--format", "text").out == "Nothing is waiting for review.\n"


def test_a_create_reports_that_its_memory_waits_for_review(memory: Command) -> None:
    with Memories(embedder="fake") as memories:
        created = memories.create("The harbour is closed on Mondays", pending=True)
    from memories.answers import shapes

    shape = json.loads(json.dumps(shapes.create_result(created)))
    assert (shape["stored"], shape["pending"], "memory review" in shape["hint"]) == (
        True,
        True,
        True,
    )


# --- by keys, on a terminal


def test_keys_decide_on_one_memory_at_a_time_newest_first(
    memory: Command, terminal: Command, captured: list[str]
) -> None:
    shown = terminal("review", typed="ars", env={"EMBEDDER": "fake"})
    assert shown.code == 0
    assert [shown.out.count(f"{number} of 3") for number in (1, 2, 3)] == [1, 1, 1]
    assert shown.out.index(TEXTS[2]) < shown.out.index(TEXTS[1]) < shown.out.index(TEXTS[0])
    assert "1 accepted, 1 rejected, 1 skipped. 1 memory is waiting for review." in shown.out.lower()
    assert ids(memory("list")) == [captured[2]]
    assert waiting(memory) == {captured[0]}


def test_arrow_and_function_keys_decide_nothing(
    memory: Command, terminal: Command, captured: list[str]
) -> None:
    up, end, f2, f3, f4, console_f1 = "\x1b[A", "\x1b[F", "\x1bOQ", "\x1bOR", "\x1b[1;2S", "\x1b[[A"
    typed = f"{up}{end}{f2}{f3}{f4}{console_f1}q"
    shown = terminal("review", typed=typed, env={"EMBEDDER": "fake"})
    assert "nothing decided. 3 memories are waiting" in shown.out.lower()
    assert waiting(memory) == set(captured)


def test_decisions_by_keys_can_be_undone_one_after_another(
    memory: Command, terminal: Command, captured: list[str]
) -> None:
    shown = terminal("review", typed="aruuq", env={"EMBEDDER": "fake"})
    assert shown.out.count("undone") == 2
    assert "nothing decided. 3 memories are waiting" in shown.out.lower()
    assert waiting(memory) == set(captured)
    assert memory("list").json["count"] == 0


def test_thirty_memories_take_thirty_key_presses(memory: Command, terminal: Command) -> None:
    with Memories(channel="hook", embedder="fake") as memories:
        memories.create_many([Draft(f"Room {n} is for {chr(65 + n)}") for n in range(26)])
        memories.create_many([Draft(f"{name} has a key") for name in ("Ann", "Bob", "Cy", "Di")])
    assert len(waiting(memory)) == 30
    shown = terminal("review", typed="fr" * 15, env={"EMBEDDER": "fake"})
    assert shown.code == 0
    assert memory("list", "--limit", "100").json["count"] == 15
    assert waiting(memory) == set()


def test_a_key_opens_the_editor_and_accepts_the_new_text(
    memory: Command, terminal: Command, captured: list[str], tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "Deploys happen on Fridays" > "$1"\n')
    editor.chmod(0o700)
    env = {"EMBEDDER": "fake", "EDITOR": str(editor), "VISUAL": ""}
    assert "accepted as edited" in terminal("review", "--match", "Tuesdays", typed="e", env=env).out
    assert memory("get", captured[0]).json["content"] == "Deploys happen on Fridays"
    assert waiting(memory) == set(captured[1:])


def test_a_duplicate_keeps_waiting_until_it_is_accepted_anyway(
    memory: Command, terminal: Command, captured: list[str]
) -> None:
    memory("create", f"The {TEXTS[0].replace('Deploys', 'deploys')}")
    shown = terminal("review", "--match", "harbour", typed="aq")
    assert "Not accepted: a current memory says the same" in shown.out
    assert captured[0] in waiting(memory)
    assert "1 accepted" in terminal("review", "--match", "harbour", typed="f").out
    assert captured[0] not in waiting(memory)


@pytest.mark.parametrize(
    "arguments", [("list",), ("--limit", "2"), ("--format", "json"), ("--fields", "id")]
)
def test_list_and_its_options_list_waiting_memories_on_a_terminal(
    terminal: Command, captured: list[str], arguments: tuple[str, ...]
) -> None:
    shown = terminal("review", *arguments, env={"EMBEDDER": "fake"})
    assert "q quit" not in shown.out
    assert captured[2][:18] in shown.out


def test_an_agent_on_a_terminal_gets_a_list(terminal: Command, captured: list[str]) -> None:
    shown = terminal("review", env={"EMBEDDER": "fake", "CLAUDECODE": "1"})
    assert "q quit" not in shown.out
    assert captured[2][:18] in shown.out
