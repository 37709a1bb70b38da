"""Decodes the sound of untrusted files with PyAV, mixed down to mono."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from umaserve.media.containers import opened, packets, prepare
from umaserve.media.errors import MediaError
from umaserve.media.sounds import MAX_RATE, MIN_RATE, Samples, checked, max_samples

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

_MAX_STRAY = 4
"""Undecodable packets allowed, plus one per ten decodable ones."""
_MAX_PLANES = 7
"""PyAV crashes with eight planes: it reads past the end of an array of eight pointers."""


def decode(file: BinaryIO) -> tuple[Samples, int]:
    """The first sound stream of a file: mono samples within [-1, 1], and their rate in hertz. Raises ``MediaError``."""
    with opened(file, "a sound") as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            raise MediaError("expected a sound, got a file without sound")
        samples, rate, _ = decode_stream(container, stream)
    if not len(samples):
        raise MediaError("expected a sound, got one without any sample that can be decoded")
    return samples, rate


def decode_stream(container: InputContainer, stream: AudioStream) -> tuple[Samples, int, float]:
    """One stream of an open file: as from ``decode``, but possibly empty, and its start time in seconds."""
    pcm = bytearray()
    rate, start_s = 0, 0.0
    for frame in _frames(container, stream):
        if not rate:
            rate, start_s = frame.sample_rate, frame.time or 0.0
            if not MIN_RATE <= rate <= MAX_RATE:
                raise MediaError(f"expected from {MIN_RATE} to {MAX_RATE} samples per second, got {rate}")
            limit = max_samples(rate)
        elif frame.sample_rate != rate:
            raise MediaError(f"expected one sample rate throughout, got {rate} and then {frame.sample_rate} per second")
        if len(pcm) // 4 + frame.samples > limit:
            raise MediaError(f"expected at most {limit // rate} s of sound at {rate} samples per second, got more")
        pcm += _mono(frame).tobytes()
    return checked(np.frombuffer(pcm, np.float32)), rate, start_s


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    from av.error import InvalidDataError

    prepare(stream)
    good = bad = 0
    for packet in packets(container, stream):
        try:
            frames = stream.decode(packet)
        except InvalidDataError:
            # Formats without a container, such as MP3, often have other data at the begin and end.
            bad += 1
            if bad > _MAX_STRAY + good // 10:
                raise
            continue
        good += 1
        yield from frames
    if good:
        yield from stream.decode(None)


def _mono(frame: AudioFrame) -> Samples:
    channels = frame.layout.nb_channels
    if frame.format.is_planar and channels > _MAX_PLANES:
        frame = _packed(frame)
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, channels).T
    mean: npt.NDArray[np.float64] = values.mean(axis=0, dtype=np.float64)
    bits = 8 * values.dtype.itemsize
    match values.dtype.kind:
        case "u":
            mean = mean / 2 ** (bits - 1) - 1
        case "i":
            mean = mean / 2 ** (bits - 1)
    return mean.astype(np.float32)


def _packed(frame: AudioFrame) -> AudioFrame:
    from av import AudioResampler

    (packed,) = AudioResampler(frame.format.packed, frame.layout, frame.sample_rate).resample(frame)
    return packed
