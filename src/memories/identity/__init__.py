"""Who an agent is and where it works: namespaces, projects, the session block, server tokens."""
