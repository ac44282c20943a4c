"""Search: from a question to hits. Begin with `search.py`."""
