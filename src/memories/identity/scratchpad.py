"""What others read of scratchpads: the file alone, in a few milliseconds and without the store."""

from memories.hot.entries import Entry
from memories.hot.scratchpad import path, read

__all__ = ["Entry", "path", "read"]
