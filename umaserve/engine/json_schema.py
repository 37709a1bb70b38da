"""JSON schemas reduced to what a grammar can enforce: each restricting keyword is kept, merged, or refused."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from umaserve.engine import gbnf, number_range
from umaserve.engine.schema_keywords import (
    OF_ALL,
    OF_KIND,
    Schema,
    absent,
    members,
    named_kinds,
    only_describes,
    refuse_beside,
    refuse_unenforced,
    refused,
    restricting,
    with_paths,
)

MAX_REPEAT = 1000
MAX_DEPTH = 64
MAX_SCHEMAS = 5000
"""Schemas within one, each counted again for every ``allOf`` that merges it."""
MAX_PROPERTIES = 500
"""Properties of one object: llama.cpp recurses for each optional one in a row."""
_PATTERN_PART = re.compile(
    r"""
      \\. | \[ (?: \\. | [^\]\\] )* \]
    | \{ (?P<low> [0-9]{0,6} ) (?: , (?P<high> [0-9]{0,6} ) )? \}
    | [^\\\[\]{}]
    """,
    re.VERBOSE | re.DOTALL,
)
"""A part of a pattern that llama-cpp-python's converter can read. Its loop never ends at an unmatched ``]`` or ``}``,
and it parses numbers in braces with ``int``, which accepts "1_000" too."""
_KNOWN_FORMAT = re.compile(r"date|time|date-time|uuid[1-5]?")
"""Other formats are annotations only, as in the standard."""

_ANY: Schema = {"type": list(OF_KIND)}


def reduce(schema: Any, field: str) -> tuple[Schema, dict[str, Schema]]:
    """``schema``, and the schemas that it refers to by reference, reduced to keywords that the converter enforces.

    Numbers with bounds become ``{"gbnf": …}``. The grammar may allow less than the schema (no unnamed properties, no
    exponents in numbers with bounds), but never more, with two exceptions: ``oneOf`` is treated as ``anyOf``, and a
    property may be repeated where additional ones are allowed. Raises ``RequestError`` with the path of the part that
    is malformed, too large, or can't be enforced.
    """
    _check_depth(schema, field, 0)
    reducer = _Reducer(schema, field)
    # An empty schema for a whole text means any object.
    root = reducer.schema({"type": "object"} if schema == {} else schema, field)
    while reducer.pending:
        reference = reducer.pending.pop()
        reducer.references[reference] = reducer.schema(*reducer.target(reference, field))
    return root, reducer.references


def _below(path: str, key: str) -> str:
    return f"{path}.{key[:64]}"


def _check_depth(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise refused(path, f"at most {MAX_DEPTH} levels", "more")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_depth(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_depth(item, _below(path, key), depth + 1)


class _Reducer:
    def __init__(self, document: Any, field: str) -> None:
        self.references: dict[str, Schema] = {}
        self.pending: list[str] = []
        self._document = document
        self._field = field
        self._count = 0

    def schema(self, value: Any, path: str) -> Schema:
        """``value``, reduced."""
        self._take(path)
        if value is True:
            return _ANY
        if not isinstance(value, dict):
            raise refused(path, "a schema that something satisfies", value)
        refuse_unenforced(value, path, OF_ALL)
        kinds = named_kinds(value, path)
        if "$ref" in value:
            return self._reference(value, path, kinds)
        if "allOf" in value:
            return self._all_of(value, path, kinds)
        for keyword in ("anyOf", "oneOf"):
            if keyword in value:
                return self._any_of(value, path, kinds, keyword)
        if "const" in value or "enum" in value:
            return _listed(value, path, kinds)
        if kinds is None:
            kinds = [kind for kind, keywords in OF_KIND.items() if keywords & value.keys()]
        if len(kinds) == 1:
            return self._of_kind(value, path, kinds[0])
        return {"anyOf": [self._of_kind(value, path, kind) for kind in kinds]} if kinds else _ANY

    def _take(self, path: str) -> None:
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise refused(path, f"at most {MAX_SCHEMAS} schemas once each allOf is put together", "more")

    def target(self, reference: object, path: str) -> tuple[Any, str]:
        """The schema that ``reference`` points to (RFC 6901, as a fragment), and its path."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise refused(f"{path}.$ref", 'a reference within the schema ("#/…")', reference)
        found, where = self._document, self._field
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found, where = found[key], _below(where, key)
            elif isinstance(found, list) and re.fullmatch("[0-9]{1,6}", key) and int(key) < len(found):
                found, where = found[int(key)], f"{where}[{key}]"
            else:
                # The error names the whole schema, since references are relative to its root.
                raise refused(self._field, f"a schema at {reference[:64]}, as {path}.$ref has it", "none")
        if not re.match("#(/|$)", reference):
            raise refused(f"{path}.$ref", 'a reference by path ("#/…")', reference)
        return found, where

    def _reference(self, value: Schema, path: str, kinds: Sequence[str] | None) -> Schema:
        refuse_beside(value, path, "$ref")
        reference = value["$ref"]
        self.target(reference, path)
        self._of_kinds(value, path, kinds)
        if reference not in self.references:
            self.references[reference] = {}
            self.pending.append(reference)
        return {"$ref": reference}

    def _any_of(self, value: Schema, path: str, kinds: Sequence[str] | None, keyword: str) -> Schema:
        refuse_beside(value, path, keyword)
        options = members(value, path, keyword)
        reduced = [self.schema(self._of_kinds(one, where, kinds), where) for one, where in options]
        if all("enum" in one for one in reduced):
            return {"enum": [value for one in reduced for value in one["enum"]]}
        return {"anyOf": reduced}

    def _of_kinds(self, value: Any, path: str, kinds: Sequence[str] | None) -> Any:
        """``value`` restricted to ``kinds``, the types of the schema around it; ``None``: no restriction."""
        if kinds is None or not isinstance(value, dict):
            return value if kinds is None or value is not True else {"type": kinds}
        own = value
        if "$ref" in value:
            own, _path = self.target(value["$ref"], path)
        named = named_kinds(own, path) if isinstance(own, dict) else None
        if named is None and own is value:
            return {**value, "type": kinds}
        if named is None or not all(kind in kinds or (kind == "integer" and "number" in kinds) for kind in named):
            raise refused(path, f"type {' or '.join(kinds)}, as the schema around it", named or "no type")
        return value

    def _all_of(self, value: Schema, path: str, kinds: Sequence[str] | None) -> Schema:
        parts = [one for one in members(value, path, "allOf") if not only_describes(one[0])]
        if len(parts) == 1 and not restricting(value, {"allOf"}):
            ((part, where),) = parts
            return self.schema(self._of_kinds(part, where, kinds), where)
        merged = self._parts(value, path)
        for part, where in merged:
            refuse_unenforced(part, where, OF_ALL)
            refuse_beside(part, where, "allOf", OF_KIND["object"])
            if named_kinds(part, where) not in (None, ["object"]):
                raise refused(f"{where}.type", '"object" in an allOf of several', part["type"])
            if part.get("additionalProperties", True) not in (True, {}):
                raise absent(f"{where}.additionalProperties", "since other parts of the allOf have properties")
        return self._object(merged)

    def _parts(self, value: Schema, path: str) -> list[tuple[Schema, str]]:
        """All parts of an ``allOf`` with their paths, including those of references and of inner ``allOf``."""
        parts: list[tuple[Schema, str]] = []
        seen: set[str] = set()
        stack: list[tuple[Any, str]] = [(value, path)]
        while stack:
            part, where = stack.pop()
            self._take(where)
            if part is True:
                continue
            if not isinstance(part, dict):
                raise refused(where, "a schema that something satisfies", part)
            if "$ref" in part:
                refuse_beside(part, where, "$ref")
                self._of_kinds(part, where, named_kinds(part, where))
                stack.append(self.target(part["$ref"], where))
                if part["$ref"] in seen:
                    raise refused(f"{where}.$ref", "each part of an allOf once", part["$ref"])
                seen.add(part["$ref"])
                continue
            parts.append(({key: item for key, item in part.items() if key != "allOf"}, where))
            if "allOf" in part:
                stack += reversed(members(part, where, "allOf"))
        return parts

    def _of_kind(self, value: Schema, path: str, kind: str) -> Schema:
        match kind:
            case "object":
                return self._object([(value, path)])
            case "array":
                return self._array(value, path)
            case "string":
                return _string(value, path)
            case "integer" | "number":
                return _number(value, path, kind)
            case _:
                return {"type": kind}

    def _object(self, parts: Sequence[tuple[Schema, str]]) -> Schema:
        """One object schema with the properties of all ``parts``."""
        properties: dict[str, Schema] = {}
        required: dict[str, str] = {}
        for value, path in parts:
            described = value.get("properties", {})
            if not isinstance(described, dict):
                raise refused(f"{path}.properties", "an object", described)
            for name, item in described.items():
                where = _below(f"{path}.properties", name)
                if name in properties:
                    raise refused(where, "a property that no other part of the allOf has", name)
                properties[name] = self.schema(item, where)
                if len(properties) > MAX_PROPERTIES:
                    raise refused(f"{path}.properties", f"at most {MAX_PROPERTIES} in one object", "more")
            for name, where in members(value, path, "required", least=0) if "required" in value else []:
                required[str(name)] = where
        for name, where in required.items():
            if name not in properties:
                raise refused(where, "the name of one of the properties", name)
        (value, path), *others = parts
        named = any("properties" in part for part, _path in parts)
        additional = value.get("additionalProperties", not named) if not others else False
        evaluated = {"unevaluatedProperties"} if additional is False else set()
        for part, where in parts:
            refuse_unenforced(part, where, OF_KIND["object"] - evaluated)
        if not named and additional in (True, {}):
            return {"type": "object"}
        reduced: Schema = {"type": "object", "properties": properties, "required": list(required)}
        if additional is not False:
            reduced["additionalProperties"] = self.schema(additional, f"{path}.additionalProperties")
        return reduced

    def _array(self, value: Schema, path: str) -> Schema:
        keyword = "prefixItems" if "prefixItems" in value else "items"
        items = value.get(keyword, True)
        listed = [] if items is False else items
        evaluated = {"unevaluatedItems"} if keyword in value else set()
        refuse_unenforced(value, path, OF_KIND["array"] - evaluated)
        low, high = _counts(value, path, "minItems", "maxItems")
        if keyword == "prefixItems" or isinstance(listed, list):
            if not isinstance(listed, list):
                raise refused(f"{path}.prefixItems", "an array of schemas", listed)
            if not low <= len(listed) <= (MAX_REPEAT if high is None else high):
                raise refused(f"{path}.{keyword}", "as many as minItems and maxItems allow", str(len(listed)))
            return {
                "type": "array",
                "prefixItems": [self.schema(*one) for one in with_paths(listed, f"{path}.{keyword}")],
            }
        if not value.keys() & {"items", "minItems", "maxItems"}:
            return {"type": "array"}
        reduced = {"type": "array", "items": self.schema(items, f"{path}.items"), "minItems": low}
        return reduced if high is None else reduced | {"maxItems": high}


