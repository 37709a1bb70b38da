"""A non-blocking stream socket: bounded work per turn, a high-water mark, and a close that delivers queued output."""

from __future__ import annotations

import enum
import functools
import logging
import select
import socket
from typing import Protocol

from umaserve.net.loop import READ, WRITE, Loop
from umaserve.net.timers import Timer
from umaserve.net.tls import Tls, TlsError

log = logging.getLogger(__name__)

READ_PER_TURN = 64 * 1024
WRITE_PER_TURN = 256 * 1024
LINGER_S = 2.0
HALF_CLOSED_POLL_S = 0.05
FIRST_POLL_S = 0.001
"""The first polls come sooner: a peer that has left resets the connection within a round trip of the first write."""
SEND_BUFFER = 64 * 1024
"""Send buffer of the kernel, in bytes. Unlimited, it would take megabytes for a stopped reader before the high-water
mark is reached."""


class Handler(Protocol):
    """A channel's callbacks to its owner."""

    def data_received(self, data: bytes) -> None: ...

    def input_ended(self) -> None:
        """The peer finished sending; it may still read."""

    def wants_data(self) -> bool:
        """Whether more bytes may be read; asked after each use of the channel."""

    def drained(self) -> None:
        """The channel is no longer ``congested``."""

    def connection_lost(self) -> None:
        """The channel is closed, for whatever reason; called once."""


class _Phase(enum.Enum):
    OPEN = enum.auto()
    FLUSHING = enum.auto()
    """Input is no longer handled; queued output is still written."""
    LINGERING = enum.auto()
    """All is written and the write side is shut down; input is discarded until the peer closes."""
    CLOSED = enum.auto()


