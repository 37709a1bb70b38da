"""Names of MCP servers' tools for the model, which knows no servers."""

from __future__ import annotations

import re

_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")


def in_namespace(name: str, namespace: str | None) -> str:
    """The name of a tool in a namespace, for the model."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def server_tool_name(name: str, label: str) -> str:
    """The name for the model of the tool of an MCP server."""
    return _NOT_IN_NAMES.sub("_", in_namespace(name, label))
