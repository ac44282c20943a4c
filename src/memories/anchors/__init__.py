"""Anchors: the files, symbols and literals that show whether a memory is still true."""
