"""Anchors: the files, symbols and literals that make a memory true, and whether they still do."""
