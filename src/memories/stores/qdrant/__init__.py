"""The store on Qdrant: the store on documents with a driver whose requests go to a server (`rest`)
or a folder.

A folder is opened by the local mode of Qdrant's client (`folder`, `local`).
"""
