"""Who an agent is, where it works and what it begins with: namespace, project, scratchpad, the
block of its prompt.
"""
