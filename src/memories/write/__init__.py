"""Writes, changes and erases memories and the turns of conversations.

Begin with `create`; `similar` compares a draft with stored memories, and `links` links corrections.
"""
