"""How a draft becomes a memory, how a turn becomes part of its conversation, and how either is
removed for good.
"""
