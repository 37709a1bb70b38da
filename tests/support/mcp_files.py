"""An MCP server for tests, as a program: a tool that reads files below the folder that it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("files")


@server.tool()
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(sys.argv[1], path).read_text()


@server.tool()
def environment() -> str:
    """List the names of the environment's variables."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    server.run()
