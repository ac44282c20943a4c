"""The server process: its sockets, the HTTP API, MCP over HTTP, the web page, and its lifecycle."""
