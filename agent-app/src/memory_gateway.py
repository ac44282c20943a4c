"""The transport layer, where the specification looks for it; the library has the code."""

from memories import MCPError, MemoryGateway

__all__ = ["MCPError", "MemoryGateway"]