def _listed(value: Schema, path: str, kinds: Sequence[str] | None) -> Schema:
    keyword = "const" if "const" in value else "enum"
    refuse_beside(value, path, keyword, {"enum"})
    values = [item for item, _path in members(value, path, "enum")] if "enum" in value else [value["const"]]
    if keyword == "const":
        values = [value["const"]] if value["const"] in values else []
    fitting = [item for item in values if kinds is None or any(_is(item, kind) for kind in kinds)]
    if not fitting:
        raise refused(f"{path}.{keyword}", "a value that satisfies the rest of the schema", value[keyword])
    return {"enum": fitting}


def _is(value: object, kind: str) -> bool:
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case int() | float():
            return kind == "number" or (kind == "integer" and value % 1 == 0)
        case str():
            return kind == "string"
        case _:
            return kind == ("array" if isinstance(value, list) else "object")


def _string(value: Schema, path: str) -> Schema:
    low, high = _counts(value, path, "minLength", "maxLength")
    known = isinstance(value.get("format"), str) and _KNOWN_FORMAT.fullmatch(value["format"])
    if "pattern" in value or known:
        keyword = "pattern" if "pattern" in value else "format"
        for key in ("minLength", "maxLength"):
            if key in value and not (key == "minLength" and low == 0):
                raise absent(f"{path}.{key}", f"since a grammar can't enforce it beside {keyword}")
        if keyword == "pattern":
            _check_pattern(value["pattern"], f"{path}.pattern")
        return {"type": "string", keyword: value[keyword]}
    reduced: Schema = {"type": "string"}
    if low:
        reduced["minLength"] = low
    return reduced if high is None else reduced | {"maxLength": high}


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str) or not (pattern.startswith("^") and pattern.endswith("$")):
        raise refused(path, 'a pattern of the whole text, from "^" to "$"', pattern)
    # Estimated here, since the converter writes repetitions out before their size can be checked.
    written_out = len(pattern)
    at, end = 1, len(pattern) - 1
    while at < end:
        part = _PATTERN_PART.match(pattern, at, end)
        if part is None:
            raise refused(
                path, r"brackets and braces in pairs, others escaped as in \], and no lone backslash", pattern[at:end]
            )
        at = part.end()
        written_out *= max([1, *(int(count) for count in part.groups() if count)])
        if written_out > gbnf.MAX_ELEMENTS:
            raise refused(path, f"at most {gbnf.MAX_ELEMENTS} characters once repetitions are written out", "more")


