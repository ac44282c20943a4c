"""Embedders that call services over HTTP."""
