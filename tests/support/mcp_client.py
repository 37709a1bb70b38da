"""The protocol's own Python client of the Model Context Protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
"""The client's modes, and the revision that it agrees on in each with a server of ours."""

Steps = Callable[[Any], Coroutine[Any, Any, None]]


def with_client(address: str, mode: str, steps: Steps) -> None:
    """Run ``steps`` with a client of the server at HOST:PORT."""
    mcp = pytest.importorskip("mcp", reason="mcp is not installed (umaserve[peers])")

    async def connected() -> None:
        async with mcp.Client(f"http://{address}/mcp", mode=mode) as client:
            await steps(client)

    asyncio.run(connected())
