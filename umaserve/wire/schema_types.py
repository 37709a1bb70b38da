"""Types of values that a JSON schema allows."""

from __future__ import annotations

from typing import Any

MAX_REFERENCES = 8
"""How many references to other parts of a schema are followed for one value."""

_KINDS = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def kinds(schema: Any, root: dict[str, Any]) -> list[str]:
    """The JSON types of the values that ``schema``, a part of ``root``, allows; none where it doesn't say."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return []
    if isinstance(schema.get("enum"), list) or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]]
        return list(dict.fromkeys(_KINDS.get(type(value), "null") for value in values))
    if isinstance(schema.get("anyOf"), list):
        ways = [kinds(way, {}) for way in schema["anyOf"]]
        return list(dict.fromkeys(kind for way in ways for kind in way)) if all(ways) else []
    named = schema.get("type", [])
    return [named] if isinstance(named, str) else list(named) if isinstance(named, list) else []


def resolved(schema: Any, root: dict[str, Any]) -> Any:
    """``schema``, or what it refers to within ``root``."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = _referred(schema["$ref"], root)
    return schema


def _referred(reference: object, root: dict[str, Any]) -> Any:
    """The part of the schema that a JSON pointer (RFC 6901) within it points to; ``None`` for anything else."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for key in reference[2:].split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
