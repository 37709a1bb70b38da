"""One HTTP request for the sound of a text."""

from __future__ import annotations

import logging

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Spoken
from umaserve.core.requests import Speaking
from umaserve.daemon.http.responder import AS_IT_COMES, JSON_TYPE, Responder
from umaserve.daemon.services import Services
from umaserve.daemon.text_to_speech_job import TextToSpeechJob, log_end
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import ErrorShape, SoundEvents, SpeechReply
from umaserve.sessions.caller import Caller
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
    """Reads one text aloud into one reply. An error before the first sound makes an error reply; later it ends the
    stream of events, or cuts the connection."""

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
        self._format = "wav"
        self._events: SoundEvents | None = None
        self._reading: TextToSpeechJob | None = None
        self._begun = False

    def start(self, content: bytes) -> None:
        try:
            self._services.loaded()
            asked = self._endpoint.parse(content, self._facts)
            self._format, self._events = asked.file_format, asked.events
            speaking = Speaking(sound_format=asked.compressed)
            self._reading = TextToSpeechJob(self._services, self._caller, "input", speaking, self._deliver)
        except RequestError as error:
            log_end(self._services, self._caller, error.fault.name.lower(), self._services.loop.now())
            self._refuse(error)
        else:
            self._reading.read(asked.text)

    def release(self) -> None:
        """The reader is below the low-water mark again."""
        if self._reading is not None:
            self._reading.release()

    def abandon(self) -> None:
        """The client has disconnected."""
        if self._reading is not None:
            self._reading.abandon()

    def _deliver(self, output: Spoken | Finished | RequestError) -> None:
        try:
            self._take(output)
        except Exception:
            log.exception("%s: closed: internal error while sending its speech", self._caller.peer)
            self.abandon()
            self._responder.abort()

    def _take(self, output: Spoken | Finished | RequestError) -> None:
        match output:
            case Spoken():
                self._write(pcm16(output.sound) if self._format in ("wav", "pcm") else output.sound)
            case Finished():
                if self._events is not None:
                    self._end_events(self._events, self._events.done)
                elif self._begun:
                    self._responder.end()
                else:  # There was nothing to say.
                    self._responder.respond(200, [self._content_type], wav(b"") if self._format == "wav" else b"")
            case RequestError():
                self._refuse(output)

    def _write(self, sound: bytes) -> None:
        parts = [wav_header(UNKNOWN_SIZE)] if self._format == "wav" and not self._begun else []
        self._begin()
        for part in (*parts, sound):
            self._responder.write(part if self._events is None else self._events.frame(self._events.delta(part)))
        if self._responder.congested and self._reading is not None:
            self._reading.hold()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._responder.begin(200, [self._content_type, *AS_IT_COMES])

    def _end_events(self, events: SoundEvents, last: bytes) -> None:
        self._begin()
        self._responder.write(events.frame(last))
        self._responder.end()

    @property
    def _content_type(self) -> tuple[str, str]:
        return "Content-Type", CONTENT_TYPES[self._format] if self._events is None else self._events.stream_type

    def _refuse(self, error: RequestError) -> None:
        status, body, headers = self._errors.of_request(error)
        if self._begun and self._events is not None:
            self._end_events(self._events, body)
        elif self._begun:
            self._responder.abort()
        else:
            self._responder.respond(status, [JSON_TYPE, *headers], body)
