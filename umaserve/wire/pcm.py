"""Samples as bytes: float32 to 16-bit PCM, PCM to WAV, and integers to mono float32."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 24_000
"""Samples per second; mono."""
WAV_HEADER_BYTES = 44
UNKNOWN_SIZE = 0xFFFFFFFF
"""The size in the header of a WAV file whose samples are still being made."""


def pcm16(pcm: bytes) -> bytes:
    """Little-endian float32 samples from -1 to 1, as little-endian signed 16-bit samples."""
    samples = np.frombuffer(pcm, "<f4") * np.float32(32767)
    return samples.round().clip(-32768, 32767).astype("<i2").tobytes()


def mono(pcm: bytes, width: int, channels: int) -> bytes:
    """Little-endian float32 samples from -1 to 1, of integers of ``width`` bytes (1, 2 or 4; those of 1 are unsigned,
    as in WAV files): the mean of all channels."""
    full = 2 ** (8 * width - 1)
    of_all = np.frombuffer(pcm, "u1" if width == 1 else f"<i{width}").reshape(-1, channels)
    middle = full if width == 1 else 0
    samples: npt.NDArray[np.float64] = (of_all.mean(axis=1, dtype=np.float64) - middle) / full
    return samples.astype("<f4").tobytes()


def wav(sound: bytes) -> bytes:
    """A WAV file of the 16-bit samples ``sound``."""
    return wav_header(len(sound)) + sound


def wav_header(n_bytes: int) -> bytes:
    """The header, ``WAV_HEADER_BYTES`` long, of a WAV file with ``n_bytes`` of 16-bit samples, or ``UNKNOWN_SIZE``.

    Multimedia Programming Interface 1.0, chapter 3.
    """
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    size = n_bytes if n_bytes == UNKNOWN_SIZE else n_bytes + 36
    return struct.pack("<4sI4s", b"RIFF", size, b"WAVE") + fmt + struct.pack("<4sI", b"data", n_bytes)
