"""Who an agent is and where it works: namespaces, projects, the prompt block, and server tokens."""
