"""The selector loop: poll, ready sockets, timers, posted calls, and the flush before the loop sleeps."""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from umaserve.net.timers import Timer, Timers

log = logging.getLogger(__name__)

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

TRY_AGAIN_S = 0.2
"""Pause before a socket that the kernel refused to watch is tried again."""
WAKE_AGAIN_S = 0.01
_SHORTAGES = {errno.ENOMEM, errno.ENOSPC}
"""Errors of epoll_ctl(2) when memory, or the user's limit of watched sockets, is exhausted."""

Ready = Callable[[int], None]


class Loop:
    """One thread's event loop.

    A turn is: ``poll``; ``serve`` the ready sockets; ``run_due`` timers and posted calls; ``flush``. A server that does
    more in a turn has one of its own, of the same phases, and gives it to ``run``.
    A callback's exception is logged and doesn't end the loop, which serves all clients; only the turn's own may end it.
    A socket is not called back once it is no longer watched, even if the same poll found it ready. ``wake`` is the only
    method for other threads and signal handlers.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._selector = selectors.DefaultSelector()
        self._timers = Timers()
        self._posted: deque[Callable[[], None]] = deque()
        self._turn_end: dict[Callable[[], None], None] = {}
        self._unwatched: dict[socket.socket, tuple[int, Ready]] = {}
        """Sockets that the kernel refused to watch, with the wanted events and callback."""
        self._watch_again_at: Timer | None = None
        self._stopped = False
        self.woken = False
        """Whether ``wake`` was called before the latest poll ended."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.set_interest(self._wake_out, READ, self._on_wake)

    @property
    def wake_fd(self) -> int:
        """A descriptor for ``signal.set_wakeup_fd``."""
        return self._wake_in.fileno()

    def wake(self) -> None:
        """End the current poll; safe from any thread. Blocks while the kernel has no memory for the wake-up."""
        while self._wake_in.fileno() >= 0:
            try:
                self._wake_in.send(b"\0")
                return
            except BlockingIOError:
                return  # The buffer is full of wake-ups that the loop has yet to read.
            except OSError as error:
                # Must not be lost: nothing else tells the loop about the caller's result.
                log.debug("a wake-up could not be sent: %s", error)
                time.sleep(WAKE_AGAIN_S)

    def _on_wake(self, _events: int) -> None:
        """Nothing to do: the wake-up only has to end the poll."""

    def set_interest(self, sock: socket.socket, events: int, ready: Ready) -> None:
        """Watch ``sock`` for ``events`` (READ, WRITE, both, or 0 to stop watching), and call ``ready`` with those that
        occur. If the kernel is out of room to watch it, that is tried again until it succeeds."""
        if self._unwatched:
            self._unwatched.pop(sock, None)
        key = self._selector.get_map().get(sock.fileno())
        if key is not None and key.events == events:
            if key.data != ready:
                self._selector.modify(sock, events, ready)
            return
        if key is not None:
            # Not ``modify``: when it fails, the selector has dropped the socket but the kernel still watches it.
            self._selector.unregister(sock)
        if events:
            self._watch(sock, events, ready)

    def _watch(self, sock: socket.socket, events: int, ready: Ready) -> None:
        try:
            self._selector.register(sock, events, ready)
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            if self._watch_again_at is None:
                log.warning("the kernel can't watch more sockets: %s: trying again until it can", error.strerror)
                self._watch_again_at = self.call_later(TRY_AGAIN_S, self._watch_again)
            self._unwatched[sock] = events, ready

    def _watch_again(self) -> None:
        unwatched, self._unwatched = self._unwatched, {}
        for sock, (events, ready) in unwatched.items():
            if sock.fileno() >= 0:
                self._watch(sock, events, ready)
        self._watch_again_at = self.call_later(TRY_AGAIN_S, self._watch_again) if self._unwatched else None

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, in this turn or the next, which then doesn't sleep."""
        self._posted.append(callback)

    def call_at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once before the loop sleeps, for any number of calls in this turn."""
        self._turn_end[callback] = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(self.now() + delay, callback)

    def stop(self) -> None:
        """End ``run`` after the current turn."""
        self._stopped = True

    def run(self, turn: Callable[[], None] | None = None) -> None:
        """Take turns until ``stop``. ``turn``: those of a server; ``None``: the loop's own."""
        while not self._stopped:
            (turn or self.turn)()

    def turn(self) -> None:
        ready = self.poll()
        self.serve(ready)
        self.run_due()
        self.flush()

    def poll(self) -> Sequence[tuple[selectors.SelectorKey, int]]:
        """Sleep until a socket is ready, a timer is due or ``wake`` was called; returns the ready sockets."""
        ready = self._selector.select(self._timeout())
        # Emptied first: a wake-up that arrives while results are collected must end the next poll.
        self.woken = self._wake_out in [key.fileobj for key, _ in ready]
        if self.woken:
            # What can't be read now ends the next poll too.
            with contextlib.suppress(OSError):
                self._wake_out.recv(4096)
        return ready

    def serve(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        """Call back for the ready sockets that are still watched."""
        for found, events in ready:
            # Looked up again: an earlier callback may have closed the socket, and a new one may have its number.
            key = self._selector.get_map().get(found.fd)
            if key is None or key.fileobj is not found.fileobj or not events & key.events:
                continue
            try:
                key.data(events & key.events)
            except Exception:
                log.exception("a callback failed: its socket is no longer watched")
                self._forget(key)

    def run_due(self) -> None:
        """Run the due timers, then the posted calls."""
        for callback in self._timers.due(self.now()):
            _run(callback)
        for _ in range(len(self._posted)):
            _run(self._posted.popleft())

    def flush(self) -> None:
        """Run the calls for the turn's end: channels send what was written to them."""
        while self._turn_end:
            callbacks, self._turn_end = self._turn_end, {}
            for callback in callbacks:
                _run(callback)

    def _forget(self, key: selectors.SelectorKey) -> None:
        # It would stay ready and fail in every turn. The callback may have unregistered it itself.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(key.fileobj)

    def _timeout(self) -> float | None:
        if self._posted or self._stopped:
            return 0.0
        at = self._timers.next_at()
        return None if at is None else max(0.0, at - self.now())

    def close(self) -> None:
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        log.exception("a callback failed")
