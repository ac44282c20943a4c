"""Amplifier module, capture: `memories.integrations.amplifier` mounts it, docs/amplifier.md tells
of it.
"""

from memories.integrations.amplifier import mount_capture as mount

__all__ = ["mount"]
__amplifier_module_type__ = "hook"
