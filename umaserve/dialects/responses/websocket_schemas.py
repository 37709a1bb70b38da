"""Schemas of the messages of the Responses API's WebSocket."""

from __future__ import annotations

import re
from typing import Any

from umaserve.dialects.responses.reply_schemas import ResponseEvent
from umaserve.dialects.responses.schemas import MAX_ITEMS, ResponseInputItem, ResponseRequest
from umaserve.wire.declared import (
    Declared,
    Field,
    Kind,
    const,
    mapping,
    named,
    nullable,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    text_or,
    whole,
)
from umaserve.wire.fields import Fields, bad_request, out_of_range

_STREAM_ID = "[A-Za-z0-9_.-]{1,256}"


def _stream_id(given: Any, path: str) -> str:
    expected = "1 to 256 letters, digits, _, - or ."
    if not isinstance(given, str):
        raise bad_request(path, expected, given)
    if not re.fullmatch(_STREAM_ID, given):
        raise out_of_range(path, expected, f'"{given}"')
    return given


class ResponseCreate(ResponseRequest):
    """A client's message on the WebSocket. stream and background have no effect there: each response is a stream."""

    type = required(const("response.create"))
    stream_id = optional(
        Kind(string(pattern=f"^{_STREAM_ID}$").schema, _stream_id),
        "A name that all events of the response repeat. Responses are made one after another, whatever their names.",
    )
    generate = switch(
        True,
        "false: the prompt is computed and cached, and the response has no output. With instructions, input may be"
        " empty or absent then.",
    )


class WarmUp(ResponseCreate):
    """A message with ``generate`` false."""

    input = Field(
        text_or(ResponseInputItem, 0, MAX_ITEMS, of="items"), "", required=False, nullable=True, absent=list[Fields]()
    )


class _ToldError(Declared):
    message = required(string(), "Names the field, what was expected and what was found.")
    type = required(string())
    param = nullable(string(), "The field.")
    code = required(string(), "Such as previous_response_not_found.")
    headers = omittable(mapping(string()), "Those that the error would have in a reply of HTTP.")
    n_prompt_tokens = omittable(whole(), "Of a prompt that is too long.")
    n_ctx = omittable(whole(), "The context that it is too long for.")


class ResponseError(Declared):
    """An error before the first event of a response."""

    type = required(const("error"))
    status = required(whole(), "As of a reply of HTTP.")
    stream_id = omittable(string())
    error = required(_ToldError)


ResponseServerMessage = named("ResponseServerMessage", one_of(ResponseEvent, ResponseError))
