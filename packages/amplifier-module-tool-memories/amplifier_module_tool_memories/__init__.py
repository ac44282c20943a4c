"""Amplifier module for the tool `memory` of `memories.integrations.amplifier`; see
docs/amplifier.md.
"""

from memories.integrations.amplifier import mount_tool as mount

__all__ = ["mount"]
__amplifier_module_type__ = "tool"
