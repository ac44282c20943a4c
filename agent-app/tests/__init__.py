"""Tests of the modules that the app imports; `tests/context` has those of the library behind
them.
"""
