"""What commands answer when the store can't be asked: what the scratchpad's file says, and that it is no more."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from memories.errors import InvalidInput
from memories.skins.cli.output import note
from memories.validate import shown

if TYPE_CHECKING:
    from memories.search.results import Explanation
    from memories.search.search import SearchFilters
    from memories.service import Memories
    from memories.skins.compact import Named

Answer = TypeVar("Answer")


def offline(
    memories: "Memories", ask: Callable[[], Answer], instead: "Callable[[], Answer | None]"
) -> tuple[Answer, str | None]:
    """Do what `identity.degraded.asked` does, and tell a person when it is the scratchpad that answers."""
    from memories.identity.degraded import asked

    found, error = asked(memories, ask, instead)
    if error is not None:
        note(f"the store can't be asked, this is from the scratchpad: {error}")
    return found, error


class Tiered(NamedTuple):
    """What a search found, where, and why not in the store if that could not be asked."""

    found: "Explanation"
    tier: str
    error: str | None

    def told(self) -> dict[str, Any]:
        """Return what the JSON says beside the results."""
        known: dict[str, Any] = {} if self.tier == "deep" else {"tier": self.tier}
        return known if self.error is None else {"tier": "hot", "degraded": True, "error": self.error}

    @property
    def names(self) -> "Named":
        """What names the results where no store is asked."""
        from memories.skins.compact import Named

        return Named()


def tiered(memories: "Memories", query: str, tier: str, filters: "SearchFilters") -> Tiered:
    """Search the store, the scratchpad, or the store if the scratchpad is not enough.

    Args:
        memories: The memory.
        query: The question.
        tier: `deep`, `hot` or `auto`.
        filters: See `SearchFilters`.

    Raises:
        InvalidInput: There is no such tier.
        StoreError: The store can't be asked, and the scratchpad can't answer instead.
    """
    if tier not in ("deep", "hot", "auto"):
        raise InvalidInput(f'tier must be deep, hot or auto, not "{shown(tier)}"')
    if tier != "deep":
        hot, error = offline(
            memories,
            lambda: memories.search_scratchpad(query, **filters),
            lambda: memories.search_scratchpad(query, offline=True, **filters) if memories.has_scratchpad else None,
        )
        if tier == "hot" or hot.enough or error is not None:
            return Tiered(hot.found, "hot", error)

    def instead() -> "Explanation | None":
        try:
            return memories.search_scratchpad(query, offline=True, **filters).found if memories.has_scratchpad else None
        except InvalidInput:  # only the store can answer this
            return None

    found, error = offline(memories, lambda: memories.explain(query, **filters), instead)
    return Tiered(found, tier if error is None else "hot", error)
