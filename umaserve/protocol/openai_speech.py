"""Speech as OpenAI's API has it: who asks for it, in a chat or of a text of its own, and the sound's formats."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from umaserve.errors import Fault, RequestError
from umaserve.messages import VoiceInfo
from umaserve.protocol.chat_request import NO_VOICE
from umaserve.protocol.fields import Fields, array, bad_request, out_of_range, string
from umaserve.protocol.parameters import MAX_ID_BYTES

SAMPLE_RATE = 24_000
"""Samples a second; they are mono, 16 bit, little-endian."""
MAX_INPUT_CHARS = 4096
MAX_INSTRUCTIONS_BYTES = 16 * 1024
_OPENAI_VOICES = ("alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse")
VOICES = dict.fromkeys(("default", *_OPENAI_VOICES), True)
"""All of them the one voice that the daemon has."""
_CHAT_FORMATS = {name: name for name in ("wav", "pcm16")}
_TEXT_FORMATS = {name: name for name in ("wav", "pcm")}
UNKNOWN_SIZE = 0xFFFFFFFF
"""What a WAV header says where the sound is still being made."""


@dataclass(frozen=True, slots=True)
class TextToSpeech:
    """A text to be spoken, as a WAV file or as its samples alone."""

    text: str
    as_wav: bool


def text_to_speech(fields: Fields, voice: VoiceInfo | None) -> TextToSpeech:
    """What a body of ``POST /v1/audio/speech`` asks for; raises ``RequestError``. ``voice``: the daemon's, if it has
    one."""
    fields.string("model", max_bytes=MAX_ID_BYTES, empty=True)
    text = string(fields.values.get("input"), "input")
    if len(text) > MAX_INPUT_CHARS:
        raise out_of_range("input", f"at most {MAX_INPUT_CHARS} characters", f"{len(text)} characters")
    fields.choice("voice", VOICES, True)
    audio_format = fields.choice("response_format", _TEXT_FORMATS, "wav")
    fields.choice("stream_format", {"audio": True}, True)
    if fields.string("instructions", max_bytes=MAX_INSTRUCTIONS_BYTES, empty=True):
        raise RequestError(
            Fault.BAD_REQUEST, "instructions: expected to be absent, since this daemon's voice follows none"
        )
    speed = fields.values.get("speed")
    if speed is not None and (isinstance(speed, bool) or speed != 1):
        raise bad_request("speed", "1, since this daemon's voice has no other", speed)
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, f"voice: there is nobody to speak, {NO_VOICE}")
    return TextToSpeech(text, audio_format == "wav")


def wanted_audio(fields: Fields, voice: VoiceInfo | None) -> str | None:
    """The format in which a chat's answer is to be heard, "wav" or "pcm16"; ``None`` where it is to be read."""
    wanted = _modalities(fields)
    audio = fields.object("audio")
    if audio is not None:
        audio.choice("voice", VOICES, True)
        audio.choice("format", _CHAT_FORMATS, "")
    if "audio" not in wanted:
        if audio is not None:
            raise RequestError(Fault.BAD_REQUEST, 'audio: expected to be absent where modalities lack "audio"')
        return None
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, f'modalities: expected ["text"], {NO_VOICE}')
    if audio is None:
        raise bad_request("audio", "an object with voice and format", None)
    audio_format = audio.required_choice("format", _CHAT_FORMATS)
    if fields.boolean("stream", False) and audio_format != "pcm16":
        raise out_of_range("audio.format", '"pcm16" where stream is true', f'"{audio_format}"')
    return audio_format


def pcm16(pcm: bytes) -> bytes:
    """Samples from -1 to 1, little-endian float32, as 16-bit numbers."""
    samples = np.frombuffer(pcm, "<f4") * np.float32(32767)
    return samples.round().clip(-32768, 32767).astype("<i2").tobytes()


def wav(sound: bytes) -> bytes:
    """A WAV file of 16-bit samples."""
    return wav_header(len(sound)) + sound


def wav_header(n_bytes: int) -> bytes:
    """What stands before ``n_bytes`` of 16-bit samples in a WAV file (44 bytes); or before ``UNKNOWN_SIZE``."""
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    size = n_bytes if n_bytes == UNKNOWN_SIZE else n_bytes + 36
    return struct.pack("<4sI4s", b"RIFF", size, b"WAVE") + fmt + struct.pack("<4sI", b"data", n_bytes)


def _modalities(fields: Fields) -> list[object]:
    value = fields.values.get("modalities")
    if value is None:
        return ["text"]
    wanted = array(value, "modalities", 1, 2, "modalities")
    if wanted not in (["text"], ["text", "audio"], ["audio", "text"]):
        raise out_of_range("modalities", '["text"] or ["text", "audio"]', "others")
    return wanted
