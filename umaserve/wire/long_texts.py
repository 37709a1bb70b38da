"""Very long texts in JSON, such as films in base64, taken out before it is parsed, since everybody waits meanwhile: for
100 MB a parser takes some 200 ms, and a copy from 50 to 300."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

LONG = 1 << 20
"""Bytes of a text that it pays for."""
MEDIA_FIELDS = ("data", "url")
_MAX_REST, _MAX_TEXTS = 1 << 17, 4096
"""Bytes of all else, which may be as many values to look at, and texts in it."""
_PIECE = 1 << 18
_TO_THE_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BEHIND_A_NAME = re.compile(rb"[ \t\r\n]*:")


def take_out(payload: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """JSON with a mark in place of each long text, and the texts by their marks, which nobody can guess.

    Where something is odd (an escape, a character that is not ASCII's, much else around them), they stay.
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
    """What was parsed, with the texts in place of their marks: of ``MEDIA_FIELDS`` below ``messages`` as they lie in
    memory, and others as strings."""
    root = {"": value}
    holders: list[tuple[Any, bool]] = [(root, False)]
    while holders:
        holder, of_messages = holders.pop()
        for key, one in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(one, str):
                if one in texts:
                    holder[key] = texts[one] if of_messages and key in MEDIA_FIELDS else as_string(texts[one])
            elif isinstance(one, dict | list):
                holders.append((one, of_messages or (holder is value and key == "messages")))
    return root[""]


def as_string(text: memoryview) -> str:
    return str(text, "ascii")


def _long_spans(payload: bytes) -> list[tuple[int, int]]:
    """Where long texts without escapes are, between their quotes; none where there is too much else."""
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
    """Whether a text is ASCII's without escapes and control characters, and no name of an object's field."""
    if payload.find(b"\\", start, end) >= 0 or _BEHIND_A_NAME.match(payload, end + 1, end + 1 + _MAX_REST):
        return False
    text = np.frombuffer(payload, np.uint8, end - start, start)
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    # What is below the first becomes large.
    return not any((piece - ord(" ") > ord("~") - ord(" ")).any() for piece in pieces)
