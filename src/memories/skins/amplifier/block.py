"""The prompt block of a session's agent."""

from typing import TYPE_CHECKING

from memories.agent import rendering
from memories.agent.tokens import estimate_tokens
from memories.skins import compact

if TYPE_CHECKING:
    from memories.service import Memories

RECENT = 10


def block(memories: "Memories", budget: int) -> str:
    """Return what the agent remembers as a part of its instructions: who it is, the newest memories, what it can do.

    Args:
        memories: The memory.
        budget: How many tokens it may have.
    """
    newest = [memory for memory in memories.list(limit=RECENT).memories if not memory.suspicious]
    for count in range(len(newest), -1, -1):
        lines = compact.page(memories, newest[:count]).split("\n") if count else []
        recent = [rendering.frame({}, "", lines)] if lines else []
        text = "\n".join([_HEAD.format(identity=memories.namespace), *recent, _TAIL])
        if estimate_tokens(text) <= budget:
            return text
    return ""


_HEAD = "## Memory\n\nYou are **{identity}**. You have persistent memory across sessions.\n"
_TAIL = "\nSearch your memory with the tool memory when it may help; store what will matter in later sessions."
