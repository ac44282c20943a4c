"""Reads single memories, lists, conversations and versions; defines the language of `--where`."""
