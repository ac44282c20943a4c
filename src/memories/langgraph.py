"""Memories inside LangGraph: a store for graphs and agents, and tools for any agent.

from memories.langgraph import MemoriesStore

agent = create_agent(model, tools, store=MemoriesStore())
"""

from typing import TYPE_CHECKING

from memories.integrations.langgraph import MemoriesStore

if TYPE_CHECKING:
    from memories.integrations.langchain import memory_tools

__all__ = ["MemoriesStore", "memory_tools"]


def __getattr__(name: str) -> object:
    if name == "memory_tools":  # whose base costs as much again to import
        from memories.integrations.langchain import memory_tools

        return memory_tools
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
