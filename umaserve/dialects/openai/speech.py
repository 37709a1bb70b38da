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
from umaserve.dialects.http import SoundEvents, SpokenText
from umaserve.dialects.parameters import MAX_ID_BYTES
from umaserve.wire.fields import Fields, array, bad_request, out_of_range, string

MAX_INPUT_CHARS = 4096
MAX_INSTRUCTIONS_BYTES = 16 * 1024
MAX_VOICE_BYTES = 64
COMPRESSED: Mapping[str, SoundFormat] = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac"}
TEXT_FORMATS = {**COMPRESSED, "wav": None, "pcm": None}
CHAT_FORMATS = {**COMPRESSED, "wav": None, "pcm16": None}
"""Formats by name, each with the encoder's format; ``None``: 16-bit samples, which need no encoder."""


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
    fields.string("model", max_bytes=MAX_ID_BYTES, empty=True)
    text = string(fields.values.get("input"), "input")
    if len(text) > MAX_INPUT_CHARS:
        raise out_of_range("input", f"at most {MAX_INPUT_CHARS} characters", f"{len(text)} characters")
    _check_voice(fields)
    audio_format = fields.one_of("response_format", _there(TEXT_FORMATS, voice))
    streams = fields.choice("stream_format", {"audio": None, "sse": EVENTS}, None)
    if fields.string("instructions", max_bytes=MAX_INSTRUCTIONS_BYTES, empty=True):
        raise RequestError(
            Fault.BAD_REQUEST,
            "instructions",
            "expected to be absent, since this daemon's voice can't follow instructions",
        )
    speed = fields.values.get("speed")
    if speed is not None and (isinstance(speed, bool) or speed != 1):
        raise bad_request("speed", "1, the only speed of this daemon's voice", speed)
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, "voice", f"can't be used, {NO_VOICE}")
    if audio_format is None:
        # OpenAI's default is MP3, unless it can't be made here.
        audio_format = "mp3" if "mp3" in voice.formats else "wav"
    return SpokenText(text, audio_format, TEXT_FORMATS[audio_format], streams)


def wanted_audio(fields: Fields, voice: VoiceInfo | None) -> str | None:
    """The format of a chat's spoken answer; ``None`` if it is text only. Raises ``RequestError``."""
    wanted = _modalities(fields)
    audio = fields.object("audio")
    if audio is not None:
        _check_voice(audio)
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
    if fields.boolean("stream", False) and audio_format != "pcm16":
        raise out_of_range("audio.format", '"pcm16" where stream is true', f'"{audio_format}"')
    return audio_format


def _there(formats: Mapping[str, SoundFormat | None], voice: VoiceInfo | None) -> list[str]:
    """The names of the formats that this daemon can make."""
    return [name for name, made in formats.items() if made is None or voice is None or made in voice.formats]


def _check_voice(fields: Fields) -> None:
    """Check the form of ``voice``: a name, or an object with an ``id``. Any name means the daemon's one voice."""
    value = fields.values.get("voice")
    if isinstance(value, dict):
        voice = Fields.of(value, fields.name("voice"))
        string(voice.values.get("id"), voice.name("id"), max_bytes=MAX_VOICE_BYTES)
    else:
        fields.string("voice", max_bytes=MAX_VOICE_BYTES)


def _modalities(fields: Fields) -> list[object]:
    value = fields.values.get("modalities")
    if value is None:
        return ["text"]
    wanted = array(value, "modalities", 1, 2, "modalities")
    if wanted not in (["text"], ["text", "audio"], ["audio", "text"]):
        raise out_of_range("modalities", '["text"] or ["text", "audio"]', "others")
    return wanted
