"""Amplifier module, the context manager: `memories.integrations.amplifier` mounts it,
docs/amplifier.md tells of it.
"""

from memories.integrations.amplifier import mount_context as mount

__all__ = ["mount"]
__amplifier_module_type__ = "context"
