"""Which facts go before the model: the last ones, or those that a search finds for the message."""

from collections.abc import Callable

from memories.config import load_config
from memories.core.times import to_iso
from memories.integrations.chat.longterm import KNOWN, Fact, LongTerm
from memories.integrations.chat.settings import Settings
from memories.memories import Memories

_MAX_QUERY = 4_000


def recall_of(settings: Settings, memory: LongTerm) -> Callable[[str], list[Fact]]:
    """Return what finds the facts for a message."""
    if settings.recall == "recency":
        return lambda _asked: memory.latest()
    config = load_config({"store": f"files:///{memory.folder}", "namespace": settings.user_id})
    memories = Memories(config=config, shared=False)

    def search(asked: str) -> list[Fact]:
        if not memory.all():  # also where the file can't be read
            return []
        hits = memories.search(asked[:_MAX_QUERY], limit=KNOWN, min_confidence=0.0)
        found = [hit.memory for hit in hits]
        return [Fact(each.id, each.content, each.tags.get("type", "fact"), to_iso(each.updated_at)) for each in found]

    return search
