"""What a detector of speech is to a session. It runs beside the loop."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

RATE = 8000
"""Samples per second that it gets, as telephones have."""
FRAME = 256
"""Samples that it gets at a time: 32 ms."""


class SpeechStream(Protocol):
    """One stream of sound, frame by frame."""

    def probability(self, frame: Samples) -> float:
        """The probability from 0 to 1 that the next frame is speech."""
        ...


class SpeechModel(Protocol):
    """The model, which all streams share."""

    def stream(self) -> SpeechStream:
        """A new stream of sound."""
        ...
