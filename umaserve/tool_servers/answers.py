"""What MCP servers answer, through the protocol's own package: lists of tools, results, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from mcp import Client, types

MAX_TOOLS = 128


async def tools_of(client: Client) -> list[types.Tool]:
    """The tools of one server, page by page, and no more than one above ``MAX_TOOLS``."""
    tools: list[types.Tool] = []
    cursor = None
    while len(tools) <= MAX_TOOLS:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools[: MAX_TOOLS + 1]


def text_of(result: types.CallToolResult, max_characters: int) -> str:
    """A result as text for the model."""
    parts = [part.text if part.type == "text" else f"[{part.type}, which is not shown]" for part in result.content]
    if not parts and result.structured_content is not None:
        parts.append(orjson.dumps(result.structured_content).decode())
    told = "\n".join(parts)
    text = f"The tool reports an error: {told}" if result.is_error else told
    left = len(text) - max_characters
    return text if left <= 0 else f"{text[:max_characters]}\n[{left} more characters are left out]"


def why(error: BaseException) -> str:
    """What went wrong, of an error that may be a group of others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
