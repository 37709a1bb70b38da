"""G.711: µ-law and A-law (ITU-T G.711, tables 1 and 2), eight bits a sample, at 8 kHz."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import numpy.typing as npt

Law = Literal["u", "a"]
Codes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.int16]

SAMPLE_RATE = 8000
_BIAS, _CLIP = 0x84, 32635


def decoded(codes: Codes, law: Law) -> Samples:
    """The samples of ``codes``."""
    samples: Samples = _decoding(law)[codes]
    return samples


def encoded(samples: Samples, law: Law) -> Codes:
    """The codes of ``samples``."""
    codes: Codes = _encoding(law)[samples.view(np.uint16)]
    return codes


@functools.cache
def _decoding(law: Law) -> Samples:
    """The sample of each code."""
    code = np.arange(256)
    if law == "u":
        code = code ^ 0xFF
        size = (((code & 0x0F) << 3) + _BIAS << ((code & 0x70) >> 4)) - _BIAS
        return np.where(code & 0x80, -size, size).astype(np.int16)
    code = code ^ 0x55
    step, segment = (code & 0x0F) << 4, (code & 0x70) >> 4
    size = np.where(segment == 0, step + 8, (step + 0x108) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, size, -size).astype(np.int16)


@functools.cache
def _encoding(law: Law) -> Codes:
    """The code of each sample, by its bits."""
    sample = np.arange(2**16, dtype=np.uint16).view(np.int16).astype(np.int32)
    if law == "u":
        size = np.minimum(np.abs(sample), _CLIP) + _BIAS
        segment = np.floor(np.log2(size)).astype(np.int32) - 7
        code = np.where(sample < 0, 0x80, 0) | segment << 4 | (size >> segment + 3) & 0x0F
        codes: Codes = (code ^ 0xFF).astype(np.uint8)
        return codes
    size = np.where(sample < 0, ~sample, sample)
    segment = np.maximum(np.floor(np.log2(np.maximum(size, 1))).astype(np.int32) - 7, 0)
    code = np.where(sample < 0, 0, 0x80) | segment << 4 | (size >> np.maximum(segment + 3, 4)) & 0x0F
    codes = (code ^ 0x55).astype(np.uint8)
    return codes
