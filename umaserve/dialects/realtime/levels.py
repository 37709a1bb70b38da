"""How much sound is like speech, frame by frame: by how loud it is, or by a detector of speech."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from umaserve.dialects.realtime.sound_formats import Lowered, Samples
from umaserve.dialects.realtime.speech_model import FRAME, RATE, SpeechModel

QUIETEST_DB, RANGE_DB = -60.0, 40.0
"""The level of a threshold of 0, and what is added for one of 1, in decibels below full scale: speech is mostly at -35
to -20, and a quiet room below -50."""
HYSTERESIS_DB = 6.0
"""How much quieter speech may get and still go on: the ends of words do."""
HYSTERESIS = 0.15
"""How much less likely speech may get and still go on, as in Silero's own programs."""
LEAST = 0.01
"""The probability below which nothing is speech."""


class Levels(Protocol):
    """The levels of one stream of samples."""

    frame_ms: int
    begins: float
    """The least level of a frame that begins speech."""
    goes_on: float
    """The least level of one that goes on with it."""

    def push(self, samples: Samples) -> list[float]:
        """The levels of the frames that are whole with the next samples."""
        ...


class Loudness:
    """The power of frames, for samples at ``rate``. ``threshold``: from 0 to 1."""

    frame_ms = 20

    def __init__(self, rate: int, threshold: float) -> None:
        level = QUIETEST_DB + RANGE_DB * threshold
        self.begins, self.goes_on = _power(level), _power(level - HYSTERESIS_DB)
        self._frames = _Frames(rate * self.frame_ms // 1000)

    def push(self, samples: Samples) -> list[float]:
        powers: list[float] = np.square(self._frames.push(samples)).mean(axis=1).tolist()
        return powers


class Likeness:
    """The probability that frames are speech, for samples at ``rate``; it takes 0.2 ms a frame. ``threshold``: the
    least one of speech."""

    frame_ms = 1000 * FRAME // RATE

    def __init__(self, rate: int, threshold: float, model: SpeechModel) -> None:
        self.begins, self.goes_on = threshold, min(threshold, max(LEAST, threshold - HYSTERESIS))
        self._stream = model.stream()
        self._lowered = None if rate == RATE else Lowered()
        self._frames = _Frames(rate * self.frame_ms // 1000)

    def push(self, samples: Samples) -> list[float]:
        frames = self._frames.push(samples)
        return [self._stream.probability(self._lowered.push(one) if self._lowered else one) for one in frames]


class _Frames:
    """Cuts samples into frames of ``n``."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._rest = np.zeros(0, np.float32)

    def push(self, samples: Samples) -> Samples:
        """The frames that are whole with the next samples, a row each."""
        whole = np.concatenate([self._rest, samples])
        n_frames = len(whole) // self._n
        self._rest = whole[n_frames * self._n :]
        return whole[: n_frames * self._n].reshape(n_frames, self._n)


def _power(level_db: float) -> float:
    return float(10 ** (level_db / 10))
