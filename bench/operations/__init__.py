"""How memories for agents behave in operation: this one and others, with the same inputs."""
