"""Takes very long strings, such as videos in base64, out of JSON before it is parsed.

Parsing blocks the loop: a parser takes some 200 ms for 100 MB, and a copy of them takes 50 to 300 ms.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

LONG = 1 << 20
"""Bytes from which a string is taken out."""
MEDIA_FIELDS = ("data", "url", "image_url", "audio")
CONVERSATIONS = ("messages", "input", "prompt", "params")
"""The fields of a request that hold a conversation, or the arguments of a tool."""
_MAX_REST, _MAX_TEXTS = 1 << 17, 4096
"""Bytes outside the long strings (``put_back`` visits each value there), and strings altogether; with more, none is
taken out."""
_PIECE = 1 << 18
_TO_THE_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BEHIND_A_NAME = re.compile(rb"[ \t\r\n]*:")


def take_out(payload: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """The JSON with a mark in place of each long string, and the strings by mark. Clients can't guess the marks.

    A string with an escape or a non-ASCII character stays, and all stay where much else is around them.
    """
    nonce = secrets.token_hex(16)
    texts: dict[str, memoryview] = {}
    parts: list[bytes] = []
    done = 0
    for start, end in _long_spans(payload):
        mark = f"{nonce}{len(texts)}"
        texts[mark] = memoryview(payload)[start:end]
        parts += [payload[done:start], mark.encode()]
        done = end
    return b"".join([*parts, payload[done:]]), texts


def put_back(value: Any, texts: Mapping[str, memoryview]) -> Any:
    """The parsed ``value`` with each mark replaced by its string: by a ``memoryview`` in ``MEDIA_FIELDS`` of a
    conversation, by a ``str`` elsewhere."""
    root = {"": value}
    holders: list[tuple[Any, bool]] = [(root, False)]
    while holders:
        holder, of_conversation = holders.pop()
        for key, one in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(one, str):
                if one in texts:
                    holder[key] = texts[one] if of_conversation and key in MEDIA_FIELDS else as_string(texts[one])
            elif isinstance(one, dict | list):
                holders.append((one, of_conversation or (holder is value and key in CONVERSATIONS)))
    return root[""]


def as_string(text: memoryview) -> str:
    return str(text, "ascii")


def _long_spans(payload: bytes) -> list[tuple[int, int]]:
    """Start and end, inside the quotes, of each long string that can be taken out; none with too much else around."""
    spans: list[tuple[int, int]] = []
    rest = at = 0
    for _ in range(_MAX_TEXTS):
        start = payload.find(b'"', at) + 1
        if not start:
            return spans if rest + len(payload) - at <= _MAX_REST else []
        end = payload.find(b'"', start)
        if end - start >= LONG and _plain(payload, start, end):
            spans.append((start, end))
            rest += start - at
        else:
            short = _TO_THE_END.match(payload, start, start + _MAX_REST)
            if short is None:
                break
            end = short.end() - 1
            rest += end - at
        if rest > _MAX_REST:
            break
        at = end + 1
    return []


def _plain(payload: bytes, start: int, end: int) -> bool:
    """Whether a string is a value, not an object's key, in ASCII without escapes and control characters."""
    if payload.find(b"\\", start, end) >= 0 or _BEHIND_A_NAME.match(payload, end + 1, end + 1 + _MAX_REST):
        return False
    text = np.frombuffer(payload, np.uint8, end - start, start)
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    # uint8 wraps around: a character below the space becomes a large number.
    return not any((piece - ord(" ") > ord("~") - ord(" ")).any() for piece in pieces)
