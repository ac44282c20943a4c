"""Guards the store's boundary: validation, redaction of secrets, and origins of texts."""