def _counts(value: Schema, path: str, low_key: str, high_key: str) -> tuple[int, int | None]:
    for key in (low_key, high_key):
        count = value.get(key, 0)
        if type(count) is not int or not 0 <= count <= MAX_REPEAT:
            raise refused(f"{path}.{key}", f"a whole number from 0 to {MAX_REPEAT}", count)
    low, high = value.get(low_key, 0), value.get(high_key)
    if high is not None and low > high:
        raise refused(f"{path}.{low_key}", f"at most {high_key}, which is {high}", low)
    return low, high


def _number(value: Schema, path: str, kind: str) -> Schema:
    if value.get("multipleOf") != 1 or kind == "number":
        refuse_unenforced(value, path, OF_KIND["number"])
    bounds = {key: value[key] for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if key in value}
    if not bounds:
        return {"type": kind}
    for key, bound in bounds.items():
        if type(bound) not in (int, float) or (isinstance(bound, float) and not math.isfinite(bound)):
            raise refused(f"{path}.{key}", "a number", bound)
        if kind == "number" and bound % 1:
            raise refused(f"{path}.{key}", "a whole number where type is number, as the bound of a grammar", bound)
    # Of two bounds at the same number, the exclusive one is tighter: it sorts last among lower bounds, first among
    # upper ones.
    lower = [(math.ceil(bounds[key]), n) for n, key in enumerate(("minimum", "exclusiveMinimum")) if key in bounds]
    upper = [(math.floor(bounds[key]), n) for n, key in enumerate(("exclusiveMaximum", "maximum")) if key in bounds]
    if kind == "integer":
        lower = [(low + (n and low == bounds["exclusiveMinimum"]), 0) for low, n in lower]
        upper = [(high - (not n and high == bounds["exclusiveMaximum"]), 1) for high, n in upper]
    low, low_open = max([*lower, (-number_range.LARGEST, 0)])
    high, closed = min([*upper, (number_range.LARGEST, 1)])
    if low > high or (low == high and (low_open or not closed)):
        said = ", ".join(f"{key} {bound}" for key, bound in bounds.items())
        raise refused(path, "bounds with a number of at most 16 digits between them", said)
    if kind == "integer":
        return {"gbnf": number_range.integers(low, high)}
    return {"gbnf": number_range.numbers(number_range.Range(low, high, bool(low_open), not closed))}
