"""How well a search finds the answer to a question about a conversation, compared with plain
methods.
"""
