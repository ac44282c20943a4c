"""The assembly of contexts, where the specification looks for it; the library has the code."""

from memories import ContextBuilder, ContextBuildError

__all__ = ["ContextBuildError", "ContextBuilder"]
