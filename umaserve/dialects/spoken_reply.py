"""The reply to a text that is to be spoken: a sound file, or a stream of events with its parts."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Spoken
from umaserve.dialects.http import ErrorReply, ErrorShape
from umaserve.dialects.routes import SoundEvents, SpokenText
from umaserve.wire.http_head import Headers
from umaserve.wire.pcm import UNKNOWN_SIZE, pcm16, wav, wav_header

CONTENT_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "mp3": "audio/mpeg",  # RFC 3003
    "opus": "audio/ogg; codecs=opus",  # RFC 7845, section 10
    "aac": "audio/aac",
    "flac": "audio/flac",  # RFC 9639, section 12.1
}


class SpokenReply:
    """Implements ``http.SpeechBody``. An error in the middle ends a stream of events, and cuts off a file."""

    headers: Headers = ()

    def __init__(self, parse: Callable[[bytes], SpokenText], errors: ErrorShape) -> None:
        """``parse`` reads the request's body, or raises ``RequestError``."""
        self.done = False
        self.end: bytes | None = None
        self._parse = parse
        self._errors = errors
        self._format = "wav"
        self._events: SoundEvents | None = None
        self._begun = False

    def receive(self, content: bytes) -> SpokenText:
        """The text in the request's body; raises ``RequestError``."""
        asked = self._parse(content)
        self._format, self._events = asked.file_format, asked.events
        self.end = None if asked.events is None else asked.events.done
        return asked

    @property
    def streaming(self) -> bool:
        """Whether the reply comes in parts: a file does if there was something to say."""
        return self._begun or self._events is not None

    @property
    def stream_type(self) -> str:
        return self.whole_type if self._events is None else self._events.stream_type

    @property
    def whole_type(self) -> str:
        return CONTENT_TYPES[self._format]

    def send(self, _index: int, output: Output) -> list[bytes]:
        self.done = isinstance(output, Finished)
        if not isinstance(output, Spoken):
            return []
        parts = [wav_header(UNKNOWN_SIZE)] if self._format == "wav" and not self._begun else []
        parts.append(pcm16(output.sound) if self._format in ("wav", "pcm") else output.sound)
        self._begun = True
        return parts if self._events is None else [self._events.delta(part) for part in parts]

    def fail(self, _index: int, error: RequestError) -> list[bytes] | None:
        self.end = None
        return None if self._events is None else [self._errors.of_request(error).body]

    def frame(self, data: bytes) -> bytes:
        return data if self._events is None else self._events.frame(data)

    def result(self) -> bytes:
        """The file in which nothing is said."""
        return wav(b"") if self._format == "wav" else b""

    def error(self, error: RequestError) -> ErrorReply:
        return self._errors.of_request(error)
