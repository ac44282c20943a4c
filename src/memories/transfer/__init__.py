"""Transfers of whole stores: JSON lines, moves between stores, and changes of embedder."""
