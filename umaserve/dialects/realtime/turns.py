"""Finds where speech begins and ends in sound, by how loud it is."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from umaserve.dialects.realtime.settings import TurnDetection
from umaserve.dialects.realtime.sound_formats import Samples

FRAME_MS = 20
START_FRAMES = 3
"""Loud frames one after another that begin speech: a click is shorter."""
PAUSE_FRAMES = 10
"""Quiet frames one after another that may be the end: mostly longer than the silence within a word."""
QUIETEST_DB, RANGE_DB = -60.0, 40.0
"""The level of a threshold of 0, and what is added for one of 1, in decibels below full scale: speech is mostly at -35
to -20, and a quiet room below -50."""
HYSTERESIS_DB = 6.0
"""How much quieter speech may get and still go on: the ends of words do."""


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
    """Follows one stream of samples at ``rate``."""

    def __init__(self, rate: int, settings: TurnDetection) -> None:
        level = QUIETEST_DB + RANGE_DB * settings.threshold
        self._begins, self._goes_on = _power(level), _power(level - HYSTERESIS_DB)
        self._frame = rate * FRAME_MS // 1000
        self._silent_frames = max(1, settings.silence_ms // FRAME_MS)
        self._rest = np.zeros(0, np.float32)
        self._frames = self._run = 0
        """Frames so far; and of them the last ones that are loud, or in speech the last ones that are not."""
        self.speaking = False

    @property
    def at_ms(self) -> int:
        """The time until which the sound was looked at."""
        return FRAME_MS * self._frames

    def push(self, samples: Samples) -> Iterator[Change]:
        """Look at the next samples."""
        whole = np.concatenate([self._rest, samples])
        n_frames = len(whole) // self._frame
        frames = whole[: n_frames * self._frame].reshape(n_frames, self._frame)
        self._rest = whole[n_frames * self._frame :]
        for power in np.square(frames).mean(axis=1).tolist():
            yield from self._take(power)

    def _take(self, power: float) -> Iterator[Change]:
        self._frames += 1
        counts = power < self._goes_on if self.speaking else power >= self._begins
        before, self._run = self._run, self._run + 1 if counts else 0
        if self._run == (self._silent_frames if self.speaking else START_FRAMES):
            began = self.at_ms - FRAME_MS * START_FRAMES
            self._run, self.speaking = 0, not self.speaking
            yield Change(Sign.BEGINS, began) if self.speaking else Change(Sign.ENDS, self.at_ms)
        elif self.speaking and self._run == PAUSE_FRAMES:
            yield Change(Sign.PAUSES, self.at_ms)
        elif self.speaking and self._run == 0 and before >= PAUSE_FRAMES:
            yield Change(Sign.GOES_ON, self.at_ms)


def _power(level_db: float) -> float:
    return float(10 ** (level_db / 10))
