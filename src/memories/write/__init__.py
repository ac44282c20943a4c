"""Writing: turns drafts into memories, appends turns to conversations, and changes or erases
either.
"""
