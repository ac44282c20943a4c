"""The former place of `memories.integrations.anthropic`."""

from memories.integrations.anthropic import MemoriesTool

__all__ = ["MemoriesTool"]
