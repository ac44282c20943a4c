"""Builds a model's context from conversations and memories, within a token budget, and decides
which memories an agent stores.
"""
