"""A store on any server that keeps documents; Chroma and Qdrant are built on it by a `Driver` each
(`driver`).

A memory's version, or a turn, is a document (`schema`), buffered by `RemoteStore.append` (`store`)
and written when its transaction ends (`changes`). `query` reads, `search` searches memories and
turns.
"""
