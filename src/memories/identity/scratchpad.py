"""What others read of scratchpads: the file alone, in a few milliseconds and without the store."""

from memories.hot.entries import Entry
from memories.hot.file import path
from memories.hot.scratchpad import read

__all__ = ["Entry", "path", "read"]
