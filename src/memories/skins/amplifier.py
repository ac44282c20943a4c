"""Former import path of `memories.integrations.amplifier`; installed modules still use it."""

from memories.integrations.amplifier import mount_capture, mount_context, mount_tool

__all__ = ["mount_capture", "mount_context", "mount_tool"]
