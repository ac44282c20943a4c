"""Re-exports the memory policy under the module name that the specification requires."""

from memories import MemoryPolicy

__all__ = ["MemoryPolicy"]
