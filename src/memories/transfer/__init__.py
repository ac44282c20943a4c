"""Whole stores in and out: lines of JSON, moves between stores, and changes of the embedder."""
