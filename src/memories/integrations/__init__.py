"""Integrations with other frameworks; each module or folder can be deleted on its own."""
