"""The settings of a session of OpenAI's Realtime API, and what a response makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.requests import ChatTurn, Generate, Sampling
from umaserve.dialects.chat.request import NO_VOICE
from umaserve.dialects.parameters import RequestLimits, within_cap
from umaserve.dialects.realtime.schemas import (
    RealtimeAudio,
    RealtimeAudioInput,
    RealtimeAudioOutput,
    RealtimeOptions,
    RealtimeReasoning,
    RealtimeSession,
    RealtimeTranscription,
    RealtimeTurnDetection,
)
from umaserve.dialects.realtime.sound_formats import SoundFormat, format_of
from umaserve.dialects.responses.schemas import ResponseOptions
from umaserve.dialects.responses.tools import OfferedTool, ToolChoice, chosen_tools, tools
from umaserve.wire.fields import dump_capped

Values = Mapping[str, Any]

MAX_SETTINGS_BYTES = 1 << 20
TEMPERATURE = 0.8
_MERGED = ("audio", "input", "output")
"""Objects of which an update changes only what it names."""
_SILENCE_MS = {"low": 1000, "medium": 500, "high": 300, "auto": 500}
"""The silence that ends a turn, by the client's eagerness to have it ended."""
_RESPONSE_ONLY = ("conversation", "input", "metadata")


def merged(values: Values, changes: Values) -> dict[str, Any]:
    """``values`` with the ``changes`` of an update."""
    new = dict(values)
    for key, change in changes.items():
        old = values.get(key)
        nested = key in _MERGED and isinstance(change, dict) and isinstance(old, dict)
        new[key] = merged(old, change) if nested else change  # type: ignore[arg-type]
    return new


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How turns are found in the sound."""

    threshold: float
    prefix_padding_ms: int
    silence_ms: int
    creates: bool
    """Whether the end of a turn begins a response."""
    interrupts: bool
    """Whether speech cancels the response that is being given."""

    @property
    def shown(self) -> dict[str, Any]:
        return {
            "type": "server_vad",
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_ms,
            "create_response": self.creates,
            "interrupt_response": self.interrupts,
        }


@dataclass(frozen=True, slots=True)
class Transcribing:
    """How speech is written down for the client."""

    model: str = ""
    language: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """What a response is made by."""

    instructions: str
    spoken: bool
    output: SoundFormat
    tools: Mapping[str, OfferedTool]
    """Tools that may be called, by their names for the model."""
    shown_tools: list[dict[str, Any]]
    choice: ToolChoice
    temperature: float
    max_tokens: int | None
    effort: str | None

    @property
    def modalities(self) -> list[str]:
        return ["audio" if self.spoken else "text"]

    def request(self, id_: str, turns: tuple[ChatTurn, ...], model: str, limits: RequestLimits) -> Generate:
        """The request for an answer to ``turns``."""
        thinks = self.effort not in (None, "none")
        return Generate(
            id_,
            turns,
            max_tokens=within_cap(self.max_tokens, limits),
            sampling=Sampling(temperature=self.temperature, top_p=1.0),
            tools=tuple(one.tool for one in self.choice.kept),
            must_call=self.choice.must_call,
            parallel_calls=self.choice.several,
            enable_thinking=thinks,
            chat_template_kwargs={"reasoning_effort": self.effort} if thinks else {},
            splits_thoughts=True,
            continue_final_message=False,
            model=model,
        )


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """All settings of a session, read and checked."""

    values: Values
    """The same, as clients have sent them."""
    answers: AnswerSettings
    input: SoundFormat
    turns: TurnDetection | None
    """``None``: the client says where turns end."""
    transcribing: Transcribing | None


def session_settings(values: Values, limits: RequestLimits, voice: VoiceInfo | None) -> SessionSettings:
    """Read a session's settings; raises ``RequestError``."""
    dump_capped(dict(values), "session", MAX_SETTINGS_BYTES)
    given = RealtimeSession(values, "session.")
    _ = given.type, given.model
    audio = given.audio or RealtimeAudio({})
    sound = audio.input or RealtimeAudioInput({})
    return SessionSettings(
        values,
        answer_settings(given, limits, voice),
        format_of(sound.format),
        _turn_detection(sound),
        _transcribing(sound.transcription),
    )


