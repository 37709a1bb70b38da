"""A session of OpenAI's Realtime API that a relay has: each frame is an event."""

from __future__ import annotations

from umaserve.core.errors import Fault, RequestError, shutting_down
from umaserve.daemon.http.realtime_steps import MAX_EVENT_BYTES, RealtimeSteps
from umaserve.daemon.services import Services
from umaserve.dialects.realtime.session import RealtimeSession
from umaserve.sessions.caller import Caller
from umaserve.worker.backend import Reply

MAX_WAITING_BYTES = 4 * MAX_EVENT_BYTES
"""Bytes of events that may wait for what is looked for in sound before them: a relay's frames can't be held back."""


class RelayedSession:
    """The job of one session. How long it may be silent is the relay's business."""

    def __init__(self, services: Services, session: RealtimeSession, caller: Caller, reply: Reply) -> None:
        self.congested = False
        self._reply = reply
        self._open = True
        self._leaving = False
        self._services = services
        self._max_bytes = min(services.config.max_chat_bytes, MAX_EVENT_BYTES)
        self._steps = RealtimeSteps(services, session, caller, self)

    # -- from the relay ------------------------------------------------------------------------------------------

    def abort(self) -> None:
        self._open = False
        self._steps.close()

    def pause(self, paused: bool) -> None:
        self.congested = paused
        if self._open and not paused:
            self._steps.release()

    def frame(self, text: str) -> None:
        event = text.encode()
        if not self._open:
            return
        if len(event) > self._max_bytes:
            self._refuse(f"expected at most {self._max_bytes} bytes, got {len(event)}")
        elif self._steps.waiting_bytes + len(event) > MAX_WAITING_BYTES:
            self._refuse(f"expected at most {MAX_WAITING_BYTES} bytes that wait, got more: sound comes too fast")
        else:
            self._steps.receive(event)

    def _refuse(self, problem: str) -> None:
        self._steps.tell(RequestError(Fault.FRAME_TOO_LARGE, "message", problem))
        self._end(413)

    def leave(self) -> None:
        self._leaving = True
        if self._open and not self._steps.running:
            self._steps.tell(shutting_down())
            self._end(200)

    # -- from the steps ------------------------------------------------------------------------------------------

    def send_event(self, payload: bytes) -> None:
        if self._open:
            self._reply.chunk(payload.decode(), 200, {})

    def caught_up(self) -> None:
        """Do nothing: events come without being asked for."""

    def renewed(self, caller: Caller) -> Caller | None:
        """The same: the relay checks its clients' keys."""
        return caller

    def answered(self) -> None:
        if self._leaving:
            # In a turn of its own: the answer's last events are still to be sent.
            self._services.loop.call_soon(self.leave)

    def dismiss(self) -> None:
        self._end(200)

    def fail(self) -> None:
        self._end(500)

    def _end(self, status: int) -> None:
        if self._open:
            self.abort()
            self._reply.complete(status, {}, "")
