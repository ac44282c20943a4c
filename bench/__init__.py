"""Measurements: the quality of the memory's answers, and their cost."""
