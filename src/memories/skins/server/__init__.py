"""The server: the HTTP API, MCP over HTTP and the page; it serves what the other skins answer."""
