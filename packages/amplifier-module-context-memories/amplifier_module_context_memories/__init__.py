"""Amplifier module for the context manager of `memories.integrations.amplifier`; see
docs/amplifier.md.
"""

from memories.integrations.amplifier import mount_context as mount

__all__ = ["mount"]
__amplifier_module_type__ = "context"
