"""A text that the daemon's voice reads aloud."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeVar

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Spoken, Token, Usage
from umaserve.core.requests import Speaking
from umaserve.daemon.services import Services
from umaserve.sessions.caller import Caller
from umaserve.sessions.content_filter import not_allowed
from umaserve.system import logs

log = logging.getLogger(__name__)

T = TypeVar("T")
Heard = Spoken | Finished | RequestError

FILTERED_AT_ONCE = 4096
"""Characters of a text's part in which the content filter looks for matches at once."""


class TextToSpeechJob:
    """Reads one text, which is given whole (``read``) or in parts (``push``, then ``finish``).

    ``deliver`` gets ``Spoken`` outputs, and last ``Finished`` or a ``RequestError``, which names the text ``field``.
    Raises ``RequestError`` where the caller may have no more read now.
    """

    def __init__(
        self,
        services: Services,
        caller: Caller,
        field: str,
        speaking: Speaking,
        deliver: Callable[[Heard], None],
    ) -> None:
        self._services = services
        self._caller = caller
        self._field = field
        self._deliver = deliver
        self._asked_at = services.loop.now()
        services.speech.check_room(services.config.max_queue)
        services.models.admit(caller, self._asked_at)
        self._filter = services.content_filter
        self._filtered = None if self._filter is None else self._filter.stream()
        self._spoken = services.speech.answer(self._take, speaking)
        self._ended = False

    def read(self, text: str) -> None:
        """The whole text."""
        if self._filter is None:
            self._say(text, last=True)
        else:
            self._check(functools.partial(self._filter.check_prompt, text), lambda _: self._say(text, last=True))

    def push(self, text: str) -> None:
        """The next part of the text, which may be cut anywhere."""
        if self._filtered is None:
            self._say(text)
            return
        for start in range(0, len(text), FILTERED_AT_ONCE):
            part = text[start : start + FILTERED_AT_ONCE]
            self._check(functools.partial(self._filtered.push, part), self._released)

    def finish(self) -> None:
        """The text is complete."""
        if self._filtered is None:
            self._say("", last=True)
        else:
            self._check(self._filtered.finish, functools.partial(self._released, last=True))

    def hold(self) -> None:
        """The client is behind: no further sentence is begun."""
        self._spoken.hold()

    def release(self) -> None:
        """The client has caught up."""
        self._spoken.release()

    def abandon(self) -> None:
        """The client wants no more of it."""
        if not self._ended:
            self._spoken.abandon()
            self._end("abandoned")

    def _check(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        """Ask the content filter, away from the loop, since patterns may take their time."""
        self._services.speech.submit(job, functools.partial(self._checked, then))

    def _checked(self, then: Callable[[T], None], result: T | BaseException) -> None:
        if self._ended:  # The client has gone, or the daemon's time to drain is over.
            return
        if not isinstance(result, BaseException):
            then(result)
        elif isinstance(result, RequestError):
            result.field = self._field if result.field == "prompt" else result.field
            self._spoken.take(result)
        else:
            log.error("%s: the content filter failed", self._caller.peer, exc_info=result)
            self._spoken.take(RequestError(Fault.DECODE_FAILED, self._field, "internal error; see the server's log"))

    def _released(self, filtered: tuple[str, bool], *, last: bool = False) -> None:
        text, matched = filtered
        if matched:
            self._spoken.take(not_allowed(self._field))
        else:
            self._say(text, last=last)

    def _say(self, text: str, *, last: bool = False) -> None:
        # The voice hears it as an answer that a model gives.
        self._spoken.take(Token(text, 0))
        if last:
            self._spoken.take(Finished(FinishReason.STOP, Usage(0, 0)))

    def _take(self, output: Output | RequestError) -> None:
        """The speech's sink."""
        match output:
            case Finished():
                self._end("done")
            case RequestError():
                self._end(output.fault.name.lower())
            case Spoken():
                pass
            case _:
                return
        self._deliver(output)

    def _end(self, end: str) -> None:
        self._ended = True
        log_end(self._services, self._caller, end, self._asked_at)


def log_end(services: Services, caller: Caller, end: str, asked_at: float) -> None:
    """``end``: how the reading ended, or why it was refused."""
    took_ms = round((services.loop.now() - asked_at) * 1000, 1)
    about = {"dialect": caller.dialect, "peer": caller.peer, "key": caller.key, "end": end}
    logs.requests.info("text read aloud", extra={"fields": {**about, "total_ms": took_ms}})
    if services.traced is not None:
        services.traced("speech", "", caller, asked_at, end)
