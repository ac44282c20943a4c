"""Search, remember and forget as tools for LangChain agents. Results are fenced as data, not
instructions.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from memories import Created, InvalidInput, Memories, MemoriesError, Memory
from memories.context import fence
from memories.guard.origin import describe_writer

MAX_RESULTS = 50
_NOTHING = "Nothing is known about that."
Act = Callable[..., str]


def memory_tools(memories: Memories) -> list[BaseTool]:
    """Return the tools `search_memory`, `remember` and `forget`.

        agent = create_agent(model, memory_tools(Memories(namespace="ann")))

    Args:
        memories: The memories to read and write. The caller closes them.
    """

    def search_memory(query: str, limit: int = 5) -> str:
        """Find what is known about people, projects, decisions and preferences, by meaning and by
        word.

        Args:
            query: The question.
            limit: The maximum number of results, up to 50.
        """
        if not 1 <= limit <= MAX_RESULTS:
            raise InvalidInput(f"limit must be a whole number from 1 to {MAX_RESULTS}")
        hits = memories.search(query, limit=limit)
        if not hits:
            return _NOTHING
        lines = [fence.line(_describe_memory(hit.memory)) for hit in hits]
        return f"{fence.RULE}\n{fence.block('memories', lines, fence.new_boundary())}"

    def remember(content: str, key: str = "") -> str:
        """Store one statement that will matter later: self-contained, with names and absolute
        dates.

        Args:
            content: The statement.
            key: A stable name for the statement's subject, such as user/editor. It replaces the
                statement stored under that name.
        """
        return _describe_created(memories.create(content, key=key or None))

    def forget(memory_id: str) -> str:
        """Delete a memory that is wrong or no longer wanted. A person can restore it.

        Args:
            memory_id: The memory's id, as search_memory shows it.
        """
        return f"deleted {memories.delete(memory_id).id}"

    tools: list[BaseTool] = []
    for act in (search_memory, remember, forget):
        run = _translate_errors(act)
        tool = StructuredTool.from_function(run, handle_tool_error=True, parse_docstring=True)
        tools.append(tool)
    return tools


def _describe_memory(memory: Memory) -> dict[str, Any]:
    """Return a memory as models see it, with its date and writer."""
    return {
        "id": memory.id,
        "at": f"{memory.updated_at:%Y-%m-%d %H:%M}Z",
        **describe_writer(memory.origin),
        "tags": dict(memory.tags) or None,
        "corrected_by": memory.corrected_by,
        "suspicious": " ".join(memory.suspicious) or None,
        "text": memory.content,
    }


def _describe_created(created: Created) -> str:
    if created.memory is not None:
        verb = "stored as" if created.stored else "already known as"
        return f"{verb} {created.memory.id}"
    lines = [
        fence.line({"id": duplicate.id, "text": duplicate.content})
        for duplicate in created.duplicates
    ]
    block = fence.block("duplicates", lines, fence.new_boundary())
    return (
        "nothing was stored, since this is already known; "
        f"to correct a memory, pass its key or forget it first\n{block}"
    )


def _translate_errors(act: Act) -> Act:
    """Wrap a function so that its errors reach the model as one sentence."""

    @wraps(act)
    def run(*args: object, **kwargs: object) -> str:
        try:
            return act(*args, **kwargs)
        except MemoriesError as exc:
            raise ToolException(str(exc)) from exc

    return run
