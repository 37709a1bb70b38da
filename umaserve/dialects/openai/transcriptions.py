"""OpenAI's transcriptions and translations: a form with a recording in, its text out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Logprobs, ModelInfo, Output, Token, Usage
from umaserve.core.requests import Generate, Sound
from umaserve.dialects import sse
from umaserve.dialects.http import JSON, ErrorReply, cap_headers
from umaserve.dialects.openai.choices import scored_token
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.openai.sound_schemas import TranscriptionForm
from umaserve.dialects.openai.text_scores import MIN_LOGPROB
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.transcription import check_end, transcription
from umaserve.wire.multipart import Part, read_form

TEXT = "text/plain; charset=utf-8"
WHOLE_TYPES = {"json": JSON, "text": TEXT, "verbose_json": JSON, "srt": TEXT, "vtt": "text/vtt; charset=utf-8"}
STREAMED = ("json", "text")
_LISTS = ("include", "timestamp_granularities")
_STRINGS = ("model", "language", "prompt", "response_format")
_NO_SPEAKERS = ("known_speaker_names", "known_speaker_references")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options that a form asks for, without the recording."""

    model: str = ""
    file_format: str = "json"
    stream: bool = False
    logprobs: bool = False
    language: str = ""
    temperature: float = 0.0


class TranscriptionBody:
    """One ``POST /v1/audio/transcriptions``, or with ``translates`` one ``POST /v1/audio/translations``."""

    end = None
    """A stream ends with ``transcript.text.done`` or an error; nothing follows."""
    stream_type = sse.CONTENT_TYPE
    frame = staticmethod(sse.event)
    ping = staticmethod(sse.ping)

    def __init__(
        self,
        limits: RequestLimits,
        model: Callable[[str], ModelInfo | None],
        new_id: str,
        content_type: str,
        *,
        translates: bool,
    ) -> None:
        """``content_type``: the form's."""
        self.headers = cap_headers(limits)
        self._limits = limits
        self._model = model
        self._new_id = new_id
        self._content_type = content_type
        self._translates = translates
        self._asked = _Asked()
        self._transcript = _Transcript()
        self._usage: Usage | None = None

    @property
    def streaming(self) -> bool:
        return self._asked.stream

    @property
    def whole_type(self) -> str:
        return WHOLE_TYPES[self._asked.file_format]

    @property
    def done(self) -> bool:
        return self._usage is not None

    def receive(self, body: bytes) -> Sequence[Generate]:
        parts = read_form(body, self._content_type)
        given = _form(parts)
        self._asked = asked = _asked(given, translates=self._translates)
        request = transcription(
            _sound(parts),
            self._new_id,
            self._limits,
            self._model(asked.model),
            language=asked.language,
            prompt=(given.prompt or "").strip(),
            temperature=asked.temperature,
            translates=self._translates,
        )
        scored = asked.logprobs or asked.file_format == "verbose_json"
        return [replace(request, logprobs=0 if scored else None, model=asked.model)]

    def send(self, _index: int, output: Output) -> list[bytes]:
        """The events for ``output``; none unless streaming. Raises ``RequestError`` where the transcript lacks its
        end: none of the formats could say so."""
        events: list[dict[str, Any]] = []
        if isinstance(output, Token):
            delta = self._transcript.push(output)
            if delta:
                events = [{"type": "transcript.text.delta", "delta": delta, **self._logprobs(self._transcript.take())}]
        elif isinstance(output, Finished):
            check_end(output, "file")
            self._usage = output.usage
            done = {"type": "transcript.text.done", "text": self._transcript.text, "usage": _usage(output.usage)}
            events = [{**done, **self._logprobs(self._transcript.scores)}]
        return [orjson.dumps(event) for event in events] if self.streaming else []

    def fail(self, _index: int, error: RequestError) -> list[bytes]:
        return [error_body(error).body] if self.streaming else []

    def error(self, error: RequestError) -> ErrorReply:
        return error_body(error)

    def result(self) -> bytes:
        assert self._usage is not None
        text, seconds = self._transcript.text, round(self._usage.sound_s, 3)
        match self._asked.file_format:
            case "text":
                return f"{text}\n".encode()
            case "srt":
                return _srt(text, seconds).encode()
            case "vtt":
                return _vtt(text, seconds).encode()
            case "verbose_json":
                return orjson.dumps(self._verbose(text, seconds))
        whole = {"text": text, "usage": _usage(self._usage), **self._logprobs(self._transcript.scores)}
        return orjson.dumps(whole)

    def _logprobs(self, scores: Sequence[Logprobs]) -> dict[str, Any]:
        return {"logprobs": [scored_token(one.chosen) for one in scores]} if self._asked.logprobs else {}

    def _verbose(self, text: str, seconds: float) -> dict[str, Any]:
        language = "english" if self._translates else self._asked.language or _UNKNOWN
        return {
            "task": "translate" if self._translates else "transcribe",
            "language": language,
            "duration": seconds,
            "text": text,
            "segments": [self._segment(text, seconds)] if text else [],
            "usage": {"type": "duration", "seconds": seconds},
        }

    def _segment(self, text: str, seconds: float) -> dict[str, Any]:
        """The one segment: the models say what was said, and not when."""
        scores = [max(MIN_LOGPROB, one.chosen.logprob) for one in self._transcript.scores]
        written = text.encode()
        return {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": seconds,
            "text": text,
            "tokens": self._transcript.token_ids,
            "temperature": self._asked.temperature,
            "avg_logprob": sum(scores) / max(1, len(scores)),
            "compression_ratio": len(written) / len(zlib.compress(written)),
            "no_speech_prob": None,
        }


