"""A text that is read aloud as the result of a tool."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Spoken
from umaserve.dialects.http import JSON, ErrorReply
from umaserve.dialects.mcp.messages import Message
from umaserve.dialects.mcp.results import failures, said, sound
from umaserve.dialects.routes import SpokenText
from umaserve.dialects.spoken_reply import CONTENT_TYPES
from umaserve.wire.http_head import Headers
from umaserve.wire.pcm import pcm16, wav


class SpokenResult:
    """Implements ``http.SpeechBody``: the sound file is whole, since a result has no parts."""

    headers: Headers = ()
    stream_type = whole_type = JSON
    streaming = False
    end = None

    def __init__(self, message: Message, parse: Callable[[], SpokenText]) -> None:
        """``parse`` reads the arguments, or raises ``RequestError``."""
        self.done = False
        self._message = message
        self._parse = parse
        self._format = "wav"
        self._parts: list[bytes] = []

    def receive(self, _content: bytes) -> SpokenText:
        asked = self._parse()
        self._format = asked.file_format
        return asked

    def send(self, _index: int, output: Output) -> list[bytes]:
        self.done = isinstance(output, Finished)
        if isinstance(output, Spoken):
            self._parts.append(pcm16(output.sound) if self._format == "wav" else output.sound)
        return []

    def fail(self, _index: int, _error: RequestError) -> None:
        """Never in a stream: there is none."""

    def frame(self, data: bytes) -> bytes:
        return data

    def result(self) -> bytes:
        samples = b"".join(self._parts)
        file = wav(samples) if self._format == "wav" else samples
        return said(self._message, [sound(file, CONTENT_TYPES[self._format])])

    def error(self, error: RequestError) -> ErrorReply:
        return failures(self._message).of_request(error)
