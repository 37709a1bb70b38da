"""The recording of the one whose voice a client wants to hear: from base64 to samples."""

from __future__ import annotations

import binascii
from dataclasses import dataclass

from umaserve.media.errors import MediaError
from umaserve.media.sounds import resampled, samples_of
from umaserve.messages import Base64
from umaserve.speech.voice import MAX_HEARD_S, SAMPLE_RATE, BadReference, Samples

MIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Reference:
    """``data`` is base64 of little-endian float32 mono of ``sample_rate``. How much that may be is judged before."""

    data: Base64
    field: str
    sample_rate: int

    def samples(self) -> Samples:
        """At ``SAMPLE_RATE``, as much as a voice hears; raises ``BadReference``, which names ``field``. Takes some 15
        milliseconds for a minute."""
        try:
            return _decoded(self.data, self.sample_rate)
        except MediaError as error:
            raise BadReference(f"{self.field}: {error}") from error


def _decoded(text: Base64, rate: int) -> Samples:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise MediaError(f"expected base64, got {len(text)} characters that are none ({error})") from error
    samples = samples_of(data)
    if len(samples) < MIN_S * rate:
        raise MediaError(f"expected at least {MIN_S} s of somebody's voice, got {len(samples) / rate:.2f} s")
    return resampled(samples[: MAX_HEARD_S * rate], rate, SAMPLE_RATE)
