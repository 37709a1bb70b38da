"""Speech on its way out: float32 samples as 16-bit ones, and a WAV file of those."""

from __future__ import annotations

import struct

import numpy as np

SAMPLE_RATE = 24_000
"""Samples a second; there is one channel."""
WAV_HEADER_BYTES = 44
UNKNOWN_SIZE = 0xFFFFFFFF
"""What a WAV header says where the sound is still being made."""


def pcm16(pcm: bytes) -> bytes:
    """Samples from -1 to 1, little-endian float32, as 16-bit numbers."""
    samples = np.frombuffer(pcm, "<f4") * np.float32(32767)
    return samples.round().clip(-32768, 32767).astype("<i2").tobytes()


def wav(sound: bytes) -> bytes:
    """A WAV file of 16-bit samples."""
    return wav_header(len(sound)) + sound


def wav_header(n_bytes: int) -> bytes:
    """What stands before ``n_bytes`` of 16-bit samples in a WAV file, ``WAV_HEADER_BYTES``; or before ``UNKNOWN_SIZE``.

    Multimedia Programming Interface 1.0, chapter 3.
    """
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    size = n_bytes if n_bytes == UNKNOWN_SIZE else n_bytes + 36
    return struct.pack("<4sI4s", b"RIFF", size, b"WAVE") + fmt + struct.pack("<4sI", b"data", n_bytes)
