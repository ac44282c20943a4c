"""How a question becomes hits; begin with `search.py`."""
