"""A non-blocking stream socket with a bounded turn, a high-water mark and a close that lets the last words arrive."""

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
"""What is written to a peer that has left gets its reset within a round trip: the first polls are closer together."""
SEND_BUFFER = 64 * 1024
"""Kernel buffer: without it a stopped reader's kernel swallows megabytes before the high-water mark is seen."""


class Handler(Protocol):
    """What a channel tells its owner."""

    def data_received(self, data: bytes) -> None: ...

    def input_ended(self) -> None:
        """The peer will send no more, and may still read."""

    def wants_data(self) -> bool:
        """Whether more bytes may be read; asked after each use of the channel."""

    def drained(self) -> None:
        """The channel was ``congested`` and is no more."""

    def connection_lost(self) -> None:
        """The channel is closed, whatever the reason; called once."""


class _Phase(enum.Enum):
    OPEN = enum.auto()
    FLUSHING = enum.auto()
    """No input is handled any more; the output still goes out."""
    LINGERING = enum.auto()
    """All is written and the write side is shut; input is discarded until the peer has read the end and left."""
    CLOSED = enum.auto()


class Channel:
    """Bytes to and from one peer.

    ``write`` only queues; the kernel is handed what it takes before the loop sleeps. Above ``high_water``
    queued bytes it is ``congested``, until half of that is left. A peer that takes nothing for ``stall_timeout``
    seconds while bytes wait for it, or leaves the channel congested for as long, is closed. All counts are of
    the bytes on the wire, which with a ``cipher`` are not those that the handler reads and writes.
    A handler that raises loses its channel.
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
        """Why the channel gave up on its peer, where it did, for the handler to say when the connection is lost."""
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
        self._timer: Timer | None = None
        """Checks for a stall while bytes wait; the linger deadline after."""
        self._touch()
        if cipher is not None:
            # A client speaks first.
            self._enqueue(cipher.take_output())

    @property
    def queued(self) -> int:
        """Bytes written that the kernel has not taken."""
        return len(self._queue)

    @property
    def overfull(self) -> bool:
        """Whether so much waits for the peer that its input should wait too."""
        return self.queued > 2 * self._high_water

    @property
    def open(self) -> bool:
        """Whether writes still reach the peer."""
        return self._phase is _Phase.OPEN

    @property
    def reading(self) -> bool:
        """Whether the peer's input is read for the handler as it comes."""
        return self.open and not self._eof and not self.overfull and self.handler.wants_data()

    @property
    def deserted(self) -> bool:
        """Whether the peer has left entirely, as far as that shows while nothing is read: a TCP connection must have
        been reset, since its peer's end of stream stands behind what is unread."""
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
            # Only what the kernel refuses counts: a burst that it takes at once is no backpressure.
            self._send()
            self.congested = self.queued > self._high_water
            self._congested_at = self._loop.now()

    def reconsider(self) -> None:
        """The handler's ``wants_data`` has become true by itself: ask it again."""
        self._touch()

    def close(self) -> None:
        """Write what is queued, then end the stream so that a peer still sending can read the last words."""
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
            # Whoever aborts it may be another client's handler, or one that has failed already.
            log.exception("a lost connection could not be tidied up")

    def _touch(self) -> None:
        self._loop.call_at_turn_end(self._flush)

    def _flush(self) -> None:
        """Write, then watch the socket for just what is still wanted of it."""
        try:
            if self._queue:
                self._send()
            if self.congested and self.queued <= self._high_water // 2 and self._phase is _Phase.OPEN:
                self.congested = False
                self.handler.drained()
            if self._phase is _Phase.FLUSHING and not self._queue:
                self._begin_linger()
            if self._phase is not _Phase.CLOSED:
                self._loop.set_interest(self._sock, self._interest(), self._on_ready)
        except Exception:
            self._fail()

    def _interest(self) -> int:
        # 1. Write interest only for bytes that the kernel did not take.
        events = WRITE if self._queue else 0
        # 2. Nothing can be read after the peer's end of stream.
        if self._eof:
            return events
        # 3. After our last words, input is read only to be discarded.
        # 4. Before, it is read while the handler has room, and while the peer reads its replies.
        if not self.open or self.reading:
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
        # The first one: the others come of it.
        self.failure = self.failure or failure

    def _fail(self) -> None:
        """A mistake of ours in serving one peer costs that peer its connection, and nobody else."""
        log.exception("closed, since serving the connection failed")
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
        # selectors cannot watch for a hang-up alone, so the few half-closed peers are asked now and then.
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
        # The handler may be in the middle of a write: it is told of the loss in a turn of its own.
        self._queue.clear()
        self._phase = _Phase.LINGERING
        self._loop.call_soon(self.abort)

    def _check_stall(self) -> None:
        self._timer = None
        if not self._queue:
            return
        # Who stays congested is judged from when that began: a byte now and then is no reading.
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
