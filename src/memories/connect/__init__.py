"""Connects agents to Memories: their hosts' files, our entries in them, and how to undo them.

Imported only by `memory connect`, `memory disconnect` and `memory doctor`.
"""
