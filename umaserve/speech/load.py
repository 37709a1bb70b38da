"""Finds the installed voice."""

from __future__ import annotations

import importlib.util

from umaserve.speech.hibari_voice import HibariVoice
from umaserve.speech.voice import Voice


def load() -> Voice | None:
    """The voice whose package is installed, if one is. Cheap: the model is loaded when the voice first speaks."""
    return HibariVoice() if importlib.util.find_spec("hibari") is not None else None
