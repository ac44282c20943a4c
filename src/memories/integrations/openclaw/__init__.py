"""The memory plugin for OpenClaw; `python -m memories.integrations.openclaw` installs it."""
