"""What a voice is to the rest of the daemon: text in, samples out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from umaserve.system.threads import YieldPoint

SAMPLE_RATE = 24_000
"""Samples a second, of every voice."""
MAX_HEARD_S = 5
"""Of a recording of the one who is to speak: llama.cpp encodes it anew for each sentence, which takes a core a fifth of
its length."""

Samples = npt.NDArray[np.float32]


class SpeechError(Exception):
    """The text can't be spoken; the message is for the client."""


class BadReference(SpeechError):
    """The recording of the one who is to speak can't be used; the message begins with its field."""


class Voice(Protocol):
    """Used on one thread at a time, and never on the loop's."""

    @property
    def languages(self) -> Sequence[str]:
        """What it speaks, as ISO 639-1 codes: ``("en",)``."""

    @property
    def clones(self) -> bool:
        """Whether a recording of somebody can be its speaker."""

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        """Mono samples at ``SAMPLE_RATE``, within [-1, 1]; none where the text has nothing that this voice can say.

        ``speaker``: a recording at that rate of the one whose voice it is to be, for a voice that clones.
        ``language``: one of ``languages``; empty: the voice's own. Where the thread has other work too, ``pause`` is
        called every few milliseconds; it may raise to end the call. Raises ``SpeechError``.
        """
