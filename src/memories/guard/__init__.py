"""Guards the edge of the store: validation, redaction of secrets, the origin of a text."""
