"""Responses about memories, turns, versions and hits, defined by one table in `fields`."""
