"""Plugging the memory into the agents that people use: which files they have, what is written
there, how it is undone.

Imported by `memory connect`, `memory disconnect` and `memory doctor` only.
"""
