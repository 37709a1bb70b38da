"""A client of the Wyoming protocol: one task after another."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve import __version__
from umaserve.core.errors import RequestError
from umaserve.daemon.services import Services
from umaserve.daemon.wyoming_tasks import Synthesis, Task, Transcription
from umaserve.dialects.wyoming import replies
from umaserve.net.backlog import Backlog
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.sessions.caller import Caller
from umaserve.wire.fields import Fields
from umaserve.wire.wyoming import Event, WyomingCodec, encode

log = logging.getLogger(__name__)

EVENTS_PER_TURN = 8
MAX_PING_BYTES = 1024


class WyomingConnection:
    """Handler of one channel. An error ends the connection: Home Assistant goes on waiting after an ``error`` event."""

    def __init__(
        self, services: Services, channel: Channel, caller: Caller, lost: Callable[[WyomingConnection], None]
    ) -> None:
        self.channel = channel
        self._services = services
        self._loop = services.loop
        self._caller = caller
        self._lost = lost
        self._codec = WyomingCodec(services.config.max_frame_bytes)
        self._backlog = Backlog(services.loop, channel, self._handle_events, EVENTS_PER_TURN)
        self._input = services.input_budget.share(channel)
        self._task: Task | None = None
        self._idle_timeout = services.config.idle_timeout
        self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        channel.handler = self

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_events()

    def input_ended(self) -> None:
        self._handle_events()

    def wants_data(self) -> bool:
        if self._backlog.waiting or not self._input.may_grow:
            return False
        return self._ready or self._codec.buffered < READ_PER_TURN

    def drained(self) -> None:
        # Channels are flushed after the turn's tick was planned: the release is for a turn of its own.
        self._loop.call_soon(self._release)
        if self._backlog.waiting:
            self._backlog.continue_later()

    def connection_lost(self) -> None:
        self._idle.cancel()
        self._input.close()
        self._abandon()
        self._lost(self)

    def _release(self) -> None:
        if self._task is not None:
            self._task.release()

    def _abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.abandon()

    # -- events --------------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> bool:
        """Whether the next event may be handled. What is asked while a task is being answered waits for its end."""
        return self._task is None or self._task.ready

    def _handle_events(self) -> None:
        try:
            self._backlog.run(self._handle_one)
        except Exception:
            log.exception("%s: closed: internal error while handling its input", self._caller.peer)
            self.channel.abort()
        if self.channel.ended and not self._backlog.waiting and self._ready:
            self.close()
        self._input.hold(self._codec.buffered + (0 if self._task is None else self._task.held_bytes))

    def _handle_one(self) -> bool:
        """Handle the next event; returns whether another may be handled after it."""
        if self.channel.overfull:
            self._backlog.wait()  # until the channel has drained
            return False
        if not self.channel.open or not self._ready:
            return False
        try:
            event = self._codec.next_event()
            if event is None:
                return False
            self._take(event)
        except RequestError as error:
            self.fail(error)
        return True

    def _take(self, event: Event) -> None:
        if not self._input.growing:
            # A sound that takes memory which others wait for must be complete in time.
            self._postpone_idle()
        match event.type:
            case "describe":
                self._services.loaded()
                self.send(replies.info(__version__, self._services.models.listed(), self._services.speech.voice))
            case "ping":
                self.send(replies.pong(Fields(event.data).string("text", max_bytes=MAX_PING_BYTES, empty=True)))
            case kind if kind in Synthesis.EVENTS | Transcription.EVENTS:
                if self._task is None:
                    new_task = Synthesis if kind in Synthesis.EVENTS else Transcription
                    self._task = new_task(self._services, self._caller, self._input, self)
                self._task.take(event)
            case _:
                # The protocol has servers ignore what they don't know.
                log.debug("%s: ignored an event of type %s", self._caller.peer, event.type)

    # -- from the task -------------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        self.channel.write(encode(event))
        if self.channel.congested and self._task is not None:
            self._task.hold()

    def done(self) -> None:
        self._task = None
        self._postpone_idle()
        self._backlog.continue_later()

    def fail(self, error: RequestError) -> None:
        self.channel.write(encode(replies.error(error)))
        self.close()

    def abort(self) -> None:
        self.channel.abort()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what is queued, then close."""
        self._abandon()
        self._input.close()
        self.channel.close()

    def _postpone_idle(self) -> None:
        self._idle.postpone(self._loop.now() + self._idle_timeout)

    def _on_idle(self) -> None:
        if not self._ready:
            self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        elif waited := self._input.take_waited():
            # It is no fault of the client's that nobody read what it sent.
            self._idle = self._loop.call_later(waited, self._on_idle)
        elif self.channel.open:
            log.info("%s: closed: no request within %g s", self._caller.peer, self._idle_timeout)
            self.close()
