"""Guards the store's boundary: validates input, redacts secrets, and records the origins of
texts.
"""
