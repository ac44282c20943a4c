"""What agents' hosts run at their events: recall before a prompt, capture after it, and the switch
that stops both.
"""
