"""Tools of MCP servers, which the daemon calls: their names for the model, and those that a client wants."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from umaserve.core.server_tools import ServerTool
from umaserve.wire.fields import out_of_range

ServerToolsOf = Callable[[str, str], Sequence[ServerTool]]
"""The tools of the MCP server of a name; the other argument is the field that errors name. Raises ``RequestError``."""
_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")


def check_wanted(wanted: Collection[str], there: Sequence[ServerTool], label: str, field: str) -> None:
    """Raise ``RequestError`` for a name in ``wanted`` that none of the server's tools has."""
    names = {tool.name for tool in there}
    for name in wanted:
        if name not in names:
            raise out_of_range(field, f"names of tools that {label} has", f'"{name}"')


def in_namespace(name: str, namespace: str | None) -> str:
    """The name of a tool in a namespace, for the model, which knows none."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def server_tool_name(name: str, label: str) -> str:
    """The name for the model of the tool of an MCP server."""
    return _NOT_IN_NAMES.sub("_", in_namespace(name, label))
