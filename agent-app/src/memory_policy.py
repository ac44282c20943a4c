"""What is stored, and how often, where the specification looks for it; the library has the code."""

from memories import MemoryPolicy

__all__ = ["MemoryPolicy"]
