"""The smallest agent with a memory; `app` is what runs."""
