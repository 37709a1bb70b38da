"""Server-sent events (HTML standard, section 9.2) in passing: where a stream of them begins, and where one ends."""

from __future__ import annotations

from collections.abc import Mapping

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_BLANK_LINES = ("\n\n", "\n\r\n", "\n\r", "\r\r\n", "\r\r")
"""Two ends of lines: each is LF, CRLF or CR."""


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether these are the headers of one."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


def begins_event(text: str) -> bool:
    """Whether the beginning of a body is that of an event, or of a comment."""
    return text.lstrip("\ufeff\r\n").startswith(_FIELDS)


def end_of_events(text: str) -> int:
    """How many characters of ``text`` are whole events; the rest is one that has only begun."""
    return max(found + len(blank) if (found := text.rfind(blank)) >= 0 else 0 for blank in _BLANK_LINES)
