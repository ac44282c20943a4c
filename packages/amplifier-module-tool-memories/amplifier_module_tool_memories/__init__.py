"""Amplifier module, the tool `memory`: `memories.integrations.amplifier` mounts it,
docs/amplifier.md tells of it.
"""

from memories.integrations.amplifier import mount_tool as mount

__all__ = ["mount"]
__amplifier_module_type__ = "tool"
