"""Writing: turns drafts into memories, appends turns to conversations, and changes or erases
either. Begin with `create`; `similar` compares a draft with stored memories, and `links`
links corrections.
"""
