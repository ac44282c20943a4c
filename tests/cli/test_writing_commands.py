"""create, update, reinforce, delete, restore and forget, as the specifications of the command
require.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memories import Draft, Memories
from memories.answers.fields import CREATED

Command = Callable[..., Any]

SPECIFIED = {
    "id": str,
    "content": str,
    "agent": str,
    "personality": str,
    "project": str,
    "type": str,
    "global": bool,
    "decay_policy": str,
    "confidence": float,
    "created_at": str,
}
OURS = {"tags": dict, "namespace": str, "updated_at": str, "version": int, "version_count": int}
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def everything(memory: Command) -> Any:
    """Return everything in the store, to compare before and after."""
    return [
        memory("list", "--limit", "1000").json,
        memory("list", "--deleted", "--limit", "1000").json,
    ]


# --- create


def test_the_answer_to_create_has_every_specified_field(memory: Command) -> None:
    answer = memory(
        "create", "User prefers Python for CLI tools",
        "--agent", "claude", "--personality", "engineer", "--project", "memories", "--type", "preference", "--decay", "stable",
    )  # fmt: skip
    shape = answer.json
    assert (answer.code, answer.err) == (0, "")
    assert {name: type(shape[name]) for name in SPECIFIED | OURS} == SPECIFIED | OURS
    assert UUID7.fullmatch(shape["id"])
    assert UTC_TIME.fullmatch(shape["created_at"])
    assert shape["updated_at"] == shape["created_at"]
    assert {name: shape[name] for name in SPECIFIED if name not in ("id", "created_at")} == {
        "content": "User prefers Python for CLI tools",
        "agent": "claude",
        "personality": "engineer",
        "project": "memories",
        "type": "preference",
        "global": False,
        "decay_policy": "stable",
        "confidence": 1.0,
    }
    assert shape["tags"] == {
        "agent": "claude", "personality": "engineer", "project": "memories", "type": "preference"
    }  # fmt: skip
    assert (shape["version"], shape["version_count"], shape["namespace"]) == (1, 1, "shared")
    assert shape["stored"] is True


def test_known_fields_without_a_value_are_empty(memory: Command) -> None:
    shape = memory("create", "nothing else is known").json
    assert [shape[name] for name in ("agent", "personality", "project", "type")] == ["", "", "", ""]
    assert shape["global"] is False
    assert shape["tags"] == {}
    assert shape["decay_policy"] == "stable"


def test_options_and_tags_set_the_same_tags(memory: Command) -> None:
    by_option = memory("create", "one", "--project", "shop", "--global").json
    by_tag = memory("create", "two", "--tag", "project=shop", "-t", "global=true").json
    for shape in (by_option, by_tag):
        assert (shape["project"], shape["global"], shape["tags"]) == (
            "shop",
            True,
            {"project": "shop", "global": "true"},
        )


def test_free_tags_are_kept(memory: Command) -> None:
    shape = memory(
        "create",
        "content",
        "--tag",
        "team=blue",
        "--tag",
        "url=https://x/?a=b",
        "--tag",
        "ort=Köln",
    ).json
    assert shape["tags"] == {"team": "blue", "url": "https://x/?a=b", "ort": "Köln"}


@pytest.mark.parametrize("policy", ["stable", "contextual", "reinforceable"])
def test_create_accepts_every_decay_policy(memory: Command, policy: str) -> None:
    assert memory("create", "content", "--decay", policy).json["decay_policy"] == policy


def test_create_reads_standard_input(memory: Command) -> None:
    assert memory("create", "-", stdin="zwei\nZeilen\n").json["content"] == "zwei\nZeilen"


def test_create_drops_a_byte_order_mark(memory: Command) -> None:
    assert memory("create", "-", stdin=b"\xef\xbb\xbfcontent\r\n").json["content"] == "content"


@pytest.mark.thorough
def test_the_longest_content_may_have_a_byte_order_mark_and_a_line_ending(
    memory: Command,
) -> None:
    longest = b"a fox. " * 149_796 + b"abcd"  # 1,048,576 bytes
    assert (
        len(memory("create", "-", stdin=b"\xef\xbb\xbf" + longest + b"\r\n").json["content"])
        == 1_048_576
    )


def test_content_is_stored_unchanged(memory: Command) -> None:
    content = (
        '{0.__class__} %s ${HOME} $(id) <script>alert("x")</script> \\n \' OR 1=1 -- 🎉 日本語'
    )
    created = memory("create", content).json
    assert created["content"] == content
    assert memory("get", created["id"]).json["content"] == content


def test_declared_confidence_lowers_computed_confidence(memory: Command) -> None:
    shape = memory("create", "perhaps", "--confidence", "0.6").json
    assert (shape["confidence"], shape["base_confidence"]) == (0.6, 0.6)


# --- create: memories that already exist


def test_the_same_text_is_not_stored_again(memory: Command) -> None:
    first = memory("create", "The user prefers tabs").json
    again = memory("create", "the user  prefers tabs.")
    assert again.code == 0
    assert again.json["stored"] is False
    assert again.json["id"] == first["id"]
    assert "nothing was stored" in again.json["hint"]
    assert memory("status").json["memory_count"] == 1


def test_additions_of_a_repetition_are_merged_and_contradictions_reported(memory: Command) -> None:
    first = memory(
        "create", "The user prefers tabs", "--type", "fact", "--decay", "contextual"
    ).json
    more = (
        "--type",
        "preference",
        "--global",
        "--decay",
        "reinforceable",
        "--confidence",
        "0.5",
        "--tag",
        "via=chat",
    )
    again = memory("create", "The user prefers tabs", *more)
    assert again.code == 0
    assert (again.json["id"], again.json["stored"], again.json["version"]) == (
        first["id"],
        False,
        2,
    )
    assert again.json["merged"] == ["tags", "decay"]
    assert again.json["not_merged"] == {"tags": {"type": "preference"}, "confidence": 0.5}
    assert again.json["reinforced"] is True
    assert (again.json["type"], again.json["global"], again.json["tags"]["via"]) == (
        "fact",
        True,
        "chat",
    )
    assert again.json["hint"] == (
        "not stored again: this memory already says the same thing; merged into it: tags, decay; it was reinforced; not merged: "
        f"tag type, confidence; to change that: memory update {first['id']}"
    )
    memory("create", "The user prefers tabs", "--source", "standup")
    moved = memory("create", "The user prefers tabs", "--source", "retro")
    assert moved.json["hint"].endswith(f"memory create CONTENT --supersedes {first['id']}")
    changed = memory("update", first["id"], "--confidence", "0.5", "--type", "preference").json
    assert (changed["confidence"], changed["type"]) == (0.5, "preference")
    kept = memory("get", first["id"]).json
    assert (kept["decay_policy"], kept["version"]) == ("reinforceable", 4)
    assert "last_reinforced_at" in kept
    shown = memory("create", "The user prefers tabs", "--tag", "x=1", "--format", "text")
    assert shown.code == 0
    name = first["id"][:18]
    assert shown.out == f"= already stored as {name} · merged into it: tags · reinforced\n"


def test_an_answer_to_a_create_has_no_empty_field(memory: Command) -> None:
    env = {"EMBEDDER": "minilm"}
    texts = (
        "The API listens on port 8080.",
        "The API listens on port 8080",
        "The API listens on port 9090.",
    )
    answers = [memory("create", text, env=env).json for text in texts]
    answers.append(memory("create", "The API is listening on port 9090.", env=env).json)
    answers.append(memory("create", "Tea", "--key", "user/drink", env=env).json)
    answers.append(memory("create", "Coffee", "--key", "user/drink", env=env).json)
    answers.append(memory("create", "The API listens on port 8080", "--force", env=env).json)
    assert [answer["stored"] for answer in answers] == [True, False, True, False, True, True, True]
    defaults = {field.name: field.default for field in CREATED}
    for answer in answers:
        for name in answer.keys() & defaults.keys():
            assert answer[name] != defaults[name]
    assert [answer["id"] is None for answer in answers] == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    corrected = [answer.get("corrects") for answer in answers]
    assert corrected == [None, None, answers[0]["id"], *[None] * 4]


def test_a_duplicate_of_a_corrected_memory_names_the_correction(memory: Command) -> None:
    env = {"EMBEDDER": "minilm"}
    old = memory("create", "The API listens on port 8080.", env=env).json["id"]
    new = memory("create", "The API listens on port 9090.", env=env).json["id"]
    refused = memory("create", "The API is listening on port 8080.", env=env)
    assert refused.code == 3
    assert [(each["id"], each["corrected_by"]) for each in refused.json["duplicates"]] == [
        (old, new)
    ]
    assert f"memory confirm {old};" in refused.json["hint"]
    memory("update", new, "The API is listening on port 8080.", env=env)
    assert (
        memory("search", "API port", "--limit", "1", env=env)
        .json["results"][0]["content"]
        .endswith("8080.")
    )


def test_a_text_can_be_stored_again_in_another_project(memory: Command) -> None:
    memory("create", "The user prefers tabs", "--project", "one")
    assert memory("create", "The user prefers tabs", "--project", "two").json["stored"] is True


def test_force_stores_the_same_text_again(memory: Command) -> None:
    memory("create", "The user prefers tabs")
    assert memory("create", "The user prefers tabs", "--force").json["stored"] is True
    assert memory("status").json["memory_count"] == 2


def test_a_duplicate_is_not_stored_and_the_answer_names_the_alternatives(memory: Command) -> None:
    env = {"EMBEDDER": "minilm"}
    first = memory("create", "The user does not eat meat.", env=env).json
    answer = memory("create", "The user doesn't eat meat.", env=env)
    assert answer.code == 3
    assert list(answer.json) == ["id", "stored", "duplicates", "hint"]
    assert answer.json["id"] is None
    assert answer.json["stored"] is False
    [duplicate] = answer.json["duplicates"]
    assert (duplicate["id"], duplicate["content"]) == (first["id"], "The user does not eat meat.")
    assert 0.8 <= duplicate["similarity"] <= 1
    assert "--force" in answer.json["hint"]
    assert f"memory update {first['id']}" in answer.json["hint"]
    assert memory("status", env=env).json["memory_count"] == 1
    shown = memory("create", "The user doesn't eat meat.", "--format", "text", env=env)
    assert shown.code == 3
    assert shown.out.startswith("✗ not stored: very similar to\n")
    assert first["id"][:18] in shown.out


def test_a_correction_is_stored_and_names_similar_memories(memory: Command) -> None:
    env = {"EMBEDDER": "minilm"}
    first = memory("create", "The API listens on port 8080.", env=env).json
    answer = memory("create", "The API listens on port 9090.", env=env)
    assert answer.code == 0
    assert answer.json["stored"] is True
    [similar] = answer.json["similar_to"]
    assert (similar["id"], similar["difference"]) == (first["id"], "numbers: 8080 -> 9090")
    assert answer.json["corrects"] == first["id"]
    assert f"memory update {answer.json['id']} --not-corrects {first['id']}" in answer.json["hint"]
    assert memory("status", env=env).json["memory_count"] == 2
    other = memory("create", "The API used to listen on port 7070.", env=env).json
    assert "corrects" not in other
    assert "--supersedes ID" in other["hint"]


def test_a_similarity_is_at_most_one(memory: Command) -> None:
    env = {"EMBEDDER": "minilm"}
    memory("create", "Ann likes tea", env=env)
    [similar] = memory("create", "Ann likes tea", "--key", "ann/drink", env=env).json["similar_to"]
    assert similar["similarity"] == 1


def test_deleting_a_correction_names_the_memory_that_is_current_again(memory: Command) -> None:
    ports = [memory("create", f"The API listens on port {n}.").json["id"] for n in (1, 2, 3, 4)]
    note = f"memory {ports[2]} is current again"
    assert memory("delete", ports[3]).json == {"id": ports[3], "deleted": True, "note": note}
    assert "note" not in memory("delete", ports[1]).json  # port 3 now corrects port 1
    shown = memory("delete", ports[2], "--format", "text").out
    assert f"Memory {ports[0]} is current again.\n" in shown


@pytest.mark.parametrize("command", ["delete", "forget"])
def test_a_bulk_command_names_memories_that_are_current_again(
    memory: Command, command: str
) -> None:
    for subject in ("API", "shop"):
        ids = [memory("create", f"The {subject} listens on port {n}.").json["id"] for n in (1, 2)]
        where = f"id = {ids[1]}"
        yes = ["--yes"] if command == "forget" else []
        if subject == "API":
            answer = memory(command, "--where", where, *yes).json
            assert (answer["current_again"], answer["current_again_count"]) == (ids[:1], 1)
        else:
            shown = memory(command, "--where", where, *yes, "--format", "text").out
            assert f"Current again (1): {ids[0][:18]}\n" in shown


def test_a_corrected_memory_is_marked_and_a_wrong_link_can_be_removed(memory: Command) -> None:
    older = memory("create", "The API listens on port 8080.").json["id"]
    newer = memory("create", "The API listens on port 9090.").json["id"]
    hits = memory("search", "which port does the API listen on").json["results"]
    assert [(hit["id"], hit.get("corrected_by")) for hit in hits] == [(newer, None), (older, newer)]
    assert f"corrected by {newer[:18]}" in memory("list", "--format", "text").out
    assert memory("history", older).json["corrected_by"] == newer
    shown = memory(
        "context", "which port does the API listen on", "--conversation", "x", "--format", "text"
    ).out
    assert "9090" in shown
    assert "8080" not in shown
    both = memory(
        "context", "which port", "--conversation", "x", "--include-corrected", "--format", "text"
    ).out
    assert "8080" in both
    assert "corrects" not in memory("update", newer, "--not-corrects", older).json
    refused = memory("update", newer, "--not-corrects", older)
    assert refused.code == 1
    assert "it corrects none" in refused.error
    assert "corrected_by" not in memory("get", older).json


def test_a_key_in_use_makes_a_new_version_of_its_memory(memory: Command) -> None:
    first = memory(
        "create", "The editor is vim", "--key", "user/editor", "--type", "preference"
    ).json
    second = memory(
        "create", "The editor is emacs", "--key", "user/editor", "--type", "preference"
    ).json
    assert (first["key"], second["key"]) == ("user/editor", "user/editor")
    assert (second["id"], second["version"], second["stored"]) == (first["id"], 2, True)
    assert memory("get", first["id"]).json["content"] == "The editor is emacs"
    again = memory(
        "create", "The editor is emacs", "--key", "user/editor", "--type", "preference"
    ).json
    assert (again["version"], again["stored"]) == (2, False)


def test_supersedes_ends_the_old_memory_and_links_both(memory: Command) -> None:
    old = memory("create", "The office is in Bonn").json
    new = memory("create", "The office is in Cologne", "--supersedes", old["id"][:18]).json
    assert new["supersedes"] == old["id"]
    assert [hit["id"] for hit in memory("search", "office").json["results"]] == [new["id"]]
    assert memory("history", old["id"]).json["superseded_by"] == new["id"]
    assert memory("get", old["id"]).json["superseded_by"] == new["id"]


def test_superseding_an_unknown_memory_stores_nothing(memory: Command) -> None:
    unknown = "01a1fdf1-92cd-72f2-8000-000000000000"
    answer = memory("create", "content", "--supersedes", unknown)
    assert (answer.code, answer.error) == (1, f"--supersedes {unknown}: Memory not found")
    assert memory("status").json["memory_count"] == 0


def test_superseding_a_deleted_memory_names_the_command_that_restores_it(
    memory: Command, stored: Callable[..., str]
) -> None:
    old = stored("The office is in Bonn")
    memory("delete", old)
    error = memory("create", "content", "--supersedes", old).error
    assert error.endswith(
        f"Memory not found: it was deleted; to restore it, run: memory restore {old}"
    )


def test_supersedes_works_with_a_key_in_use(memory: Command, stored: Callable[..., str]) -> None:
    stored("The editor is vim", "--key", "user/editor")
    old = stored("Some years ago the user wrote everything in nano")
    memory("create", "The editor is emacs", "--key", "user/editor", "--supersedes", old)
    assert "superseded_by" in memory("get", old).json


# --- update


def test_update_appends_a_version(memory: Command) -> None:
    first = memory("create", "Deploys on Tuesday", "--project", "shop", "--tag", "team=blue").json
    shape = memory("update", first["id"], "Deploys on Thursday").json
    assert (shape["id"], shape["content"], shape["version"], shape["version_count"]) == (
        first["id"], "Deploys on Thursday", 2, 2
    )  # fmt: skip
    assert shape["tags"] == {"project": "shop", "team": "blue"}
    assert shape["created_at"] == first["created_at"]
    assert shape["updated_at"] > first["updated_at"]


def test_update_adds_changes_and_removes_tags(memory: Command, stored: Callable[..., str]) -> None:
    memory_id = stored("content", "--tag", "a=1", "--tag", "b=2", "--project", "shop")
    shape = memory(
        "update", memory_id, "--tag", "a=9", "--agent", "claude", "--remove-tag", "b"
    ).json
    assert shape["tags"] == {"a": "9", "project": "shop", "agent": "claude"}
    assert (shape["content"], shape["version"]) == ("content", 2)


def test_update_reads_standard_input(memory: Command, stored: Callable[..., str]) -> None:
    assert memory("update", stored("old"), "-", stdin="new").json["content"] == "new"


def test_an_update_that_changes_nothing_creates_no_version(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("content")
    assert memory("update", memory_id, "content").json["version"] == 1
    assert memory("history", memory_id).json["count"] == 1


def test_update_and_confirm_do_not_count_reads(memory: Command, stored: Callable[..., str]) -> None:
    memory_id = stored("the port is 80", "--decay", "reinforceable")
    memory("update", memory_id, "the port is 81")
    memory("confirm", memory_id)
    memory("status")  # counts the reads that wait
    assert '"accesses"' not in memory("export").out


# --- reinforce


def test_reinforce_resets_decay(memory: Command, home: Path) -> None:
    old = datetime.now(UTC) - timedelta(days=15)
    with Memories(embedder="fake") as memories:
        [made] = memories.create_many(
            [Draft("Commits are conventional", decay="reinforceable", created_at=old)]
        )
    memory_id = made.memory.id
    assert memory("get", memory_id).json["confidence"] == pytest.approx(0.5, abs=0.001)
    shape = memory("reinforce", memory_id).json
    assert list(shape) == ["id", "confidence", "last_reinforced_at"]
    assert (shape["id"], shape["confidence"]) == (memory_id, 1.0)
    assert UTC_TIME.fullmatch(shape["last_reinforced_at"])
    after = memory("get", memory_id).json
    assert after["last_reinforced_at"] == shape["last_reinforced_at"]
    assert after["confidence"] == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("stable", "Memory has stable decay policy, reinforcement has no effect"),
        ("contextual", "Memory has contextual decay policy, reinforcement is not supported"),
    ],
)
def test_other_policies_are_not_reinforced(
    memory: Command, stored: Callable[..., str], policy: str, sentence: str
) -> None:
    answer = memory("reinforce", stored("content", "--decay", policy))
    assert (answer.code, answer.error) == (1, sentence)


# --- delete and restore


def test_delete_hides_a_memory_and_restore_brings_it_back(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("Deploys are frozen", "--project", "shop")
    answer = memory("delete", memory_id)
    assert (answer.code, answer.json) == (0, {"id": memory_id, "deleted": True})
    assert memory("search", "deploys frozen").json == {"results": [], "count": 0}
    assert memory("list").json["count"] == 0
    assert memory("tags").json == {"keys": []}
    [deleted] = memory("list", "--deleted").json["results"]
    assert (deleted["id"], deleted["deleted"]) == (memory_id, True)
    restored = memory("restore", memory_id).json
    assert (restored["id"], restored["content"], restored["project"]) == (
        memory_id,
        "Deploys are frozen",
        "shop",
    )
    assert memory("search", "deploys frozen").json["count"] == 1
    assert memory("list", "--deleted").json["count"] == 0


@pytest.mark.parametrize("command", ["get", "reinforce", "delete", "update"])
def test_deleted_memories_are_not_found_and_can_be_restored(
    memory: Command, stored: Callable[..., str], command: str
) -> None:
    memory_id = stored("content")
    memory("delete", memory_id)
    answer = memory(command, memory_id, *(["new"] if command == "update" else []))
    advice = f"it was deleted; to restore it, run: memory restore {memory_id}"
    assert (answer.code, answer.error) == (1, f"Memory not found: {advice}")


def test_a_memory_deleted_in_shared_is_restored_there(
    memory: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("content")
    memory("delete", memory_id)
    error = memory("get", memory_id, "-n", "alice").error
    assert error.endswith(f"run: memory restore {memory_id} -n shared")
    assert memory(*error.rpartition("run: memory ")[2].split()).json["id"] == memory_id


def test_restore_names_a_current_memory_with_the_same_text(
    memory: Command, stored: Callable[..., str]
) -> None:
    old = stored("Deploys run on Fridays")
    memory("delete", old)
    new = stored("Deploys run on Fridays.")
    answer = memory("restore", old)
    hint = f"memory {new} says the same thing; delete one of them"
    assert (answer.code, answer.json["hint"]) == (0, hint)
    memory("delete", old)
    assert hint in " ".join(memory("restore", old, "--format", "text").out.split())
    memory("delete", new)
    memory("delete", old)
    assert "hint" not in memory("restore", old).json


@pytest.mark.parametrize(
    "command", ["get", "reinforce", "delete", "update", "restore", "history", "forget"]
)
def test_an_unknown_id_is_not_found(
    memory: Command, stored: Callable[..., str], command: str
) -> None:
    stored("content")
    more = {"update": ["new"], "forget": ["--yes"]}.get(command, [])
    answer = memory(command, "01a1fdf1-92cd-72f2-8000-000000000000", *more)
    assert (answer.code, answer.error) == (1, "Memory not found")


def test_only_deleted_memories_are_restored(memory: Command, stored: Callable[..., str]) -> None:
    answer = memory("restore", stored("content"))
    assert (answer.code, answer.error) == (1, "Memory is not deleted; there is nothing to restore")


def test_a_superseded_memory_can_be_restored(memory: Command, stored: Callable[..., str]) -> None:
    old = stored("The office is in Bonn")
    stored("The office is in Cologne", "--supersedes", old)
    assert "superseded_by" not in memory("restore", old).json
    assert memory("search", "office").json["count"] == 2


def test_restore_does_not_take_a_key_from_another_memory(
    memory: Command, stored: Callable[..., str]
) -> None:
    old = stored("The editor is vim", "--key", "user/editor")
    memory("delete", old)
    stored("The editor is emacs", "--key", "user/editor")
    answer = memory("restore", old)
    assert answer.code == 1
    assert "user/editor" in answer.error


# --- forget


def test_forget_leaves_no_bytes_on_disk(
    memory: Command, stored: Callable[..., str], home: Path
) -> None:
    stored("something that stays")
    memory_id = stored("the password is xylophone", "--tag", "kind=marimba")
    memory("update", memory_id, "the password is glockenspiel")
    answer = memory("forget", memory_id, "--yes")
    assert answer.json == {"id": memory_id, "forgotten": True, "versions": 2, "also_in": []}
    for command in ("get", "history", "restore"):
        assert memory(command, memory_id).error == "Memory not found"
    for file in filter(Path.is_file, home.iterdir()):
        for trace in (b"xylophone", b"glockenspiel", b"marimba"):
            assert trace not in file.read_bytes(), file


def test_forget_is_refused_without_a_terminal(memory: Command, stored: Callable[..., str]) -> None:
    memory_id = stored("content")
    before = everything(memory)
    answer = memory("forget", memory_id, stdin="y\n")
    assert answer.code == 2
    assert "--yes" in answer.error
    assert everything(memory) == before


def test_forget_also_erases_deleted_memories(memory: Command, stored: Callable[..., str]) -> None:
    memory_id = stored("content")
    memory("delete", memory_id)
    assert memory("forget", memory_id, "-y").json["forgotten"] is True
    assert memory("list", "--deleted").json["count"] == 0


@pytest.mark.parametrize(
    ("typed", "gone"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False)]
)
def test_forget_asks_for_confirmation_on_a_terminal(
    memory: Command, terminal: Command, stored: Callable[..., str], typed: str, gone: bool
) -> None:
    memory_id = stored("the secret word")
    shown = terminal("forget", memory_id, typed=typed)
    assert shown.code == (0 if gone else 1)
    assert "Permanently forget (1 version): the secret word [y/N]" in shown.out
    assert ("Permanently forgotten" in shown.out) is gone
    assert ("Nothing was forgotten." in shown.out) is not gone
    assert memory("status").json["memory_count"] == (0 if gone else 1)


def test_end_of_input_answers_a_question_on_a_new_line(
    terminal: Command, stored: Callable[..., str]
) -> None:
    memory_id = stored("the secret word")
    assert "[y/N] \nNothing was forgotten." in terminal("forget", memory_id, typed="\x04").out


def test_an_error_written_to_a_pipe_is_json(memory: Command) -> None:
    answer = memory("get", "01a1fdf1-92cd-72f2-8000-000000000000")
    assert (answer.code, answer.out) == (1, "")
    assert json.loads(answer.err) == {"error": "Memory not found"}


# --- behaviour that the specifications leave open


def test_an_empty_option_counts_as_omitted(memory: Command) -> None:
    """So that a script may pass `--project "$PROJECT"` when the variable is not set."""
    assert memory("create", "apples are red", "--project", "").json["tags"] == {}


def test_an_upsert_keeps_the_tags_that_it_does_not_change(memory: Command) -> None:
    memory(
        "create",
        "The editor is Vim",
        "--key",
        "user/editor",
        "--type",
        "preference",
        "-t",
        "source=chat",
    )
    shape = memory(
        "create", "The editor is Helix", "--key", "user/editor", "-t", "source=shell"
    ).json
    assert shape["tags"] == {"type": "preference", "source": "shell"}


def test_a_private_memory_cannot_supersede_a_shared_one(memory: Command) -> None:
    shared = memory("create", "apples are red").json["id"]
    answer = memory("create", "apples are green", "--supersedes", shared, "-n", "bob")
    assert answer.code == 2
    assert "; write it to shared instead" in answer.error
    assert memory("search", "apples").json["count"] == 1
