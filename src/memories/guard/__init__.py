"""What may come in and go out: validation, redaction of secrets, where a text came from."""