class _Transcript:
    """An answer's text without the white space around it, which is held back until more text follows."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.scores: list[Logprobs] = []
        self._held = ""
        self._taken = 0

    def push(self, token: Token) -> str:
        """The text that the token adds."""
        if token.sampled:
            self.token_ids.append(token.token_id)
        if token.logprobs is not None:
            self.scores.append(token.logprobs)
        said = self._held + token.said
        if not self.text:
            said = said.lstrip()
        delta = said.rstrip()
        self._held = said[len(delta) :]
        self.text += delta
        return delta

    def take(self) -> list[Logprobs]:
        """The scores since the last call."""
        new = self.scores[self._taken :]
        self._taken = len(self.scores)
        return new


def _form(parts: Sequence[Part]) -> TranscriptionForm:
    """The form's fields as values of the kinds that JSON would have, where these can be read. Unknown ones are left
    out, unread."""
    values: dict[str, Any] = {}
    for part in parts:
        name = part.name
        bare = name.removesuffix("[]")
        if bare in _LISTS:
            values.setdefault(f"{bare}[]", []).append(_text(part.data, name))
        elif name in (*_STRINGS, "temperature", "stream"):
            if name in values:
                raise RequestError(Fault.BAD_REQUEST, name, "expected one value, got several")
            values[name] = _value(name, part.data)
        elif bare in _NO_SPEAKERS:
            raise RequestError(Fault.BAD_REQUEST, name, "expected to be absent: the model can't distinguish speakers")
    return TranscriptionForm(values)


def _value(name: str, data: memoryview) -> object:
    text = _text(data, name)
    if name in _STRINGS:
        return text
    if not text:
        return None
    if name == "stream":
        return _BOOLEANS.get(text.strip().lower(), text)
    try:
        return float(text)
    except ValueError:
        return text


def _text(data: memoryview, name: str) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise RequestError(Fault.BAD_REQUEST, name, "expected text in UTF-8, got other bytes") from None


def _sound(parts: Sequence[Part]) -> Sound:
    files = [part.data for part in parts if part.name == "file"]
    if len(files) != 1 or not files[0]:
        got = "an empty one" if files == [b""] else f"{len(files) or 'none'}"
        raise RequestError(Fault.BAD_REQUEST, "file", f"expected one sound file, got {got}")
    return Sound(files[0], "file")


def _asked(given: TranscriptionForm, *, translates: bool) -> _Asked:
    file_format, stream, language = given.response_format or "json", given.stream or False, given.language or ""
    if stream and file_format not in STREAMED:
        raise RequestError(
            Fault.BAD_REQUEST, "stream", f'expected false where response_format is "{file_format}", got true'
        )
    _ = given.timestamp_granularities_  # Refused unless they are what there is.
    spoken = "" if translates else language.strip()
    return _Asked(given.model or "", file_format, stream, bool(given.include_), spoken, given.temperature or 0.0)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _srt(text: str, seconds: float) -> str:
    cue = f"1\n{_clock(0, ',')} --> {_clock(seconds, ',')}\n{_lines(text)}\n\n"
    return cue if text else ""


def _vtt(text: str, seconds: float) -> str:
    """WebVTT (W3C): its text may not contain "-->"."""
    written = _lines(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    cue = f"{_clock(0, '.')} --> {_clock(seconds, '.')}\n{written}\n\n"
    return "WEBVTT\n\n" + (cue if text else "")


def _lines(text: str) -> str:
    """The text without empty lines, which would end a subtitle."""
    return "\n".join(line for line in text.splitlines() if line.strip())


def _clock(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
