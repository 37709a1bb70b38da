"""Real images, recordings and films, made in memory."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

Colour = tuple[int, int, int]

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
TURNED_LEFT = (0, -65536, 0, 65536, 0, 0, 0, 0, 1 << 30)
TURNED_RIGHT = (0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
"""Display matrices of films that are shown turned by a quarter."""


def halves(size: tuple[int, int] = (40, 30), left: Colour = RED, right: Colour = BLUE) -> Image.Image:
    """A picture of two colours side by side."""
    picture = Image.new("RGB", size, left)
    picture.paste(right, (size[0] // 2, 0, *size))
    return picture


def image(kind: str = "PNG", picture: Image.Image | None = None, **options: Any) -> bytes:
    """The file of a picture; ``kind`` and ``options`` as Pillow's ``save`` takes them."""
    file = io.BytesIO()
    (picture or halves()).save(file, kind, **options)
    return file.getvalue()


def sine(hertz: float = 440.0, seconds: float = 1.0, rate: int = 16000, level: float = 0.5) -> npt.NDArray[np.float32]:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def pitch(samples: npt.NDArray[np.float32], rate: int) -> float:
    """The strongest frequency of a sound, in hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


def wav(samples: npt.NDArray[np.float32], rate: int = 16000, channels: int = 1, width: int = 2) -> bytes:
    """A WAV file with the same in each channel, of 1 (unsigned), 2 or 4 bytes a sample."""
    file = io.BytesIO()
    scaled = np.repeat(np.round(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)), channels)
    values = (scaled + 128).astype(np.uint8) if width == 1 else scaled.astype(f"<i{width}")
    with wave.open(file, "wb") as writer:
        writer.setparams((channels, width, rate, 0, "NONE", ""))
        writer.writeframes(values.tobytes())
    return file.getvalue()


def recording(
    kind: str, codec: str, samples: npt.NDArray[np.float32], rate: int = 16000, layout: str = "mono"
) -> bytes:
    """A file of a container's ``kind`` ("mp3", "flac", "ogg", "mp4", "adts"), with ``codec`` inside, and the same in
    each channel."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        _mux_sound(container, stream, samples)
    return file.getvalue()


def film(
    colours: Sequence[Colour | Image.Image],
    fps: int = 5,
    *,
    size: tuple[int, int] = (64, 48),
    sound: npt.NDArray[np.float32] | None = None,
    rate: int = 16000,
    kind: str = "mp4",
    codec: str = "libx264",
    sound_codec: str = "aac",
    matrix: Sequence[int] | None = None,
    start_s: float = 0.0,
    late_s: float = 0.0,
    **options: str,
) -> bytes:
    """A film of one picture after another, each a colour or an image, with ``fps`` a second, and its sound.

    The pictures begin at ``start_s``, the sound ``late_s`` after them.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if matrix is not None:
            stream.set_display_matrix(matrix)
        # All streams have to be there before the first packet.
        track = container.add_stream(sound_codec, rate=rate, layout="mono") if sound is not None else None
        for number, colour in enumerate(colours):
            picture = colour if isinstance(colour, Image.Image) else Image.new("RGB", size, colour)
            frame: av.VideoFrame = av.VideoFrame.from_image(picture)  # type: ignore[no-untyped-call]
            frame.pts, frame.time_base = number + round(start_s * fps), Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            _mux_sound(container, track, sound, start_s + late_s)
    return file.getvalue()


def _mux_sound(container: Any, stream: Any, samples: npt.NDArray[np.float32], start_s: float = 0.0) -> None:
    interleaved = np.repeat(samples, stream.layout.nb_channels).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=stream.layout)
    frame.sample_rate, frame.pts = stream.rate, round(start_s * stream.rate)
    frame.time_base = Fraction(1, stream.rate)
    # What each encoder takes: its format, and so many samples at a time.
    resampler = av.AudioResampler(stream.format, stream.layout, stream.rate, stream.codec_context.frame_size or 1024)
    for part in [*resampler.resample(frame), *resampler.resample(None)]:
        container.mux(stream.encode(part))
    container.mux(stream.encode(None))
