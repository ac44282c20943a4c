"""Memories inside the frameworks of others; each module or folder can be deleted by itself."""
