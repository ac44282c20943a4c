"""Amplifier module for the capture hooks of `memories.integrations.amplifier`; see
docs/amplifier.md.
"""

from memories.integrations.amplifier import mount_capture as mount

__all__ = ["mount"]
__amplifier_module_type__ = "hook"
