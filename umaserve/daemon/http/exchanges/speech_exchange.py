"""One HTTP request for the sound of a text."""

from __future__ import annotations

import functools

from umaserve.core.errors import RequestError
from umaserve.core.requests import Speaking
from umaserve.daemon.http.exchange import HttpExchange
from umaserve.daemon.text_to_speech_job import log_end
from umaserve.dialects.routes import SpeechBody


class SpeechExchange(HttpExchange):
    """Reads one text aloud into one reply."""

    _reply: SpeechBody

    def start(self, content: bytes) -> None:
        """Read the request's body and begin to read its text aloud."""
        try:
            self._services.loaded()
            asked = self._reply.receive(content)
            speaking = Speaking(sound_format=asked.compressed)
            job = self.read_aloud("input", speaking, functools.partial(self._take, 0))
        except RequestError as error:
            log_end(self._services, self._caller, error.fault.name.lower(), self._loop.now())
            self._fail(0, error)
        else:
            job.read(asked.text)

    def _flush(self) -> None:
        """Send what is unsent, each part in a chunk of its own."""
        for part in [*self._unsent]:
            self._unsent = [part]
            super()._flush()
