"""The recording of a voice that clients get who ask for the daemon's own one to clone."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

import orjson

from umaserve.errors import ConfigError
from umaserve.media.errors import MediaError
from umaserve.media.sounds import Samples, decode_file, resampled, samples_of
from umaserve.messages import Audio
from umaserve.settings.sources import printable

SAMPLE_RATE = 16_000
"""The contract's for what clients send, which this recording is to become."""
MAX_S = 60
MAX_BYTES = 64 << 20
RAW = (".f32", ".pcm")
"""Ends the name of a file that is float32 of 16 kHz, mono, and nothing else."""


@dataclass(frozen=True, slots=True)
class RefAudio:
    """The first 60 s of the sound of the file ``path``."""

    path: str
    audio: Audio
    n_samples: int

    def reply(self) -> bytes:
        """To ``GET /api/default_ref_audio``: a JSON object with its ``name``, its ``duration`` in seconds,
        ``sample_rate``, and ``base64``, which is float32 of 16 kHz, mono."""
        return orjson.dumps(
            {
                "name": os.path.basename(self.path),
                "duration": round(self.n_samples / SAMPLE_RATE, 3),
                "sample_rate": SAMPLE_RATE,
                "base64": self.audio.data,
            }
        )


def load(path: str) -> RefAudio:
    """Raises ``ConfigError`` for a file that can't be read as sound."""
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
