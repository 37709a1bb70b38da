"""What a voice is to the rest of the daemon: text in, samples out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 24_000
"""Samples a second, of every voice."""


class SpeechError(Exception):
    """The text can't be spoken; the message is for the client."""


class Voice(Protocol):
    """Used on one thread at a time, and never on the loop's."""

    @property
    def languages(self) -> Sequence[str]:
        """What it speaks, as ISO 639-1 codes: ``("en",)``."""

    @property
    def clones(self) -> bool:
        """Whether a recording of somebody can be its speaker."""

    def speak(self, text: str) -> npt.NDArray[np.float32]:
        """Mono samples at ``SAMPLE_RATE``, within [-1, 1]; none where the text has nothing that this voice can say.

        Raises ``SpeechError``.
        """
