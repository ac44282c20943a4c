"""The prompt block of a session's agent, in the project that the session works in."""

from pathlib import Path
from typing import TYPE_CHECKING

from memories.identity import project as projects
from memories.identity import prompt

if TYPE_CHECKING:
    from memories.memories import Memories


def block(memories: "Memories", folder: Path, budget: int) -> tuple[str, dict[str, str]]:
    """Return what the agent remembers as a part of its instructions, and the texts of the memories in it by their ids.

    Args:
        memories: The memory.
        folder: Where the session works.
        budget: How many tokens the block may have.
    """
    found = projects.identify(folder)
    project = None if found is None else found.name
    built = prompt.build(memories, project=project, budget=budget, client="tool")
    return built.text, {entry.id: entry.content for entry in (*built.entries, *built.sessions)}
