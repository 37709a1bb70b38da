"""Replies to Wyoming's clients: the events that answer theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from umaserve.core.errors import RequestError
from umaserve.core.events import ListedModel, VoiceInfo
from umaserve.wire.pcm import SAMPLE_RATE, pcm16
from umaserve.wire.wyoming import Event

NAME = "umaserve"
_WHISPER = """
af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it
ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so
sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh
"""
HEARD_LANGUAGES = _WHISPER.split()
"""Languages of Whisper, whose encoder most models that hear are built on. No file says which ones its model
understands, and Home Assistant offers a model only for the languages that it names."""
CHUNK_BYTES = SAMPLE_RATE // 10 * 2
"""A tenth of a second: programs play a chunk when it is whole."""

_FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}


def info(version: str, models: Sequence[ListedModel], voice: VoiceInfo | None) -> Event:
    """The answer to ``describe``. ``version``: this program's. Of a model that has not been loaded yet and has a
    projector it is unknown whether it hears: it is listed, since a request has it loaded."""
    absent: dict[str, Any] = {kind: [] for kind in ("handle", "intent", "wake", "mic", "snd")}
    hears = [
        {**_artifact(one.name, one.description or "A model that hears."), "languages": HEARD_LANGUAGES}
        for one in models
        if one.takes is None or "audio" in one.takes
    ]
    asr = {
        **_artifact(NAME, "Transcripts by a language model.", version),
        "models": hears,
        "supports_transcript_streaming": False,
        "requires_external_vad": True,
    }
    data = {"asr": [asr] if hears else [], "tts": [], **absent}
    if voice is not None:
        speaks = {**_artifact(voice.name, voice.name), "languages": list(voice.languages), "speakers": None}
        tts = {
            **_artifact(NAME, "Text to speech.", version),
            "voices": [speaks],
            "supports_synthesize_streaming": True,
        }
        data["tts"] = [tts]
    return Event("info", data)


def _artifact(name: str, description: str, version: str | None = None) -> dict[str, Any]:
    made_by = {"name": name, "url": ""}
    return {
        "name": name,
        "attribution": made_by,
        "installed": True,
        "description": description,
        "version": version,
    }


def pong(text: str | None) -> Event:
    return Event("pong", {"text": text})


def error(failed: RequestError) -> Event:
    return Event("error", {"text": failed.message, "code": failed.fault.name.lower()})


def audio_start() -> Event:
    return Event("audio-start", _FORMAT)


def audio_chunks(sound: bytes) -> Iterator[Event]:
    """Events with ``sound``, which is little-endian float32 samples."""
    pcm = pcm16(sound)
    for start in range(0, len(pcm), CHUNK_BYTES):
        yield Event("audio-chunk", _FORMAT, pcm[start : start + CHUNK_BYTES])


def audio_stop() -> Event:
    return Event("audio-stop")


def synthesize_stopped() -> Event:
    return Event("synthesize-stopped")


def transcript(text: str, language: str) -> Event:
    """The event of a transcript; ``language``: what the client said of the speech, if it did."""
    return Event("transcript", {"text": text, "language": language or None})
