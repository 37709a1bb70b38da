"""Tools that need not be followed to the letter, with as much of their schemas as a grammar can hold."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import lru_cache

from umaserve.core.errors import RequestError
from umaserve.core.requests import Tool
from umaserve.engine.grammar import json_schema

MAX_OUTLINED = 200
"""Most arguments of a tool that are kept apart in its outline."""

log = logging.getLogger(__name__)


def loosened(tool: Tool) -> Tool:
    """``tool`` without the keywords that can't be enforced, unless it is strict. One without parameters takes none."""
    tool = replace(tool, parameters=json_schema.without_any(tool.parameters))
    if _is_binding(tool):
        return tool
    try:
        parameters, dropped = json_schema.loosened(tool.parameters, tool.name)
    except RequestError:
        return outlined(tool)
    if dropped:
        _tell(tool.name, "without " + ", ".join(sorted(dropped)))
    return replace(tool, parameters=parameters)


def outlined(tool: Tool) -> Tool:
    """``tool`` with no more than the names and the types of its arguments, unless it is strict."""
    if _is_binding(tool):
        return tool
    _tell(tool.name, "by the names and types of its arguments only")
    schema = json.loads(tool.parameters)
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or len(properties) > MAX_OUTLINED:
        return replace(tool, parameters='{"type": "object"}')
    kept = {name: _outline(part) for name, part in properties.items()}
    needed = [name for name in kept if name in required] if isinstance(required, list) else []
    return replace(tool, parameters=json.dumps({"type": "object", "properties": kept, "required": needed}))


def _outline(schema: object) -> dict[str, str]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return {"type": kind} if isinstance(kind, str) and kind in json_schema.KINDS else {}


def _is_binding(tool: Tool) -> bool:
    return tool.strict or tool.bound is not None


@lru_cache(maxsize=256)
def _tell(name: str, how: str) -> None:
    """Log once how far a tool's calls are held to its schema: agents send their tools with each request."""
    log.warning("tool %s: a grammar constrains its calls %s, and can't enforce the rest of its schema", name, how)
