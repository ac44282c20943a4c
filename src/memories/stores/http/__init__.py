"""The store of a server elsewhere, spoken to over HTTP with a token."""
