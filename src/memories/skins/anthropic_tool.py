"""Former import path of `memories.integrations.anthropic`."""

from memories.integrations.anthropic import MemoriesTool

__all__ = ["MemoriesTool"]
