"""Values in tool calls that aren't written as JSON: what they are by the tool's schema, and their JSON text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from umaserve.core.tool_call_format import ParameterForm
from umaserve.wire.schema_types import kinds, resolved

MAX_DEPTH = 64
"""Deepest nesting of elements."""

_Tree = str | list[tuple[str, "_Tree"]]
"""Text, or elements: keys, each with what it has inside."""

_NAMES = {"true": True, "false": False, "null": None}
_BARE_KEY = re.compile(r"([{,]\s*)([^\s\"{}\[\],:]+)\s*:")
_PYTHON_NAME = re.compile(r"\b(?:True|False|None)\b")
_IN_JSON = {"True": "true", "False": "false", "None": "null"}


def string_parameters(schema_text: str) -> frozenset[str]:
    """The parameters that are always strings by a tool's schema (JSON text)."""
    schema = orjson.loads(schema_text)
    properties = _part(schema, "properties")
    return frozenset(key for key, of_key in properties.items() if kinds(of_key, schema) == ["string"])


def json_of(text: str, quote: str = "") -> str | None:
    """A value in JSON, Python's syntax or, with ``quote``, one with bare keys and strings between ``quote``, as JSON
    text; ``None`` if it is none of them."""
    text = text.strip()
    if len(quote) > 1:
        text = _quoted(text, quote)
    try:
        orjson.loads(text)
        return text
    except orjson.JSONDecodeError:
        pass
    try:
        return json.dumps(_value(ast.parse(text, mode="eval").body), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    # Models write line breaks in strings as they are, and Python allows none.
    is_string = len(text) > 1 and text[0] in "\"'" and text.find(text[0], 1) == len(text) - 1
    return json_text(text[1:-1]) if is_string else None


def json_of_elements(text: str, form: ParameterForm, schema_text: str, key: str) -> str:
    """The value of the parameter ``key`` of a tool with this schema, as JSON text; objects and arrays are elements."""
    schema = orjson.loads(schema_text)
    schema = schema if isinstance(schema, dict) else {}
    return _element(_tree(text, form), _part(schema, "properties").get(key), schema)


def json_text(text: str) -> str:
    """``text`` as a JSON string."""
    return orjson.dumps(text).decode()


def is_object(text: str) -> bool:
    """Whether ``text`` is one JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _quoted(text: str, quote: str) -> str:
    """JSON text for one with bare keys and strings between ``quote``."""
    return "".join(_json_pieces(text.split(quote)))


def _json_pieces(pieces: list[str]) -> Iterator[str]:
    for index, piece in enumerate(pieces):
        if index % 2:
            yield orjson.dumps(piece).decode()
        else:
            yield _PYTHON_NAME.sub(lambda name: _IN_JSON[name[0]], _BARE_KEY.sub(r'\1"\2":', piece))


def _value(node: ast.expr) -> Any:
    """The value of a Python literal, in which JSON's names are allowed too."""
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_value(key)): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
    raise ValueError("not a literal")


def _tree(text: str, form: ParameterForm) -> _Tree:
    """The elements in ``text``; ``text`` itself where it has none, or they don't match."""
    before = re.escape(form.before[0][1])
    first, *rest = re.split(f"({re.escape(form.closes)}|{re.escape(form.opens)})([^<>]*?){before}", text)
    levels: list[tuple[str, list[tuple[str, _Tree]]]] = [("", [])]
    inner = first
    for mark, key, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if mark == form.opens and len(levels) < MAX_DEPTH:
            levels.append((key, []))
        elif mark == form.closes and len(levels) > 1 and levels[-1][0] == key:
            _key, elements = levels.pop()
            levels[-1][1].append((key, elements or inner))
        else:
            return text
        inner = after
    return text if len(levels) > 1 else levels[0][1] or first


def _element(tree: _Tree, schema: Any, root: dict[str, Any]) -> str:
    """The JSON text of ``tree``; what its schema doesn't say is taken from its look."""
    types, schema = kinds(schema, root), resolved(schema, root)
    if isinstance(tree, str):
        if types == ["string"]:
            return json_text(tree)
        if not tree.strip() and types in (["array"], ["object"]):
            return "[]" if types == ["array"] else "{}"
        return json_of(tree) or json_text(tree)
    if "array" in types or (not types and all(key == "item" for key, _item in tree)):
        of_item = schema.get("items") if isinstance(schema, dict) else None
        return f"[{', '.join(_element(item, of_item, root) for _key, item in tree)}]"
    of_keys = _part(schema, "properties")
    return "{" + ", ".join(f"{json_text(key)}: {_element(item, of_keys.get(key), root)}" for key, item in tree) + "}"


def _part(schema: Any, key: str) -> dict[str, Any]:
    """The object ``key`` of a schema; empty where there is none."""
    part = schema.get(key) if isinstance(schema, dict) else None
    return part if isinstance(part, dict) else {}
