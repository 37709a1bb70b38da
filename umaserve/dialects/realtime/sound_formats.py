"""The formats of sound in OpenAI's Realtime API: 16-bit PCM at 24 kHz, and G.711's two laws at 8 kHz."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from umaserve.core.requests import Base64
from umaserve.dialects.realtime.schemas import RealtimeFormat
from umaserve.wire import g711, pcm
from umaserve.wire.fields import out_of_range

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """One of the three formats, all of them mono."""

    name: str
    rate: int
    """Samples per second."""
    width: int
    """Bytes of a sample."""
    law: g711.Law | None = None

    def samples(self, sound: bytes | bytearray) -> Samples:
        """``sound`` as samples from -1 to 1."""
        if self.law is None:
            whole = np.frombuffer(sound, "<i2")
        else:
            whole = g711.decoded(np.frombuffer(sound, np.uint8), self.law)
        return whole.astype(np.float32) / np.float32(32768)

    def ms(self, n_bytes: int) -> int:
        """The duration of so many bytes, in milliseconds."""
        return 1000 * n_bytes // (self.width * self.rate)

    def bytes_of(self, ms: int) -> int:
        """The bytes of so many milliseconds."""
        return self.width * (self.rate * ms // 1000)

    @property
    def shown(self) -> dict[str, Any]:
        return {"type": self.name} if self.law else {"type": self.name, "rate": self.rate}


class SpeechEncoder:
    """Speech in parts, from float32 samples at 24 kHz to one of the formats."""

    def __init__(self, of: SoundFormat) -> None:
        self._of = of
        self._lowered = Lowered()

    def encode(self, part: bytes) -> bytes:
        """The next part, of a multiple of 3 samples but for the last one."""
        if self._of.law is None:
            return pcm.pcm16(part)
        lowered = self._lowered.push(np.frombuffer(part, "<f4"))
        whole = (lowered * 32767).round().clip(-32768, 32767).astype(np.int16)
        return g711.encoded(whole, self._of.law).tobytes()


class Lowered:
    """Samples at 24 kHz, in parts, as samples at 8 kHz."""

    def __init__(self) -> None:
        self._before = np.zeros(len(_LOW_PASS) - 1, np.float32)
        """The last samples, which the filter looks back at."""

    def push(self, part: Samples) -> Samples:
        """The next part, of a multiple of 3 samples but for the last one."""
        samples = np.concatenate([self._before, part])
        self._before = samples[len(samples) - len(self._before) :]
        return np.convolve(samples, _LOW_PASS, "valid")[::_STEP]


_STEP = pcm.SAMPLE_RATE // g711.SAMPLE_RATE


def _low_pass() -> Samples:
    """The taps of a filter that leaves out what 8 kHz can't hold: a sinc with a Hamming window."""
    at = np.arange(-36, 37)
    taps = np.sinc(at * 2 * 3600 / pcm.SAMPLE_RATE) * np.hamming(len(at))
    whole: Samples = (taps / taps.sum()).astype(np.float32)
    return whole


_LOW_PASS = _low_pass()

PCM = SoundFormat("audio/pcm", pcm.SAMPLE_RATE, 2)
_FORMATS = {
    one.name: one
    for one in (
        PCM,
        SoundFormat("audio/pcmu", g711.SAMPLE_RATE, 1, "u"),
        SoundFormat("audio/pcma", g711.SAMPLE_RATE, 1, "a"),
    )
}


def format_of(given: RealtimeFormat | None) -> SoundFormat:
    """The format that is asked for; PCM where none is."""
    if given is None:
        return PCM
    _ = given.rate
    return _FORMATS[given.type]


def sound_of(given: Base64, field: str, of: SoundFormat) -> bytes:
    """The bytes in base64; raises ``RequestError`` for what is none, or ends within a sample."""
    try:
        sound = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise out_of_range(field, f"{of.name} in base64", "other characters") from None
    if len(sound) % of.width:
        raise out_of_range(field, f"whole samples of {of.width} bytes", f"{len(sound)} bytes")
    return sound
