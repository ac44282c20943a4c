"""Embedders that are services, asked over HTTP."""
