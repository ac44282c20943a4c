"""The store on a Chroma server: the store on documents with a driver for Chroma's REST API."""
