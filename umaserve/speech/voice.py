"""The interface of a text-to-speech voice: text in, samples out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from umaserve.system.threads import YieldPoint

SAMPLE_RATE = 24_000
"""Sample rate of all voices, in hertz."""
MAX_HEARD_S = 5
"""Most seconds used of a reference recording: llama.cpp encodes it again for each sentence, which takes one core a
fifth of the recording's duration."""

Samples = npt.NDArray[np.float32]


class SpeechError(Exception):
    """The text can't be spoken. The message is sent to the client."""


class BadReference(SpeechError):
    """The reference recording can't be used. The message begins with the name of its field."""


class Voice(Protocol):
    """Text-to-speech voice, used by one thread at a time, never by the event loop's."""

    @property
    def name(self) -> str:
        """Name of its package, or of its model's file."""

    @property
    def languages(self) -> Sequence[str]:
        """The languages it speaks, as ISO 639-1 codes, such as ``("en",)``."""

    @property
    def clones(self) -> bool:
        """Whether it can take on the voice of a reference recording."""

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        """Mono samples at ``SAMPLE_RATE``, within [-1, 1]; none if the text has nothing that this voice can say.

        ``speaker``: a reference recording at ``SAMPLE_RATE``, only for voices that clone; ``None``: the default voice.
        ``language``: one of ``languages``; empty: the voice's default. ``pause``: called every few milliseconds where
        the thread has other work; what it raises ends the call. Raises ``SpeechError``.
        """
