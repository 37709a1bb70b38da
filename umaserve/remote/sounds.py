"""Sounds as the bytes of their samples."""

from __future__ import annotations

import numpy as np

from umaserve.remote.values import Coder, Malformed, Tail
from umaserve.speech.voice import Samples


def _write(samples: Samples, tail: list[bytes | memoryview]) -> int:
    tail.append(data := np.asarray(samples, np.float32).tobytes())
    return len(data)


def _read(value: object, tail: Tail) -> Samples:
    data = tail.take(value)
    if len(data) % 4:
        raise Malformed(f"expected samples of 4 bytes each, got {len(data)} bytes")
    return np.frombuffer(data, np.float32)


def _read_sound(value: object, tail: Tail) -> Samples:
    samples = _read(value, tail)
    # Also false for what is no number.
    if not np.abs(samples).max(initial=0.0) <= 1.0:
        raise Malformed("expected samples within [-1, 1]")
    return samples


SAMPLES = Coder(_write, _read)
SOUND = Coder(_write, _read_sound)
"""Coder of the sounds that clients hear."""
