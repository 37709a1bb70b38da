"""An MCP server for tests, over HTTP: of the protocol's own package, and open to pages of all origins."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware

HOSTILE = "<img src=x onerror='window.hacked = true'>\u202e"
LONG = 20_000


class ToolServer:
    """The server, and what became of its tools."""

    def __init__(self) -> None:
        self.address = ""
        self.ran: list[str] = []
        self.cancelled = threading.Event()
        self.waits = threading.Event()
        """Whether a call of ``wait`` runs."""

    def tools(self) -> MCPServer:
        server = MCPServer("tools")

        @server.tool()
        def look_up(word: str) -> str:
            """Look a word up."""
            self.ran.append(word)
            return f"{word} means nothing."

        @server.tool(description=HOSTILE)
        def hostile() -> str:
            return HOSTILE

        @server.tool()
        def long() -> str:
            """Give a long text."""
            return "x" * LONG

        @server.tool()
        def fail() -> str:
            """Fail."""
            raise ValueError("of the test")

        @server.tool()
        async def wait() -> str:
            """Wait for ever."""
            self.waits.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "It is over."

        return server


@contextlib.contextmanager
def serving(*, cors: bool = True) -> Iterator[ToolServer]:
    """A server until the end of the block; without ``cors`` no page may read its replies."""
    world = ToolServer()
    app = world.tools().streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=["*"],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id"],
        )
    listener = socket.create_server(("127.0.0.1", 0))
    world.address = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield world
    finally:
        server.should_exit = True
        thread.join()