def answer_settings(given: RealtimeOptions, limits: RequestLimits, voice: VoiceInfo | None) -> AnswerSettings:
    """Read what a response is made by; raises ``RequestError``. ``voice``: the server's, if it has one."""
    modalities = given.output_modalities or (["text"] if voice is None else ["audio"])
    spoken = modalities == ["audio"]
    if spoken and voice is None:
        raise RequestError(Fault.BAD_REQUEST, given.name("output_modalities"), f'expected ["text"], {NO_VOICE}')
    output = (given.audio or RealtimeAudio({})).output or RealtimeAudioOutput({})
    _ = output.voice, output.speed  # Whatever these are: there is one voice, with one speed.
    options = ResponseOptions.view(given)
    offered, shown = tools(options, limits)
    choice = chosen_tools(options, offered)
    return AnswerSettings(
        given.instructions or "",
        spoken,
        format_of(output.format),
        {one.tool.name: one for one in choice.kept},
        shown,
        choice,
        TEMPERATURE if given.temperature is None else given.temperature,
        given.max_output_tokens,
        (given.reasoning or RealtimeReasoning({})).effort,
    )


def of_response(settings: SessionSettings, given: RealtimeOptions) -> RealtimeOptions:
    """The options of a response: those given, and the session's."""
    changes = {key: value for key, value in given.values.items() if key not in _RESPONSE_ONLY}
    return RealtimeOptions(merged(settings.values, changes), "response.")


def shown_session(settings: SessionSettings, model: str, voice: VoiceInfo | None) -> dict[str, Any]:
    """The settings as the events about a session have them."""
    answers, transcribing, turns = settings.answers, settings.transcribing, settings.turns
    written = None
    if transcribing is not None:
        about = {"model": transcribing.model, "language": transcribing.language, "prompt": transcribing.prompt}
        written = {key: text for key, text in about.items() if text}
    return {
        "type": "realtime",
        "object": "realtime.session",
        "model": model,
        "instructions": answers.instructions,
        "output_modalities": answers.modalities,
        "tools": answers.shown_tools,
        "tool_choice": answers.choice.shown,
        "temperature": answers.temperature,
        "max_output_tokens": answers.max_tokens or "inf",
        "truncation": "disabled",
        "audio": {
            "input": {
                "format": settings.input.shown,
                "transcription": written,
                "noise_reduction": None,
                "turn_detection": None if turns is None else turns.shown,
            },
            "output": shown_output(answers, voice),
        },
        "tracing": None,
        "include": None,
    }


def shown_output(answers: AnswerSettings, voice: VoiceInfo | None) -> dict[str, Any]:
    """The form of the speech."""
    return {"format": answers.output.shown, "voice": "" if voice is None else voice.name, "speed": 1.0}


def _turn_detection(given: RealtimeAudioInput) -> TurnDetection | None:
    wanted = given.turn_detection
    if wanted is None:
        if "turn_detection" in given.values:
            return None
        wanted = RealtimeTurnDetection({"type": "server_vad"})
    if wanted.type == "none":
        return None
    return TurnDetection(
        0.5 if wanted.threshold is None else wanted.threshold,
        300 if wanted.prefix_padding_ms is None else wanted.prefix_padding_ms,
        _SILENCE_MS[wanted.eagerness or "auto"] if wanted.silence_duration_ms is None else wanted.silence_duration_ms,
        wanted.create_response,
        wanted.interrupt_response,
    )


def _transcribing(given: RealtimeTranscription | None) -> Transcribing | None:
    if given is None:
        return None
    return Transcribing(given.model or "", given.language or "", given.prompt or "")
