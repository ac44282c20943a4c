"""Memories in other frameworks; each module or folder can be deleted by itself."""
