"""Memories for LangGraph: a store for graphs and agents, and tools for any agent.

from memories.langgraph import MemoriesStore

agent = create_agent(model, tools, store=MemoriesStore())
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING


@contextmanager
def _naming_extra() -> Iterator[None]:
    """If a package is missing, raise an error that contains the command to install it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        from memories.core.installation import install_command

        package = str(exc.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"memories.langgraph needs {package}; run: {install_command('langgraph')}",
            name=exc.name,
        ) from None


with _naming_extra():
    from memories.integrations.langgraph import MemoriesStore

if TYPE_CHECKING:
    from memories.integrations.langchain import memory_tools

__all__ = ["MemoriesStore", "memory_tools"]


def __getattr__(name: str) -> object:
    if name == "memory_tools":  # importing it would double this module's import time
        with _naming_extra():
            from memories.integrations.langchain import memory_tools
        return memory_tools
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
