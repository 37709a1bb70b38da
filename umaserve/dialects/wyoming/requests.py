"""Requests of Wyoming's clients: the data of their events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import VoiceInfo
from umaserve.core.requests import Speaking
from umaserve.dialects.chat.request import NO_VOICE
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.schemas import MAX_SAMPLE_RATE, MIN_SAMPLE_RATE
from umaserve.wire.fields import Fields, bad_request, out_of_range, string

MAX_NAME_BYTES = 256
MAX_WORDS = 4096
MAX_CHANNELS = 8
WIDTHS = (1, 2, 4)
"""Bytes of a sample."""


def speaking(data: Mapping[str, Any], voice: VoiceInfo | None) -> Speaking:
    """How to speak, from the data of ``synthesize`` or ``synthesize-start``. ``voice``: the daemon's, if it has one.

    Any voice's name means the daemon's one voice. Raises ``RequestError``.
    """
    fields = Fields(data)
    fields.one_of("text_format", ("text",))
    wanted = fields.object("voice") or Fields({})
    for key in ("name", "speaker"):
        wanted.string(key, max_bytes=MAX_NAME_BYTES, empty=True)
    language = wanted.string("language", max_bytes=MAX_NAME_BYTES, empty=True)
    if voice is None:
        raise RequestError(Fault.BAD_REQUEST, "voice", f"can't be used, {NO_VOICE}")
    return Speaking(language=_code(language, wanted.name("language"), voice.languages) if language else "")


def _code(language: str, field: str, known: Sequence[str]) -> str:
    """The ISO 639-1 code among ``known`` of a language tag such as "en", "en-US" or "en_US"."""
    code = language.replace("_", "-").partition("-")[0].lower()
    if code not in known:
        raise out_of_range(field, " or ".join(f'"{one}"' for one in known), f'"{language}"')
    return code


def text_part(data: Mapping[str, Any], so_far: int, limits: RequestLimits) -> str:
    """The text in the data of ``synthesize`` or ``synthesize-chunk``, behind ``so_far`` bytes of the same text."""
    text = string(data.get("text"), "text", empty=True)
    n_bytes = so_far + len(text.encode())
    if n_bytes > limits.max_prompt_bytes:
        raise RequestError(
            Fault.PROMPT_TOO_LARGE, "text", f"expected at most {limits.max_prompt_bytes} bytes, got {n_bytes}"
        )
    return text


@dataclass(frozen=True, slots=True)
class PcmFormat:
    """Format of samples: hertz, bytes of a sample, and channels, which take turns."""

    rate: int
    width: int
    channels: int

    def __str__(self) -> str:
        return f"{self.channels} x {self.width} bytes at {self.rate} Hz"


def pcm_format(data: Mapping[str, Any]) -> PcmFormat:
    """The format in the data of ``audio-start`` or ``audio-chunk``; raises ``RequestError``."""
    fields = Fields(data)
    width = _number(fields, "width", WIDTHS[0], WIDTHS[-1])
    if width not in WIDTHS:
        raise out_of_range("width", "1, 2 or 4 bytes", width)
    rate = _number(fields, "rate", MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)
    return PcmFormat(rate, width, _number(fields, "channels", 1, MAX_CHANNELS))


def _number(fields: Fields, key: str, low: int, high: int) -> int:
    value = fields.integer(key, low, high)
    if value is None:
        raise bad_request(key, f"a whole number from {low} to {high}", None)
    return value


@dataclass(frozen=True, slots=True)
class Listening:
    """Settings of ``transcribe`` for the speech that follows."""

    model: str = ""
    language: str = ""
    words: str = ""
    """Names and terms that may occur."""


def listening(data: Mapping[str, Any]) -> Listening:
    """Raises ``RequestError``."""
    fields = Fields(data)
    model = fields.string("name", max_bytes=MAX_NAME_BYTES, empty=True)
    words = [
        word
        for key in ("transcript_names", "transcript_terms")
        for word in fields.strings(key, max_items=MAX_WORDS, max_bytes=MAX_NAME_BYTES)
    ]
    language = fields.string("language", max_bytes=MAX_NAME_BYTES, empty=True)
    return Listening(model or "", language or "", ", ".join(words))


def misplaced(event_type: str) -> RequestError:
    """The error for an event at which nothing waits for it."""
    return RequestError(Fault.BAD_REQUEST, event_type, "expected elsewhere: nothing here waits for this event")
