"""An earlier name of `session_block`, for programs that import it."""

from memories.identity.session_block import block

__all__ = ["block"]
