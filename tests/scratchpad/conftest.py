"""Helpers that read and edit the file of a scratchpad."""

from pathlib import Path

from memories import Memories


def store(memories: Memories, content: str, **options: object) -> str:
    """Store a memory and write the file; return the memory's id."""
    created = memories.create(content, force=True, **options)  # type: ignore[arg-type]
    memories._scratchpads.flush()
    assert created.id is not None
    return created.id


def file_of(memories: Memories) -> Path:
    """Return the file of a scratchpad."""
    return memories.config.home / memories.namespace / "scratchpad.yaml"


def contents(memories: Memories) -> list[str]:
    """Return the contents that a scratchpad shows."""
    return [entry.content for entry in memories.scratchpad().entries]


def edit(memories: Memories, old: str, new: str) -> None:
    """Replace text in the file, as a user would."""
    file = file_of(memories)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def lines_of(memories: Memories, memory_id: str) -> str:
    """Return the lines of a memory's entry."""
    parts = file_of(memories).read_text(encoding="utf-8").split("\n- ")
    [entry] = [part for part in parts[1:] if memory_id in part.split("\n")[0]]
    return f"- {entry.removesuffix(chr(10))}\n"
