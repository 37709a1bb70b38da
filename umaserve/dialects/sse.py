"""Server-sent events (HTML standard, section 9.2), as far as APIs use them: events of one line of data."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"


def event(data: bytes, name: str = "") -> bytes:
    """``data``, which has no line break, as one event."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)
