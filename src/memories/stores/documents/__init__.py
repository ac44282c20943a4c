"""Store for any server that stores documents. Chroma and Qdrant each add a `Driver`.

Each version of a memory and each turn is a document (`schema`). `RemoteStore.append` (`store`)
buffers the document until the transaction ends, and then writes it (`changes`). `query` reads,
`search` searches.
"""
