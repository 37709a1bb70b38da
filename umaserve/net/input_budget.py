"""The memory that all peers' large input may take together, and who must wait before it sends more."""

from __future__ import annotations

from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer

DESERTED_POLL_S = 1.0
"""How often those who wait are asked whether they are still there."""


class InputBudget:
    """One for all connections of a program.

    Each may hold ``free`` bytes of a message that comes, and as many of one that came, without asking. What they hold
    beyond draws on ``total`` bytes. Once those are used up, only the one that has drawn on them for longest may grow.
    Its owner sees to it that it ends, so that nobody waits for ever, though for as many such ends as are before it. So
    they draw at most ``total`` and one connection's largest input, and one more read of each, since a channel is asked
    whether it may be read before the others have used the budget up.
    """

    def __init__(self, loop: Loop, total: int, free: int) -> None:
        self.drawn = 0
        """Bytes of ``total`` in use."""
        self._loop = loop
        self._total = total
        # A message of ``free`` bytes has a header, and the read that completes it brings what follows.
        self._free = free + READ_PER_TURN
        self._drawing: dict[InputShare, None] = {}
        """Oldest first."""
        self._waiting: dict[InputShare, None] = {}
        self._poll: Timer | None = None

    def share(self, channel: Channel | None) -> InputShare:
        """One connection's; without a channel, for what is only kept."""
        return InputShare(self, channel, self._loop, self._free)

    def settle(self, share: InputShare, drawn: int, *, grows: bool) -> None:
        """``share`` draws so much now; ``grows``: it takes more than what is free for its next message."""
        self.drawn += drawn - share.drawn
        share.drawn = drawn
        if drawn:
            self._drawing.setdefault(share)
        else:
            self._drawing.pop(share, None)
        used_up = self.drawn >= self._total
        oldest = next(iter(self._drawing), None)
        if grows and used_up and share is not oldest:
            self._have_wait(share)
        else:
            self._let_on(share)
        if not used_up:
            # Not only as many as there is room for: who of them has more to send, nobody knows.
            for waiting in list(self._waiting):
                self._let_on(waiting)
        elif oldest is not None:
            self._let_on(oldest)

    def _have_wait(self, share: InputShare) -> None:
        if share not in self._waiting:
            self._waiting[share] = None
            share.wait()
            if self._poll is None:
                self._poll = self._loop.call_later(DESERTED_POLL_S, self._look_for_deserted)

    def _let_on(self, share: InputShare) -> None:
        if share in self._waiting:
            del self._waiting[share]
            share.go_on()

    def _look_for_deserted(self) -> None:
        self._poll = None
        for share in list(self._waiting):
            share.abort_if_deserted()
        if self._waiting:
            self._poll = self._loop.call_later(DESERTED_POLL_S, self._look_for_deserted)


class InputShare:
    """What one connection holds of the budget: messages that have not come whole, and requests that are not taken up.

    While it must wait, its channel is not to be read; the channel is asked again as soon as it may grow.
    """

    __slots__ = ("_budget", "_channel", "_closed", "_free", "_kept", "_loop", "_unfinished", "_waited", "_waits_since",
                 "drawn", "may_grow")  # fmt: skip

    def __init__(self, budget: InputBudget, channel: Channel | None, loop: Loop, free: int) -> None:
        self.may_grow = True
        self.drawn = 0
        """Bytes beyond those that are free, by the budget's book."""
        self._budget = budget
        self._channel = channel
        self._loop = loop
        self._free = free
        self._unfinished = self._kept = 0
        self._waited = self._waits_since = 0.0
        self._closed = False

    def hold(self, n_bytes: int) -> None:
        """So much of its input is in memory and not used up."""
        self._unfinished = n_bytes
        # Most never come so far, and this is asked for each read.
        if n_bytes > self._free or self.drawn:
            self._settle()

    def keep(self, n_bytes: int) -> None:
        """So much belongs to a request that came whole and waits. It is never a reason not to read: its client may
        have more to say of it, or leave."""
        self._kept = n_bytes
        if n_bytes > self._free or self.drawn:
            self._settle()

    def close(self) -> None:
        """It holds nothing any more, and never will."""
        self._unfinished = self._kept = 0
        self._settle()
        self._closed = True

    @property
    def growing(self) -> bool:
        """Whether a message that has not come whole takes more than what is free. Who waits for the memory waits for
        its end: it needs a deadline."""
        return self._unfinished > self._free

    def take_waited(self) -> float:
        """Seconds for which it has had to wait since this was last asked, or since it last drew nothing."""
        if not self.may_grow:
            self._end_wait()
            self._waits_since = self._loop.now()
        waited, self._waited = self._waited, 0.0
        return waited

    def _settle(self) -> None:
        if self._closed:
            return
        # Each for itself, or a small message behind a small request would draw, and be the oldest for ever.
        drawn = max(0, self._unfinished - self._free) + max(0, self._kept - self._free)
        self._budget.settle(self, drawn, grows=self.growing)
        if not drawn:
            self._waited = 0.0

    # -- from the budget -----------------------------------------------------------------------------------------

    def wait(self) -> None:
        self.may_grow = False
        self._waits_since = self._loop.now()

    def go_on(self) -> None:
        self._end_wait()
        self.may_grow = True
        assert self._channel is not None
        self._channel.reconsider()

    def abort_if_deserted(self) -> None:
        assert self._channel is not None
        if self._channel.deserted:
            self._channel.abort()

    def _end_wait(self) -> None:
        self._waited += self._loop.now() - self._waits_since
