"""JSON schemas in the form that llguidance enforces: what only describes is left out, the rest kept or refused."""

from __future__ import annotations

import json
import re
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.engine.grammar import schema_limits
from umaserve.engine.grammar.schema_equivalents import rewritten, with_counted

Schema = dict[str, Any]

MAX_DEPTH = 64
MAX_PROPERTIES = 500
"""Most properties of one object; the time to read an object grows with their square."""
MAX_OPTIONAL = 240
"""Most properties of one object that are not required: any of them may come next."""
MAX_OPTIONS = 250
"""Most options of one ``anyOf``: all are followed at once while they begin alike, in a time that grows with their
cube."""

_BESIDE = {"anyOf", "oneOf", "$ref", "dependentSchemas"}
"""Keywords by which another schema may describe the same object."""
KINDS = {"object", "array", "string", "number", "integer", "boolean", "null"}
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
_LISTED = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SINGLE = {"items", "additionalProperties"}
_UNENFORCED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("if", "contains", "$dynamicRef", "$recursiveRef"), ()),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), ({},)),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), (True, {})),
    **dict.fromkeys(("uniqueItems", "not"), (False,)),
    "propertyNames": (True, {}, {"type": "string"}),
}
"""Keywords that restrict values but can't be enforced, with the values that restrict nothing."""
_IDLE = {
    *("then", "else", "minContains", "maxContains", "x-guidance", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly", "nullable", "discriminator", "$comment"),
}
"""Keywords that restrict nothing, or not without others, which are refused."""
_OF_NOTHING = _IDLE | {"$schema", "$id", "$defs", "definitions"}
"""Keywords beside which an object without properties may have none."""
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""Parts that regular expressions of other makes have, and llguidance's don't."""
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
"""Formats that are kept. Others are annotations only, as in the standard."""
_OPTIONS = {
    # As llama.cpp's own: a model may write one line or many, but no white space without end.
    "whitespace_pattern": r"( |\n[ \t]{0,20})",
    # Which of several options a text satisfies is not known before its end.
    "coerce_one_of": True,
}


def enforced(schema_text: str, field: str = "json_schema") -> str:
    """The schema as JSON for llguidance. An empty schema stands for any object, an object has no properties but those
    that the schema names, unless it says otherwise, and ``oneOf`` is ``anyOf``.

    Raises ``RequestError`` with the path of the keyword that can't be enforced or is malformed.
    """
    schema = _parsed(schema_text, field)
    whole = _Reducer(closed=not _puts_together(schema)).schema(schema or {"type": "object"}, field, 0)
    schema_limits.check(whole, field)
    if "$ref" in whole:
        # llguidance refuses a reference from which a circle begins beside other keywords, such as $defs.
        whole["allOf"] = [{"$ref": whole.pop("$ref")}, *whole.pop("allOf", ())]
    try:
        return json.dumps({**whole, "x-guidance": _OPTIONS}, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise _refused(field, "finite numbers", "others") from None


def loosened(schema_text: str, field: str) -> tuple[str, set[str]]:
    """The schema without what ``enforced`` would refuse for a keyword's sake, and the keywords that it lost. Raises
    ``RequestError`` for what is wrong in other ways."""
    schema = _parsed(schema_text, field)
    reducer = _Reducer(closed=not _puts_together(schema), loose=True)
    return json.dumps(reducer.schema(schema, field, 0), ensure_ascii=False), reducer.dropped


def without_any(schema_text: str) -> str:
    """The schema of a tool's arguments, closed if it names none. Others stay as they are.

    JSON Schema has ``{"type": "object"}`` and empty ``properties`` allow any property. Yet whoever writes a function
    without parameters has nothing else to write: OpenAI calls an omitted schema an empty list of parameters, and
    programs pass on what was called to a function that takes none. ``additionalProperties`` says if any are meant.
    """
    match json.loads(schema_text):
        case {**schema} if (
            schema.get("type", "object") == "object"
            and not schema.get("properties")
            and not schema.get("required")
            and schema.keys() - _OF_NOTHING <= {"type", "properties", "required"}
        ):
            return '{"type": "object", "properties": {}, "additionalProperties": false}'
    return schema_text


def _parsed(schema_text: str, field: str) -> Schema:
    try:
        schema = json.loads(schema_text)
    except (ValueError, RecursionError) as error:
        raise _refused(field, "a JSON schema", str(error)) from None
    if not isinstance(schema, dict):
        raise _refused(field, "a JSON schema, which is an object", schema)
    return schema


def _puts_together(schema: Schema) -> bool:
    """Whether an object in ``schema`` may be described by several parts, which must leave room for each other's
    properties."""
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            dependencies = value.get("dependencies")
            parts = dependencies.values() if isinstance(dependencies, dict) else ()
            beside = value.keys() & _BESIDE or any(isinstance(part, dict) for part in parts)
            if "allOf" in value or ("properties" in value and beside):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


class _Reducer:
    def __init__(self, *, closed: bool, loose: bool = False) -> None:
        """``closed``: no properties but those that an object's schema names, unless it says otherwise. ``loose``:
        keywords that can't be enforced are dropped instead of refused."""
        self._closed = closed
        self._loose = loose
        self.dropped: set[str] = set()

    def schema(self, value: Schema, path: str, depth: int) -> Schema:
        if depth > MAX_DEPTH:
            raise _refused(path, f"at most {MAX_DEPTH} levels", "more")
        reduced: Schema = {}
        value = rewritten(value)
        for key, item in value.items():
            where = f"{path}.{key[:64]}"
            if key in _IDLE:
                continue
            if self._loose and _is_unenforced(key, item):
                self.dropped.add(key)
                continue
            if key in _UNENFORCED:
                if item not in _UNENFORCED[key]:
                    raise RequestError(
                        Fault.BAD_REQUEST, where, "expected to be absent, since a grammar can't enforce it"
                    )
                continue
            if key == "format" and not (isinstance(item, str) and item in _FORMATS):
                continue
            reduced[key] = self._keyword(key, item, where, depth + 1)
        # llguidance takes the inclusive one of two bounds, though the other one may be tighter.
        for inclusive, exclusive, tighter in (
            ("minimum", "exclusiveMinimum", max),
            ("maximum", "exclusiveMaximum", min),
        ):
            if all(type(reduced.get(bound)) in (int, float) for bound in (inclusive, exclusive)):
                kept = tighter(reduced[inclusive], reduced[exclusive])
                reduced.pop(inclusive if reduced[exclusive] == kept else exclusive)
        self._check_bounds(reduced, path)
        if isinstance(value.get("items"), list):
            reduced["prefixItems"] = reduced.pop("items")
        if value.get("type") == "integer" and not value.keys() & {"enum", "const"}:
            # Of 16 digits: a small model may generate digits without end.
            for bound, limit in (("inimum", 1 - 10**16), ("aximum", 10**16 - 1)):
                if not value.keys() & {f"m{bound}", f"exclusiveM{bound}"}:
                    reduced[f"m{bound}"] = limit
        if isinstance(value.get("properties"), dict):
            names = value.get("required", [])
            if (optional := len(value["properties"].keys() - names)) > MAX_OPTIONAL:
                expected = f"at most {MAX_OPTIONAL} properties that are not required"
                raise _refused(f"{path}.properties", expected, str(optional))
            if self._closed and value["properties"] and value["properties"].keys() >= set(names):
                reduced.setdefault("additionalProperties", False)
        return with_counted(reduced)

    def _check_bounds(self, schema: Schema, path: str) -> None:
        """Refuse bounds that llguidance would not keep: it lets the exclusive one of two bounds through where it is the
        one nearer to 0, whole, and less than 1 from the other one."""
        low: Any = schema.get("exclusiveMinimum", schema.get("minimum"))
        high: Any = schema.get("exclusiveMaximum", schema.get("maximum"))
        if type(low) not in (int, float) or type(high) not in (int, float) or not 0 < high - low < 1:
            return
        for key, bound, is_nearer in ("exclusiveMinimum", low, low >= 0), ("exclusiveMaximum", high, high < 0):
            if key in schema and is_nearer and bound == int(bound):
                raise _refused(
                    f"{path}.{key}", "the other bound to be 1 or more away, or this one to be inclusive", bound
                )

    def _keyword(self, key: str, item: Any, path: str, depth: int) -> Any:
        match key:
            case "type":
                kinds = item if isinstance(item, list) else [item]
                if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
                    raise _refused(path, f"one or more of {', '.join(sorted(KINDS))}", item)
            case "$ref":
                if not isinstance(item, str) or not item.startswith("#"):
                    raise _refused(path, 'a reference within the schema ("#/…")', item)
            case "required":
                if not isinstance(item, list) or not all(isinstance(name, str) for name in item):
                    raise _refused(path, "an array of strings", item)
            case _ if key in _NAMED:
                if not isinstance(item, dict):
                    raise _refused(path, "an object", item)
                if key == "properties" and len(item) > MAX_PROPERTIES:
                    raise _refused(path, f"at most {MAX_PROPERTIES} properties", str(len(item)))
                return {name: self._part(part, f"{path}.{name[:64]}", depth) for name, part in item.items()}
            case _ if key in _LISTED or (key == "items" and isinstance(item, list)):
                if not isinstance(item, list) or not item:
                    raise _refused(path, "an array of at least 1", item)
                if len(item) > MAX_OPTIONS:
                    raise _refused(path, f"at most {MAX_OPTIONS} schemas", str(len(item)))
                parts = [self._part(part, f"{path}[{index}]", depth) for index, part in enumerate(item)]
                # llguidance follows each of several that are the same.
                return _distinct(parts) if key in ("anyOf", "oneOf") else parts
            case _ if key in _SINGLE:
                return self._part(item, path, depth)
        return item

    def _part(self, value: Any, path: str, depth: int) -> Schema | bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise _refused(path, "a schema", value)
        return self.schema(value, path, depth)


def _is_unenforced(key: str, item: object) -> bool:
    if key == "pattern":
        return isinstance(item, str) and _LOOKS_AROUND.search(item) is not None
    if key == "$ref":
        return isinstance(item, str) and not item.startswith("#")
    return key in _UNENFORCED and item not in _UNENFORCED[key]


def _distinct(parts: list[Schema | bool]) -> list[Schema | bool]:
    return list({json.dumps(part): part for part in parts}.values())


def _refused(path: str, expected: str, got: object) -> RequestError:
    """A bad request: what was ``expected`` at ``path``, and the start of what came, as JSON where it isn't a string."""
    words = got if isinstance(got, str) else json.dumps(got, ensure_ascii=False)
    return RequestError(Fault.BAD_REQUEST, path, f"expected {expected}, got {' '.join(words[:200].split())}")
