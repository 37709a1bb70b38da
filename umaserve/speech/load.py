"""Which voice this daemon has: the one whose package is installed."""

from __future__ import annotations

import importlib.util

from umaserve.speech.hibari_voice import HibariVoice
from umaserve.speech.voice import Voice


def load() -> Voice | None:
    """Cheap: the voice reads its model when it first speaks, on the thread that calls it."""
    return HibariVoice() if importlib.util.find_spec("hibari") is not None else None
