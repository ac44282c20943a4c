"""A store on any server that stores documents. Chroma and Qdrant each add a `Driver`.

Each version of a memory and each turn is a document in the form that `schema` defines. `store`
buffers documents until the transaction ends, and `changes` writes them. `query` reads them, and
`search` searches them.
"""
