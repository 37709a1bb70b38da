"""Decodes untrusted video files with PyAV: frames at regular times, and the sound. Skips packets no frame needs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from umaserve.media import sound_decoder
from umaserve.media.containers import MAX_FRAME_PIXELS, opened, packets, prepare
from umaserve.media.errors import MediaError
from umaserve.media.images import Picture, fitted
from umaserve.media.sounds import Samples, max_samples
from umaserve.media.videos import MAX_FRAMES, MAX_KEPT_PIXELS, MAX_SECONDS, MAX_STACK_FRAMES, Film, Frame

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

_MAX_DECODED_PIXELS = 5 * 10**10
"""Per file, of all frames that must be decoded for those that are kept: about 100 s of 4K at 60 frames a second, or one
core for a minute."""

_Rgb = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Shot:
    """One output frame: the timestamp ``at`` of its picture, and those of the pictures ``between`` it and the next
    frame, which are tiled. In units of the stream's time base."""

    time_s: float
    at: int
    between: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Index:
    """A stream's packets in decoding order: their timestamps, the indices of key packets, and of packets that are never
    shown. ``end``: where the last one ends. In units of the stream's time base."""

    times: list[int]
    keys: list[int]
    hidden: set[int]
    end: int


def decode(file: BinaryIO, stack_frames: int) -> Film:
    """Decode a video, as ``videos.decode``, but from an open file and in this process."""
    assert 1 <= stack_frames <= MAX_STACK_FRAMES
    with opened(file, "a video") as container:
        stream = _pictures(container)
        index = _indexed(container, stream)
        assert stream.time_base is not None
        shots, needed = _planned(index, float(stream.time_base), stack_frames)
        # Refuses most files at once. The header's size may be wrong, so decoded frames are counted as well.
        _check_work(sum(needed) * stream.width * stream.height)
        start_s = shots[0].at * float(stream.time_base)
    with opened(file, "a video") as container:
        showing = _Showing(_decoded(container, _pictures(container), needed))
        frames = tuple(_framed(showing, shot) for shot in shots)
    with opened(file, "a video") as container:
        samples, rate = _sound(container, start_s)
    return Film(frames, samples, rate)


def _pictures(container: InputContainer) -> VideoStream:
    import av

    # Cover art of a song is a video stream too.
    cover = av.stream.Disposition.attached_pic
    stream = next((stream for stream in container.streams.video if not stream.disposition & cover), None)
    if stream is None or not stream.time_base:
        raise MediaError("expected a video, got a file without a video track")
    prepare(stream)
    _check_size(stream.width, stream.height)
    return stream


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_FRAME_PIXELS:
        raise MediaError(f"expected a video of at most {MAX_FRAME_PIXELS} pixels per frame, got {width} x {height}")


def _check_work(pixels: int) -> None:
    if pixels > _MAX_DECODED_PIXELS:
        raise MediaError("expected a video that is faster to decode: shorter, smaller, or with more key frames")


def _indexed(container: InputContainer, stream: VideoStream) -> _Index:
    """Reads all packets, which is cheap: the header's duration and frame rate can't be trusted."""
    times: list[int] = []
    keys: list[int] = []
    hidden: set[int] = set()
    end = 0
    for number, packet in enumerate(packets(container, stream)):
        time = packet.pts if packet.pts is not None else packet.dts
        if time is None:
            time = times[-1] if times else 0
        if packet.is_keyframe:
            keys.append(number)
        if packet.is_discard:
            hidden.add(number)
        times.append(time)
        end = max(end, time + (packet.duration or 0)) if number else time + (packet.duration or 0)
    return _Index(times, keys, hidden, end)


def _planned(index: _Index, tick_s: float, stack_frames: int) -> tuple[list[_Shot], bytearray]:
    """The output frames in order, and for each packet whether it must be decoded."""
    order = sorted(set(range(len(index.times))) - index.hidden, key=index.times.__getitem__)
    if not order:
        raise MediaError("expected a video, got one without frames")
    shown = [index.times[number] for number in order]
    length_s = (index.end - shown[0]) * tick_s
    if length_s > MAX_SECONDS:
        raise MediaError(f"expected a video of at most {MAX_SECONDS} s, got {length_s:.0f} s")
    count = max(1, math.ceil(length_s))
    every_s = 1.0
    if count > MAX_FRAMES:
        count, every_s = MAX_FRAMES, length_s / MAX_FRAMES

    def place(time_s: float) -> int:
        # Rounded, so that a time on a tick of the time base finds the picture that begins there.
        return bisect_right(shown, shown[0] + round(time_s / tick_s)) - 1

    shots = []
    needed = bytearray(len(index.times))
    for number in range(count):
        time_s = number * every_s
        main = place(time_s)
        inner = [time_s + every_s * part / stack_frames for part in range(1, stack_frames)]
        between = sorted({place(inner_s) for inner_s in inner if inner_s < length_s} - {main})
        for taken in (main, *between):
            _mark(needed, index, order[taken])
        shots.append(_Shot(time_s, shown[main], tuple(shown[taken] for taken in between)))
    return shots, needed


