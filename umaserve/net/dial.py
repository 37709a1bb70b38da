"""Outgoing connections: tries a name's addresses in turn, without blocking the loop."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from umaserve.net.loop import WRITE, Loop

log = logging.getLogger(__name__)

MAX_ADDRESSES = 8
"""Addresses tried for one name; a resolver may return hundreds."""

Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Runs a job on another thread; its result, or the exception it raised, comes back on the loop's."""
Done = Callable[["socket.socket | DialError"], None]
_Address = tuple[int, Any]
"""An address family, and an address in that family's form."""


class DialError(Exception):
    """Connecting failed; the message says to what, and why for each address."""


def dial(loop: Loop, submit: Submit, host: str, port: int, *, timeout: float, done: Done) -> Dialing:
    """Connect to ``host``, a name or an IP address without brackets, within ``timeout`` seconds in all.

    ``done`` gets the connected, non-blocking socket, which is then its own, or a DialError: exactly once, on the loop's
    thread, after `dial` has returned, and not at all after ``cancel``. Only a name is looked up, by way of ``submit``.
    """
    dialing = Dialing(loop, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", timeout, done)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):

        def resolve() -> Sequence[tuple[Any, ...]]:
            # While a resolver hangs, jobs that are no longer needed would pile up.
            return () if dialing.over else socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

        # The thread's results arrive in the loop's hook, where an exception in ``done`` would end the loop.
        submit(resolve, lambda result: loop.call_soon(lambda: dialing.resolved(result)))
    else:
        loop.call_soon(lambda: dialing.resolved(found))
    return dialing


def dial_file(loop: Loop, path: str, *, timeout: float, done: Done) -> Dialing:
    """Connect to the Unix socket at ``path``; otherwise like `dial`."""
    dialing = Dialing(loop, path, timeout, done)
    loop.call_soon(lambda: dialing.attempt([(socket.AF_UNIX, path)]))
    return dialing


class Dialing:
    """A connection that `dial` or `dial_file` is making."""

    def __init__(self, loop: Loop, place: str, timeout: float, done: Done) -> None:
        self.over = False
        """Whether ``done`` was called or cancelled."""
        self._loop = loop
        self._place = place
        self._done = done
        self._deadline = loop.now() + timeout
        self._timer = loop.call_later(timeout, lambda: self._fail(f"the name wasn't resolved within {timeout:g} s"))
        self._left: list[_Address] = []
        self._sock: socket.socket | None = None
        """The attempt in progress, to `_shown`."""
        self._shown = ""
        self._failures: list[str] = []

    def cancel(self) -> None:
        """Stop, unless it is over."""
        self.over = True
        self._end_attempt()

    def resolved(self, found: Sequence[tuple[Any, ...]] | BaseException) -> None:
        """Continue with the result of getaddrinfo."""
        if isinstance(found, BaseException):
            if not self.over:
                self._fail(f"the name can't be resolved: {_reason(found)}")
            return
        # A hosts file may list an address twice.
        addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
        self.attempt(list(addresses)[:MAX_ADDRESSES])

    def attempt(self, addresses: list[_Address]) -> None:
        """Try ``addresses`` in turn."""
        if not self.over:
            self._left = addresses
            self._try_next()

    def _try_next(self) -> None:
        if not self._left:
            self._fail("; ".join(self._failures))
            return
        # Each gets an equal share of the time left, so that one that never answers leaves time for the others.
        share = max(0.0, self._deadline - self._loop.now()) / len(self._left)
        self._timer.cancel()
        self._timer = self._loop.call_later(share, lambda: self._failed(f"no answer within {share:.3g} s"))
        family, address = self._left.pop(0)
        self._shown = _shown(family, address)
        try:
            self._sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            if family != socket.AF_UNIX:
                # Tokens are small, and must not wait for more data (Nagle's algorithm).
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            error = self._sock.connect_ex(address)
        except (OSError, ValueError) as problem:
            # A family that this machine lacks, no descriptor left, a path too long for a socket.
            self._failed(_reason(problem))
            return
        if error == errno.EINPROGRESS:
            self._loop.set_interest(self._sock, WRITE, self._on_ready)
        else:
            self._settle(self._sock, error)

    def _on_ready(self, _events: int) -> None:
        assert self._sock is not None
        self._settle(self._sock, self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _settle(self, sock: socket.socket, error: int) -> None:
        if not error and _is_its_own_peer(sock):
            error = errno.ECONNREFUSED
        if error:
            self._failed(os.strerror(error))
            return
        self._loop.set_interest(sock, 0, self._on_ready)
        self._sock = None
        self.cancel()
        self._done(sock)

    def _failed(self, reason: str) -> None:
        log.debug("no connection to %s: %s", self._shown, reason)
        self._failures.append(reason if self._shown == self._place else f"{reason} ({self._shown})")
        self._end_attempt()
        self._try_next()

    def _fail(self, reason: str) -> None:
        self.cancel()
        self._done(DialError(f"can't connect to {self._place}: {reason}"))

    def _end_attempt(self) -> None:
        self._timer.cancel()
        if self._sock is not None:
            self._loop.set_interest(self._sock, 0, self._on_ready)
            self._sock.close()
            self._sock = None


def _is_its_own_peer(sock: socket.socket) -> bool:
    """Whether the socket is connected to itself: without a local listener the kernel may choose the dialed port as the
    socket's own."""
    if sock.family == socket.AF_UNIX:
        return False
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # The peer has left already, which the channel will notice.


def _shown(family: int, address: Any) -> str:
    if family == socket.AF_UNIX:
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
