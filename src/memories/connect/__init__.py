"""Connecting the memory to agents: which files their hosts have, our entries there, and their undo.

Imported only by `memory connect`, `memory disconnect` and `memory doctor`.
"""
