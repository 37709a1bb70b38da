"""An MCP server for tests, as a program: tools that show what it may do, and that fail, wait or end it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Literal

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("tools")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look_up(word: Literal["ferry"]) -> str:
    """Look a word up."""
    return f"A {word} crosses water."


@server.tool()
def say(words: Literal["long", "secret"]) -> str:
    """Say something."""
    return "x" * 5000 if words == "long" else os.environ["SECRET"]


@server.tool()
def environment() -> str:
    """List the names of the environment's variables."""
    return " ".join(sorted(os.environ))


@server.tool()
def connect() -> str:
    """Connect to the port that the program was given."""
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5).close()
    except OSError as error:
        return str(error.strerror)
    return "connected"


@server.tool()
def take_memory() -> str:
    """Take half a gigabyte."""
    return str(len(bytearray(1 << 29)))


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("of the test")


@server.tool()
def end() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
async def wait() -> str:
    """Wait for ever, which files tell."""
    Path(sys.argv[1], "waits").touch()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        Path(sys.argv[1], "cancelled").touch()
        raise
    return "over"


if __name__ == "__main__":
    server.run()
