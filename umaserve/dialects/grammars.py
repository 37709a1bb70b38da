"""The request fields that bind an answer to a grammar, by this server's names, llama-server's and vLLM's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, out_of_range, string

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_SCHEMA_BYTES = 256 * 1024
"""Bytes of a JSON schema, or of those of all tools."""
MAX_CHOICES = 500
ANY_OBJECT = '{"type":"object"}'

Reader = Callable[[Fields, str], Grammar | None]
"""Reads one field, which is not null; ``None`` if it asks for nothing."""


def grammar(fields: Fields) -> Grammar | None:
    """The grammar in ``fields``, ``None`` if there is none. Raises ``RequestError``, also for more than one."""
    syntax = fields.one_of("grammar_syntax", ("gbnf", "lark"))
    given = only_one(_given(fields))
    if syntax is not None and (given is None or given.syntax is not Syntax.GBNF):
        raise RequestError(
            Fault.BAD_REQUEST, fields.name("grammar_syntax"), "expected to be absent where no grammar is given"
        )
    return given if given is None or syntax != "lark" else Grammar(Syntax.LARK, given.text, given.field)


def only_one(given: Iterable[Grammar]) -> Grammar | None:
    """The one grammar in ``given``, if any; raises ``RequestError`` that names both fields of two."""
    first, second, *_ = [*given, None, None]
    if first is not None and second is not None:
        raise RequestError(
            Fault.BAD_REQUEST, second.field, f"expected to be absent where {first.field} is given, got both"
        )
    return first


def schema(fields: Fields, key: str) -> Grammar | None:
    """A JSON schema, which is an object."""
    value = fields.object(key)
    if value is None:
        return None
    return Grammar(
        Syntax.JSON_SCHEMA, dump_capped(value.values, fields.name(key), MAX_SCHEMA_BYTES).decode(), fields.name(key)
    )


def _schema_or_text(fields: Fields, key: str) -> Grammar | None:
    """A JSON schema, or its JSON text."""
    value = fields.values[key]
    if not isinstance(value, str | memoryview | dict):
        raise bad_request(fields.name(key), "a JSON schema, as an object or as its text", value)
    return schema(fields, key) if isinstance(value, dict) else _text(fields, key, Syntax.JSON_SCHEMA, MAX_SCHEMA_BYTES)


def _any_object(fields: Fields, key: str) -> Grammar | None:
    return Grammar(Syntax.JSON_SCHEMA, ANY_OBJECT, fields.name(key)) if fields.boolean(key, False) else None


def _regex(fields: Fields, key: str) -> Grammar | None:
    return _text(fields, key, Syntax.REGEX)


def _rules(fields: Fields, key: str) -> Grammar | None:
    return _text(fields, key, Syntax.GBNF)


def _choices(fields: Fields, key: str) -> Grammar | None:
    name = fields.name(key)
    values = array(fields.values[key], name, 1, MAX_CHOICES, "strings")
    choices = [string(value, f"{name}[{index}]") for index, value in enumerate(values)]
    if (n_bytes := sum(len(choice.encode()) for choice in choices)) > MAX_GRAMMAR_BYTES:
        raise out_of_range(name, f"at most {MAX_GRAMMAR_BYTES} bytes in all", n_bytes)
    return Grammar(Syntax.REGEX, "|".join(map(re.escape, choices)), name)


def _text(fields: Fields, key: str, syntax: Syntax, max_bytes: int = MAX_GRAMMAR_BYTES) -> Grammar:
    text = string(fields.values[key], fields.name(key), max_bytes=max_bytes)
    return Grammar(syntax, text, fields.name(key))


_READERS: dict[str, Reader] = {
    "json_schema": schema,
    "grammar": _rules,
    "regex": _regex,
    "guided_json": _schema_or_text,
    "guided_regex": _regex,
    "guided_choice": _choices,
    "guided_grammar": _rules,
}
_STRUCTURED: dict[str, Reader] = {
    "json": _schema_or_text,
    "regex": _regex,
    "choice": _choices,
    "grammar": _rules,
    "json_object": _any_object,
}
"""The keys of ``structured_outputs``."""

FIELDS = (*_READERS, "structured_outputs", "grammar_syntax")


def _given(fields: Fields) -> Iterator[Grammar]:
    yield from _read(fields, _READERS)
    structured = fields.object("structured_outputs")
    if structured is None:
        return
    for key, value in structured.values.items():
        if key not in _STRUCTURED and value not in (None, False):
            problem = f"expected to be absent: this server knows {', '.join(_STRUCTURED)}"
            raise RequestError(Fault.BAD_REQUEST, structured.name(key[:64]), problem)
    yield from _read(structured, _STRUCTURED)


def _read(fields: Fields, readers: dict[str, Reader]) -> Iterator[Grammar]:
    for key, read in readers.items():
        if fields.values.get(key) is not None:
            found = read(fields, key)
            if found is not None:
                yield found
