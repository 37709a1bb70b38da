"""Strict JSON parsing and typed getters for its objects, so that all dialects refuse bad input with the same errors."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Self, TypeVar

import numpy as np
import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.long_texts import as_string, put_back, take_out

T = TypeVar("T")

MAX_VALUES = 1_000_000
"""The most values in a client's JSON: a message of an image's size that is full of empty arrays would block the loop
for seconds."""
MAX_INTEGER = 2**63 - 1
"""The largest number that C and JSON libraries take: a client's 1e308 is a whole number for Python."""
MAX_KEYS = 100_000
"""Keys cost the most: a million different ones would block the loop for a second, and again where they are written."""
_COUNTED_AT_ONCE = 256 * 1024
_KEY = re.compile(rb'"[ \t\r\n]*:')

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "a string",
    memoryview: "a string",
    list: "an array",
    dict: "an object",
}


def kind_of(value: object) -> str:
    """The JSON kind of a parsed value, as named in an error message."""
    return _KINDS[type(value)]


def parse_json(payload: bytes, max_values: int | None = None) -> Any:
    """The parsed value of ``payload`` (RFC 8259; UTF-8, no NaN, no lone surrogates, bounded nesting).

    ``max_values`` limits the commas and opening brackets, also those inside strings unless the string is long, and
    ``MAX_KEYS`` the keys. With it, long ``media_data`` are returned as ``memoryview`` objects. A relay's messages are
    parsed without it: a client's JSON is a string inside them, and the worker would get the blame for its commas.
    """
    rest, texts = payload, None
    if max_values is not None and len(payload) > max_values:
        rest, texts = take_out(payload)
        _check_values(rest, max_values)
    try:
        parsed = orjson.loads(rest)
        return put_back(parsed, texts) if texts else parsed
    except orjson.JSONDecodeError as error:
        if texts:
            # Parse the original, whose positions the error then gives.
            return parse_json(payload)
        raise RequestError(Fault.INVALID_JSON, "payload", f"not valid JSON: {error}") from None


def _check_values(payload: bytes, limit: int) -> None:
    """Count the characters that precede each value but the first, and then the keys. With numpy this takes a tenth of
    the parsing time."""
    characters, n = np.frombuffer(payload, np.uint8), 0
    for start in range(0, len(characters), _COUNTED_AT_ONCE):
        some = characters[start : start + _COUNTED_AT_ONCE]
        n += sum(int(np.count_nonzero(some == before)) for before in b",[{")
        if n > limit:
            raise RequestError(Fault.BAD_REQUEST, "payload", f"expected at most {limit} commas and brackets, got more")
    # Texts have colons too, but seldom so many. In a string a quote may precede one as well.
    if payload.count(b":") > MAX_KEYS and next(islice(_KEY.finditer(payload), MAX_KEYS, None), None):
        raise RequestError(Fault.BAD_REQUEST, "payload", f"expected at most {MAX_KEYS} keys, got more")


def bad_request(field: str, expected: str, value: object) -> RequestError:
    """An error that names the field, what was expected, and the kind of the value received."""
    return RequestError(Fault.BAD_REQUEST, field, f"expected {expected}, got {kind_of(value)}")


def out_of_range(field: str, expected: str, value: object) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, field, f"expected {expected}, got {str(value)[:64]}")


