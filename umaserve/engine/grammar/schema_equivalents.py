"""Keywords of JSON schemas that llguidance doesn't know, said with those that it knows. Nothing is lost or added."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations
from typing import Any

Schema = dict[str, Any]

MAX_COMBINATIONS = 100
"""Most combinations of properties, for a bound of their number."""

_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_OF_NAMES = {"pattern", "enum", "minLength", "maxLength"}


def rewritten(schema: Schema) -> Schema:
    """``schema`` with what has an equivalent said otherwise: counts written as floats, ``dependentRequired``,
    ``dependentSchemas``, ``dependencies``, ``not`` of ``required``, and ``propertyNames`` where no property has a name
    already. Anything else, also what is malformed, stays as it is. Its parts are not looked at."""
    said = {key: _whole(item) if key in _COUNTS else item for key, item in schema.items()}
    conditions: list[Schema] = []
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(said.get(key), dict) and all(map(_is_dependency, said[key].values())):
            for name, then in said.pop(key).items():
                conditions.append({"anyOf": [_absent([name]), {"required": then} if isinstance(then, list) else then]})
    denied = said.get("not")
    if isinstance(denied, dict) and denied.keys() == {"required"} and _are_names(denied["required"]):
        conditions.append({"type": "object", "anyOf": [_absent([name]) for name in said.pop("not")["required"]]})
    if said.keys() & {"properties", "patternProperties"} == set() and _name_pattern(said.get("propertyNames")):
        names, others = said.pop("propertyNames"), said.pop("additionalProperties", True)
        if "enum" in names:
            said["properties"] = dict.fromkeys(names["enum"], others)
        else:
            said["patternProperties"] = {_name_pattern(names): others}
        said["additionalProperties"] = False
    return _with(said, conditions)


def with_counted(schema: Schema) -> Schema:
    """``schema`` with the bounds of the number of properties said by their names, where all of these are known."""
    names, given = schema.get("properties"), schema.get("required", [])
    bounds = {key: schema[key] for key in ("minProperties", "maxProperties") if key in schema}
    if (
        not bounds
        or not isinstance(names, dict)
        or not _are_names(given, least=0)
        or not all(type(bound) is int for bound in bounds.values())
        or schema.get("additionalProperties") is not False
        or schema.get("patternProperties")
        # llguidance has these two, where no other rule is about the properties.
        or (not given and "allOf" not in schema and bounds in ({"minProperties": 1}, {"maxProperties": 1}))
    ):
        return schema
    optional = [name for name in names if name not in given]
    said = {key: item for key, item in schema.items() if key not in bounds}
    more = bounds.get("minProperties", 0) - (len(names) - len(optional))
    fewer = len(names) - bounds.get("maxProperties", len(names))
    conditions = []
    for n, way in (more, lambda some: {"required": [*some]}), (fewer, _absent):
        # Where there are too few properties, no object satisfies it; llguidance says so.
        if n > len(optional) or (n > 0 and math.comb(len(optional), n) > MAX_COMBINATIONS):
            return schema
        if n > 0:
            conditions.append({"anyOf": [way(some) for some in combinations(optional, n)]})
    return _with(said, conditions)


def _with(schema: Schema, conditions: list[Schema]) -> Schema:
    if not conditions or not isinstance(schema.get("allOf", []), list):
        return schema
    return {**schema, "allOf": [*schema.get("allOf", []), *conditions]}


def _absent(names: Iterable[str]) -> Schema:
    # Other properties are those of the whole.
    return {"properties": dict.fromkeys(names, False), "additionalProperties": True}


def _is_dependency(value: object) -> bool:
    return isinstance(value, dict | bool) or _are_names(value, least=0)


def _are_names(value: object, least: int = 1) -> bool:
    return isinstance(value, list) and len(value) >= least and all(isinstance(name, str) for name in value)


def _name_pattern(names: object) -> str:
    """A pattern for the names that ``names`` allows; empty if there is none."""
    if not isinstance(names, dict) or names.get("type", "string") != "string" or not names.keys() & _OF_NAMES:
        return ""
    match names:
        case {"enum": [*values]} if _are_names(values) and names.keys() <= {"type", "enum"}:
            return ".*"
        case {"pattern": str(pattern)} if names.keys() <= {"type", "pattern"}:
            return pattern
    least, most = _whole(names.get("minLength", 0)), _whole(names.get("maxLength", ""))
    if names.keys() <= {"type", "minLength", "maxLength"} and type(least) is int and type(most) in (int, str):
        return f"^(?s:.{{{least},{most}}})$"
    return ""


def _whole(value: Any) -> Any:
    """An integer where ``value`` is a float that is one, such as 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
