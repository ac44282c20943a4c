"""The store on a Chroma server."""
