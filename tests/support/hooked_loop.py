"""A loop whose turns call two functions of the test, where a server would collect results and deliver tokens."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.net.loop import Loop


def _nothing() -> None:
    """What a turn does without a server."""


class HookedLoop(Loop):
    """``after_poll`` runs before the ready sockets, ``before_sleep`` after all callbacks."""

    after_poll: Callable[[], None] = staticmethod(_nothing)
    before_sleep: Callable[[], None] = staticmethod(_nothing)

    def turn(self) -> None:
        ready = self.poll()
        self.after_poll()
        self.serve(ready)
        self.run_due()
        self.before_sleep()
        self.flush()
