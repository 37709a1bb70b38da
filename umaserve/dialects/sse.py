"""Writes server-sent events (HTML standard, section 9.2) with one line of data each."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"


def event(data: bytes, name: str = "") -> bytes:
    """One event with ``data``, which must not contain a line break."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)


def ping() -> bytes:
    """A comment, which readers of events pass over."""
    return b":\n\n"
