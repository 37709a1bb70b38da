"""A socket between a thread of the daemon and the thread of the engine's process that does its work.

One frame at a time, in turns. A ``call`` is answered by ``done`` or ``failed``; before that, its callbacks come as
``ask``, each answered by ``tell``. While an ``ask`` is open there may be further calls, one within another, as a tick
runs in the pause of a long job.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Sequence

from umaserve.remote import frames
from umaserve.remote.frames import Frame, Incoming
from umaserve.remote.values import Malformed


class Kind(enum.StrEnum):
    """Kind of a frame."""

    CALL = "call"
    DONE = "done"
    FAILED = "failed"
    ASK = "ask"
    TELL = "tell"


class Lost(Exception):
    """Raised where the other end is gone."""


class Channel:
    """One end of a socket between the daemon and the engine's process."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        """Descriptor of the socket, for ``poll``."""
        return self._socket.fileno()

    def limit(self, seconds: float) -> None:
        """Count the other end as gone if it takes longer than this to send or to take anything."""
        self._socket.settimeout(seconds)

    def send(self, kind: Kind, *content: object, tail: Sequence[bytes | memoryview] = ()) -> None:
        """Send a frame. Raises ``TooLarge`` and ``Lost``."""
        data = frames.encode((kind, *content), tail)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Lost(str(error)) from None

    def receive(self) -> Frame:
        """Receive a frame. Raises ``Malformed`` and ``Lost``."""
        incoming = Incoming()
        while True:
            try:
                data = self._socket.recv(incoming.wanted)
            except OSError as error:
                raise Lost(str(error)) from None
            if not data:
                raise Lost("it has closed the connection")
            if (frame := incoming.add(data)) is not None:
                if incoming.more:
                    raise Malformed("bytes behind a frame that nobody has asked for")
                return frame

    def close(self) -> None:
        """Close the connection. Both ends see it, also a thread that waits here."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It is closed already.

    def free(self) -> None:
        """Give its descriptor back, once it is closed: a thread that still waits here has ``Lost`` already."""
        self._socket.close()
