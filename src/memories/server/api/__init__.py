"""The HTTP API: its routes, the access rights that they require, and the application that runs
them.
"""
