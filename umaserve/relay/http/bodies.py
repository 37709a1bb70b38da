"""Reads a client's body and writes it anew, so that its worker reads what was checked.

Servers read a body in different ways: of a repeated key the first value or the last, keys in whatever case (Go's
``encoding/json``), forms that others find malformed. So a worker gets what was parsed here, and what others could read
otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.fields import MAX_VALUES, Fields, parse_json
from umaserve.wire.long_texts import as_string
from umaserve.wire.multipart import Part, read_form, write_form

JSON = "application/json"
_MEANT = frozenset(
    (
        *("model", "name", "stream", "store", "background", "previous_response_id", "type", "action", "priority"),
        *("n", "stop", "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"),
    )
)
"""Keys by which a request is checked, routed, counted or limited."""
_MEANT_IN_FORMS = frozenset(("model", "stream"))


@dataclass(frozen=True, slots=True)
class JsonBody:
    """The fields of a JSON body, and the text of them that a worker gets."""

    fields: Fields
    text: str


def read_json(body: bytes) -> JsonBody:
    """The fields of a JSON body; raises ``RequestError``."""
    return _anew(Fields.of(parse_json(body, MAX_VALUES), "body").values, body)


def read_message(text: str) -> JsonBody:
    """The fields of a WebSocket's message; raises ``RequestError``. A message that is no JSON object has none and stays
    as it is, since its worker answers with the error."""
    message = text.encode()
    try:
        values = parse_json(message, MAX_VALUES)
    except RequestError:
        values = None
    return _anew(values, message) if isinstance(values, dict) else JsonBody(Fields({}), text)


def _anew(values: Mapping[str, Any], body: bytes) -> JsonBody:
    _check_case(values, _MEANT)
    text = written(values)
    # A key has a colon behind it, and of a repeated one only the last was kept. Other colons are in strings.
    if body.count(b":") > text.count(":"):
        raise RequestError(Fault.BAD_REQUEST, "body", "expected each key of an object once, got one repeated")
    return JsonBody(Fields(values), text)


def written(values: Mapping[str, Any]) -> str:
    """``values``, which were parsed from JSON, as JSON; raises ``RequestError``."""
    try:
        return orjson.dumps(values, default=as_string).decode()
    except orjson.JSONEncodeError:
        # orjson reads deeper nesting than it writes.
        raise RequestError(Fault.BAD_REQUEST, "body", "expected nesting less than 200 deep, got more") from None


@dataclass(frozen=True, slots=True)
class FormBody:
    """A form with files, and the values of its fields that mean something to the relay."""

    values: Mapping[str, str]
    parts: tuple[Part, ...]

    def for_worker(self, model: str) -> tuple[str, bytes]:
        """The Content-Type and the body of the form that asks for ``model``."""
        rest = (part for part in self.parts if part.name != "model")
        return write_form([Part("model", memoryview(model.encode())), *rest])


def read_form_body(body: bytes, content_type: str) -> FormBody:
    """The form in ``body``; raises ``RequestError``."""
    parts = read_form(body, content_type)
    _check_case((part.name for part in parts), _MEANT_IN_FORMS)
    values: dict[str, str] = {}
    for part in parts:
        if part.name in _MEANT_IN_FORMS:
            if part.name in values:
                raise RequestError(Fault.BAD_REQUEST, part.name, "expected one value, got several")
            if part.filename is not None:
                raise RequestError(Fault.BAD_REQUEST, part.name, "expected a value, got a file")
            values[part.name] = str(part.data, "utf-8", "replace")
    return FormBody(values, parts)


def _check_case(names: Iterable[str], meant: frozenset[str]) -> None:
    for name in names:
        # As encoding/json compares them: its "s" may also be a long one (U+017F).
        if name not in meant and (folded := name.casefold()) in meant:
            raise RequestError(Fault.BAD_REQUEST, name[:64], f'expected the key "{folded}" in lower case')
