"""The files of the model multilingual-e5-small, which Memories reads if `EMBEDDER=e5`."""
