"""Persistent, shared, searchable memory for AI agents.

    from memories import Memories

    with Memories() as memories:
        created = memories.create("The user prefers Python for CLI tools", tags={"type": "preference"})
        for hit in memories.search("which language for a command line tool?", limit=3):
            print(hit.score, hit.memory.id, hit.memory.content)
        memories.update(created.memory.id, "The user prefers Rust for CLI tools")
        memories.history(created.memory.id)

Importing this package loads nothing heavy: its names come when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memories.agent_memory import AgentMemory
    from memories.backend import Backend, MCPError
    from memories.config import Config, load_config
    from memories.context import ContextBuilder, ContextBuildError
    from memories.conversation import Conversation, Turn, TurnDraft
    from memories.embedders import Embedder, Space
    from memories.errors import (
        AmbiguousId,
        ConfigError,
        Conflict,
        EmbedderError,
        EmbedderMismatch,
        InvalidInput,
        MemoriesError,
        NotFound,
        NotReinforceable,
        RequestError,
        SchemaTooNew,
        StoreBusy,
        StoreDamaged,
        StoreError,
        StoreUnreachable,
        SystemFault,
    )
    from memories.gateway import MemoryGateway
    from memories.models import DecayPolicy, Draft, Forgotten, History, Memory, Page, Status, Version
    from memories.payloads import ContextPackage, HistoryTurn, MemoryItem
    from memories.policy import MemoryPolicy
    from memories.searching import Considered, Explanation, Hit, SearchFilters
    from memories.service import Memories
    from memories.stores import Store
    from memories.writing import Created, Similar

__version__ = "0.1.0"

__all__ = [
    "AgentMemory",
    "AmbiguousId",
    "Backend",
    "Config",
    "ConfigError",
    "Conflict",
    "Considered",
    "ContextBuildError",
    "ContextBuilder",
    "ContextPackage",
    "Conversation",
    "Created",
    "DecayPolicy",
    "Draft",
    "Embedder",
    "EmbedderError",
    "EmbedderMismatch",
    "Explanation",
    "Forgotten",
    "History",
    "HistoryTurn",
    "Hit",
    "InvalidInput",
    "MCPError",
    "Memories",
    "MemoriesError",
    "Memory",
    "MemoryGateway",
    "MemoryItem",
    "MemoryPolicy",
    "NotFound",
    "NotReinforceable",
    "Page",
    "RequestError",
    "SchemaTooNew",
    "SearchFilters",
    "Similar",
    "Space",
    "Status",
    "Store",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreUnreachable",
    "SystemFault",
    "Turn",
    "TurnDraft",
    "Version",
    "__version__",
    "load_config",
]

# light ones first
_HOMES = (
    *("errors", "models", "config", "embedders", "stores", "service", "conversation", "searching", "writing"),
    *("policy", "payloads", "backend", "gateway", "context", "agent_memory"),
)


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if name in vars(module):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
