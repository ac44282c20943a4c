"""Forgetting a conversation erases what hooks have captured of it, and no flush brings it back."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hooks.conftest import flush_inbox, record_event, stored_turns
from memories import Memories, NotFound
from memories.hooks import inbox

NAME = "claude-code:s1"


def transcript_line(role: str, content: str) -> str:
    """Return a line that the host writes to a transcript now."""
    stamp = datetime.now(UTC).isoformat()
    line = {"type": role, "timestamp": stamp, "message": {"role": role, "content": content}}
    return json.dumps(line) + "\n"


def files_with(home: Path, text: str) -> list[str]:
    """Return the names of the files in the home that contain a text."""
    files = (file for file in home.rglob("*") if file.is_file())
    return [file.name for file in files if text.encode() in file.read_bytes()]


def turns_forget(memories: Memories) -> object:
    """Forget the conversation."""
    return memories.forget_turns(NAME)


def turns_forget_with_memories(memories: Memories) -> object:
    """Forget the conversation and the memories made from it."""
    return memories.forget_turns(NAME, with_memories=True)


def forget_where(memories: Memories) -> object:
    """Forget the conversation by an expression."""
    return memories.forget_where(f'conversation = "{NAME}"', scope="all")


erasing = pytest.mark.parametrize(
    "forget", [turns_forget, turns_forget_with_memories, forget_where]
)
Forget = Callable[[Memories], Any]


@erasing
@pytest.mark.parametrize("is_stored", [True, False])
def test_events_of_a_forgotten_conversation_are_erased(
    home: Path, forget: Forget, is_stored: bool
) -> None:
    record_event(home, "user-prompt", prompt="first axolotl")
    if is_stored:
        flush_inbox(home)
    record_event(home, "user-prompt", prompt="second: Gertrude")
    record_event(home, "user-prompt", prompt="another session", session_id="s2")
    with Memories() as memories:
        forget(memories)
    assert [files_with(home, text) for text in ("axolotl", "Gertrude")] == [[], []]
    record_event(home, "user-prompt", prompt="third")
    flush_inbox(home)
    assert stored_turns() == [("user", "third")]
    assert stored_turns("claude-code:s2") == [("user", "another session")]


def test_the_answer_counts_captured_texts_in_a_dry_run_too(home: Path) -> None:
    record_event(home, "user-prompt", prompt="a question")
    record_event(home, "stop", last_assistant_message="an answer")
    record_event(home, "session-end")
    with Memories() as memories:
        planned = memories.forget_turns(NAME, dry_run=True)
        assert files_with(home, "question") != []
        planned_where = memories.forget_where(f"conversation = {NAME}", scope="all", dry_run=True)
        forgotten = memories.forget_turns(NAME)
        assert planned_where.counts == {"forget": 2}
        assert (planned.versions, forgotten.versions) == (2, 2)
        with pytest.raises(NotFound):
            memories.forget_turns(NAME)


def test_text_from_before_the_erasure_is_not_read_from_the_transcript(home: Path) -> None:
    transcript = Path.home() / ".claude" / "projects" / "-work" / "s1.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text(transcript_line("user", "yes"))
    record_event(home, "user-prompt", prompt="yes", transcript_path=str(transcript))
    flush_inbox(home)
    with transcript.open("a") as stream:
        stream.write(transcript_line("assistant", "Gertrude will come"))
        stream.write(transcript_line("user", "yes"))
    record_event(home, "user-prompt", prompt="yes", transcript_path=str(transcript))
    with Memories() as memories:
        memories.forget_turns(NAME)
    with transcript.open("a") as stream:
        stream.write(transcript_line("user", "yes"))
    record_event(home, "user-prompt", prompt="yes", transcript_path=str(transcript))
    flush_inbox(home)
    assert stored_turns() == [("user", "yes")]
    assert files_with(home, "Gertrude") == []


def test_events_that_could_not_be_stored_and_unreadable_lines_are_erased(home: Path) -> None:
    record_event(home, "user-prompt", prompt="about Gertrude")
    inbox.put_aside(str(home), "claude-code.s1")
    record_event(home, "user-prompt", prompt="hello")
    with (home / "inbox" / "claude-code.s1.jsonl").open("ab") as stream:
        stream.write(b'{"prompt": "Gertr\n')
    with Memories() as memories:
        assert memories.forget_turns(NAME).versions == 2
    assert files_with(home, "Gertr") == []
    assert [inbox.names(str(home)), inbox.list_refused(str(home))] == [[], []]


def test_events_of_other_namespaces_and_stores_are_kept(home: Path, tmp_path: Path) -> None:
    record_event(home, "user-prompt", prompt="for all")
    record_event(home, "user-prompt", prompt="for bob", namespace="bob")
    with Memories(namespace="bob") as memories:
        assert memories.forget_turns(NAME).versions == 1
    with (
        Memories(f"sqlite:///{tmp_path}/other.db") as opened,
        Memories(opened._raw_store) as memories,
        pytest.raises(NotFound),
    ):
        memories.forget_turns(NAME)
    assert files_with(home, "for bob") == []
    flush_inbox(home)
    assert stored_turns() == [("user", "for all")]


@pytest.mark.parametrize("name", ["claude-code.s1", "../../claude-code:s1", "s1"])
def test_a_conversation_with_another_name_has_no_events(home: Path, name: str) -> None:
    record_event(home, "user-prompt", prompt="hello")
    with Memories() as memories, pytest.raises(NotFound):
        memories.forget_turns(name)
    flush_inbox(home)
    assert stored_turns() == [("user", "hello")]
