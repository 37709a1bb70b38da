"""Finds where speech begins and ends, by the levels of frames."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from umaserve.dialects.realtime.levels import Levels

START_MS = 60
"""How long speech is before it has begun: a click is shorter."""
PAUSE_MS = 200
"""Silence that may be the end: mostly longer than that within a word."""


class Sign(enum.Enum):
    """What the sound says of speech."""

    BEGINS = enum.auto()
    PAUSES = enum.auto()
    GOES_ON = enum.auto()
    """After a pause."""
    ENDS = enum.auto()
    """After the silence that tells so, which begins as a pause where it is longer than one."""


class Change(NamedTuple):
    """A sign, at this time from the first sample on."""

    sign: Sign
    at_ms: int


class TurnDetector:
    """Follows the frames of one stream. ``silence_ms``: how long a silence ends a turn."""

    def __init__(self, levels: Levels, silence_ms: int) -> None:
        self._begins, self._goes_on = levels.begins, levels.goes_on
        self._frame_ms = levels.frame_ms
        self._start_frames, self._pause_frames, self._silent_frames = map(
            self._frames_of, (START_MS, PAUSE_MS, silence_ms)
        )
        self._frames = self._run = 0
        """Frames so far; and of them the last ones that are speech, or in speech the last ones that are not."""
        self.speaking = False

    @property
    def at_ms(self) -> int:
        """The time until which the sound was looked at."""
        return self._frame_ms * self._frames

    @property
    def start_ms(self) -> int:
        """How long speech is before it has begun."""
        return self._frame_ms * self._start_frames

    def push(self, levels: Iterable[float]) -> Iterator[Change]:
        """Look at the next frames."""
        for level in levels:
            yield from self._take(level)

    def _take(self, level: float) -> Iterator[Change]:
        self._frames += 1
        counts = level < self._goes_on if self.speaking else level >= self._begins
        before, self._run = self._run, self._run + 1 if counts else 0
        if self._run == (self._silent_frames if self.speaking else self._start_frames):
            began = self.at_ms - self.start_ms
            self._run, self.speaking = 0, not self.speaking
            yield Change(Sign.BEGINS, began) if self.speaking else Change(Sign.ENDS, self.at_ms)
        elif self.speaking and self._run == self._pause_frames:
            yield Change(Sign.PAUSES, self.at_ms)
        elif self.speaking and self._run == 0 and before >= self._pause_frames:
            yield Change(Sign.GOES_ON, self.at_ms)

    def _frames_of(self, ms: int) -> int:
        """The frames that are at least as long."""
        return -(-ms // self._frame_ms)
