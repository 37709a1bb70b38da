"""Recognizes server-sent events (HTML standard, section 9.2) in a body that is passed through."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_BLANK_LINES = ("\n\n", "\n\r\n", "\n\r", "\r\r\n", "\r\r")
"""Two line endings in a row; each is LF, CRLF or CR."""
_LINE_END = re.compile(r"\r\n|\r|\n")


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether these are the headers of an event stream."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


def begins_event(text: str) -> bool:
    """Whether ``text``, the start of a body, starts with an event or a comment."""
    return text.lstrip("\ufeff\r\n").startswith(_FIELDS)


def has_only_comments(text: str) -> bool:
    """Whether ``text`` has whole comments only, as a stream that waits for its first event."""
    comments = all(not line or line.startswith(":") for line in _LINE_END.split(text))
    return comments and 0 < len(text) == end_of_events(text)


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


class EventData:
    """Finds the data of each event in a stream that comes in parts; holds up to ``max_chars`` characters of one."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._rest: list[str] = []
        """The line that is not whole."""
        self._data: list[str] = []
        """The data lines of the event that is not whole."""
        self._held = 0
        """Characters received since the last event."""
        self._after_cr = False

    def feed(self, text: str) -> list[str]:
        """The data of the events that ``text`` completes; raises ``ValueError`` where one is too long."""
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        self._after_cr = text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        self._held += len(text)
        found = []
        for end in lines:
            line = "".join((*self._rest, end))
            self._rest.clear()
            if line.startswith("data:"):
                self._data.append(line[5:].removeprefix(" "))
            elif not line:
                if self._data:
                    found.append("\n".join(self._data))
                    self._data.clear()
                self._held = len(rest)
        if rest:
            self._rest.append(rest)
        if self._held > self._max_chars:
            raise ValueError(f"expected events of at most {self._max_chars} characters, got a longer one")
        return found
