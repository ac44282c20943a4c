"""The Qdrant store: the document store with a driver for a server (`store`) or a folder.

A folder is opened by the local mode of the Qdrant client (`folder`, `local`).
"""
