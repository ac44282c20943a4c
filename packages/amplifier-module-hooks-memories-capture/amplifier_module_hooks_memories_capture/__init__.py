"""Amplifier module, capture: `memories.skins.amplifier` mounts it, docs/amplifier.md tells of it."""

from memories.skins.amplifier import mount_capture as mount

__all__ = ["mount"]
__amplifier_module_type__ = "hook"
