"""The kinds of fields that bind an answer to a grammar, by this server's names, llama-server's and vLLM's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax
from umaserve.wire.declared import Declared, Kind, array, optional, string
from umaserve.wire.fields import Fields, bad_request, boolean, dump_capped, out_of_range

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_SCHEMA_BYTES = 256 * 1024
"""Bytes of a JSON schema, or of those of all tools."""
MAX_CHOICES = 500
ANY_OBJECT = '{"type":"object"}'

_TEXT, _SCHEMA_TEXT = string(1, MAX_GRAMMAR_BYTES), string(1, MAX_SCHEMA_BYTES)
_CHOICES = array(string(1), 1, MAX_CHOICES, of="strings")


def _text(syntax: Syntax, value: Any, path: str) -> Grammar:
    return Grammar(syntax, _TEXT.read(value, path), path)


def _schema(value: Any, path: str) -> Grammar:
    text = dump_capped(Fields.of(value, path).values, path, MAX_SCHEMA_BYTES).decode()
    return Grammar(Syntax.JSON_SCHEMA, text, path)


def _schema_or_text(value: Any, path: str) -> Grammar:
    if not isinstance(value, str | memoryview | dict):
        raise bad_request(path, "a JSON schema, as an object or as its text", value)
    if isinstance(value, dict):
        return _schema(value, path)
    return Grammar(Syntax.JSON_SCHEMA, _SCHEMA_TEXT.read(value, path), path)


def _choices(value: Any, path: str) -> Grammar:
    choices = _CHOICES.read(value, path)
    if (n_bytes := sum(len(choice.encode()) for choice in choices)) > MAX_GRAMMAR_BYTES:
        raise out_of_range(path, f"at most {MAX_GRAMMAR_BYTES} bytes in all", n_bytes)
    return Grammar(Syntax.REGEX, "|".join(map(re.escape, choices)), path)


def _any_object(value: Any, path: str) -> Grammar | None:
    return Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, path) if boolean(value, path) else None


GBNF = Kind(_TEXT.schema, partial(_text, Syntax.GBNF))
REGEX = Kind(_TEXT.schema, partial(_text, Syntax.REGEX))
SCHEMA = Kind({"type": "object"}, _schema)
SCHEMA_OR_TEXT = Kind({**_SCHEMA_TEXT.schema, "type": ["object", "string"]}, _schema_or_text)
CHOICES = Kind(_CHOICES.schema, _choices)
"""Texts of which the answer is one."""
WANTS_OBJECT = Kind({"type": "boolean"}, _any_object)
"""Whether the answer is any JSON object."""


class _StructuredOutputs(Declared):
    json = optional(SCHEMA_OR_TEXT)
    regex = optional(REGEX)
    choice_ = optional(CHOICES)
    grammar = optional(GBNF)
    json_object = optional(WANTS_OBJECT, default=False)


def _structured(value: Any, path: str) -> Grammar | None:
    given = _StructuredOutputs.of(value, path)
    for key, item in given.values.items():
        if key not in given.declared and item not in (None, False):
            problem = f"expected to be absent: this server knows {', '.join(given.declared)}"
            raise RequestError(Fault.BAD_REQUEST, given.name(key[:64]), problem)
    return only_one((given.json, given.regex, given.choice_, given.grammar, given.json_object))


STRUCTURED = Kind({"$ref": _StructuredOutputs}, _structured)

FIELDS = (
    "json_schema",
    "grammar",
    "regex",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "grammar_syntax",
)


def grammar(given: Declared) -> Grammar | None:
    """The grammar in ``given``, which declares ``FIELDS``; ``None`` if there is none. Raises ``RequestError``, also for
    more than one."""
    *wanted, syntax = (getattr(given, name) for name in FIELDS)
    found = only_one(wanted)
    if syntax is not None and (found is None or found.syntax is not Syntax.GBNF):
        raise RequestError(
            Fault.BAD_REQUEST, given.name("grammar_syntax"), "expected to be absent where no grammar is given"
        )
    return found if found is None or syntax != "lark" else replace(found, syntax=Syntax.LARK)


def only_one(given: Iterable[Grammar | None]) -> Grammar | None:
    """The one grammar in ``given``, if any; raises ``RequestError`` that names both fields of two."""
    first, second, *_ = [*(one for one in given if one is not None), None, None]
    if first is not None and second is not None:
        raise RequestError(
            Fault.BAD_REQUEST, second.field, f"expected to be absent where {first.field} is given, got both"
        )
    return first


def schema(fields: Fields, key: str) -> Grammar | None:
    """A JSON schema, which is an object."""
    value = fields.values.get(key)
    return None if value is None else SCHEMA.read(value, fields.name(key))
