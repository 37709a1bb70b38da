"""Bounds the memory that large input of all peers takes together: connections wait before they may send more."""

from __future__ import annotations

from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer

GONE_POLL_S = 1.0
"""Interval at which waiting peers are checked for having disconnected."""


class InputBudget:
    """One for all connections of a program.

    Each connection may hold ``free`` bytes of an incoming message, and as many of a received one, without drawing on
    the budget. What it holds beyond that draws on ``total`` bytes. Once those are used up, only the share that has
    drawn for longest may grow. Its owner sets a deadline for it, so that none waits for ever, though each waits for all
    before it. Together they draw at most ``total``, plus one connection's largest input, plus one read of each: a
    channel is asked whether to read before the others use up the budget in the same turn.
    """

    def __init__(self, loop: Loop, total: int, free: int) -> None:
        self.drawn = 0
        """Bytes of ``total`` in use."""
        self._loop = loop
        self._total = total
        # Room for a header besides a message of ``free`` bytes, and for what follows it in the read that completes it.
        self._free = free + READ_PER_TURN
        self._drawing: dict[InputShare, None] = {}
        """Oldest first."""
        self._waiting: dict[InputShare, None] = {}
        self._poll: Timer | None = None

    def share(self, channel: Channel | None) -> InputShare:
        """A new share, for one connection; without a channel only ``keep`` may be used."""
        return InputShare(self, channel, self._loop, self._free)

    def settle(self, share: InputShare, drawn: int, *, grows: bool) -> None:
        """Set what ``share`` draws, in bytes. ``grows``: its incoming message takes more than the free bytes."""
        self.drawn += drawn - share.drawn
        share.drawn = drawn
        if drawn:
            self._drawing.setdefault(share)
        else:
            self._drawing.pop(share, None)
        used_up = self.drawn >= self._total
        oldest = next(iter(self._drawing), None)
        if grows and used_up and share is not oldest:
            self._hold_back(share)
        else:
            self._admit(share)
        if not used_up:
            # All of them, not only as many as there is room for: which have more to send is unknown.
            for waiting in list(self._waiting):
                self._admit(waiting)
        elif oldest is not None:
            self._admit(oldest)

    def _hold_back(self, share: InputShare) -> None:
        if share not in self._waiting:
            self._waiting[share] = None
            share.wait()
            if self._poll is None:
                self._poll = self._loop.call_later(GONE_POLL_S, self._abort_gone)

    def _admit(self, share: InputShare) -> None:
        if share in self._waiting:
            del self._waiting[share]
            share.resume()

    def _abort_gone(self) -> None:
        self._poll = None
        for share in list(self._waiting):
            share.abort_if_peer_gone()
        if self._waiting:
            self._poll = self._loop.call_later(GONE_POLL_S, self._abort_gone)


class InputShare:
    """What one connection holds of the budget: incomplete messages, and whole requests that wait.

    Its channel must not be read unless ``may_grow``; the channel is asked again once it may.
    """

    __slots__ = ("_budget", "_channel", "_closed", "_free", "_kept", "_loop", "_unfinished", "_waited", "_waits_since",
                 "drawn", "may_grow")  # fmt: skip

    def __init__(self, budget: InputBudget, channel: Channel | None, loop: Loop, free: int) -> None:
        self.may_grow = True
        self.drawn = 0
        """Bytes drawn from the budget, beyond the free ones."""
        self._budget = budget
        self._channel = channel
        self._loop = loop
        self._free = free
        self._unfinished = self._kept = 0
        self._waited = self._waits_since = 0.0
        self._closed = False

    def hold(self, n_bytes: int) -> None:
        """Set the bytes of incomplete input in memory."""
        self._unfinished = n_bytes
        # Called for each read, and most connections never need more.
        if n_bytes > self._free or self.drawn:
            self._settle()

    def keep(self, n_bytes: int) -> None:
        """Set the bytes of whole requests that wait. They never stop the reading: the client may send more about them,
        or leave."""
        self._kept = n_bytes
        if n_bytes > self._free or self.drawn:
            self._settle()

    def close(self) -> None:
        """Release everything, for good."""
        self._unfinished = self._kept = 0
        self._settle()
        self._closed = True

    @property
    def growing(self) -> bool:
        """Whether an incomplete message takes more than the free bytes. It needs a deadline, since others wait for that
        memory."""
        return self._unfinished > self._free

    def take_waited(self) -> float:
        """Seconds for which it had to wait since the last call, or since it last drew nothing."""
        if not self.may_grow:
            self._end_wait()
            self._waits_since = self._loop.now()
        waited, self._waited = self._waited, 0.0
        return waited

    def _settle(self) -> None:
        if self._closed:
            return
        # Counted separately: otherwise a small message behind a small request would draw, and stay the oldest for ever.
        drawn = max(0, self._unfinished - self._free) + max(0, self._kept - self._free)
        self._budget.settle(self, drawn, grows=self.growing)
        if not drawn:
            self._waited = 0.0

    # -- called by the budget ------------------------------------------------------------------------------------

    def wait(self) -> None:
        self.may_grow = False
        self._waits_since = self._loop.now()

    def resume(self) -> None:
        self._end_wait()
        self.may_grow = True
        assert self._channel is not None
        self._channel.reconsider()

    def abort_if_peer_gone(self) -> None:
        assert self._channel is not None
        if self._channel.peer_gone:
            self._channel.abort()

    def _end_wait(self) -> None:
        self._waited += self._loop.now() - self._waits_since
