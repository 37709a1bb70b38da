"""Values as JSON and bytes, by their types: frozen dataclasses, named tuples, enums, and what they are made of.

A record is a list of its fields, texts and bytes are in a tail behind the JSON, which has their lengths. All that is
read is checked against its type, since another process may say anything.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

T = TypeVar("T")


class Malformed(Exception):
    """Raised where what came is not what its type says."""


class Tail:
    """The bytes behind the JSON, taken from the front to the back."""

    def __init__(self, data: bytes | memoryview = b"") -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, length: object) -> memoryview:
        if type(length) is not int or not 0 <= length <= len(self._data) - self._at:
            raise Malformed(f"{length!r:.40} bytes of {len(self._data) - self._at}")
        self._at += length
        return self._data[self._at - length : self._at]

    @property
    def left(self) -> int:
        """Bytes not taken yet."""
        return len(self._data) - self._at

    def end(self) -> None:
        if self.left:
            raise Malformed(f"{self.left} bytes too many")


Write = Callable[[Any, list[bytes | memoryview]], Any]
"""Makes JSON of a value, and appends to the tail."""
Read = Callable[[Any, Tail], Any]
"""Reads a value from JSON and the tail. Raises ``Malformed``."""


class Coder(NamedTuple):
    """Writes and reads the values of one type."""

    write: Write
    read: Read


class Codec:
    """The coders of all types, made as they are asked for. ``own``: those of types that have one of their own."""

    def __init__(self, own: Mapping[object, Coder]) -> None:
        self._coders: dict[object, Coder] = {**_PLAIN, **own}

    def of(self, hint: object) -> Coder:
        """The coder of the type that ``hint``, an annotation, names."""
        if hint not in self._coders:
            self._coders[hint] = self._new(hint)
        return self._coders[hint]

    def _new(self, hint: Any) -> Coder:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.of(arguments[0])
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin is Literal:
            return _one_of(dict(enumerate(arguments)))
        if origin in (Sequence, Collection):
            return _INTEGERS if arguments == (int,) else _items(self.of(arguments[0]), list)
        if origin is frozenset or (origin is tuple and arguments[1:] == (...,)):
            return _items(self.of(arguments[0]), origin)
        if origin is tuple:
            return self.record(tuple, dict(enumerate(arguments)))
        if origin is Mapping:
            pairs = _items(self.record(tuple, dict(enumerate(arguments))), dict)
            return Coder(lambda value, tail: pairs.write(value.items(), tail), pairs.read)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _one_of({member.name: member for member in hint})
        if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
            return self.record(hint, get_type_hints(hint, include_extras=True))
        raise TypeError(f"no coder for {hint}")

    def record(self, made: Any, hints: Mapping[Any, object]) -> Coder:
        """The coder of a dataclass or tuple. ``hints``: those of its fields, by name, or by index in a tuple."""
        fields: list[tuple[Any, Write, Read]] = []
        by_name = dataclasses.is_dataclass(made)

        def write(value: Any, tail: list[bytes | memoryview]) -> Any:
            if by_name:
                return [write_field(getattr(value, name), tail) for name, write_field, _ in fields]
            return [write_field(one, tail) for one, (_, write_field, _) in zip(value, fields, strict=True)]

        def read(value: Any, tail: Tail) -> Any:
            if type(value) is not list or len(value) != len(fields):
                raise Malformed(f"expected {len(fields)} fields, got {value!r:.40}")
            values = [read_field(one, tail) for one, (_, _, read_field) in zip(value, fields, strict=True)]
            if by_name:
                return made(**{name: one for one, (name, _, _) in zip(values, fields, strict=True)})
            return made(values) if made is tuple else made(*values)

        # Known before its fields', which may be of the same type.
        coder = Coder(write, read)
        if made is not tuple:
            self._coders[made] = coder
        fields += [(name, *self.of(hint)) for name, hint in hints.items()]
        return coder

    def _union(self, hints: Sequence[Any]) -> Coder:
        """The coder of a union. ``null`` is none, and where there are several others, each value comes with its type's
        number."""
        others = [(get_origin(hint) or hint, self.of(hint)) for hint in hints if hint is not types.NoneType]
        optional = len(others) < len(hints)
        ((_, only), *more) = others

        def write(value: Any, tail: list[bytes | memoryview]) -> Any:
            if value is None and optional:
                return None
            if not more:
                return only.write(value, tail)
            number = next(number for number, (kind, _) in enumerate(others) if isinstance(value, kind))
            return [number, others[number][1].write(value, tail)]

        def read(value: Any, tail: Tail) -> Any:
            if value is None and optional:
                return None
            if not more:
                return only.read(value, tail)
            match value:
                case [int(number), content] if 0 <= number < len(others):
                    return others[number][1].read(content, tail)
            raise Malformed(f"expected one of {len(others)} types, got {value!r:.40}")

        return Coder(write, read)


def _exactly(kind: type) -> Coder:
    def read(value: Any, _tail: Tail) -> Any:
        if type(value) is not kind:
            raise Malformed(f"expected {kind.__name__}, got {value!r:.40}")
        return value

    return Coder(lambda value, _tail: value, read)


def _items(item: Coder, make: Callable[[Iterable[Any]], Any]) -> Coder:
    def read(value: Any, tail: Tail) -> Any:
        if type(value) is not list:
            raise Malformed(f"expected a list, got {value!r:.40}")
        return make([item.read(one, tail) for one in value])

    return Coder(lambda value, tail: [item.write(one, tail) for one in value], read)


def _one_of(members: Mapping[Any, object]) -> Coder:
    """The coder of values from a fixed set. ``members``: what stands for each value."""
    keys = {value: key for key, value in members.items()}

    def read(value: Any, _tail: Tail) -> Any:
        if type(value) not in (int, str) or value not in members:
            raise Malformed(f"expected one of {len(members)} values, got {value!r:.40}")
        return members[value]

    return Coder(lambda value, _tail: keys[value], read)


# JSON has no infinite numbers, and NumPy's float32 would be written with fewer digits.
def _write_float(value: float, _tail: list[bytes | memoryview]) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _read_float(value: Any, _tail: Tail) -> float:
    if type(value) not in (float, int) and value not in ("inf", "-inf", "nan"):
        raise Malformed(f"expected a number, got {value!r:.40}")
    return float(value)


# Of paths, which may be no text, each byte returns.
def _write_text(value: str, tail: list[bytes | memoryview]) -> int:
    tail.append(data := value.encode("utf-8", "surrogatepass"))
    return len(data)


def _read_text(value: Any, tail: Tail) -> str:
    try:
        return str(tail.take(value), "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Malformed(str(error)) from None


def _write_bytes(value: bytes | memoryview, tail: list[bytes | memoryview]) -> int:
    tail.append(value)
    return len(value)


def _write_json(value: object, tail: list[bytes | memoryview]) -> int:
    return _write_bytes(orjson.dumps(value), tail)


def _read_json(value: Any, tail: Tail) -> object:
    try:
        return orjson.loads(tail.take(value))
    except orjson.JSONDecodeError as error:
        raise Malformed(str(error)) from None


_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_MAX_DIGITS = 64
"""Most digits of the ids that stand for media, which have up to 39 hexadecimal ones."""


def _write_integers(value: Sequence[int], _tail: list[bytes | memoryview]) -> list[int | str]:
    if not value or (min(value) >= _SMALLEST and max(value) <= _LARGEST):
        return list(value)
    return [one if _SMALLEST <= one <= _LARGEST else hex(one) for one in value]


def _read_integers(value: Any, _tail: Tail) -> list[int]:
    if type(value) is not list:
        raise Malformed(f"expected a list, got {value!r:.40}")
    kinds = set(map(type, value))
    if kinds <= {int}:
        return value
    if not kinds <= {int, str}:
        raise Malformed("expected whole numbers")
    try:
        return [one if type(one) is int else int(one[:_MAX_DIGITS], 16) for one in value]
    except ValueError:
        raise Malformed("expected whole numbers") from None


_INTEGERS = Coder(_write_integers, _read_integers)
_PLAIN: Mapping[object, Coder] = {
    bool: _exactly(bool),
    int: _exactly(int),
    types.NoneType: _exactly(types.NoneType),
    float: Coder(_write_float, _read_float),
    str: Coder(_write_text, _read_text),
    bytes: Coder(_write_bytes, lambda value, tail: bytes(tail.take(value))),
    memoryview: Coder(_write_bytes, lambda value, tail: tail.take(value)),
    object: Coder(_write_json, _read_json),
}
