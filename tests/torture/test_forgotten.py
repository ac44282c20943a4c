"""A forgotten text leaves no byte in any file of the home, no matter which part of a record
contained it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memories import Memories, TurnDraft
from memories.write.turn_queue import RetryQueue, files_of

TAIL = "zqxj7k"  # the end of each word is searched for, since an index may cut off its beginning


def word(place: str) -> str:
    """Return a word that occurs only in this place."""
    return f"{place}{TAIL}{place[::-1]}"


PLACES = (
    "content", "earlierversion", "tagkey", "tagvalue", "key", "deleted", "superseded", "restored", "turn", "turntag",
    "speaker", "messageid", "conversation", "queued", "longtext", "project",
)  # fmt: skip


def write(memories: Memories) -> list[Callable[[], object]]:
    """Write a word into each place; return functions that forget them."""

    def create(content: str, **given: Any) -> str:
        made = memories.create(content, force=True, **given).memory
        assert made is not None
        return made.id

    changed = create(f"the {word('earlierversion')} was here")
    memories.update(changed, "it says something else now")
    deleted, restored = create(f"a {word('deleted')} one"), create(f"a {word('restored')} one")
    memories.delete(deleted)
    memories.delete(restored)
    memories.restore(restored)
    superseded = create(f"a {word('superseded')} one")
    create("what came after it", supersedes=superseded)
    ids = [
        create(f"the {word('content')} of a memory"), changed, deleted, restored, superseded,
        create("by its tags", tags={word("tagkey"): word("tagvalue"), "project": word("project")}),
        create("by its key", key=f"user/{word('key')}"),
        create(f"{'many words ' * 5000} and {word('longtext')}"),
    ]  # fmt: skip
    said = TurnDraft(
        f"said {word('turn')}",
        speaker=word("speaker"),
        message_id=word("messageid"),
        tags={"x": word("turntag")},
    )
    memories.add_turns(word("conversation"), [said])
    RetryQueue.of_turns(*files_of(memories.config, memories.namespace)).add(
        {"conversation_id": word("conversation"), "content": word("queued")}
    )
    forgets: list[Callable[[], object]] = [
        lambda memory_id=memory_id: memories.forget(memory_id) for memory_id in ids
    ]
    return [*forgets, lambda: memories.forget_turns(word("conversation"))]


def remaining_places(folder: Path) -> dict[str, list[str]]:
    """Return the places whose words can still be read, by file."""
    files = {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    ends = {place: (TAIL + place[::-1]).encode() for place in PLACES}
    return {
        file.name: found
        for file, content in files.items()
        if (found := [p for p in PLACES if ends[p] in content])
    }


@pytest.mark.torture
def test_forgetting_leaves_no_bytes_of_any_part_of_a_record(
    home: Path, figures: dict[str, Any]
) -> None:
    memories = Memories(embedder="fake")
    stays = memories.create("this one stays").memory
    assert stays is not None
    forgets = write(memories)
    memories.close()
    assert {place for places in remaining_places(home).values() for place in places} == set(PLACES)
    for forget in forgets:
        forget()
    assert memories.get(stays.id).content == "this one stays"
    assert memories.search("this one stays")[0].id == stays.id
    memories.close()
    figures |= {"places": len(PLACES), "left": sum(map(len, remaining_places(home).values()))}
    assert remaining_places(home) == {}
