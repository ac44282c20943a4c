"""Re-exports the transport layer under the module name that the specification requires."""

from memories import MCPError, MemoryGateway

__all__ = ["MCPError", "MemoryGateway"]
