"""Store for any server that stores documents. Chroma and Qdrant each add a `Driver`.

A version of a memory, or a turn, is a document (`schema`). `RemoteStore.append` (`store`) buffers
it until its transaction ends and writes it (`changes`). `query` reads, `search` searches.
"""
