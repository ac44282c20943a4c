"""The former place of `memories.integrations.amplifier`, which installed modules of Amplifier
name.
"""

from memories.integrations.amplifier import mount_capture, mount_context, mount_tool

__all__ = ["mount_capture", "mount_context", "mount_tool"]
