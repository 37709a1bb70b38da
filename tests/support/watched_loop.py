"""A loop that a test looks into."""

from __future__ import annotations

import socket
from collections.abc import Callable

from hooked_loop import HookedLoop


def nothing() -> None:
    pass


class WatchedLoop(HookedLoop):
    """Remembers what is watched, and how often it was asked to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.interest: dict[int, int] = {}
        super().__init__(clock)

    def set_interest(self, sock: socket.socket, events: int, ready: Callable[[int], None]) -> None:
        self.interest[sock.fileno()] = events
        super().set_interest(sock, events, ready)

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            # A turn with a posted call never sleeps.
            self.call_soon(nothing)
            self.turn()
