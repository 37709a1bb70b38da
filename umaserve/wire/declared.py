"""Declares the objects of an API once: what each field may be, what it means, and whether it may be absent.

The same declaration reads a client's JSON, with the errors of ``wire/fields``, and describes it in the OpenAPI document
as JSON Schema (draft 2020-12)::

    class Options(Declared):
        \"\"\"Options of an answer.\"\"\"

        temperature = optional(number(0, 10), "0: always the likeliest token.", default=1)

    Options({"temperature": 0.5}).temperature    # 0.5; RequestError for another kind or a number out of range
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

from umaserve.wire import fields
from umaserve.wire.fields import MAX_INTEGER, Fields

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Schema = dict[str, Any]
"""A JSON Schema in which a `Declared` class or a `Kind` may stand for its schema."""
NULL: Schema = {"type": "null"}


def _as_it_is(value: Any, _path: str) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """What a JSON value may be. ``read(value, path)`` returns the value or raises ``RequestError``."""

    schema: Schema
    read: Callable[[Any, str], T_co] = _as_it_is
    name: str = ""
    """The name of the schema among the document's components; empty: it is written where it is used."""


class Field(Generic[T_co]):
    """A field of a `Declared` class: read where it is an attribute of an instance."""

    def __init__(
        self,
        kind: Kind[T_co],
        about: str,
        *,
        required: bool,
        nullable: bool,
        default: object = None,
        absent: T_co | None = None,
        key: str = "",
    ) -> None:
        """``default``: what is taken where it is absent, for the reference; ``absent``: what is read there; ``key``:
        its name in JSON, unless that is the attribute's."""
        self.kind = kind
        self.about = about
        self.required = required
        self.nullable = nullable
        self.default = default
        self.absent = absent
        self.key = key

    def __set_name__(self, owner: type, name: str) -> None:
        # A name that Python or Fields has taken ends with an underscore, as PEP 8 has it.
        self.key = self.key or name.removesuffix("_")

    @overload
    def __get__(self, given: None, owner: type) -> Field[T_co]: ...
    @overload
    def __get__(self, given: Declared, owner: type) -> T_co: ...
    def __get__(self, given: Declared | None, owner: type) -> Field[T_co] | T_co:
        if given is None:
            return self
        value = given.values.get(self.key)
        if value is None and not self.required:
            return cast("T_co", self.absent)
        return self.kind.read(value, given.name(self.key))

    def with_default(self, default: object) -> Self:
        """A copy of this field with another default, if it has one."""
        made = copy.copy(self)
        made.default = None if self.default is None else default
        return made

    @property
    def schema(self) -> Schema:
        """The field's schema, with what it means."""
        of = _referred(self.kind)
        made = _nullable(of) if self.nullable else {**of}
        if self.about:
            made["description"] = self.about
        if self.default is not None:
            made["default"] = self.default
        return made


class Declared(Fields):
    """A JSON object whose fields are declared as attributes of the class.

    The class's docstring is the schema's description, and its name that of the component, but for a name that begins
    with an underscore: such a schema is written where it is used. ``closed``: other fields are refused. ``also``: what
    else the schema has. ``defaults``: an object with other defaults of inherited fields, by their attributes' names;
    they are then in this schema itself.
    """

    declared: ClassVar[dict[str, Field[Any]]] = {}
    """The fields by their names in JSON, without those of the classes that it extends by reference."""
    also: ClassVar[Schema] = {}
    _bases: ClassVar[list[type[Declared]]] = []

    def __init_subclass__(
        cls, *, closed: bool = False, also: Schema | None = None, defaults: object | None = None
    ) -> None:
        taken = [name for name, value in vars(cls).items() if isinstance(value, Field) and name in _TAKEN]
        assert not taken, f"{cls.__name__}: {taken} need an underscore at the end"
        bases = [base for base in cls.__bases__ if issubclass(base, Declared) and base is not Declared]
        cls._bases, classes = (bases, [cls]) if defaults is None else ([], [*reversed(cls.__mro__)])
        fields = {name: field for each in classes for name, field in vars(each).items() if isinstance(field, Field)}
        cls.declared = {
            field.key: field.with_default(getattr(defaults, name, field.default)) for name, field in fields.items()
        }
        cls.also = {**({"additionalProperties": False} if closed else {}), **(also or {})}

    @classmethod
    def view(cls, given: Fields) -> Self:
        """``given``, read by the declarations of this class, or of one that extends it if it is of that one."""
        return given if isinstance(given, cls) else cls(given.values, given.name(""))

    @classmethod
    def field_names(cls) -> frozenset[str]:
        """The names in JSON of all fields, with those of the classes that it extends."""
        return frozenset(name for each in cls.__mro__ if issubclass(each, Declared) for name in vars(each)["declared"])

    @classmethod
    def schema(cls) -> Schema:
        """The class's own schema: of its fields, and of the classes that it extends by reference."""
        made: Schema = {}
        extended, declared = cls._inherited()
        declared |= cls.declared
        if extended:
            made["allOf"] = extended
        if declared or not extended:
            made["type"] = "object"
        if about := vars(cls).get("__doc__"):
            made["description"] = " ".join(about.split())
        if required := [name for name, field in declared.items() if field.required]:
            made["required"] = required
        if declared:
            made["properties"] = {name: field.schema for name, field in declared.items()}
        return {**made, **cls.also}

    @classmethod
    def _inherited(cls) -> tuple[list[type[Declared]], dict[str, Field[Any]]]:
        """The components that the class extends, and the fields of other classes that it extends."""
        components: list[type[Declared]] = []
        declared: dict[str, Field[Any]] = {}
        for base in cls._bases:
            if not is_inline(base.__name__):
                components.append(base)
                continue
            further, fields = base._inherited()
            components += further
            declared |= fields | base.declared
        return components, declared


