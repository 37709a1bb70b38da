"""A film as pictures at even times and its sound, decoded in a process of its own."""

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
    """The picture at ``time_s`` after the film's start, and maybe one tiled of those between it and the next frame."""

    time_s: float
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Film:
    """``samples``: mono, ``rate`` a second, the first one at the first frame's time; ``None`` and 0 without sound."""

    frames: tuple[Frame, ...]
    samples: sounds.Samples | None
    rate: int


def decode(data: bytes, stack_frames: int) -> Film:
    """The film in one frame a second, or ``MAX_FRAMES`` over its length where that were more, and its sound; raises
    ``MediaError``.

    ``stack_frames``, 1 to ``MAX_STACK_FRAMES``: the pictures of each frame, itself and as many as there are at even
    times up to the next, which are tiled into one of at most the frame's size. Pictures have at most
    ``MAX_KEPT_PIXELS``; pixels that aren't square are taken as they are.
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
