"""One request of a client until its end, whichever transport it came by."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from umaserve.core.errors import RequestError
from umaserve.core.events import Placed
from umaserve.core.requests import Generate, Speaking
from umaserve.daemon.services import Services
from umaserve.daemon.text_to_speech_job import Heard, TextToSpeechJob
from umaserve.net.input_budget import InputShare
from umaserve.sessions.caller import Caller
from umaserve.sessions.session import Hold, Session, Sink
from umaserve.stages.stages import stages_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class Part(Protocol):
    """Part of an exchange that waits for the reader: a stage of an answer, or a text that is read aloud."""

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def abandon(self) -> None: ...


class Exchange:
    """What answers one request: its sessions with their stages, or a text read aloud; and its share of the input.

    A bug of ours in making a reply ends this exchange, and no other.
    """

    def __init__(self, services: Services, caller: Caller, share: InputShare, broken: Callable[[], None]) -> None:
        """``share`` counts the request until its images and sounds are no longer needed. ``broken`` is called after a
        bug of ours, to end the connection."""
        self.sessions: list[Session] = []
        self.ended = False
        """Whether nothing more comes, or is wanted."""
        self._services = services
        self._caller = caller
        self._share = share
        self._broken = broken
        self._parts: list[Part] = []
        self._unplaced = 0
        """Sessions that have no slot yet."""
        self._forget: Callable[[], None] | None = None
        """Ends the wait for a model, without which the request can't be read."""

    def generate(
        self, request: Generate, take: Sink, *, admitted: bool = False, arrived_at: float | None = None
    ) -> None:
        """Start a request for text, whose outputs ``take`` gets; as ``SessionManager.start``."""
        services, sink = self._services, self.sink(take)
        session = services.models.start(
            replace(request, recorded=None, spoken=None),
            sink,
            self._caller,
            services.loop.now(),
            admitted=admitted,
            arrived_at=arrived_at,
        )
        self.sessions.append(session)
        self._unplaced += 1
        session.sink, stages = stages_of(request, sink, services.speech, services.recordings)
        self._parts += stages

    def read_aloud(self, field: str, speaking: Speaking, take: Callable[[Heard], None]) -> TextToSpeechJob:
        """Begin to read a text aloud; as ``TextToSpeechJob``."""
        job = TextToSpeechJob(self._services, self._caller, field, speaking, self.sink(take))
        self._parts.append(job)
        return job

    def when_loaded(self, model: str, go_on: Callable[[], None], fail: Callable[[RequestError], None]) -> None:
        """Call ``go_on`` once the model is loaded that is meant by this name, or ``fail``."""

        def loaded(error: RequestError | None) -> None:
            self._forget = None
            if error is None:
                go_on()
            else:
                fail(error)

        self._forget = self._services.models.when_loaded(model, self.sink(loaded), self._caller)

    def sink(self, take: Callable[[T], None]) -> Callable[[T], None]:
        """Wrap ``take`` for what comes later: not after the end, and its bugs are this exchange's alone."""
        return functools.partial(self._deliver, take)

    def _deliver(self, take: Callable[[T], None], output: T) -> None:
        if self.ended:
            return
        try:
            if isinstance(output, Placed):
                self._place()
            take(output)
        except Exception:
            ids = ", ".join(session.request.id for session in self.sessions)
            log.exception(
                "%s: closed: internal error while writing the reply to %s", self._caller.peer, ids or "its request"
            )
            self.abandon()
            self._broken()

    def _place(self) -> None:
        self._unplaced -= 1
        if self._unplaced <= 0:
            self._share.keep(0)

    def hold(self) -> None:
        """Wait: the reader is above the high-water mark."""
        for session in self.sessions:
            session.manager.hold(session, Hold.READER)
        for part in self._parts:
            part.hold()

    def release(self) -> None:
        """Go on: the reader is below the low-water mark again."""
        for session in self.sessions:
            session.manager.release(session, Hold.READER)
        for part in self._parts:
            part.release()

    def end(self) -> None:
        """Note that the reply is complete."""
        self.ended = True
        self._share.keep(0)
        if self._forget is not None:
            self._forget()
            self._forget = None

    def abandon(self, end: str = "abandoned") -> None:
        """End what is still running: the client has left, or has its error. ``end``: as in ``SessionManager``."""
        self.end()
        for session in self.sessions:
            session.manager.abandon(session, end)
        parts, self._parts = self._parts, []
        for part in parts:
            part.abandon()
