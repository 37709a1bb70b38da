"""The daemon's voice, and the reference recording that clients may ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.core.errors import ConfigError
from umaserve.core.events import VoiceInfo
from umaserve.core.requests import Audio
from umaserve.remote.voice import RemoteVoice
from umaserve.settings.daemon import Config
from umaserve.speech.load import load as load_voice
from umaserve.speech.reference import Reference
from umaserve.speech.voice import BadReference, Samples
from umaserve.stages import ref_audio
from umaserve.stages.ref_audio import RefAudio
from umaserve.stages.spoken import Speech
from umaserve.system.threads import JobThread

log = logging.getLogger(__name__)


class Voices:
    """The voice that ``config`` asks for: ``computed``, which gets the recording as its own, else an installed one.
    Raises ``ConfigError`` for a recording that can't be used."""

    def __init__(
        self, config: Config, computed: RemoteVoice | None, wake: Callable[[], None], compute: JobThread
    ) -> None:
        reference = ref_audio.load(config.ref_audio) if config.ref_audio else None
        if computed is not None:
            computed.own = None if reference is None else _own_voice(reference.audio)
            self.speech = Speech(computed, wake, compute)
        else:
            self.speech = Speech(load_voice(), wake)
        self.ref_audio = _to_clone(reference, self.speech.voice)


def _to_clone(reference: RefAudio | None, voice: VoiceInfo | None) -> RefAudio | None:
    """The recording for clients to clone; ``None`` where the voice could not clone it."""
    if reference is None or (voice is not None and voice.clones):
        return reference
    why = "no voice" if voice is None else "a voice that can't clone another"
    log.warning("--ref-audio has no effect: this daemon has %s; --tts-model adds one that can", why)
    return None


def _own_voice(recording: Audio) -> Samples:
    try:
        return Reference(recording.data, "ref_audio", ref_audio.SAMPLE_RATE).samples()
    except BadReference as error:
        raise ConfigError(str(error)) from error
