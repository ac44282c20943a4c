"""The hot tier: a scratchpad for each namespace, a short file that mirrors the memories that matter
now.
"""
