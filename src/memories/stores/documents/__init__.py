"""A store on a document server. Chroma and Qdrant each provide a `Driver`.

Each version of a memory and each turn is a document in the form that `schema` defines. `store`
buffers documents until the transaction ends, and `changes` writes them. `query` reads them, and
`search` searches them.
"""
