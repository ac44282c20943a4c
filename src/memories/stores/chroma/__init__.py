"""The Chroma store: the document store with a driver for Chroma's REST API."""
