"""The store on a Qdrant server, or in a folder."""
