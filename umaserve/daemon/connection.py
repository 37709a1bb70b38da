"""One client: its channel, codec and dialect, and the exchange of its current request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from umaserve.core.commands import Cancel, Command, Feedback, GetMetrics, Modify, Pause, Reattach, Replace, Resume
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FeedbackKept, Finished, Output
from umaserve.core.requests import Generate
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.services import Services
from umaserve.dialects.dialect import Dialect, Reply
from umaserve.net.backlog import Backlog
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.sessions.caller import Caller

log = logging.getLogger(__name__)

PAYLOADS_PER_TURN = 8


class Codec(Protocol):
    """Bytes to payloads and back."""

    @property
    def buffered(self) -> int: ...

    def receive_data(self, data: bytes) -> None: ...

    def receive_eof(self) -> None: ...

    def next_payload(self) -> bytes | None: ...

    def send(self, payload: bytes) -> bytes: ...


class Connection:
    """Handler of one channel. A bug of ours in handling it closes this connection and no other."""

    def __init__(
        self, services: Services, channel: Channel, codec: Codec, dialect: Dialect, caller: Caller, lost: Lost
    ) -> None:
        self.channel = channel
        self._services = services
        self._loop = services.loop
        self._codec = codec
        self._dialect = dialect
        self._caller = caller
        self._lost = lost
        self._idle_timeout = services.config.idle_timeout
        self._backlog = Backlog(services.loop, channel, self._handle_payloads, PAYLOADS_PER_TURN)
        self._input = services.input_budget.share(channel)
        self._exchange: Exchange | None = None
        """The current request; ``None`` while the next one may come (RECV_REQ in the contracts)."""
        self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        channel.handler = self

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_payloads()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._handle_payloads()

    def wants_data(self) -> bool:
        if self._backlog.waiting or not self._input.may_grow:
            return False
        return self._dialect.ready or self._buffered() < READ_PER_TURN

    def drained(self) -> None:
        # Channels are flushed after the turn's tick was planned: the release is for a turn of its own.
        if self._exchange is not None:
            self._loop.call_soon(self._exchange.release)
        if self._backlog.waiting:
            self._backlog.continue_later()

    def connection_lost(self) -> None:
        self._idle.cancel()
        self._input.close()
        self._abandon()
        self._lost(self)

    def _abandon(self) -> None:
        """Drop the current answer: the client no longer wants it."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()

    # -- requests ------------------------------------------------------------------------------------------------

    def _handle_payloads(self) -> None:
        try:
            self._backlog.run(self._handle_one)
        except Exception:
            log.exception("%s: closed: internal error while handling its input", self._caller.peer)
            self.abort()
        self._input_handled()
        self._input.hold(self._buffered())

    def _input_handled(self) -> None:
        """Called when all input so far was handled, or waits."""
        # Not merely "does not run": a session that has just ended still has its last words to deliver.
        if self.channel.ended and not self._backlog.waiting and self._exchange is None:
            self.close()

    def _handle_one(self) -> bool:
        """Handle the next payload; returns whether another may be handled after it."""
        if self.channel.overfull:
            self._backlog.wait()  # until the channel has drained
            return False
        if not self.channel.open or not self._dialect.ready:
            return False
        try:
            payload = self._next_payload()
            if payload is None:
                return False
            # Only whole payloads count as a sign of life: a byte now and then keeps nobody's connection open.
            self._idle.postpone(self._loop.now() + self._idle_timeout)
            command = self._dialect.receive(payload)
        except RequestError as error:
            self._reply(self._dialect.refuse(error))
            return True
        if isinstance(command, Generate):
            # Its images and sounds, which are most of what is large, are in memory until they are prepared.
            self._input.keep(len(payload))
        if command is not None:
            self._dispatch(command)
        return True

    def _next_payload(self) -> bytes | None:
        return self._codec.next_payload()

    def _buffered(self) -> int:
        """Bytes received and not yet handled."""
        return self._codec.buffered

    def _dispatch(self, command: Command) -> None:
        sessions = () if self._exchange is None else self._exchange.sessions
        match command:
            case Generate():
                self._request(command)
            case Replace():
                self._replace(command.request)
            case Cancel():
                for session in sessions:
                    session.manager.cancel(session, command.id)
            case Modify() | Pause() | Resume():
                for session in sessions:
                    session.manager.steer(session, command)
            case Feedback():
                self._keep(command)
            case GetMetrics():
                self._reply(self._dialect.send(self._services.metrics()))
            case Reattach():
                self._reattach(command)

    def _replace(self, request: Generate) -> None:
        """The running request ends only if its replacement is admitted."""
        try:
            self._services.models.admit(self._caller, self._loop.now())
        except RequestError as error:
            error.request_id = request.id
            self._reply(self._dialect.refuse(error))
            return
        if self._exchange is not None:
            self._exchange.abandon("replaced")
            self._exchange = None
        self._request(request, admitted=True)

    def _request(self, request: Generate, *, admitted: bool = False) -> None:
        exchange = self._new_exchange()
        try:
            exchange.generate(request, self._take, admitted=admitted)
        except RequestError as error:
            exchange.end()
            self._reply(self._dialect.fail(error))
        else:
            self._exchange = exchange

    def _new_exchange(self) -> Exchange:
        return Exchange(self._services, self._caller, self._input, self.abort)

    def _keep(self, feedback: Feedback) -> None:
        log_of_all = self._services.feedback
        try:
            if log_of_all is not None:
                log_of_all.keep(feedback, self._caller)
        except RequestError as error:
            self._reply(self._dialect.refuse(error))
        else:
            self._reply(self._dialect.send(FeedbackKept(log_of_all is not None)))

    def _reattach(self, command: Reattach) -> None:
        error = RequestError(Fault.BAD_REQUEST, "type", "only /generate can resume a generation", command.request_id)
        self._reply(self._dialect.refuse(error))

    # -- replies -------------------------------------------------------------------------------------------------

    def _take(self, output: Output | RequestError) -> None:
        if isinstance(output, RequestError):
            self._reply(self._dialect.fail(output))
        else:
            self._reply(self._dialect.send(output))
        if isinstance(output, Finished | RequestError):
            self._next_request()

    def _next_request(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end()
        if not self.channel.open:
            return
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        self._loop.call_soon(self._handle_payloads)

    def _reply(self, reply: Reply | None) -> None:
        if reply is None:
            return
        for payload in reply.before:
            self.channel.write(self._codec.send(payload))
        self.channel.write(self._codec.send(reply.payload))
        if reply.close:
            self._abandon()
            self._end(reply.code)
        elif self.channel.congested and self._exchange is not None:
            self._exchange.hold()

    def _end(self, _code: int) -> None:
        """After the last reply. The code is for connections that have close codes."""
        self.close()

    def close(self) -> None:
        """Flush what is queued, then close."""
        self._input.close()
        self.channel.close()

    def abort(self) -> None:
        """Close after a bug of ours."""
        self.channel.abort()

    def _on_idle(self) -> None:
        if self._exchange is not None and not self._input.growing:
            self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        elif waited := self._input.take_waited():
            # It is no fault of the client's that nobody read what it sent.
            self._idle = self._loop.call_later(waited, self._on_idle)
        elif self.channel.open:
            log.info("%s: closed: no request within %g s", self._caller.peer, self._idle_timeout)
            self._end_idle()

    def _end_idle(self) -> None:
        self.close()


Lost = Callable[[Connection], None]
"""Called with a connection that has ended."""
