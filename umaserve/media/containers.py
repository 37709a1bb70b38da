"""Opens untrusted sound and video files with PyAV, with format and codec allow-lists and no access to other files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from umaserve.media.errors import MediaError, needed

if TYPE_CHECKING:
    from av import Packet
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

MAX_PACKETS = 1_000_000
"""Per file. A video of an hour at 60 frames a second has about 400,000."""
MAX_FRAME_PIXELS = 9_500_000
"""Per video frame: 4K. Decoders keep up to 17 reference frames: at 8K, a file of 100 KB took 1.9 GB."""

# Container formats whose header lists the streams, and which don't refer to other files.
_FORMATS = "mov,matroska,avi,ogg,wav,mp3,flac,aac"
_CODECS = frozenset(
    {
        *("h264", "hevc", "vp8", "vp9", "libdav1d", "mpeg4", "mjpeg", "theora"),
        *("aac", "mp3", "mp3float", "vorbis", "opus", "flac", "alac", "ac3", "eac3", "pcm_alaw", "pcm_mulaw"),
        *("pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be"),
        *("pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_f64be"),
    }
)
_OPEN_SECONDS = 20.0


@contextmanager
def opened(file: BinaryIO, expected: str) -> Iterator[InputContainer]:
    """The opened container. PyAV's exceptions within the block become ``MediaError`` that names ``expected``, except
    for ``MemoryError``."""
    with needed():
        import av
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        with av.open(
            file,
            "r",
            # For the decoders that ffmpeg opens while probing the streams.
            options={"max_pixels": str(MAX_FRAME_PIXELS)},
            container_options={"format_whitelist": _FORMATS, "codec_whitelist": ",".join(_CODECS)},
            metadata_errors="replace",
            timeout=(_OPEN_SECONDS, None),
            io_open=_refuse,
        ) as container:
            yield container
    except MemoryError:
        raise
    except (av.FFmpegError, ArithmeticError, LookupError, OSError, RuntimeError, ValueError) as error:
        problem = "damaged, cut off, too large or of an unknown format"
        raise MediaError(f"expected {expected}, got {size} bytes that are {problem}") from error


def _refuse(*_: object) -> NoReturn:
    raise PermissionError("a client's file refers to another file")


def prepare(stream: AudioStream | VideoStream) -> None:
    """Configure the stream's decoder, before its first packet. Raises ``MediaError`` if the codec isn't allowed."""
    context = stream.codec_context
    # None if ffmpeg doesn't know the codec.
    name = context.codec.name if context else "an unknown one"
    if name not in _CODECS:
        raise MediaError(f"expected a common codec, got {name}")
    # The other cores are busy with the model.
    context.thread_count = 1
    context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}


def packets(container: InputContainer, stream: AudioStream | VideoStream) -> Iterator[Packet[Any]]:
    """The stream's non-empty packets. Raises ``MediaError`` if there are too many, or one is corrupt."""
    for count, packet in enumerate(container.demux(stream)):
        if count > MAX_PACKETS:
            raise MediaError(f"expected a file of at most {MAX_PACKETS} packets, got more")
        if packet.is_corrupt:
            raise MediaError("expected an intact file, got one that is damaged or cut off")
        # An empty packet, which PyAV yields at the end, would flush the decoder.
        if packet.size:
            yield packet
