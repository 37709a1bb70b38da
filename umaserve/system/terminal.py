"""Text of others, made safe to show in a terminal."""

from __future__ import annotations

import re

_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed (C0, DEL, C1), Unicode's other line ends, and what changes the order of the
characters that are shown (Bidi_Control; UAX #9)."""


def escaped(text: str) -> str:
    """``text`` with what would steer a terminal or hide other characters as ``\\uXXXX``, so that JSON stays JSON."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
