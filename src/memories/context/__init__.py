"""What stands around a model: history, context within a budget, and a policy on what may be
stored.
"""
