"""The first bytes of GGUF files, made by hand."""

from __future__ import annotations

import struct


def text(value: bytes) -> bytes:
    """A string of the format."""
    return struct.pack("<Q", len(value)) + value


def header(*entries: tuple[str, int, bytes], magic: bytes = b"GGUF", version: int = 3) -> bytes:
    """A header of no tensors; each entry has a key, the number of a type, and its value's bytes."""
    pairs = (text(key.encode()) + struct.pack("<I", kind) + value for key, kind, value in entries)
    return struct.pack("<4sIQQ", magic, version, 0, len(entries)) + b"".join(pairs)
