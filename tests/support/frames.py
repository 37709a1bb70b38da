"""Frames written out by hand, so that a mistake in our codecs can't hide behind an equal one in what tests send."""

from __future__ import annotations

import json
import struct
from typing import Any

ZEROS = bytes(4)


def uds_frame(value: dict[str, Any] | bytes) -> bytes:
    """A payload behind its length (contract: uds-framed-json, Transport & Framing); a dict goes as JSON."""
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(payload).to_bytes(4, "little") + payload


def ws_header(
    opcode: int, length: int, *, fin: bool = True, rsv: int = 0, masked: bool = True, mask: bytes = ZEROS
) -> bytes:
    """All of a frame but its payload (RFC 6455, section 5.2), be it allowed or not; ``masked`` as a client's are."""
    first = fin << 7 | rsv << 4 | opcode
    if length < 126:
        start = struct.pack("!BB", first, masked << 7 | length)
    elif length < 2**16:
        start = struct.pack("!BBH", first, masked << 7 | 126, length)
    else:
        start = struct.pack("!BBQ", first, masked << 7 | 127, length)
    return start + mask * masked


def ws_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    mask: bytes = ZEROS,
) -> bytes:
    n = len(payload)
    header = ws_header(opcode, n, fin=fin, rsv=rsv, masked=masked, mask=mask)
    if not masked:
        return header + payload
    stream = (mask * (n // 4 + 1))[:n]
    return header + (int.from_bytes(payload) ^ int.from_bytes(stream)).to_bytes(n)
