"""Persistent, shared, searchable memory for AI agents.

    from memories import Memories

    with Memories() as memories:
        created = memories.create("The user prefers Python for CLI tools")
        for hit in memories.search("which language for a command line tool?", limit=3):
            print(hit.score, hit.memory.id, hit.memory.content)
        memories.update(created.memory.id, "The user prefers Rust for CLI tools")
        memories.history(created.memory.id)

Importing this package loads nothing heavy, since each name is imported when it is first used.
"""

# The same as `typing.TYPE_CHECKING`. Importing `typing` would take longer than an entire command
# run by a server.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from memories.config import load_config
    from memories.context.context import ContextBuilder, ContextBuildError
    from memories.context.gateway import MemoryGateway
    from memories.context.memory import AgentMemory
    from memories.context.policy import MemoryPolicy
    from memories.context.protocol import (
        Backend,
        ContextPackage,
        HistoryTurn,
        MCPError,
        MemoryItem,
    )
    from memories.embedders import Embedder, Space
    from memories.errors import (
        AmbiguousId,
        ConfigError,
        Conflict,
        EmbedderError,
        EmbedderMismatch,
        ErasureUnfinished,
        InvalidInput,
        MemoriesError,
        NotFound,
        NotReinforceable,
        RequestError,
        SchemaTooNew,
        StoreBusy,
        StoreDamaged,
        StoreError,
        StoreFull,
        StoreUnreachable,
        SystemFault,
    )
    from memories.guard.origin import Origin
    from memories.memories import Memories
    from memories.models import (
        Actor,
        Change,
        DecayPolicy,
        Draft,
        Forgotten,
        History,
        LogCheck,
        LogEntry,
        Memory,
        NamespaceCounts,
        Page,
        Status,
        Version,
    )
    from memories.read.conversations import (
        Conversation,
        ConversationFilters,
        ConversationPage,
        TurnFilters,
    )
    from memories.read.turns import Turn, TurnDraft
    from memories.search.filters import SearchFilters
    from memories.search.results import Considered, Explanation, Hit
    from memories.settings import Config
    from memories.stores import Store
    from memories.transfer.audit import LogFilters
    from memories.write.bulk import Affected, Step
    from memories.write.create import Created
    from memories.write.similar import Similar

__version__ = "0.1.0"


# fmt: off
__all__ = [
    "Actor", "Affected", "AgentMemory", "AmbiguousId", "Backend", "Change", "Config", "ConfigError",
    "Conflict", "Considered", "ContextBuildError", "ContextBuilder", "ContextPackage",
    "Conversation", "ConversationFilters", "ConversationPage", "Created", "DecayPolicy", "Draft",
    "Embedder", "EmbedderError", "EmbedderMismatch", "ErasureUnfinished", "Explanation",
    "Forgotten", "History", "HistoryTurn", "Hit", "InvalidInput", "LogCheck", "LogEntry",
    "LogFilters", "MCPError", "Memories", "MemoriesError", "Memory", "MemoryGateway", "MemoryItem",
    "MemoryPolicy", "NamespaceCounts", "NotFound", "NotReinforceable", "Origin", "Page",
    "RequestError", "SchemaTooNew", "SearchFilters", "Similar", "Space", "Status", "Step", "Store",
    "StoreBusy", "StoreDamaged", "StoreError", "StoreFull", "StoreUnreachable", "SystemFault",
    "Turn", "TurnDraft", "TurnFilters", "Version", "__version__", "load_config",
]
# fmt: on

# The module of each public name, imported when the name is first used.
_HOMES = {
    name: home
    for home, names in {
        "context.context": "ContextBuildError ContextBuilder",
        "context.gateway": "MemoryGateway",
        "context.memory": "AgentMemory",
        "context.protocol": "Backend ContextPackage HistoryTurn MCPError MemoryItem",
        "context.policy": "MemoryPolicy",
        "config": "Config load_config",
        "read.conversations": "Conversation ConversationFilters ConversationPage TurnFilters",
        "embedders": "Embedder Space",
        "errors": (
            "AmbiguousId ConfigError Conflict EmbedderError EmbedderMismatch ErasureUnfinished "
            "InvalidInput MemoriesError NotFound NotReinforceable RequestError SchemaTooNew "
            "StoreBusy StoreDamaged StoreError StoreFull StoreUnreachable SystemFault"
        ),
        "models": (
            "Actor Change DecayPolicy Draft Forgotten History LogCheck LogEntry Memory "
            "NamespaceCounts Page Status Version"
        ),
        "guard.origin": "Origin",
        "search.results": "Considered Explanation Hit",
        "search.filters": "SearchFilters",
        "memories": "Memories",
        "stores": "Store",
        "write.create": "Created",
        "write.similar": "Similar",
        "write.bulk": "Affected Step",
        "transfer.audit": "LogFilters",
        "read.turns": "Turn TurnDraft",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
