"""Former import path of `memories.integrations.openai`."""

from memories.integrations.openai import MemoriesSession

__all__ = ["MemoriesSession"]