def _mark(needed: bytearray, index: _Index, number: int) -> None:
    """Mark a packet, and all before it back to a key packet that is shown no later: packets that follow a key packet
    but are shown before it may refer to earlier frames."""
    key = bisect_right(index.keys, number) - 1
    while key >= 0 and index.times[index.keys[key]] > index.times[number]:
        key -= 1
    first = index.keys[key] if key >= 0 else 0
    while number >= first and not needed[number]:
        needed[number] = True
        number -= 1


def _decoded(container: InputContainer, stream: VideoStream, needed: bytearray) -> Iterator[VideoFrame]:
    decoded = 0
    decoding = False
    for packet, wanted in zip(packets(container, stream), needed, strict=False):
        if wanted:
            frames = stream.decode(packet)
        elif decoding:
            frames = stream.decode(None)
            stream.codec_context.flush_buffers()
        else:
            continue
        decoding = bool(wanted)
        for frame in frames:
            _check_size(frame.width, frame.height)
            decoded += frame.width * frame.height
            yield frame
        _check_work(decoded)
    if decoding:
        yield from stream.decode(None)


class _Showing:
    """The picture shown at given times, which must not decrease."""

    def __init__(self, frames: Iterator[VideoFrame]) -> None:
        self._frames = frames
        self._now: VideoFrame | None = None
        self._next = next(frames, None)

    def at(self, time: int) -> VideoFrame:
        """The last picture at or before ``time``, else the first one."""
        while self._next is not None and (self._now is None or _time(self._next) <= time):
            self._now, self._next = self._next, next(self._frames, None)
        if self._now is None:
            raise MediaError("expected a video, got one without a frame that can be decoded")
        return self._now


def _time(frame: VideoFrame) -> int:
    return frame.pts if frame.pts is not None else frame.dts or 0


def _framed(showing: _Showing, shot: _Shot) -> Frame:
    frame = showing.at(shot.at)
    width, height = fitted(frame.width, frame.height, MAX_KEPT_PIXELS, max_edge=MAX_KEPT_PIXELS)
    pictures = [_upright(frame, width, height)]
    if shot.between:
        columns = math.ceil(math.sqrt(len(shot.between)))
        tiles = [
            _upright(showing.at(time), max(1, width // columns), max(1, height // columns)) for time in shot.between
        ]
        pictures.append(_tiled(tiles, columns))
    return Frame(shot.time_s, tuple(Picture(rgb.shape[1], rgb.shape[0], rgb.tobytes()) for rgb in pictures))


def _upright(frame: VideoFrame, width: int, height: int) -> _Rgb:
    """The picture scaled to this size, as RGB of shape (height, width, 3), rotated by the stream's display matrix."""
    small = frame.reformat(width, height, "rgb24", interpolation="AREA", threads=1)
    turns = round(frame.rotation / 90) % 4
    return np.rot90(small.to_ndarray().astype(np.uint8, copy=False), turns)


def _tiled(tiles: list[_Rgb], columns: int) -> _Rgb:
    """The tiles in rows of ``columns``; the unused rest of the last row is black."""
    height, width, _ = tiles[0].shape
    canvas = np.zeros((math.ceil(len(tiles) / columns) * height, columns * width, 3), np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // columns * height, number % columns * width
        canvas[top : top + height, left : left + width] = tile
    return canvas


def _sound(container: InputContainer, start_s: float) -> tuple[Samples | None, int]:
    """Samples and rate of the sound, from the first picture on; padded with silence if it begins later."""
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        return None, 0
    samples, rate, sound_s = sound_decoder.decode_stream(container, stream)
    late = round((sound_s - start_s) * rate)
    if late < 0:
        samples = samples[-late:]
    elif late + len(samples) > max_samples(rate):
        raise MediaError(
            f"expected a video whose sound begins with it, got one whose sound begins after {late // rate} s"
        )
    elif late:
        samples = np.concatenate([np.zeros(late, np.float32), samples])
    return (samples, rate) if len(samples) else (None, 0)
