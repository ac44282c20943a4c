"""A minimal agent with a memory; run `app`."""
