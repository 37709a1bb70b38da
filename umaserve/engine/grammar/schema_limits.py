"""Refuses JSON schemas that llguidance would compile for seconds, since its own limits don't count these costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.schema_types import resolved

Schema = dict[str, Any]

MAX_MULTIPLES = 50_000
"""Limit for the least common multiple of all ``multipleOf``, times how often it may be compiled: 3 us each."""
MAX_MERGED = 1000
"""Most combinations of the options of all ``anyOf`` that are put together with others: up to 1 ms each."""
MAX_CHAIN = 100
MAX_CUBES = 4_000_000
"""Largest sum of the cubes of the numbers of references among the options of each ``anyOf``: if all mean the same, each
is compared with two others, and a step takes up to 10 ms for a million."""

_DEFINITIONS = {"$defs", "definitions"}


def check(schema: Schema, field: str) -> None:
    """Check ``schema``, which has no keywords that restrict nothing. Raises ``RequestError`` that names ``field``."""
    parts = list(_parts(schema))
    _check_multiples(parts, field)
    options = (part[key] for part in parts for key in ("anyOf", "oneOf") if isinstance(part.get(key), list))
    references = [sum(isinstance(option, dict) and "$ref" in option for option in some) for some in options]
    if sum(n**3 for n in references) > MAX_CUBES:
        problem = "expected fewer references among the options of anyOf (at most 158 in one, fewer in each of several)"
        raise RequestError(Fault.BAD_REQUEST, field, f"{problem}, got {max(references)} in one")
    ways = _Ways(schema, field)
    if sum(ways.of(part, merged=True) for part in parts if not _alone(part)) > MAX_MERGED:
        expected = f"at most {MAX_MERGED} combinations of options (anyOf with $ref, allOf or others beside it)"
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {expected}, got more")


def _check_multiples(parts: list[Schema], field: str) -> None:
    """Check the least common multiple: what ``$ref`` and ``allOf`` put together is divided by it, once for each
    reference."""
    given: list[Any] = [part.get("multipleOf") for part in parts]
    numbers = [Decimal(str(number)) for number in given if type(number) in (int, float)]
    if not numbers:
        return
    shift = max(0, *(-int(number.as_tuple().exponent) for number in numbers))
    common = math.lcm(*(int(number.scaleb(shift)) for number in numbers))
    most = MAX_MULTIPLES // (len(numbers) + sum("$ref" in part for part in parts))
    if common > most:
        expected = f"multipleOf with a least common multiple of at most {most}, in units of the last decimal place"
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {expected}, got {str(common)[:64]}")


class _Ways:
    """Counts the combinations of options that schemas have where they are put together with others."""

    def __init__(self, root: Schema, field: str) -> None:
        self._root = root
        self._field = field
        self._depth = 0
        self._known: dict[str, int] = {}

    def of(self, schema: Any, *, merged: bool) -> int:
        """Number of combinations in ``schema``, which may also be what an ``enum`` or ``const`` contains, and so
        anything."""
        if not isinstance(schema, dict):
            return 1
        merged = merged or not _alone(schema)
        ways = 1
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                ways *= sum(self.of(option, merged=merged) for option in schema[key])
        together, reference = schema.get("allOf"), schema.get("$ref")
        for part in together if isinstance(together, list) else ():
            ways *= self.of(part, merged=True)
        return ways * (self._referred(reference) if merged and isinstance(reference, str) else 1)

    def _referred(self, reference: str) -> int:
        if reference not in self._known:
            if self._depth == MAX_CHAIN:
                problem = f"expected at most {MAX_CHAIN} references that lead one to another, got more"
                raise RequestError(Fault.BAD_REQUEST, self._field, problem)
            self._depth += 1
            # A circle leads to nothing new.
            self._known[reference] = 1
            target = self._root if reference == "#" else resolved({"$ref": reference}, self._root)
            self._known[reference] = self.of(target, merged=True)
            self._depth -= 1
        return self._known[reference]


def _alone(schema: Schema) -> bool:
    """Whether nothing is put together: there are no options or references, or nothing else beside them."""
    combined = schema.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
    return not combined or (len(schema.keys() - _DEFINITIONS) == 1 and "allOf" not in combined)


def _parts(schema: Schema) -> Iterator[Schema]:
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
