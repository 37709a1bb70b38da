"""Tables of what JSON Schemas say of objects: each field with its kind, its default and what it means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from markdown import escaped, table

Schema = Mapping[str, Any]
COMPONENT = "#/components/schemas/"
_UNIONS = ("oneOf", "anyOf")
_NULL = ({"type": "null"}, {"const": None})
_LONGEST_PATTERN = 60


class Row(NamedTuple):
    """A field, as a table has it. Fields of an object inside have dots in their names, and those of an array's items
    ``[]``."""

    name: str
    kinds: list[str]
    default: str
    about: str


def fields_table(schema: Schema) -> str:
    """The table of an object's fields; empty where it has none."""
    rows: dict[str, list[Row]] = {}
    for row in _rows(schema, ""):
        rows.setdefault(row.name, []).append(row)
    return table(["field", "kind", "default", "meaning"], map(_cells, rows.values())) if rows else ""


def names(schema: Schema) -> list[str]:
    """The names of an object's own fields, those of all its variants."""
    return list(dict.fromkeys(name for variant in variants(schema) for name in variant.get("properties", {})))


def variants(schema: Schema) -> list[Schema]:
    """What a schema may be, each without the choice between them."""
    for union in _UNIONS:
        if union in schema:
            rest = {key: value for key, value in schema.items() if key not in (union, "description", "default")}
            given = (one for one in schema[union] if one not in _NULL)
            return [each for one in given for each in variants(_both(rest, one))]
    return [schema]


def _both(schema: Schema, variant: Schema) -> Schema:
    """What a schema and one of its variants say together."""
    properties = {**schema.get("properties", {}), **variant.get("properties", {})}
    required = [*schema.get("required", ()), *variant.get("required", ())]
    return {**schema, **variant, **({"properties": properties} if properties else {}), "required": required}


def references(schema: Any) -> Iterator[str]:
    """The names of the components that a schema refers to, in order."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(COMPONENT)
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def link(name: str) -> str:
    """A link to the heading of an object."""
    return f"[{name}](#{name.lower()})"


def _cells(rows: list[Row]) -> list[str]:
    """The cells of a field, which several variants of an object may have."""
    kinds = _once(kind for row in rows for kind in row.kinds)
    defaults, abouts = _once(row.default for row in rows), _once(row.about for row in rows)
    return [f"`{rows[0].name}`", alternatives(kinds), ", ".join(defaults), " ".join(abouts)]


def _once(parts: Iterable[str]) -> list[str]:
    return [part for part in dict.fromkeys(parts) if part]


def alternatives(parts: Iterable[str]) -> str:
    """The parts, of which one is chosen."""
    *most, last = parts
    return f"{', '.join(most)} or {last}" if most else last


def _rows(schema: Schema, prefix: str) -> Iterator[Row]:
    objects = [variant for variant in variants(schema) if "properties" in variant]
    always = set.intersection(*(set(variant.get("required", ())) for variant in objects)) if objects else set()
    for variant in objects:
        mark = mark_of(variant)
        for name, field in variant["properties"].items():
            default = _json(field["default"]) if "default" in field else ""
            if name in always:
                default = "required"
            elif name in variant.get("required", ()):
                default = f"required with {mark[1]}" if mark else "one is required"
            yield Row(prefix + name, kinds(field), default, escaped(field.get("description", "")))
            yield from _inside(field, prefix + name)


def mark_of(variant: Schema) -> tuple[str, str] | None:
    """The field by which a variant differs from others, and what it is there."""
    for name, of in variant.get("properties", {}).items():
        if "const" in of or "enum" in of:
            return name, kind(of)
    return None


def _inside(field: Schema, name: str) -> Iterator[Row]:
    yield from _rows(field, f"{name}.")
    for variant in variants(field):
        if isinstance(variant.get("items"), Mapping):
            yield from _inside(variant["items"], f"{name}[]")


def kind(schema: Schema) -> str:
    """What a value may be, in words. Not said is that it may be null."""
    return alternatives(kinds(schema))


def kinds(schema: Schema) -> list[str]:
    """The alternatives of `kind`."""
    return _once(kind for variant in variants(schema) for kind in _kinds(variant))


def _kinds(schema: Schema) -> list[str]:
    if "$ref" in schema:
        return [link(schema["$ref"].removeprefix(COMPONENT))]
    if "const" in schema:
        return [_json(schema["const"])]
    if "enum" in schema:
        return [_json(one) for one in schema["enum"] if one is not None]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    return [_of_type(one, schema) for one in types if one != "null"] or ["anything"]


def _of_type(name: str, schema: Schema) -> str:
    match name:
        case "integer" | "number":
            return _with(name, _bounds(schema))
        case "string":
            return _with(_string(schema), _span(schema, "Length", "characters"))
        case "array":
            items = kinds(schema["items"]) if schema.get("items") else []
            of = f" of {alternatives(items)}" if len(items) == 1 else f" of ({alternatives(items)})" if items else ""
            return _with("array", _span(schema, "Items", "items")) + of
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return f"object whose values are {kind(schema['additionalProperties'])}"
    return name


def _string(schema: Schema) -> str:
    if "contentMediaType" in schema:
        return "file"
    if "contentEncoding" in schema:
        return f"string in {schema['contentEncoding']}"
    pattern = schema.get("pattern", "")
    return f"string that matches `{pattern}`" if 0 < len(pattern) <= _LONGEST_PATTERN else "string"


def _bounds(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join(f"{word} {schema[key]}" for key, word in words.items() if key in schema)


def _span(schema: Schema, of: str, what: str) -> str:
    low, high = schema.get(f"min{of}", 0), schema.get(f"max{of}")
    if high is None:
        return f"at least {low} {what}" if low > 1 else "not empty" if low else ""
    return f"{low} to {high} {what}" if low else f"at most {high} {what}"


def _with(name: str, bounds: str) -> str:
    return f"{name} ({bounds})" if bounds else name


def _json(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"
