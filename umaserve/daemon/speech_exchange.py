"""One HTTP request for the sound of a text."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from umaserve.daemon.responder import AS_IT_COMES, JSON_TYPE, Responder
from umaserve.daemon.services import Services
from umaserve.dialects.http import ErrorShape, Facts, SpeechReply
from umaserve.errors import Fault, RequestError
from umaserve.messages import Speaking
from umaserve.outputs import Finished, FinishReason, Output, Spoken, Token, Usage
from umaserve.serving.sessions import Caller
from umaserve.stages.spoken import SpokenAnswer
from umaserve.wire.pcm import UNKNOWN_SIZE, pcm16, wav, wav_header

log = logging.getLogger(__name__)

CONTENT_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "mp3": "audio/mpeg",  # RFC 3003
    "opus": "audio/ogg; codecs=opus",  # RFC 7845, section 10
    "aac": "audio/aac",
    "flac": "audio/flac",  # RFC 9639, section 12.1
}


class SpeechExchange:
    """Reads one text aloud into one reply. An error before the first sound makes an error reply; later it cuts the
    connection."""

    def __init__(
        self,
        services: Services,
        facts: Facts,
        endpoint: SpeechReply,
        errors: ErrorShape,
        responder: Responder,
        caller: Caller,
    ) -> None:
        self._services = services
        self._facts = facts
        self._endpoint = endpoint
        self._errors = errors
        self._responder = responder
        self._caller = caller
        self._asked_at = services.loop.now()
        self._format = "wav"
        self._spoken: SpokenAnswer | None = None
        self._begun = False

    def start(self, content: bytes, _headers: Mapping[str, str]) -> None:
        speech, content_filter = self._services.speech, self._services.content_filter
        try:
            self._services.loaded()
            asked = self._endpoint.parse(content, self._facts)
            speech.check_room(self._services.config.max_queue)
            self._services.sessions.admit(self._caller, self._asked_at)
        except RequestError as error:
            self._refuse(error)
            return
        self._format = asked.file_format
        self._spoken = speech.answer(self._deliver, Speaking(sound_format=asked.compressed))
        if content_filter is None:
            self._read(self._spoken, asked.text)
        else:
            # Away from the loop, since patterns may take their time.
            check = functools.partial(content_filter.check_prompt, asked.text)
            speech.submit(check, functools.partial(self._checked, asked.text))

    def _checked(self, text: str, error: BaseException | None) -> None:
        """The content filter's verdict on the text."""
        if self._spoken is None:  # The client has gone, or the daemon's time to drain is over.
            return
        if error is None:
            self._read(self._spoken, text)
        elif isinstance(error, RequestError):
            error.field = "input" if error.field == "prompt" else error.field
            self._spoken.take(error)
        else:
            log.error("%s: the content filter failed", self._caller.peer, exc_info=error)
            self._spoken.take(RequestError(Fault.DECODE_FAILED, "input", "the server failed; its log says why"))

    def _read(self, spoken: SpokenAnswer, text: str) -> None:
        # The voice hears it as an answer that a model gave in one piece.
        spoken.take(Token(text, 0))
        spoken.take(Finished(FinishReason.STOP, Usage(0, 0)))

    def release(self) -> None:
        """The reader is below the low-water mark again."""
        if self._spoken is not None:
            self._spoken.release()

    def abandon(self) -> None:
        """The client has disconnected."""
        if self._spoken is not None:
            self._spoken.abandon()
            self._ended("abandoned")

    def _deliver(self, output: Output | RequestError) -> None:
        """The speech's sink."""
        try:
            self._take(output)
        except Exception:
            log.exception("%s: closed, since its speech could not be sent", self._caller.peer)
            self.abandon()
            self._responder.abort()

    def _take(self, output: Output | RequestError) -> None:
        match output:
            case Spoken():
                self._write(pcm16(output.sound) if self._format in ("wav", "pcm") else output.sound)
            case Finished():
                self._ended("done")
                if self._begun:
                    self._responder.end()
                else:  # There was nothing to say.
                    self._responder.respond(200, [self._content_type], wav(b"") if self._format == "wav" else b"")
            case RequestError():
                self._refuse(output)

    def _write(self, sound: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._responder.begin(200, [self._content_type, *AS_IT_COMES])
            if self._format == "wav":
                self._responder.write(wav_header(UNKNOWN_SIZE))
        self._responder.write(sound)
        if self._responder.congested and self._spoken is not None:
            self._spoken.hold()

    @property
    def _content_type(self) -> tuple[str, str]:
        return "Content-Type", CONTENT_TYPES[self._format]

    def _refuse(self, error: RequestError) -> None:
        self._ended(error.fault.name.lower())
        if self._begun:
            self._responder.abort()
        else:
            status, body, headers = self._errors.of_request(error)
            self._responder.respond(status, [JSON_TYPE, *headers], body)

    def _ended(self, end: str) -> None:
        self._spoken = None
        took_ms = round((self._services.loop.now() - self._asked_at) * 1000, 1)
        caller = self._caller
        about = {"dialect": caller.dialect, "peer": caller.peer, "key": caller.key, "end": end}
        log.info("text read aloud", extra={"fields": {**about, "total_ms": took_ms}})
