"""Search, remember and forget as tools for LangChain agents. Results are fenced as data, not
instructions.
"""

from collections.abc import Callable
from functools import wraps

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from memories import Created, InvalidInput, Memories, MemoriesError
from memories.answers import shapes
from memories.mcp.answers import Own, brief_rows, fence_groups, rows

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
        lines = rows(list(map(shapes.hit, hits)), own=Own.of(memories))
        return fence_groups(memories=lines)

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


def _describe_created(created: Created) -> str:
    if created.memory is not None:
        verb = "stored as" if created.stored else "already known as"
        answer = f"{verb} {created.memory.id}"
        if not created.similar_to:
            return answer
        block = fence_groups(similar_to=brief_rows(shapes.similar(created.similar_to)))
        return f"{answer}; if it replaces or repeats one of these, forget that one\n{block}"
    block = fence_groups(duplicates=rows(shapes.similar(created.duplicates)))
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
