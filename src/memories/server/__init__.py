"""The process of a server: its sockets, the HTTP API, MCP over HTTP and the page, and how it is run
and ended.
"""
