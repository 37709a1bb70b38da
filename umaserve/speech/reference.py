"""A reference recording for voice cloning: from base64 to samples."""

from __future__ import annotations

import binascii
from dataclasses import dataclass

from umaserve.core.requests import Base64
from umaserve.media.errors import MediaError
from umaserve.media.sounds import resampled, samples_of
from umaserve.speech.voice import MAX_HEARD_S, SAMPLE_RATE, BadReference, Samples

MIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Reference:
    """``data``: base64 of mono little-endian float32 samples at ``sample_rate`` hertz, whose length the caller has
    checked. ``field``: its name in the request, for errors."""

    data: Base64
    field: str
    sample_rate: int

    def samples(self) -> Samples:
        """The first ``MAX_HEARD_S`` seconds, at ``SAMPLE_RATE``. Raises ``BadReference``. Takes about 15 ms per minute
        of the recording."""
        try:
            return _decoded(self.data, self.sample_rate)
        except MediaError as error:
            raise BadReference(f"{self.field}: {error}") from error


def _decoded(text: Base64, rate: int) -> Samples:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise MediaError(f"expected base64, got {len(text)} characters that are not valid ({error})") from error
    samples = samples_of(data)
    if len(samples) < MIN_S * rate:
        raise MediaError(f"expected at least {MIN_S} s of a voice, got {len(samples) / rate:.2f} s")
    return resampled(samples[: MAX_HEARD_S * rate], rate, SAMPLE_RATE)
