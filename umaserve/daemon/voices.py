"""The daemon's voice, and the reference recording that clients may ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from umaserve.errors import ConfigError
from umaserve.messages import Audio
from umaserve.outputs import VoiceInfo
from umaserve.settings.daemon import Config
from umaserve.speech.load import load as load_voice
from umaserve.speech.reference import Reference
from umaserve.speech.voice import BadReference, Samples, Voice
from umaserve.stages import ref_audio
from umaserve.stages.ref_audio import RefAudio
from umaserve.stages.spoken import Speech
from umaserve.system.threads import JobThread

log = logging.getLogger(__name__)


class ComputedVoice(Voice, Protocol):
    """A voice that llama.cpp computes, on the thread that computes all else."""

    def load(self) -> None:
        """Read its weights, on the compute thread; raises ``ModelError``."""

    def close(self) -> None: ...


NewVoice = Callable[[Config, Samples | None], ComputedVoice]
"""The voice of ``config.tts_model``, which is that of the recording, if there is one; nothing of it is loaded yet."""


class Voices:
    """The voice that ``config`` asks for. Raises ``ConfigError`` for a recording that can't be used."""

    def __init__(
        self, config: Config, new_voice: NewVoice | None, wake: Callable[[], None], compute: JobThread
    ) -> None:
        reference = ref_audio.load(config.ref_audio) if config.ref_audio else None
        self._computed: ComputedVoice | None = None
        if config.tts_model and new_voice is not None:
            self._computed = new_voice(config, None if reference is None else _own_voice(reference.audio))
            self.speech = Speech(self._computed, wake, compute)
        else:
            self.speech = Speech(load_voice(), wake)
        self.ref_audio = _to_clone(reference, self.speech.voice)

    def load(self) -> None:
        """On the compute thread; raises ``ModelError``."""
        if self._computed is not None:
            self._computed.load()

    def close(self) -> None:
        """After all threads have ended."""
        if self._computed is not None:
            self._computed.close()


def _to_clone(reference: RefAudio | None, voice: VoiceInfo | None) -> RefAudio | None:
    """The recording for clients to clone; ``None`` where the voice could not clone it."""
    if reference is None or (voice is not None and voice.clones):
        return reference
    why = "no voice" if voice is None else "a voice that can't take on another one"
    log.warning("--ref-audio has no effect: this daemon has %s; --tts-model gives it one that can", why)
    return None


def _own_voice(recording: Audio) -> Samples:
    try:
        return Reference(recording.data, "ref_audio", ref_audio.SAMPLE_RATE).samples()
    except BadReference as error:
        raise ConfigError(str(error)) from error
