"""Parses the request of ``/ws/chat``: the fields of its one message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.requests import Audio, ChatTurn, Generate, Sampling, Speaking
from umaserve.dialects.chat.schemas import MODES, SAMPLE_RATE, Generation, ImageOptions, SpokenChatRequest
from umaserve.dialects.content import ImageSettings, check_media, turn_with_media
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    model_name,
    sampling,
    within_cap,
)
from umaserve.wire.fields import Fields, out_of_range

DEFAULTS = Sampling(temperature=0.7, top_p=0.8)
"""The contract's defaults; the others are this server's own."""

DEFAULT_NEW_TOKENS = 512
MAX_VOICE_S = 60
NO_VOICE = "since this daemon has no voice: its operator can pip install 'umaserve[speech]'"

_SPOKEN = "Your answers are read aloud: write plain sentences, without lists, headings, tables, code or emoji."
SYSTEM_PROMPTS: dict[str, str | None] = {
    "default": None,
    "audio_assistant": f"You are a helpful assistant. {_SPOKEN}",
    "omni": f"You are a helpful assistant in a spoken conversation: keep to a few sentences. {_SPOKEN}",
    "audio_roleplay": f"Play the person whose voice you have, and stay in that role. {_SPOKEN}",
    "voice_cloning": f"You talk with the voice of the person who was recorded. {_SPOKEN}",
}
"""The modes of ``tts``, each with the system prompt for a conversation without one."""
CLONING = ("audio_roleplay", "voice_cloning")
"""The modes in which the recorded person speaks, never another voice instead."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request, and how to answer it."""

    request: Generate
    streaming: bool
    ignores_recording: bool
    """Whether the daemon's own voice speaks although the request has a recording."""


def read_request(fields: Fields, limits: RequestLimits, voice: VoiceInfo | None, request_id: str) -> ChatRequest:
    """The request in the message; raises ``RequestError``. ``voice``: the daemon's, if it has one."""
    turns = _turns(fields, limits)
    speech = _speech(fields, voice)
    system = None if speech is None else SYSTEM_PROMPTS[speech.mode]
    if system is not None and not any(turn.role == "system" for turn in turns):
        turns = (ChatTurn("system", system), *turns)
    given = SpokenChatRequest.view(fields)
    generation = given.generation or Generation({})
    penalty, n_tokens = generation.length_penalty, generation.max_new_tokens
    # Of other servers' requests it would be a beam search's.
    chosen = sampling(Fields({**generation.values, "length_penalty": None}, "generation."), DEFAULTS)
    request = Generate(
        id=request_id,
        prompt=turns,
        max_tokens=within_cap(DEFAULT_NEW_TOKENS if n_tokens is None else n_tokens, limits),
        sampling=chosen if penalty is None else replace(chosen, length_penalty=penalty),
        cache_prompt=generation.cache_prompt,
        enable_thinking=given.enable_thinking,
        splits_thoughts=True,
        spoken=None if speech is None else speech.speaking,
        model=model_name(fields),
    )
    return ChatRequest(request, given.streaming, ignores_recording=speech is not None and speech.ignores_recording)


# -- messages ----------------------------------------------------------------------------------------------------


def _turns(fields: Fields, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    messages, look = SpokenChatRequest.view(fields).messages, _look(fields)
    turns = tuple(turn_with_media(message, message.role, look, SAMPLE_RATE) for message in messages)
    check_prompt_bytes(sum(len(turn.content.encode()) for turn in turns), limits, "messages")
    check_media(turns, "messages")
    return turns


def _look(fields: Fields) -> ImageSettings:
    given = SpokenChatRequest.view(fields)
    image = given.image or ImageOptions({})
    return ImageSettings(image.max_slice_nums, image.use_image_id, given.omni_mode)


# -- speech ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Speech:
    mode: str
    speaking: Speaking
    ignores_recording: bool


def _speech(fields: Fields, voice: VoiceInfo | None) -> _Speech | None:
    """The speech that ``tts`` asks for; ``None`` if none is wanted."""
    tts = SpokenChatRequest.view(fields).tts
    if tts is None:
        return None
    enabled, mode = tts.enabled, tts.mode or "default"
    recording, path, tag = tts.ref_audio_data or "", tts.ref_audio_path or "", tts.language or ""
    language = _primary(tag)
    if not enabled:
        return None
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, tts.name("enabled"), f"expected false, {NO_VOICE}")
    if language and language not in voice.languages:
        expected = " or ".join(f'"{known}"' for known in voice.languages) + ", which this daemon's voice speaks"
        raise out_of_range(tts.name("language"), expected, f'"{tag}"')
    _check_length(recording, tts.name("ref_audio_data"))
    if voice.clones:
        return _Speech(mode, Speaking(_speaker(tts, mode, recording, path, voice), language), ignores_recording=False)
    _check_not_cloned(tts, mode, recording, path)
    return _Speech(mode, Speaking(None, language), ignores_recording=bool(recording or path))


def _speaker(tts: Fields, mode: str, recording: str, path: str, voice: VoiceInfo) -> Audio | None:
    """The recording of the speaker, for a voice that clones; ``None``: the daemon's own voice speaks."""
    field = tts.name("ref_audio_data")
    if recording:
        return Audio(recording, field, SAMPLE_RATE)
    if path and path != voice.reference_path:
        message = "expected to be absent, or what the daemon's --ref-audio names; send ref_audio_data instead"
        raise RequestError(Fault.BAD_REQUEST, tts.name("ref_audio_path"), f"{message}")
    if mode == "voice_cloning" and voice.reference is None:
        message = f'expected a recording where mode is "{mode}", since the daemon has none of its own'
        raise RequestError(Fault.BAD_REQUEST, field, f"{message}")
    return voice.reference if path or mode in CLONING else None


def _check_length(recording: str, field: str) -> None:
    """Check only the length; the rest is checked when it is decoded, not on the loop's thread."""
    limit = -(-MAX_VOICE_S * SAMPLE_RATE * 4 // 3) * 4
    if len(recording) > limit:
        expected = f"at most {MAX_VOICE_S} s of float32 samples of {SAMPLE_RATE} Hz in base64, {limit} characters"
        raise out_of_range(field, expected, len(recording))


def _check_not_cloned(tts: Fields, mode: str, recording: str, path: str) -> None:
    """Refuse the modes in which only the recorded person may speak."""
    why = "since this daemon's voice can't clone another"
    if mode == "voice_cloning":
        others = " or ".join(f'"{one}"' for one in MODES if one != mode)
        raise out_of_range(tts.name("mode"), f"{others}, {why}", f'"{mode}"')
    for key, given in (("ref_audio_data", recording), ("ref_audio_path", path)):
        if given and mode in CLONING:
            expected = f'expected to be absent where mode is "{mode}", {why}'
            raise RequestError(Fault.BAD_REQUEST, tts.name(key), f"{expected}")


def _primary(language: str) -> str:
    """The primary subtag of a language tag (RFC 5646, section 2.1): "en" of "en-GB"."""
    return language.replace("_", "-").partition("-")[0].lower()
