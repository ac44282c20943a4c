"""Re-exports the context builder under the module name that the specification requires."""

from memories import ContextBuilder, ContextBuildError

__all__ = ["ContextBuildError", "ContextBuilder"]
