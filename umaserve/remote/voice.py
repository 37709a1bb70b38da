"""The daemon's end of the voice that llama.cpp computes."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.remote.client import RemoteEngine
from umaserve.sessions.engine_api import YieldPoint
from umaserve.speech.voice import Samples


class RemoteVoice:
    """Implements ``speech.voice.Voice`` by the engine's process, on the compute thread."""

    clones = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.own: Samples | None = None
        """A recording of the default speaker, from before the engine is loaded."""
        self.engine: RemoteEngine | None = None
        """The present engine; ``None`` until it is loaded."""

    @property
    def languages(self) -> Sequence[str]:
        return ("en",) if self.engine is None else self.engine.languages

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        assert self.engine is not None, "a voice that was not loaded"
        return self.engine.speak(text, speaker, language, pause)
