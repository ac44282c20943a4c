"""Context for a model: conversations, a context within a budget, and a policy for memories."""