_TAKEN = {"values", *dir(Declared)}


def is_inline(name: str) -> bool:
    return not name or name.startswith("_")


def as_kind(kind: Kind[T] | type[T]) -> Kind[T]:
    """``kind`` itself, or the kind of the objects that a `Declared` class declares."""
    if isinstance(kind, Kind):
        return kind
    assert issubclass(kind, Declared)
    return Kind({"$ref": kind}, kind.of)


def _referred(kind: Kind[Any]) -> Schema:
    return {"$ref": kind} if kind.name else kind.schema


def _nullable(schema: Schema) -> Schema:
    """``schema``, or null."""
    if isinstance(of := schema.get("type"), str):
        return {**schema, "type": [of, "null"]}
    if isinstance(of, list):
        return {**schema, "type": [*of, "null"]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    for way in ("oneOf", "anyOf"):
        if way in schema:
            return {**schema, way: [*schema[way], NULL]}
    target = schema.get("$ref")
    if isinstance(target, type) and issubclass(target, Declared) and is_inline(target.__name__):
        return _nullable(target.schema())
    return {"oneOf": [schema, NULL]}


# -- fields ------------------------------------------------------------------------------------------------------


def required(kind: Kind[T] | type[T], about: str = "") -> Field[T]:
    """A field that is always there, and not null."""
    return Field(as_kind(kind), about, required=True, nullable=False)


def optional(kind: Kind[T] | type[T], about: str = "", *, default: object = None, key: str = "") -> Field[T | None]:
    """A field that may be absent or null. ``default``: what is then taken, for the reference."""
    return Field(_or_none(kind), about, required=False, nullable=True, default=default, key=key)


def nullable(kind: Kind[T] | type[T], about: str = "") -> Field[T | None]:
    """A field that is always there, and may be null."""
    return Field(_or_none(kind), about, required=True, nullable=True)


def omittable(kind: Kind[T] | type[T], about: str = "", *, default: object = None, key: str = "") -> Field[T | None]:
    """A field that may be absent, but is not null where it is there. ``key``: its name in JSON, where that can't be an
    attribute's."""
    return Field(_or_none(kind), about, required=False, nullable=False, default=default, key=key)


def _or_none(kind: Kind[T] | type[T]) -> Kind[T | None]:
    return cast("Kind[T | None]", as_kind(kind))


def switch(default: bool, about: str = "") -> Field[bool]:
    """True or false, and ``default`` where it is absent or null."""
    return Field(boolean(), about, required=False, nullable=True, default=default, absent=default)


# -- kinds -------------------------------------------------------------------------------------------------------


def string(least: int = 0, max_bytes: int | None = None, *, pattern: str = "", **also: Any) -> Kind[str]:
    """A string of ``least`` (0 or 1) characters or more, and at most ``max_bytes`` in UTF-8. ``pattern`` and ``also``
    (keywords of JSON Schema) are described, not checked."""
    schema: Schema = {"type": "string"}
    if least:
        schema["minLength"] = least
    if max_bytes is not None:
        schema["maxLength"] = max_bytes
    if pattern:
        schema["pattern"] = pattern
    return Kind(schema | also, lambda value, path: fields.string(value, path, max_bytes=max_bytes, empty=not least))


def boolean() -> Kind[bool]:
    return Kind({"type": "boolean"}, fields.boolean)


def number(low: float | None = None, high: float | None = None, *, above_low: bool = False) -> Kind[float]:
    """A number from ``low``, or above it, to ``high``. One that is read has both."""

    def read(value: Any, path: str) -> float:
        assert low is not None
        assert high is not None
        return fields.number(value, path, low, high, above_low=above_low)

    return Kind({"type": "number", **_range(low, high, above_low)}, read)


def whole(low: int | None = None, high: int | None = None) -> Kind[int]:
    """A whole number from ``low`` to ``high``. One that is read has ``low``."""

    def read(value: Any, path: str) -> int:
        assert low is not None
        return fields.integer(value, path, low, MAX_INTEGER if high is None else high)

    return Kind({"type": "integer", **_range(low, high, False)}, read)


def _range(low: float | None, high: float | None, above_low: bool) -> Schema:
    least = {} if low is None else {"exclusiveMinimum" if above_low else "minimum": low}
    return least if high is None else {**least, "maximum": high}


def const(value: object) -> Kind[Any]:
    """One value."""
    return Kind({"const": value})


def choice(*names: object) -> Kind[Any]:
    """One of several strings."""

    def read(value: Any, path: str) -> Any:
        return fields.one_of(value, path, [name for name in names if isinstance(name, str)])

    return Kind({"enum": list(names)}, read)


def strings(max_items: int, max_bytes: int) -> Kind[tuple[str, ...]]:
    """A string, or an array of strings, none of them empty."""
    schema: Schema = {"type": "string", "minLength": 1, "maxLength": max_bytes}
    ways = [schema, {"type": "array", "items": schema, "maxItems": max_items}]
    return Kind(
        {"oneOf": ways}, lambda value, path: fields.strings(value, path, max_items=max_items, max_bytes=max_bytes)
    )


def array(
    items: Kind[T] | type[T], low: int | None = None, high: int | None = None, *, of: str = "", **also: Any
) -> Kind[list[T]]:
    """An array of ``low`` to ``high`` items. With ``of``, what the items are called in an error, it is checked and each
    item is read; else it is described, and read as it is."""
    kind = as_kind(items)
    schema: Schema = {"type": "array", "items": _referred(kind)}
    if low is not None:
        schema["minItems"] = low
    if high is not None:
        schema["maxItems"] = high

    def read(value: Any, path: str) -> list[T]:
        assert high is not None
        given = fields.array(value, path, low or 0, high, of)
        return [kind.read(item, f"{path}[{i}]") for i, item in enumerate(given)]

    return Kind(schema | also, read if of else _as_it_is)


def text_or(
    items: Kind[T] | type[T], low: int | None = None, high: int | None = None, *, of: str
) -> Kind[str | list[T]]:
    """A string, or an array as `array` reads it."""
    many = array(items, low, high, of=of)

    def read(value: Any, path: str) -> str | list[T]:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise fields.bad_request(path, f"a string or an array of {of}", value)
        return many.read(value, path)

    return Kind({"oneOf": [{"type": "string"}, many.schema]}, read)


def mapping(values: Kind[Any] | type[Any], **also: Any) -> Kind[dict[str, Any]]:
    """An object whose values are all of one kind, described, not checked."""
    return Kind({"type": "object", "additionalProperties": _referred(as_kind(values)), **also})


def one_of(*kinds: Kind[Any] | type[Any]) -> Kind[Any]:
    """Exactly one of several kinds, described, not checked."""
    return Kind({"oneOf": [_referred(as_kind(kind)) for kind in kinds]})


def by_type(*classes: type[Declared]) -> Kind[Any]:
    """An object of one of several classes, which its ``type`` tells: a constant or a choice in each of them."""
    known: dict[str, type[Declared]] = {}
    for each in classes:
        types = each.declared["type"].kind.schema
        known |= dict.fromkeys(types.get("enum") or [types["const"]], each)

    def read(value: Any, path: str) -> Declared:
        given = Fields.of(value, path)
        return known[given.required_one_of("type", known)].view(given)

    return Kind(one_of(*classes).schema if len(classes) > 1 else as_kind(classes[0]).schema, read)


def any_of(*kinds: Kind[Any] | type[Any]) -> Kind[Any]:
    """One of several kinds or more, described, not checked."""
    return Kind({"anyOf": [_referred(as_kind(kind)) for kind in kinds]})


def value(**schema: Any) -> Kind[Any]:
    """Any value that ``schema`` allows, described, not checked."""
    return Kind(schema)


def named(name: str, kind: Kind[T], about: str = "") -> Kind[T]:
    """``kind`` as a component of the document."""
    return Kind({**kind.schema, **({"description": about} if about else {})}, kind.read, name)
