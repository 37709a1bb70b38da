"""A connection's input in portions: so much in one turn of the loop, and the rest later."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.net.channel import Channel
from umaserve.net.loop import Loop


class Backlog:
    """Bounds how much of one peer's input is handled in a turn, so that one who floods holds up nobody else.

    ``handle`` is the owner's method that handles what has come, by ``run``. It is called again, in a later turn, for
    what ``run`` leaves; then the channel, which is not read while input is ``waiting``, is asked again.
    """

    def __init__(self, loop: Loop, channel: Channel, handle: Callable[[], None], per_turn: int) -> None:
        self.waiting = False
        """Whether input that has come may still be handled without any more of it coming."""
        self._loop = loop
        self._channel = channel
        self._handle = handle
        self._per_turn = per_turn
        self._posted = False

    def run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it returns that there is nothing more to do for now, but not too often in one turn."""
        self.waiting = False
        for _ in range(self._per_turn):
            if not step():
                return
        self.continue_later()

    def wait(self) -> None:
        """There may be more, for which something else must come first: its owner says when, by ``continue_later``."""
        self.waiting = True

    def continue_later(self) -> None:
        """Have ``handle`` called in a later turn, once, however often this is asked for."""
        self.waiting = True
        if not self._posted:
            self._posted = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._posted = False
        self._handle()
        self._channel.reconsider()
