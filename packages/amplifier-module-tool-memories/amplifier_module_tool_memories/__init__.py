"""Amplifier module, the tool `memory`: `memories.skins.amplifier` mounts it, docs/amplifier.md tells of it."""

from memories.skins.amplifier import mount_tool as mount

__all__ = ["mount"]
__amplifier_module_type__ = "tool"