class Fields:
    """One JSON object, read field by field. Each getter raises ``RequestError`` (bad request) for a wrong value."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path

    @classmethod
    def of(cls, value: object, path: str) -> Self:
        if not isinstance(value, dict):
            raise bad_request(path, "an object", value)
        return cls(value, f"{path}.")

    def name(self, key: str) -> str:
        return self._path + key

    def string(self, key: str, *, max_bytes: int, empty: bool = False) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        return string(value, self.name(key), max_bytes=max_bytes, empty=empty)

    def boolean(self, key: str, default: T) -> bool | T:
        value = self.values.get(key)
        return default if value is None else boolean(value, self.name(key))

    def integer(self, key: str, low: int, high: int = MAX_INTEGER) -> int | None:
        """A whole number from ``low`` to ``high``; also one written as a float, such as 2.0."""
        value = self.values.get(key)
        return None if value is None else integer(value, self.name(key), low, high)

    def number(self, key: str, low: float, high: float, *, above_low: bool = False) -> float | None:
        value = self.values.get(key)
        return None if value is None else number(value, self.name(key), low, high, above_low=above_low)

    def one_of(self, key: str, names: Collection[str]) -> str | None:
        value = self.values.get(key)
        return None if value is None else one_of(value, self.name(key), names)

    def required_one_of(self, key: str, names: Collection[str]) -> str:
        name = self.one_of(key, names)
        if name is None:
            raise bad_request(self.name(key), _alternatives(names), None)
        return name

    def choice(self, key: str, choices: Mapping[str, T], default: T) -> T:
        name = self.one_of(key, choices)
        return default if name is None else choices[name]

    def required_choice(self, key: str, choices: Mapping[str, T]) -> T:
        return choices[self.required_one_of(key, choices)]

    def strings(self, key: str, *, max_items: int, max_bytes: int) -> tuple[str, ...]:
        """A string, or an array of strings, none of them empty."""
        value = self.values.get(key)
        return () if value is None else strings(value, self.name(key), max_items=max_items, max_bytes=max_bytes)

    def object(self, key: str) -> Fields | None:
        value = self.values.get(key)
        return None if value is None else Fields.of(value, self.name(key))


def boolean(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise bad_request(field, "true or false", value)
    return value


def integer(value: object, field: str, low: int, high: int = MAX_INTEGER) -> int:
    expected = f"a whole number from {low}" + ("" if high == MAX_INTEGER else f" to {high}")
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise bad_request(field, expected, value)
    if not low <= whole <= high:
        if low <= whole:
            expected = f"a whole number from {low} to {high}"
        raise out_of_range(field, expected, value)
    return whole


def one_of(value: object, field: str, names: Collection[str]) -> str:
    expected = _alternatives(names)
    if not isinstance(value, str):
        raise bad_request(field, expected, value)
    if value not in names:
        raise out_of_range(field, expected, f'"{value}"')
    return value


def strings(value: object, field: str, *, max_items: int, max_bytes: int) -> tuple[str, ...]:
    items: Sequence[object] = [value] if isinstance(value, str) else value  # type: ignore[assignment]
    if not isinstance(items, list):
        raise bad_request(field, "a string or an array of strings", value)
    if len(items) > max_items:
        raise out_of_range(field, f"at most {max_items} strings", len(items))
    return tuple(string(item, f"{field}[{i}]", max_bytes=max_bytes) for i, item in enumerate(items))


def _alternatives(names: Collection[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def dump_capped(values: Any, field: str, max_bytes: int) -> bytes:
    """``values``, which were parsed from JSON, as JSON of at most ``max_bytes``; raises ``RequestError``."""
    expected = f"an object of at most {max_bytes} bytes as JSON, nested less than 200 deep"
    try:
        # orjson reads deeper nesting than it writes. The list stands for the event that will contain the object.
        text = orjson.dumps([values])[1:-1]
    except orjson.JSONEncodeError:
        raise out_of_range(field, expected, "a deeper one") from None
    if len(text) > max_bytes:
        raise out_of_range(field, expected, f"{len(text)} bytes")
    return text


def array(value: object, field: str, low: int, high: int, what: str) -> list[Any]:
    expected = f"an array of {low} to {high} {what}"
    if not isinstance(value, list):
        raise bad_request(field, expected, value)
    if not low <= len(value) <= high:
        raise out_of_range(field, expected, len(value))
    return value


def string(value: object, field: str, *, max_bytes: int | None = None, empty: bool = False) -> str:
    expected = f"a {'' if empty else 'non-empty '}string"
    if max_bytes is not None:
        expected += f" of at most {max_bytes} bytes"
    if isinstance(value, memoryview):
        value = as_string(value)
    if not isinstance(value, str):
        raise bad_request(field, expected, value)
    if not value and not empty:
        raise out_of_range(field, expected, "an empty one")
    if max_bytes is not None and (len(value) > max_bytes or len(value.encode()) > max_bytes):
        raise out_of_range(field, expected, f"{len(value.encode())} bytes")
    return value


def media_data(value: object, field: str) -> str | memoryview:
    """A non-empty string, or the ``memoryview`` that ``parse_json`` returns for a long one."""
    return value if isinstance(value, memoryview) else string(value, field)


def number(value: object, field: str, low: float, high: float, *, above_low: bool = False) -> float:
    expected = f"a number {'above' if above_low else 'from'} {low:g} {'up to' if above_low else 'to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(field, expected, value)
    if not math.isfinite(value) or not low <= value <= high or (above_low and value == low):
        raise out_of_range(field, expected, value)
    return float(value)
