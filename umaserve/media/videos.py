"""Decodes video files in a child process: frames at regular times, and the sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from umaserve.media import child, sounds
from umaserve.media.errors import MediaError
from umaserve.media.images import Picture

MAX_SECONDS = 3600
MAX_FRAMES = 64
MAX_STACK_FRAMES = 16
MAX_KEPT_PIXELS = 1_000_000


@dataclass(frozen=True, slots=True)
class Frame:
    """The picture at ``time_s`` seconds, and, if there are any, one tiled from those between it and the next frame."""

    time_s: float
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Film:
    """``samples``: mono at ``rate`` hertz, from the first frame's time on; ``None``, and ``rate`` 0, without sound."""

    frames: tuple[Frame, ...]
    samples: sounds.Samples | None
    rate: int


def decode(data: bytes, stack_frames: int) -> Film:
    """The video at one frame a second, or ``MAX_FRAMES`` over its length if that is fewer, and its sound. Raises
    ``MediaError``.

    ``stack_frames``, 1 to ``MAX_STACK_FRAMES``: pictures per frame interval, at regular times. The first is the frame
    itself; the others are tiled into one picture of at most the frame's size. Pictures have at most
    ``MAX_KEPT_PIXELS``; the pixel aspect ratio is ignored.
    """
    assert 1 <= stack_frames <= MAX_STACK_FRAMES
    head, parts = child.decoded(data, "film", str(stack_frames))
    match head:
        case {"frames": list(told), "rate": int(rate)} if 1 <= len(told) <= MAX_FRAMES:
            left = iter(parts)
            frames = tuple(_frame(one, left) for one in told)
            sound = list(left)
            if len(sound) <= 1 and all(one.time_s < other.time_s for one, other in pairwise(frames)):
                return Film(frames, sounds.received(sound[0], rate), rate) if sound else Film(frames, None, 0)
    raise MediaError(child.NONSENSE)


def _frame(told: object, parts: Iterator[bytes]) -> Frame:
    match told:
        case [int() | float() as time_s, list(sizes)] if 0 <= time_s <= MAX_SECONDS and 1 <= len(sizes) <= 2:
            return Frame(float(time_s), tuple(_picture(size, next(parts, b"")) for size in sizes))
    raise MediaError(child.NONSENSE)


def _picture(size: object, rgb: bytes) -> Picture:
    match size:
        case [int(width), int(height)] if min(width, height) >= 1 and width * height <= MAX_KEPT_PIXELS:
            if len(rgb) == 3 * width * height:
                return Picture(width, height, rgb)
    raise MediaError(child.NONSENSE)
