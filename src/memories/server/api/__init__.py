"""The HTTP API: its routes, the access rights that they require, and the state that they share."""
