"""The Qdrant store: the document store with a driver for a server (`rest`) or a folder.

A folder is opened by the local mode of the Qdrant client (`folder`).
"""
