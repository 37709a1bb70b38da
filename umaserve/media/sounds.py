"""Sound from clients: raw PCM, files of common formats, and resampling."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from umaserve.media import child
from umaserve.media.errors import MediaError, needed

MAX_SECONDS = 1800
MIN_RATE, MAX_RATE = 1000, 384_000
_MAX_SAMPLES = MAX_SECONDS * 48_000
"""Per file. At higher rates than 48 kHz, which speech doesn't need, the limit in seconds is lower."""

Samples = npt.NDArray[np.float32]

_FILES = {
    "a WAV file": rb"R(?:IFF|F64).{4}WAVE",
    "an MP3 file": rb"ID3[\x02-\x04]\0.[\0-\x7f]{4}[A-Z][A-Z0-9]{2,3}",
    "an Ogg file": rb"OggS\0\x02",
    "a FLAC file": rb"fLaC[\0\x80]\0\0\x22",
    "an MP4 file": rb"\0\0..ftyp",
    "a WebM or Matroska file": rb"\x1aE\xdf\xa3.{1,60}(?:webm|matroska)",
}
"""Signatures of sound files, with enough after the magic number that samples don't match by chance. MP3 without an ID3
tag has none."""
_FILE_KINDS = [(kind, re.compile(begin, re.DOTALL)) for kind, begin in _FILES.items()]


def samples_of(data: bytes | memoryview) -> Samples:
    """The samples of little-endian float32 PCM, clipped to [-1, 1]. Raises ``MediaError``, also for sound files, whose
    bytes would pass as noise."""
    for kind, begin in _FILE_KINDS:
        if begin.match(data):
            raise MediaError(f"expected float32 samples, got {kind}: decode it first")
    return _unpacked(data)


def _unpacked(data: bytes | memoryview) -> Samples:
    if not data or len(data) % 4:
        raise MediaError(f"expected float32 samples, 4 bytes each, at least one, got {len(data)} bytes")
    return checked(np.frombuffer(data, "<f4"))


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """The sound resampled from ``rate`` to ``wanted`` hertz, within [-1, 1]; at least one sample."""
    if rate == wanted:
        return samples
    with needed():
        import soxr
    result: Samples = soxr.resample(samples, rate, wanted)
    # The filter overshoots; and a sound shorter than one new sample becomes empty.
    return result.clip(-1, 1) if len(result) else samples[:1]


def decode_file(data: bytes | memoryview) -> tuple[Samples, int]:
    """The first sound stream of a file, decoded in a child process: mono samples within [-1, 1], and their rate in
    hertz. Raises ``MediaError``."""
    match child.decoded(data, "sound"):
        case {"rate": int(rate)}, [pcm]:
            return received(pcm, rate), rate
    raise MediaError(child.NONSENSE)


def received(pcm: bytes, rate: int) -> Samples:
    """The samples from a child process, which is trusted no more than a client. Raises ``MediaError``."""
    if not MIN_RATE <= rate <= MAX_RATE or len(pcm) > 4 * max_samples(rate):
        raise MediaError(child.NONSENSE)
    return _unpacked(pcm)


def max_samples(rate: int) -> int:
    """Most samples accepted of one file at ``rate`` hertz."""
    return min(MAX_SECONDS * rate, _MAX_SAMPLES)


def checked(samples: Samples) -> Samples:
    """The samples clipped to [-1, 1]. Raises ``MediaError`` if one is NaN or infinite."""
    finite = np.isfinite(samples)
    if not finite.all():
        index = int(finite.argmin())
        raise MediaError(f"expected finite samples, got {samples[index]} at index {index}")
    return samples.clip(-1, 1)
