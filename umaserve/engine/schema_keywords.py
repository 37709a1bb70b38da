"""The keywords of JSON schemas: which restrict values, which of those a grammar enforces; the others are refused.

JSON Schema 2020-12, Core and Validation, and the older names in earlier drafts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from umaserve.errors import Fault, RequestError

Schema = dict[str, Any]

OF_KIND = {
    "object": {
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"),
        *("patternProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
    },
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
}
"""Keywords that restrict values of one kind and don't apply to others; ``integer`` is a kind of ``number``."""
OF_ALL = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "const", "enum", "not", "if"}
_RESTRICTING = OF_ALL.union(*OF_KIND.values()) - {"format"}
_UNENFORCED = {
    *("$dynamicRef", "$recursiveRef", "not", "if", "uniqueItems", "contains", "unevaluatedItems", "multipleOf"),
    *OF_KIND["object"] - {"properties", "required", "additionalProperties"},
}
"""Keywords that no grammar is made for."""
_IDLE: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems"), (True, {})),
    **dict.fromkeys(("properties", "patternProperties"), ({},)),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), ({},)),
    **dict.fromkeys(("minProperties", "minItems", "minLength"), (0,)),
    **dict.fromkeys(("uniqueItems", "not"), (False,)),
    "propertyNames": (True, {}, {"type": "string"}),
    "required": ([],),
}
"""Keywords with the values that restrict nothing."""


def refused(path: str, expected: str, got: object) -> RequestError:
    """A bad request: what was ``expected`` at ``path``, and the start of what came, as JSON where it isn't a string."""
    words = got if isinstance(got, str) else json.dumps(got, ensure_ascii=False)
    return RequestError(Fault.BAD_REQUEST, path, f"expected {expected}, got {' '.join(words[:200].split())}")


def absent(path: str, why: str = "since a grammar can't enforce it") -> RequestError:
    """A bad request: the keyword at ``path`` can't be enforced."""
    return RequestError(Fault.BAD_REQUEST, path, f"expected to be absent, {why}")


def named_kinds(value: Schema, path: str) -> list[str] | None:
    """The kinds that ``type`` names, each once; ``None`` where it is absent."""
    if "type" not in value:
        return None
    named = value["type"]
    kinds = list(dict.fromkeys(map(str, named if isinstance(named, list) else [named])))
    if not kinds or not all(kind == "integer" or kind in OF_KIND for kind in kinds):
        raise refused(f"{path}.type", f"one or more of {', '.join(OF_KIND)}, integer", named)
    return kinds


def with_paths(items: Sequence[Any], path: str) -> list[tuple[Any, str]]:
    """Each item with its path."""
    return [(item, f"{path}[{index}]") for index, item in enumerate(items)]


def members(value: Schema, path: str, keyword: str, least: int = 1) -> list[tuple[Any, str]]:
    """The items of the array under ``keyword``, each with its path."""
    items = value[keyword]
    if not isinstance(items, list) or len(items) < least:
        raise refused(f"{path}.{keyword}", f"an array of at least {least}", items)
    return with_paths(items, f"{path}.{keyword}")


def restricting(value: Schema, except_for: set[str]) -> list[str]:
    """The keywords of ``value`` that restrict values, except those in ``except_for``."""
    names = [key for key in value if key in _RESTRICTING and key not in except_for]
    return [key for key in names if value[key] not in _IDLE.get(key, ())]


def only_describes(value: Any) -> bool:
    """Whether any value satisfies the schema ``value``."""
    return isinstance(value, dict) and "type" not in value and not restricting(value, set())


def refuse_unenforced(value: Schema, path: str, among: set[str]) -> None:
    """Refuse keywords in ``among`` that no grammar is made for; raises ``RequestError``."""
    for key in restricting(value, _RESTRICTING - (among & _UNENFORCED)):
        raise absent(f"{path}.{key}")


def refuse_beside(value: Schema, path: str, keyword: str, allowed: set[str] | None = None) -> None:
    """Refuse keywords that restrict values beside ``keyword``, except ``allowed``; raises ``RequestError``."""
    for key in restricting(value, {keyword} | (allowed or set())):
        raise absent(f"{path}.{key}", f"since a grammar can't enforce it beside {keyword}")
