"""A streaming encoder of MP3, Opus, AAC and FLAC files with PyAV: float32 samples in, bytes out as they are ready."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from umaserve.media.errors import MediaError, needed
from umaserve.media.sounds import Samples

if TYPE_CHECKING:
    from av import AudioFrame

Format = Literal["mp3", "opus", "aac", "flac"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A file format: ffmpeg's muxer and encoder, the encoder's sample format, and bits per second (0: lossless). All
    these muxers work without seeking."""

    container: str
    codec: Literal["libmp3lame", "libopus", "aac", "flac"]
    sample_format: Literal["fltp", "flt", "s16"]
    bit_rate: int
    options: dict[str, str]


_KINDS: dict[Format, _Kind] = {
    # Without the Xing frame, which has the length and would be written at the end, and without an empty ID3 tag.
    "mp3": _Kind("mp3", "libmp3lame", "fltp", 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    # An Ogg page each 0.1 s (in microseconds): the default of 1 s delays a sentence's end until the next sentence.
    "opus": _Kind("ogg", "libopus", "flt", 32_000, {"page_duration": "100000"}),
    "aac": _Kind("adts", "aac", "fltp", 64_000, {}),
    "flac": _Kind("flac", "flac", "s16", 0, {}),
}
_COMMON_OPTIONS = {"flush_packets": "1", "fflags": "+bitexact"}


def formats() -> tuple[Format, ...]:
    """The formats that ``SoundEncoder`` can write: none without the extra ``media``. Doesn't import PyAV."""
    return tuple(_KINDS) if importlib.util.find_spec("av") is not None else ()


class SoundEncoder:
    """Writes one mono file. Used by one thread at a time. Buffers less than a second of sound."""

    def __init__(self, audio_format: Format, rate: int) -> None:
        """``rate``: hertz; 8000, 12000, 16000, 24000 or 48000, which all encoders support. Raises ``MediaError`` if
        PyAV is not installed or lacks the encoder."""
        with needed():
            import av
        kind = _KINDS[audio_format]
        if kind.codec not in av.codecs_available:
            raise MediaError(f"can't be written, since the server's PyAV lacks {kind.codec}: install av from PyPI")
        self._rate = rate
        self._written = _Written()
        self._container = av.open(
            self._written, "w", format=kind.container, container_options=_COMMON_OPTIONS | kind.options
        )
        self._stream = self._container.add_stream(kind.codec, rate=rate, layout="mono", format=kind.sample_format)
        if kind.bit_rate:
            self._stream.bit_rate = kind.bit_rate
        self._stream.codec_context.open()
        # Converts to the encoder's sample format and frame size.
        self._cutter = av.AudioResampler(
            kind.sample_format, "mono", rate, frame_size=self._stream.codec_context.frame_size
        )
        self._n_samples = 0

    def encode(self, samples: Samples) -> bytes:
        """Encode further samples, within [-1, 1]; returns the bytes that are ready, possibly none. Takes 2 to 20 ms of
        one core per second of speech: pass less at a time where others wait for the thread."""
        from av import AudioFrame

        if not len(samples):
            return b""
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = self._rate, self._n_samples, Fraction(1, self._rate)
        self._n_samples += len(samples)
        self._mux(self._cutter.resample(frame))
        return self._written.take()

    def finish(self) -> bytes:
        """The last bytes of the file. Called once, after all samples; a file of no samples is complete too."""
        if self._n_samples:
            self._mux(self._cutter.resample(None))
        self._container.mux(self._stream.encode(None))
        self._container.start_encoding()
        self._container.close()
        return self._written.take()

    def _mux(self, frames: Iterable[AudioFrame]) -> None:
        for frame in frames:
            self._container.mux(self._stream.encode(frame))


class _Written:
    """The file object that PyAV writes to. It has no ``seek``, so that ffmpeg writes forward only."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data