class Channel:
    """Bytes to and from one peer.

    ``write`` only queues; the queue is flushed before the loop sleeps. Above ``high_water`` queued bytes the channel is
    ``congested``, until half of that is left. It is closed if the peer takes nothing for ``stall_timeout`` seconds
    while bytes are queued, or leaves it congested for as long. All counts are of bytes on the wire, which with
    ``cipher`` are ciphertext. A handler that raises loses its channel.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, *, high_water: int, stall_timeout: float, cipher: Tls | None = None
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.handler: Handler
        self.bytes_received = 0
        self.bytes_sent = 0
        self.failure = ""
        """Why the channel closed a failed connection, for the handler's log when the connection is lost; else empty."""
        self._loop = loop
        self._sock = sock
        self._high_water = high_water
        self._stall_timeout = stall_timeout
        self._cipher = cipher
        self._queue = bytearray()
        self._phase = _Phase.OPEN
        self._eof = False
        self.congested = False
        self._congested_at = self._progress_at = 0.0
        self._watched = 0
        """Events that the loop watches the socket for."""
        self._timer: Timer | None = None
        """Checks for a stall while bytes are queued; the linger deadline afterwards."""
        self._touch()
        if cipher is not None:
            # A TLS client sends first.
            self._enqueue(cipher.take_output())

    @property
    def queued(self) -> int:
        """Bytes written that the kernel hasn't taken yet."""
        return len(self._queue)

    @property
    def overfull(self) -> bool:
        """Whether so much output is queued that the peer's input should wait."""
        return self.queued > 2 * self._high_water

    @property
    def open(self) -> bool:
        """Whether writes still reach the peer."""
        return self._phase is _Phase.OPEN

    @property
    def reading(self) -> bool:
        """Whether the peer's input is being read for the handler."""
        # Asked after each use of the channel, and so spelled out.
        readable = self._phase is _Phase.OPEN and not self._eof and len(self._queue) <= 2 * self._high_water
        return readable and self.handler.wants_data()

    @property
    def peer_gone(self) -> bool:
        """Whether the peer has left entirely, as far as can be known without reading. On TCP only a reset shows: an end
        of stream is behind the unread bytes."""
        return self._phase is _Phase.OPEN and self._hung_up()

    def write(self, data: bytes) -> None:
        if self._phase is not _Phase.OPEN:
            return
        if self._cipher is not None:
            try:
                data = self._cipher.send(data)
            except TlsError as error:
                log.info("closed: %s", error)
                self._note(str(error))
                self._give_up()
                return
        self._enqueue(data)

    def _enqueue(self, data: bytes) -> None:
        self._touch()
        if not self._queue:
            self._progress_at = self._loop.now()
        self._queue += data
        if len(self._queue) > self._high_water and not self.congested:
            # Only what the kernel refuses is backpressure: a burst that it takes at once is not.
            self._send()
            self.congested = self.queued > self._high_water
            self._congested_at = self._loop.now()

    def reconsider(self) -> None:
        """Ask ``wants_data`` again: it became true without a use of the channel."""
        self._touch()

    def close(self) -> None:
        """Write what is queued, then shut down the write side, so that a peer that still sends can read it all."""
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.FLUSHING
            if self._cipher is not None:
                self._enqueue(self._cipher.close())
            self._touch()

    def abort(self) -> None:
        """Close at once."""
        if self._phase is _Phase.CLOSED:
            return
        self._phase = _Phase.CLOSED
        self._stop_timer()
        self._loop.set_interest(self._sock, 0, self._on_ready)
        self._sock.close()
        self._queue.clear()
        try:
            self.handler.connection_lost()
        except Exception:
            # The caller may be another client's handler, or one that has failed already.
            log.exception("internal error while releasing a lost connection")

    def _touch(self) -> None:
        self._loop.call_at_turn_end(self._flush)

    def _flush(self) -> None:
        """Write, then watch the socket for the events that are needed now."""
        try:
            if self._queue:
                self._send()
            if self.congested and self.queued <= self._high_water // 2 and self._phase is _Phase.OPEN:
                self.congested = False
                self.handler.drained()
            if self._phase is _Phase.FLUSHING and not self._queue:
                self._begin_linger()
            if self._phase is not _Phase.CLOSED and (wanted := self._interest()) != self._watched:
                self._loop.set_interest(self._sock, wanted, self._on_ready)
                self._watched = wanted
        except Exception:
            self._fail()

    def _interest(self) -> int:
        # 1. Write interest only for bytes that the kernel did not take.
        events = WRITE if self._queue else 0
        # 2. Nothing can be read after the peer's end of stream.
        if self._eof:
            return events
        # 3. Once the channel is closing, input is read only to be discarded.
        # 4. Before that, it is read while the handler has room, and while the peer reads its replies.
        if self._phase is not _Phase.OPEN or self.reading:
            events |= READ
        return events

    def _on_ready(self, events: int) -> None:
        self._touch()
        try:
            if events & READ and self._phase is not _Phase.CLOSED:
                self._receive()
        except Exception:
            self._fail()

    def _note(self, failure: str) -> None:
        # Only the first: it causes the others.
        self.failure = self.failure or failure

    def _fail(self) -> None:
        """A bug of ours in serving one peer ends that peer's connection, and no other."""
        log.exception("closed: internal error while serving the connection")
        self.abort()

    def _receive(self) -> None:
        try:
            data = self._sock.recv(READ_PER_TURN)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.debug("read failed: %s", error)
            self._note(f"read failed: {error.strerror}")
            self.abort()
            return
        self.bytes_received += len(data)
        if not data:
            self._end_of_stream()
        elif self._phase is _Phase.OPEN:
            if self._cipher is None:
                self.handler.data_received(data)
            else:
                self._decipher(self._cipher, data)

    def _decipher(self, cipher: Tls, data: bytes) -> None:
        try:
            plain = cipher.receive(data)
        except TlsError as error:
            log.info("closed: %s", error)
            self._note(str(error))
            self.close()
            return
        self._enqueue(cipher.take_output())
        if plain and self._phase is _Phase.OPEN:
            self.handler.data_received(plain)
        if cipher.ended and self._phase is _Phase.OPEN:
            self._end_of_stream()

    def _end_of_stream(self) -> None:
        """A peer that has left entirely is closed; one that only finished sending may still read."""
        self._eof = True
        if self._phase is _Phase.LINGERING or self._hung_up():
            self.abort()
        elif self._phase is _Phase.OPEN:
            self._watch_half_closed(FIRST_POLL_S)
            self.handler.input_ended()

    def _watch_half_closed(self, after: float) -> None:
        self._loop.call_later(after, functools.partial(self._poll_half_closed, min(2 * after, HALF_CLOSED_POLL_S)))

    def _poll_half_closed(self, next_after: float) -> None:
        # selectors can't watch for a hang-up alone, so the few half-closed peers are polled.
        if self._phase is not _Phase.OPEN:
            return
        if self._hung_up():
            self.abort()
        else:
            self._watch_half_closed(next_after)

    def _hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, 0)
        return bool(poll.poll(0))

    @property
    def ended(self) -> bool:
        """Whether the peer has finished sending."""
        return self._eof

    def _send(self) -> None:
        budget = WRITE_PER_TURN
        try:
            while self._queue and budget > 0:
                with memoryview(self._queue) as view:
                    sent = self._sock.send(view[:READ_PER_TURN])
                del self._queue[:sent]
                self.bytes_sent += sent
                budget -= sent
                self._progress_at = self._loop.now()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            log.debug("write failed: %s", error)
            self._note(f"write failed: {error.strerror}")
            self._give_up()
            return
        if self._queue and self._timer is None:
            self._timer = self._loop.call_later(self._stall_timeout, self._check_stall)

    def _give_up(self) -> None:
        # The handler may be in the middle of a write: ``connection_lost`` comes in a call of its own.
        self._queue.clear()
        self._phase = _Phase.LINGERING
        self._loop.call_soon(self.abort)

    def _check_stall(self) -> None:
        self._timer = None
        if not self._queue:
            return
        # For a congested channel, since the congestion began: a peer that reads a byte now and then is stalled too.
        left = (self._congested_at if self.congested else self._progress_at) + self._stall_timeout - self._loop.now()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_stall)
        else:
            log.info("closed: the peer read too little for %g s", self._stall_timeout)
            self._note(f"the peer read too little for {self._stall_timeout:g} s")
            self.abort()

    def _begin_linger(self) -> None:
        self._phase = _Phase.LINGERING
        self._stop_timer()
        if self._eof:
            self.abort()
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            log.debug("shutdown failed: %s", error)
            self.abort()
            return
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
