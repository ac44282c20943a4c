"""Who an agent is and where it works: its namespace, its project, and what it is told when it starts."""
