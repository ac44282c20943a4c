"""How well a search finds what answers a question about a conversation, beside plain ways to find
it.
"""
