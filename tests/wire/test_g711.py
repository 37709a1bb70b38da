"""G.711 beside what its tables say."""

from __future__ import annotations

import numpy as np
import pytest

from umaserve.wire.g711 import Law, decoded, encoded

CODES = np.arange(256, dtype=np.uint8)
KNOWN: dict[Law, dict[int, int]] = {
    # ITU-T G.711: the decoder's outputs at both ends, of 14 and 13 bits there and of 16 here.
    "u": {0x00: -32124, 0x80: 32124, 0x7F: 0, 0xFF: 0, 0x8F: 16764, 0xF0: 120},
    "a": {0xD5: 8, 0x55: -8, 0xAA: 32256, 0x2A: -32256, 0x80: 5504},
}


@pytest.mark.parametrize("law", ["u", "a"])
def test_codes_are_those_of_the_tables(law: Law) -> None:
    for code, sample in KNOWN[law].items():
        assert decoded(np.array([code], np.uint8), law)[0] == sample, hex(code)


@pytest.mark.parametrize("law", ["u", "a"])
def test_a_code_survives(law: Law) -> None:
    again = encoded(decoded(CODES, law), law)
    # µ-law has two codes for 0.
    same = again == CODES
    assert set(CODES[~same].tolist()) <= ({0x7F} if law == "u" else set())


@pytest.mark.parametrize("law", ["u", "a"])
def test_samples_keep_their_size(law: Law) -> None:
    samples = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
    size = np.abs(samples.astype(np.int32))
    wrong = np.abs(decoded(encoded(samples, law), law).astype(np.int32) - samples)
    assert (wrong[size < 32_000] <= 16 + size[size < 32_000] // 16).all()
