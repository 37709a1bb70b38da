"""Recognizes server-sent events (HTML standard, section 9.2) in a body that is passed through."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_BLANK_LINES = ("\n\n", "\n\r\n", "\n\r", "\r\r\n", "\r\r")
"""Two line endings in a row; each is LF, CRLF or CR."""


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether these are the headers of an event stream."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


def begins_event(text: str) -> bool:
    """Whether ``text``, the start of a body, starts with an event or a comment."""
    return text.lstrip("\ufeff\r\n").startswith(_FIELDS)


def end_of_events(text: str) -> int:
    """The number of characters of ``text`` that are whole events; the rest is an incomplete one."""
    return max(found + len(blank) if (found := text.rfind(blank)) >= 0 else 0 for blank in _BLANK_LINES)


def late_error(path: str, error: str) -> str:
    """The event that ends a stream which was broken off, in the form that clients of the API at ``path`` look for."""
    if path == "/v1/messages":
        # Anthropic's clients go by the event's name.
        data = orjson.dumps({"type": "error", "error": {"type": "api_error", "message": error}}).decode()
        return f"event: error\ndata: {data}\n\n"
    return f"data: {orjson.dumps({'error': error}).decode()}\n\n"
