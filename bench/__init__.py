"""Measurements: what the memory reaches, and at what cost."""
