"""Context for a model: conversations, contexts within a budget, and a policy for memories."""
