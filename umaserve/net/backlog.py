"""Handles a connection's input in portions: a limited amount per turn of the loop."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.net.channel import Channel
from umaserve.net.loop import Loop


class Backlog:
    """Bounds how much of one peer's input is handled per turn, so that a flooding peer delays nobody else.

    ``handle`` is the owner's method that handles received input by calling ``run``. It is called again in a later turn
    for what ``run`` left over, and the channel is then asked to read again: the owner doesn't read while ``waiting``.
    """

    def __init__(self, loop: Loop, channel: Channel, handle: Callable[[], None], per_turn: int) -> None:
        self.waiting = False
        """Whether received input may be left to handle."""
        self._loop = loop
        self._channel = channel
        self._handle = handle
        self._per_turn = per_turn
        self._posted = False

    def run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it returns False (nothing left to do for now), at most ``per_turn`` times per turn."""
        self.waiting = False
        for _ in range(self._per_turn):
            if not step():
                return
        self.continue_later()

    def wait(self) -> None:
        """Input may be left that can't be handled yet; the owner calls ``continue_later`` when it can."""
        self.waiting = True

    def continue_later(self) -> None:
        """Have ``handle`` called in a later turn, once for any number of calls."""
        self.waiting = True
        if not self._posted:
            self._posted = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._posted = False
        self._handle()
        self._channel.reconsider()
