"""Starts the MCP server of Memories; Claude Desktop runs this file with uv."""

import sys

from memories.__main__ import main

sys.argv = ["memoriae", "mcp", *sys.argv[1:]]
main()
