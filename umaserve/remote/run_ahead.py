"""Ticks that the engine's process runs by itself, behind the one before: no round trip lies between the two.

The daemon grants a tick by one byte, the number of the tick that it follows. The engine takes the byte once that tick
is done, and runs it again with the tokens that it has sampled; until then, the daemon can take the byte back: whoever
reads it first has it. The results come through the same socket, in order.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence

from umaserve.remote.channel import Channel, Kind
from umaserve.remote.failures import FAILURES, error_of
from umaserve.remote.frames import Incoming
from umaserve.remote.values import Coder, Malformed, Tail
from umaserve.sessions.engine_api import Outcome, Run, Tick, TickResult

log = logging.getLogger(__name__)

NUMBERS = 256
"""Numbers of ticks, after which they begin again."""
_CHUNK = 1 << 16


class RunAhead:
    """The daemon's end: implements ``sessions.engine_api.RunAhead``."""

    def __init__(self, end: socket.socket, theirs: socket.socket) -> None:
        """``theirs``: the engine's end, from which grants are taken back."""
        self.socket = end
        self._theirs = theirs
        self._incoming = Incoming()
        self._coder: Coder
        self._on_failure: Callable[[], None]
        self._awaited: deque[Callable[[TickResult | BaseException | None], None]] = deque()

    def read_by(self, coder: Coder, on_failure: Callable[[], None]) -> None:
        """``coder``: reads a ``TickResult`` or ``None``. ``on_failure``: called where something else comes, or
        where a callback raises."""
        self._coder, self._on_failure = coder, on_failure

    def grant(self, before: Tick, done: Callable[[TickResult | BaseException | None], None]) -> bool:
        try:
            self.socket.send(bytes([before.number % NUMBERS]), socket.MSG_DONTWAIT)
        except OSError:
            return False
        self._awaited.append(done)
        return True

    def take_back(self) -> bool:
        try:
            taken = self._theirs.recv(1, socket.MSG_DONTWAIT)
        except OSError:
            return False
        if taken:
            self._awaited.pop()
        return bool(taken)

    def receive(self, _events: int) -> None:
        """Read the results that have come, and call back with them."""
        try:
            data = self.socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except OSError:
            return
        try:
            results = self._results(data)
        except (Malformed, RecursionError) as error:
            log.error("the engine's process has sent an invalid answer to a tick, and is ended: %s", error)
            self._on_failure()
            return
        try:
            for result in results:
                self._awaited.popleft()(result)
        except Exception:
            # Whoever waits for the results knows no longer what the engine has computed.
            log.exception("internal error while taking the result of a tick: the engine's process is ended")
            self._on_failure()

    def _results(self, data: bytes) -> Sequence[TickResult | BaseException | None]:
        results: list[TickResult | BaseException | None] = []
        frame = self._incoming.add(data)
        while frame is not None:
            tail = Tail(frame.tail)
            match frame.head:
                case [Kind.DONE, result]:
                    results.append(self._coder.read(result, tail))
                    tail.end()
                case [Kind.FAILED, failure]:
                    results.append(error_of(FAILURES.read(failure, tail)))
                case _:
                    raise Malformed(f"expected a result, got {frame.head!r:.40}")
            frame = self._incoming.add(b"")
        if len(results) > len(self._awaited):
            raise Malformed("more results than ticks")
        return results

    def close(self) -> None:
        """Give the descriptors back."""
        self.socket.close()
        self._theirs.close()


class Granted:
    """The engine's end. Belongs to the thread that runs ticks."""

    def __init__(self, end: socket.socket) -> None:
        self.answers = Channel(end)
        self._end = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._watched: Channel | None = None
        self._tick: Tick | None = None
        self._result: TickResult | None = None
        """Result of ``_tick``, the tick that ran last; ``None`` if it failed."""

    def begins(self, tick: Tick) -> None:
        """Remember the tick that begins now."""
        self._tick, self._result = tick, None

    def ended(self, result: TickResult) -> None:
        """Remember how it has ended."""
        self._result = result

    def next_tick(self, end_tokens: frozenset[int]) -> Tick | None:
        """The tick that was granted; ``None`` if it can't be run."""
        assert self._tick is not None
        return next_tick(self._tick, self._result, end_tokens)

    def comes_next(self, channel: Channel) -> bool:
        """Wait until the daemon has sent something through ``channel``, or the next tick is granted. Returns whether
        nothing else was sent, which would wait as long as ticks go on otherwise; the grant is then taken."""
        if channel is not self._watched:
            self._poll.register(channel, select.POLLIN)
            self._watched = channel
        while True:
            if any(descriptor == channel.fileno() for descriptor, _ in self._poll.poll()):
                return False
            taken = self.take()
            if taken is not False:
                return bool(taken)

    def take(self) -> bool | None:
        """Take the grant of the next tick, if there is one. ``None``: it follows a tick that is yet to come through the
        channel."""
        assert self._tick is not None
        try:
            after = self._end.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            if after != bytes([self._tick.number % NUMBERS]):
                return None
            self._end.recv(1, socket.MSG_DONTWAIT)
            return True
        except BlockingIOError:
            return False


def next_tick(tick: Tick, result: TickResult | None, end_tokens: frozenset[int]) -> Tick | None:
    """The tick behind ``tick``, which decoded a token of each of its streams. ``None`` if it failed, and if one of the
    tokens that it has sampled is missing, late or an end."""
    if result is None or result.outcome is not Outcome.DONE or result.failed or result.late:
        return None
    if not end_tokens.isdisjoint([tokens[0] for tokens in result.tokens]):
        return None
    runs = [
        Run(run.slot, run.start + 1, tokens, run.sampler, run.logprobs)
        for run, tokens in zip(tick.runs, result.tokens, strict=True)
    ]
    return Tick((), runs, tick.threads, tick.adapters, number=tick.number + 1)
