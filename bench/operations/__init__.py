"""How this memory and others for agents behave in operation, with the same inputs."""
