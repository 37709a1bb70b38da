"""The recording of the one whose voice a client wants to hear: from base64 to samples."""

from __future__ import annotations

import binascii

from umaserve.media.errors import MediaError
from umaserve.media.sounds import decode_file, resampled, samples_of
from umaserve.speech.voice import SAMPLE_RATE, BadReference, Samples

LEAST_S, MOST_S = 0.5, 60
MOST_FILE_BYTES = MOST_S * 48_000 * 2 * 2
"""As large as ``MOST_S`` may get where nothing is compressed."""


class Reference:
    """``data`` is base64 of little-endian float32 mono of ``sample_rate``, or of a file of any format where that is
    ``None``. It is decoded when ``samples`` is first asked for, which then takes tens of milliseconds."""

    def __init__(self, data: str, field: str, sample_rate: int | None) -> None:
        self._data = data
        self._field = field
        self._sample_rate = sample_rate
        self._samples: Samples | None = None

    def samples(self) -> Samples:
        """At ``SAMPLE_RATE``; raises ``BadReference``, which names ``field``."""
        if self._samples is None:
            try:
                self._samples = _decoded(self._data, self._sample_rate)
            except MediaError as error:
                raise BadReference(f"{self._field}: {error}") from error
            self._data = ""
        return self._samples


def _decoded(text: str, rate: int | None) -> Samples:
    most_bytes = MOST_FILE_BYTES if rate is None else MOST_S * rate * 4
    if len(text) > -(-most_bytes // 3) * 4:
        what = f"a file of at most {most_bytes} bytes" if rate is None else f"at most {MOST_S} s of sound"
        raise MediaError(f"expected {what} in base64, got {len(text)} characters")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise MediaError(f"expected base64, got {len(text)} characters that are none ({error})") from error
    samples, rate = decode_file(data) if rate is None else (samples_of(data), rate)
    seconds = len(samples) / rate
    if not LEAST_S <= seconds <= MOST_S:
        raise MediaError(f"expected {LEAST_S} to {MOST_S} s of somebody's voice, got {seconds:.2f} s")
    return resampled(samples, rate, SAMPLE_RATE)
