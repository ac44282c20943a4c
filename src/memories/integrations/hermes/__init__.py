"""The memory provider for Hermes; `python -m memories.integrations.hermes` installs it."""
