"""The files of multilingual-e5-small for Memories: `EMBEDDER=e5` reads them."""
