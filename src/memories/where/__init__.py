"""The filter language: `language` reads an expression, `selector` says which records it selects."""
