"""The daemon's reference recording (``--ref-audio``), for clients to clone."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

import orjson

from umaserve.core.errors import ConfigError
from umaserve.core.requests import Audio
from umaserve.media.errors import MediaError
from umaserve.media.sounds import Samples, decode_file, resampled, samples_of
from umaserve.settings.sources import printable

SAMPLE_RATE = 16_000
"""Hertz, of reference audio that clients send (contract: chat-mode, Audio Format Specification)."""
MAX_S = 60
MAX_BYTES = 64 << 20
RAW = (".f32", ".pcm")
"""File name suffixes of headerless mono float32 samples at 16 kHz."""


@dataclass(frozen=True, slots=True)
class RefAudio:
    """The first ``MAX_S`` seconds of the sound file ``path``."""

    path: str
    audio: Audio
    n_samples: int

    def reply(self) -> bytes:
        """The body of ``GET /api/default_ref_audio``: a JSON object with ``name``, ``duration`` in seconds,
        ``sample_rate`` in hertz, and ``base64``, mono little-endian float32 samples."""
        return orjson.dumps(
            {
                "name": os.path.basename(self.path),
                "duration": round(self.n_samples / SAMPLE_RATE, 3),
                "sample_rate": SAMPLE_RATE,
                "base64": self.audio.data,
            }
        )


def load(path: str) -> RefAudio:
    """Reads and decodes the file. Raises ``ConfigError`` if it can't be read as sound."""
    try:
        samples = _samples(path)
    except OSError as error:
        raise _wrong(path, f"can't be read: {error.strerror}") from error
    except MediaError as error:
        raise _wrong(path, str(error)) from error
    data = base64.b64encode(samples.astype("<f4").tobytes()).decode()
    return RefAudio(path, Audio(data, "ref_audio", SAMPLE_RATE), len(samples))


def _samples(path: str) -> Samples:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise MediaError(f"expected at most {MAX_BYTES >> 20} MiB, got more")
    samples, rate = (samples_of(data), SAMPLE_RATE) if path.lower().endswith(RAW) else decode_file(data)
    return resampled(samples[: MAX_S * rate], rate, SAMPLE_RATE)


def _wrong(path: str, why: str) -> ConfigError:
    return ConfigError(f"ref_audio {printable(path)}: {why}: name a sound file, such as a WAV, with --ref-audio")
