"""A change says what it did to the links of the memory, and how to undo that."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from memories import Memories

Command = Callable[..., Any]

PORT = "The API listens on port {}."


@pytest.fixture
def chain(memory: Command) -> tuple[str, str]:
    """Store a memory and its correction; return their ids."""
    older, newer = (memory("create", PORT.format(port)).json["id"] for port in (6379, 6380))
    return older, newer


def current_again(older: str, newer: str) -> str:
    """Return the hint about a memory that is current again."""
    return (
        f"it is current again and corrects {newer}; if that one is still true, run: "
        f"memory confirm {newer}"
    )


def test_an_update_with_another_value_says_what_it_corrects(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    answer = memory("update", older, PORT.format(6390)).json
    assert (answer["corrects"], answer["hint"]) == (newer, current_again(older, newer))
    shown = memory("update", newer, PORT.format(6391), "--format", "text").out
    assert shown.startswith("✓ updated\n")
    assert f"it is current again and corrects {older}" in " ".join(shown.split())


def test_a_confirmation_says_what_it_corrects_and_undoes_an_update(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    memory("update", older, PORT.format(6390))
    answer = memory("confirm", newer).json
    assert (answer["corrects"], answer["hint"]) == (older, current_again(newer, older))
    assert "hint" not in memory("confirm", newer).json


@pytest.mark.parametrize("changes", [["The API listens on port 6379"], ["--tag", "team=blue"]])
def test_a_memory_that_remains_corrected_names_its_correction(
    memory: Command, chain: tuple[str, str], changes: list[str]
) -> None:
    older, newer = chain
    assert memory("update", older, *changes).json["hint"] == (
        f"{newer} corrects this memory; if this one is true, run: memory confirm {older}"
    )


def test_restoring_a_version_says_what_it_corrects(memory: Command) -> None:
    older = memory("create", PORT.format(1)).json["id"]
    memory("update", older, PORT.format(6379))
    newer = memory("create", PORT.format(6380)).json["id"]
    answer = memory("restore", older, "--version", "1").json
    assert (answer["corrects"], answer["hint"]) == (newer, current_again(older, newer))


def test_a_change_that_drops_an_expiry_says_so(memory: Command) -> None:
    sale = memory("create", "The sale is on", "--valid-until", "2020-01-01").json["id"]
    assert memory("confirm", sale).json["hint"] == "it no longer expires"
    memory("update", sale, "--valid-until", "2020-01-01")
    assert memory("update", sale, "The big sale is on").json["hint"] == "it no longer expires"
    memory("update", sale, "--valid-until", "2999-01-01")
    assert "hint" not in memory("confirm", sale).json
    older = memory("create", PORT.format(1)).json["id"]
    newer = memory("create", PORT.format(2), "--valid-until", "2020-01-01").json["id"]
    hint = memory("confirm", newer).json["hint"]
    assert hint == f"it no longer expires; {current_again(newer, older)}"


def test_an_update_that_ends_a_link_reports_it(memory: Command, chain: tuple[str, str]) -> None:
    older, newer = chain
    other = memory("update", older, "The office is in Rome.").json
    assert other["hint"] == f"{newer} no longer corrects this memory"
    memory("update", older, PORT.format(1))
    later = memory("create", PORT.format(2)).json
    moved = memory("update", later["id"], "--project", "shop").json
    assert moved["hint"] == f"this memory no longer corrects {later['corrects']}"


def test_an_update_that_changes_nothing_reports_it(memory: Command, chain: tuple[str, str]) -> None:
    older, newer = chain
    unchanged = "nothing was changed: the memory already says this"
    answer = memory("update", newer, PORT.format(6380))
    assert (answer.code, answer.json["version"], answer.json["hint"]) == (0, 1, unchanged)
    shown = memory("update", newer, PORT.format(6380), "--format", "text").out
    assert shown.startswith("= unchanged\n")
    assert "✓" not in shown
    hint = memory("update", older, PORT.format(6379)).json["hint"]
    assert hint.startswith(f"{unchanged}; {newer} corrects this memory")
    removed = memory("update", newer, "--not-corrects", older).json
    assert removed["hint"] == f"this memory no longer corrects {older}"


def test_removing_the_link_of_an_expired_correction_reports_that(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    assert memory("update", newer, "--valid-until", "2020-01-01").json["current_again"] == [older]
    shown = memory("update", newer, "--not-corrects", older, "--format", "text").out
    assert shown.startswith("✓ updated\n")
    assert shown.endswith(f"\nthis memory no longer corrects {older}\n")


def test_an_update_names_a_memory_that_was_corrected_indirectly(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    newest = memory("create", PORT.format(6381)).json["id"]
    memory("update", newer, "--valid-until", "2020-01-01")
    answer = memory("update", newest, "The office is in Rome.").json
    assert answer["hint"] == (
        f"this memory no longer corrects {newer}; memory {older} is current again"
    )


@pytest.mark.parametrize("command", ["confirm", "restore"])
def test_a_change_without_a_hint_prints_no_trailing_empty_line(
    memory: Command, command: str
) -> None:
    made = memory("create", "The office is in Rome.").json["id"]
    if command == "restore":
        memory("delete", made)
    assert not memory(command, made, "--format", "text").out.endswith("\n\n")


def test_removing_the_older_link_of_a_corrected_memory_names_both_links(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    newest = memory("create", PORT.format(6381)).json["id"]
    hint = memory("update", newer, "--not-corrects", older).json["hint"]
    assert hint == (
        f"this memory no longer corrects {older}; {newest} corrects this memory; if this one is "
        f"true, run: memory confirm {newer}"
    )
    assert "corrected_by" not in memory("get", older).json


def test_an_update_reports_a_tag_that_it_did_not_find(memory: Command) -> None:
    made = memory("create", "The office is in Rome", "--tag", "team=blue").json["id"]
    answer = memory("update", made, "--remove-tag", "taem")
    assert (answer.code, answer.json["hint"]) == (0, 'the memory has no tag "taem"')
    shown = memory("update", made, "--remove-tag", "taem", "--format", "text").out
    assert shown.startswith("= unchanged\n")
    assert 'the memory has no tag "taem"' in shown
    changed = memory("update", made, "--remove-tag", "taem", "--tag", "floor=2").json
    assert (changed["version"], changed["hint"]) == (2, 'the memory has no tag "taem"')
    assert "hint" not in memory("update", made, "--remove-tag", "team").json


def test_an_update_of_many_memories_reports_the_effect_on_each(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    answer = memory("update", "-", "--tag", "team=blue", stdin=f"{older}\n{newer}\n").json
    assert [result.get("hint", "")[:36] for result in answer["results"]] == [newer, ""]


def test_forgetting_a_correction_names_the_memory_that_is_current_again(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    note = f"memory {older} is current again"
    assert memory("forget", newer, "--yes").json["note"] == note
    newer = memory("create", PORT.format(6380)).json["id"]
    shown = memory("forget", newer, "--yes", "--format", "text").out
    assert f"Memory {older} is current again.\n" in shown
    assert "note" not in memory("forget", older, "--yes").json


def test_erasing_a_conversation_names_the_memories_that_are_current_again(
    memory: Command,
) -> None:
    older = memory("create", PORT.format(6379)).json["id"]
    for form in ("json", "text"):
        memory("turns", "add", "standup", "We moved")
        memory("create", PORT.format(6380), "--source", "standup#0")
        erase = ("turns", "forget", "standup", "--with-memories", "--format", form)
        assert "urrent again" not in memory(*erase, "--dry-run").out
        erased = memory(*erase, "--yes")
        if form == "json":
            assert erased.json["current_again"] == [older]
        else:
            assert erased.out.endswith(f"\nCurrent again (1): {older[:18]}\n")
    assert "corrected_by" not in memory("get", older).json


def test_every_command_that_ends_a_link_names_the_memory_that_is_current_again(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain

    def check(*command: str) -> None:
        """Run a command in both formats; undo it, so that the link returns."""
        shown = memory(*command, "--format", "text").out
        assert f"Current again (1): {older[:18]}\n" in shown
        memory(*shlex.split(shown.rpartition("To undo it: memory ")[2]))
        assert memory("get", older).json["corrected_by"] == newer
        answer = memory(*command).json
        assert answer["current_again"] == [older]
        memory(*shlex.split(answer["undo"])[1:])
        assert memory("get", older).json["corrected_by"] == newer

    check("tags", "set", "project=shop", "--where", f"id = {newer}")
    check("rollback", "--to", "1h", "--where", f"id = {newer}")
    check("move", newer, "--to", "bob")
    memory("update", newer, "--valid-until", "2020-01-01")
    [proposal] = memory("tidy").json["proposals"]
    accepted = memory("review", "accept", "--yes", proposal["id"], "--dry-run").json
    assert "current_again" not in accepted["results"][0]  # it expired, so nothing changes


def test_accepting_another_text_names_the_memory_that_is_current_again(
    memory: Command,
) -> None:
    older = memory("create", PORT.format(6379)).json["id"]
    memory("create", PORT.format(6380), "--key", "api/port", "--valid-until", "2999-01-01")
    with Memories() as memories:
        waiting = memories.create("The office is in Rome.", key="api/port", pending=True).id
    accept = ("review", "accept", "--yes", str(waiting))
    shown = memory(*accept, "--dry-run", "--format", "text").out
    assert shown.endswith(f"\nCurrent again (1): {older[:18]}\n")
    [accepted] = memory(*accept).json["results"]
    assert accepted["current_again"] == [older]


@pytest.mark.parametrize("command", ["delete", "forget"])
def test_a_memory_that_ends_with_its_correction_is_not_called_current_again(
    memory: Command, chain: tuple[str, str], command: str
) -> None:
    older, newer = chain
    yes = ["--yes"] if command == "forget" else []
    both = memory(command, newer, older, *yes).json["results"]
    assert [result["id"] for result in both] == [newer, older]
    assert not any("note" in result for result in both)
    first = memory("create", PORT.format(7379)).json["id"]
    second = memory("create", PORT.format(7379).lower(), "--force").json["id"]
    newest = memory("create", PORT.format(7380)).json["id"]
    note = memory(command, newest, *yes).json["note"]
    assert all(f"memory {name} is current again" in note for name in (first, second))


def test_restoring_a_replaced_memory_names_the_replacement(memory: Command) -> None:
    older = memory("create", "Bert leads the payments team").json["id"]
    newer = memory("create", "Ann took over payments", "--supersedes", older).json["id"]
    hint = memory("restore", older).json["hint"]
    assert hint == f"{newer} had replaced this memory; if that one is current and wrong, delete it"
    assert memory("list").json["count"] == 2
    memory("delete", older)
    assert "hint" not in memory("restore", older).json


def test_deleting_a_replacement_says_that_the_replaced_memory_stays_hidden(memory: Command) -> None:
    older = memory("create", "Bert leads the payments team").json["id"]
    newer = memory("create", "Ann took over payments", "--supersedes", older).json["id"]
    note = f"memory {older}, which the deleted one replaced, stays hidden until it is restored"
    assert memory("delete", newer).json["note"] == note
    memory("restore", newer)
    reason = f"memory {older}, which it replaced, stays hidden until it is restored"
    [step] = memory("delete", "--where", f"id = {newer}").json["steps"]
    assert step["reason"] == reason
    memory("restore", newer)
    shown = memory("delete", "--where", f"id = {newer}", "--format", "text").out
    assert f"({reason})" in shown
    memory("restore", older)
    memory("restore", newer)
    assert "note" not in memory("delete", newer).json
    memory("restore", newer)
    assert "reason" not in memory("delete", "--where", f"id = {newer}").json["steps"][0]
    newest = memory("create", "Carl is in charge of payments", "--supersedes", older).json["id"]
    memory("forget", older, "--yes")
    assert "note" not in memory("delete", newest).json


def test_a_repetition_of_a_corrected_memory_says_that_it_is_current_again(
    memory: Command, chain: tuple[str, str]
) -> None:
    older, newer = chain
    shown = memory("create", PORT.format(6379), "--format", "text").out
    assert " ".join(shown.split()) == (
        f"= already stored as {older[:18]} · it is current again and corrects {newer}"
    )
    answer = memory("create", PORT.format(6380), "--tag", "team=blue").json
    assert answer["merged"] == ["tags", "corrects"]
    assert answer["hint"] == (
        "not stored again: this memory already says the same thing; merged into it: tags; it is "
        f"current again and corrects {older}"
    )
    other = memory("create", "The office is in Rome.").json["id"]
    answer = memory("create", PORT.format(6380), "--supersedes", other).json
    assert answer["hint"].endswith(f"; it replaces {other}")


def test_compact_advice_about_a_correction_matches_the_correction(
    memory: Command, chain: tuple[str, str]
) -> None:
    _, newer = chain
    head, advice, *rows = memory(
        "create", PORT.format(6390), "--format", "compact"
    ).out.splitlines()
    names = head.split()
    assert (names[0], names[2], newer.startswith(names[3])) == ("stored", "corrects", True)
    assert advice == f"if both are true: memory update {names[1]} --not-corrects {names[3]}"
    assert rows == [f"{names[3]} {PORT.format(6380)}"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_accepting_an_outdated_proposal_reports_that_nothing_was_done(
    memory: Command, form: str
) -> None:
    older, _ = (memory("create", PORT.format(n), "--force").json["id"] for n in (1, 2))
    [proposal] = memory("tidy").json["proposals"]
    memory("update", older, "The office is in Rome.")
    shown = memory("review", "accept", "--yes", proposal["id"], "--format", form).out
    assert "nothing was done: the proposal is out of date" in shown


def test_rewording_a_corrected_memory_gives_the_command_that_confirms_it(memory: Command) -> None:
    older = memory("create", "Dana's manager is Max").json["id"]
    newer = memory("create", "Dana's manager is Tom").json["id"]
    answer = memory("create", "Max is the manager of Dana")
    assert (answer.code, answer.json["duplicates"][0]["corrected_by"]) == (3, newer)
    assert f"if your text is true again, run: memory confirm {older}" in answer.json["hint"]
    assert memory("confirm", older).json["corrects"] == newer


def test_a_correction_names_other_memories_with_the_old_value(memory: Command) -> None:
    older = memory("create", PORT.format(6379)).json["id"]
    reworded = memory("create", "The API port is 6379", "--force").json["id"]
    memory("create", "The worker runs on port 6379")
    created = memory("create", PORT.format(6380)).json
    assert created["corrects"] == older
    assert [similar["id"] for similar in created["similar_to"]] == [older, reworded]
    assert created["hint"].endswith(
        "if it also replaces another memory in similar_to, run the command again with: "
        "--supersedes ID"
    )
    answer = memory("create", PORT.format(6380), "--supersedes", reworded).json
    assert (answer["id"], answer["merged"]) == (created["id"], ["supersedes"])
    memory("restore", reworded)
    memory("delete", created["id"])
    shown = memory("create", PORT.format(6381), "--format", "text").out
    assert (
        shown.index("both true?")
        < shown.index("add --supersedes ID:")
        < shown.index("port is 6379")
    )
    memory("delete", "--where", f"content = {json.dumps(PORT.format(6381))}")
    rows = memory("create", PORT.format(6382), "--format", "compact").out.splitlines()
    assert rows[-1].endswith("The API port is 6379")


def test_a_correction_names_all_memories_that_it_corrects(memory: Command) -> None:
    first = memory("create", PORT.format(6379)).json["id"]
    second = memory("create", PORT.format(6379).lower(), "--force").json["id"]
    created = memory("create", PORT.format(6380)).json
    assert (created["corrects"], created["also_corrects"]) == (second, [first])
    assert created["hint"].endswith(f"; it also corrects {first}")
    newer = created["id"]
    assert memory("history", newer).json["also_corrects"] == [first]
    assert f"\nalso corrects {first}" in memory("history", newer, "--format", "text").out
    assert f"also corrects  {first}" in memory("get", newer, "--format", "text").out
    note = memory("delete", newer).json["note"]
    assert all(f"memory {name} is current again" in note for name in (first, second))
    memory("restore", newer)
    for name in (first, second):
        removed = memory("update", newer, "--not-corrects", name).json
        assert removed["hint"] == f"this memory no longer corrects {name}"
    assert "corrects" not in memory("get", newer).json
    shown = memory("create", PORT.format(6381), "--format", "compact").out.splitlines()[0]
    assert shown.count(" and ") == 0
