"""Speech in OpenAI's API: requests for it, in a chat and for a given text, and its audio formats."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.requests import SoundFormat
from umaserve.dialects import sse
from umaserve.dialects.chat.request import NO_VOICE
from umaserve.dialects.openai.schemas import CHAT_FORMATS, TEXT_FORMATS, ChatRequest
from umaserve.dialects.openai.sound_schemas import SpeechRequest
from umaserve.dialects.routes import SoundEvents, SpokenText
from umaserve.wire.fields import Fields, bad_request, out_of_range


def _delta(sound: bytes) -> bytes:
    return orjson.dumps({"type": "speech.audio.delta", "audio": base64.b64encode(sound).decode()})


EVENTS = SoundEvents(sse.CONTENT_TYPE, _delta, orjson.dumps({"type": "speech.audio.done"}), sse.event)
"""OpenAI's, without its usage: the voice counts no tokens."""


def voices(voice: VoiceInfo | None) -> bytes:
    """The body of ``GET /v1/audio/voices``, in the form that Open WebUI and others ask for: the daemon's one voice, or
    none."""
    known = [] if voice is None else [{"id": voice.name, "name": voice.name, "languages": list(voice.languages)}]
    return orjson.dumps({"voices": known})


def text_to_speech(fields: Fields, voice: VoiceInfo | None) -> SpokenText:
    """Parse a body of ``POST /v1/audio/speech``; raises ``RequestError``. ``voice``: the daemon's, if it has one."""
    given = SpeechRequest.view(fields)
    text = given.input
    # Whatever these are: there is one voice, with one speed.
    _ = given.model, given.voice, given.instructions, given.speed
    audio_format = given.one_of("response_format", _there(TEXT_FORMATS, voice))
    streams = EVENTS if given.stream_format == "sse" else None
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, "voice", f"can't be used, {NO_VOICE}")
    if audio_format is None:
        # OpenAI's default is MP3, unless it can't be made here.
        audio_format = "mp3" if "mp3" in voice.formats else "wav"
    return SpokenText(text, audio_format, TEXT_FORMATS[audio_format], streams)


def wanted_audio(given: ChatRequest, voice: VoiceInfo | None) -> str | None:
    """The format of a chat's spoken answer; ``None`` if it is text only. Raises ``RequestError``."""
    wanted, audio = given.modalities or ["text"], given.audio
    if audio is not None:
        _ = audio.voice
        audio.one_of("format", _there(CHAT_FORMATS, voice))
    if "audio" not in wanted:
        if audio is not None:
            raise RequestError(Fault.BAD_REQUEST, "audio", 'expected to be absent where modalities lack "audio"')
        return None
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, "modalities", f'expected ["text"], {NO_VOICE}')
    if audio is None:
        raise bad_request("audio", "an object with voice and format", None)
    audio_format = audio.required_one_of("format", _there(CHAT_FORMATS, voice))
    if given.stream and audio_format != "pcm16":
        raise out_of_range("audio.format", '"pcm16" where stream is true', f'"{audio_format}"')
    return audio_format


def _there(formats: Mapping[str, SoundFormat | None], voice: VoiceInfo | None) -> list[str]:
    """The names of the formats that this daemon can make."""
    return [name for name, made in formats.items() if made is None or voice is None or made in voice.formats]
