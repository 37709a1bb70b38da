"""The protocol's own Python client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from daemon import Daemon

MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
"""The client's modes, and the revision that it agrees on in each with a server of ours."""

LONG = {"prompt": "Count to a thousand.", "json_schema": {"type": "string", "minLength": 3000}}
"""Arguments of a call whose answer takes long."""

Steps = Callable[[Any], Coroutine[Any, Any, None]]


def with_client(address: str, mode: str, steps: Steps) -> None:
    """Run ``steps`` with a client of the server at HOST:PORT."""
    mcp = pytest.importorskip("mcp", reason="mcp is not installed (umaserve[peers])")

    async def connected() -> None:
        async with mcp.Client(f"http://{address}/mcp", mode=mode) as client:
            await steps(client)

    asyncio.run(connected())


def gives_up(address: str, daemon: Daemon) -> None:
    """A client of the server at HOST:PORT gives up a call, which then ends in ``daemon``."""

    async def steps(client: Any) -> None:
        asking = asyncio.create_task(client.call_tool("ask", LONG))
        await asyncio.to_thread(daemon.wait_for, lambda values: values["active_sessions"] == 1)
        asking.cancel()
        await asyncio.to_thread(daemon.wait_until_quiet)

    with_client(address, "auto", steps)
