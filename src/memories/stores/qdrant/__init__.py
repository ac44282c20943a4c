"""The Qdrant store: a document store on a server (`store`) or in a folder.

A folder is opened by the local mode of the Qdrant client (`folder`, `local`).
"""
