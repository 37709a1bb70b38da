"""Sound of untrusted bytes: PCM as it comes from clients, files in any of the usual formats, and other sample rates."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from umaserve.media import child
from umaserve.media.errors import MediaError, needed

MAX_SECONDS = 1800
MIN_RATE, MAX_RATE = 1000, 384_000
_MAX_SAMPLES = MAX_SECONDS * 48_000
"""Of one file: of what has a higher rate, which nobody uses for speech, fewer seconds are taken."""

Samples = npt.NDArray[np.float32]

_FILES = {
    "a WAV file": rb"R(?:IFF|F64).{4}WAVE",
    "an MP3 file": rb"ID3[\x02-\x04]\0.[\0-\x7f]{4}[A-Z][A-Z0-9]{2,3}",
    "an Ogg file": rb"OggS\0\x02",
    "a FLAC file": rb"fLaC[\0\x80]\0\0\x22",
    "an MP4 file": rb"\0\0..ftyp",
    "a WebM or Matroska file": rb"\x1aE\xdf\xa3.{1,60}(?:webm|matroska)",
}
"""How files begin, with enough behind the magic number that no sound's samples do by chance. MP3 without a tag has no
such beginning."""
_FILE_KINDS = [(kind, re.compile(begin, re.DOTALL)) for kind, begin in _FILES.items()]


def samples_of(data: bytes) -> Samples:
    """The samples of little-endian float32 PCM, clipped to [-1, 1]; raises ``MediaError``, also for a sound file, whose
    bytes would do as samples, of noise."""
    for kind, begin in _FILE_KINDS:
        if begin.match(data):
            raise MediaError(f"expected float32 samples, got {kind}: decode it first")
    return _unpacked(data)


def _unpacked(data: bytes) -> Samples:
    if not data or len(data) % 4:
        raise MediaError(f"expected float32 samples, 4 bytes each, at least one, got {len(data)} bytes")
    return checked(np.frombuffer(data, "<f4"))


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """The same sound, of ``rate`` samples a second, with ``wanted``, within [-1, 1]; at least one sample."""
    if rate == wanted:
        return samples
    with needed():
        import soxr
    result: Samples = soxr.resample(samples, rate, wanted)
    # Some overshoot at the filter's edges; none are left of a sound shorter than a sample.
    return result.clip(-1, 1) if len(result) else samples[:1]


def decode_file(data: bytes) -> tuple[Samples, int]:
    """The first sound of a file, mixed to one channel within [-1, 1], and its samples a second, decoded in a process of
    its own; raises ``MediaError``."""
    match child.decoded(data, "sound"):
        case {"rate": int(rate)}, [pcm]:
            return received(pcm, rate), rate
    raise MediaError(child.NONSENSE)


def received(pcm: bytes, rate: int) -> Samples:
    """The samples that another process decoded, which is trusted no more than a client; raises ``MediaError``."""
    if not MIN_RATE <= rate <= MAX_RATE or len(pcm) > 4 * max_samples(rate):
        raise MediaError(child.NONSENSE)
    return _unpacked(pcm)


def max_samples(rate: int) -> int:
    """That are taken of a file with so many a second."""
    return min(MAX_SECONDS * rate, _MAX_SAMPLES)


def checked(samples: Samples) -> Samples:
    """The samples, clipped to [-1, 1]; raises ``MediaError`` where one is no number."""
    finite = np.isfinite(samples)
    if not finite.all():
        index = int(finite.argmin())
        raise MediaError(f"expected finite samples, got {samples[index]} at index {index}")
    return samples.clip(-1, 1)
