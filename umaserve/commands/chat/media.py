"""Image, audio and video files for the messages of ``umaserve chat``."""

from __future__ import annotations

import base64
from typing import Any

KINDS = ("image", "audio", "video")
MAX_BYTES = 768 << 20
"""1 GiB in base64, the upper limit of the daemon's --max-chat-bytes."""
SOUND_RATE = 16_000


class FileError(Exception):
    """A file can't be sent; the message names it and says why."""


def item(kind: str, path: str) -> dict[str, Any]:
    """A file as an item of a message's content (contract: chat-mode, Message). Raises ``FileError``."""
    if kind == "audio":
        return {"type": kind, "data": sound(path), "sample_rate": SOUND_RATE}
    return {"type": kind, "data": _base64(_read(path))}


def sound(path: str) -> str:
    """A file's sound, whatever its format, as base64 of mono float32 samples at 16 kHz. Raises ``FileError``."""
    # Imported here, because a chat without audio doesn't need them.
    from umaserve.media.errors import MediaError
    from umaserve.media.sounds import decode_file, resampled

    try:
        samples = resampled(*decode_file(_read(path)), SOUND_RATE)
    except MediaError as error:
        raise FileError(f"{path}: {error}") from None
    return _base64(samples.astype("<f4").tobytes())


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}: name a file that you may read") from None
    except ValueError:  # a NUL in the path
        raise FileError(f"{path!r}: no such file: name a file that you may read") from None
    if not data:
        raise FileError(f"{path}: is empty: name a file that has content")
    if len(data) > MAX_BYTES:
        raise FileError(f"{path}: has more than {MAX_BYTES >> 20} MiB, the most that a daemon accepts: make it smaller")
    return data


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
