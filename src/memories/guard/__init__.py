"""Guards the store: validates input, redacts secrets, and records the origins of texts."""
