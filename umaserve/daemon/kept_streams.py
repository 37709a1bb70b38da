"""Streams of events that outlive their connections: a client names one by a header, and reads on where it was."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from umaserve.core.errors import Fault, RequestError
from umaserve.daemon.detached import LOST_BYTES
from umaserve.dialects import sse
from umaserve.dialects.facts import StreamState
from umaserve.dialects.http import AS_IT_COMES
from umaserve.dialects.schemas import MAX_ID_BYTES
from umaserve.http.connection import HttpConnection
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.sessions.caller import Caller
from umaserve.wire.fields import out_of_range
from umaserve.wire.http_head import Headers, Request

HEADER = "x-conversation-id"
STREAM_BYTES = 4 << 20
"""The most bytes of one stream that are kept: of a longer one the oldest quarter goes."""
UNREAD_BYTES = 256 * 1024
"""Likewise, of a stream that nobody can ask for any more."""
PIECE_BYTES = 64 * 1024
_ID = re.compile(rf"[!-~]{{1,{MAX_ID_BYTES}}}")
_HEADERS: Headers = [("Content-Type", sse.CONTENT_TYPE), *AS_IT_COMES]


class Source(Protocol):
    """The exchange that makes a stream."""

    @property
    def streams(self) -> bool:
        """Whether its requests have begun, and are answered by a stream."""

    def release(self) -> None: ...

    def abandon(self) -> None: ...


class Reader:
    """A connection that reads a stream, from byte ``at`` on: a ``Pending``."""

    def __init__(self, stream: KeptStream, connection: HttpConnection, at: int) -> None:
        self.connection = connection
        self.begun = False
        self._stream = stream
        self._at = at

    def begin(self) -> None:
        """Begin the reply, once the stream has begun."""
        headers = self._stream.headers
        if headers is not None and not self.begun:
            self.begun = True
            self.connection.begin(200, headers)

    def go_on(self) -> bool:
        """Write what has come, as far as the client reads it; returns whether that is all that there will be."""
        while not self.connection.congested and (piece := self._stream.piece(self._at)):
            self._at += len(piece)
            self.connection.write(piece)
        return self._stream.done and self._at == self._stream.total_bytes

    @property
    def lost(self) -> bool:
        """Whether what it has still to read is gone."""
        return self._at < self._stream.dropped_bytes

    def end(self) -> None:
        """End the reply, where that is too early, too."""
        if self.begun:
            self.connection.end()
        else:
            self.connection.respond(200, _HEADERS, b"")

    def release(self) -> None:
        self._stream.release()

    def abandon(self) -> None:
        self._stream.leave(self)


class KeptStream:
    """One stream: a ``Responder`` that keeps what it is given, for readers that come and go. A reader that is behind
    holds it, as every slow client does; without readers it runs on."""

    def __init__(self, streams: KeptStreams, tenant: str, conversation: str, max_bytes: int) -> None:
        self.tenant = tenant
        self.conversation = conversation
        self.source: Source | None = None
        self.headers: Headers | None = None
        """Headers of its reply; ``None`` until it has begun."""
        self.kept = True
        """Whether it can be asked for; else it ends with its last reader."""
        self.done = False
        self.dropped_bytes = 0
        """Bytes before the first one that is still there."""
        self.counted_bytes = 0
        """Bytes that ``KeptStreams`` counts for it."""
        self.expiry: Timer | None = None
        self._streams = streams
        self._max_bytes = max_bytes
        self._readers: list[Reader] = []
        self._bytes = bytearray()
        self._started_at = streams.now()
        self._completed_at = 0

    @property
    def total_bytes(self) -> int:
        return self.dropped_bytes + len(self._bytes)

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the stream in bytes."""
        return LOST_BYTES + len(self._bytes)

    @property
    def state(self) -> StreamState:
        return StreamState(self.conversation, self.done, self.total_bytes, self._started_at, self._completed_at)

    def piece(self, at: int) -> bytes:
        """The next bytes from ``at`` on, which must not be gone; none where none have come."""
        return bytes(self._bytes[(begin := at - self.dropped_bytes) : begin + PIECE_BYTES])

    # -- readers -------------------------------------------------------------------------------------------------

    def add(self, connection: HttpConnection, at: int = 0) -> None:
        """Have the connection read from byte ``at`` on. Raises ``RequestError`` where that isn't there."""
        if not self.dropped_bytes <= at <= self.total_bytes:
            there = f"a number from {self.dropped_bytes} to {self.total_bytes}, the bytes that are there"
            raise out_of_range("from", there, at)
        reader = Reader(self, connection, at)
        self._readers.append(reader)
        connection.pending = reader
        reader.begin()
        self.tell()

    def tell(self) -> None:
        """Give all readers what they have still to read."""
        for reader in list(self._readers):
            if reader.lost:
                self._readers.remove(reader)
                reader.connection.abort()
            elif reader.begun and reader.go_on():
                self._readers.remove(reader)
                reader.end()

    def release(self) -> None:
        """Go on: a reader has caught up, or left."""
        self.tell()
        if self.source is not None and not self.done and not self.congested:
            self.source.release()

    def leave(self, reader: Reader) -> None:
        """The reader's client has left."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if not self._readers and not self._goes_on:
            self.cancel()
        else:
            self.release()

    @property
    def _goes_on(self) -> bool:
        """Whether it is wanted without readers."""
        return self.done or (self.kept and self.source is not None and self.source.streams)

    def let_go(self) -> None:
        """Be none that can be asked for: it ends with its last reader."""
        self.kept = False
        if not self._readers:
            self.cancel()

    def cancel(self) -> None:
        """End it and its readers: it isn't wanted any more."""
        self._streams.forget(self)
        if not self.done:
            self.done = True
            if self.source is not None:
                self.source.abandon()
        for reader in self._taken():
            reader.end()

    def _taken(self) -> Sequence[Reader]:
        readers, self._readers = self._readers, []
        return readers

    # -- from the exchange ---------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return any(reader.connection.congested for reader in self._readers)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Pass a whole reply on, which is no stream: nothing is kept."""
        self._streams.forget(self)
        self.done = True
        for reader in self._taken():
            if reader.begun:
                reader.end()
            else:
                reader.connection.respond(status, headers, body)

    def begin(self, status: int, headers: Headers) -> None:
        if status != 200:
            raise ValueError(f"a stream with status {status}")
        self.headers = headers
        for reader in self._readers:
            reader.begin()

    def write(self, data: bytes) -> None:
        self._bytes += data
        self.tell()
        most = self._max_bytes if self.kept else UNREAD_BYTES
        if (over := len(self._bytes) - most) > 0:
            # More than is needed: what stays is moved each time.
            gone = max(over, most // 4)
            del self._bytes[:gone]
            self.dropped_bytes += gone
        self._streams.count(self)

    def end(self) -> None:
        self.done = True
        self._completed_at = self._streams.now()
        self._streams.expire(self)
        self.tell()

    def abort(self) -> None:
        """Cut the readers off, after a bug of ours."""
        self._streams.forget(self)
        self.done = True
        for reader in self._taken():
            reader.connection.abort()


class KeptStreams:
    """Keeps each for ``window`` seconds after its end, and at most ``max_bytes`` of them: the oldest goes first."""

    def __init__(
        self, loop: Loop, window: float, max_bytes: int, now: Callable[[], int] = lambda: int(time.time())
    ) -> None:
        """``now``: seconds since 1970."""
        self.now = now
        self._loop = loop
        self._window = window
        self._max_bytes = max_bytes
        self._streams: dict[tuple[str, str], KeptStream] = {}
        self._bytes = 0

    def begin(self, caller: Caller, request: Request) -> KeptStream | None:
        """The stream that keeps the reply to a request which names one; the one of that name before it is cancelled.
        Raises ``RequestError`` for what is no name."""
        conversation = request.header(HEADER)
        most = min(STREAM_BYTES, self._max_bytes - LOST_BYTES)
        if conversation is None or caller.several or self._window <= 0 or most <= 0:
            return None
        if not _ID.fullmatch(conversation):
            expected = f"expected 1 to {MAX_ID_BYTES} printable characters of ASCII without spaces"
            raise RequestError(Fault.BAD_REQUEST, HEADER, f"{expected}, got {conversation[:32]!r}")
        self.stop(caller.tenant, conversation)
        stream = KeptStream(self, caller.tenant, conversation, most)
        self._streams[caller.tenant, conversation] = stream
        self.count(stream)
        return stream

    def find(self, tenant: str, conversation: str) -> KeptStream:
        """Raises ``RequestError`` where there is none."""
        stream = self._streams.get((tenant, conversation))
        if stream is None:
            problem = f"expected the {HEADER} of a stream of yours that is still kept, got {conversation[:64]!r}"
            raise RequestError(Fault.NOT_FOUND, "conv_id", problem)
        return stream

    def states(self, tenant: str, conversations: Sequence[str]) -> list[StreamState]:
        """The states of the streams with these names, also where a model's follows (``NAME::MODEL``)."""
        wanted = frozenset(conversations)
        own = [stream for (owner, _name), stream in self._streams.items() if owner == tenant]
        return [one.state for one in own if {one.conversation, one.conversation.partition("::")[0]} & wanted]

    def stop(self, tenant: str, conversation: str) -> None:
        """Cancel the stream of that name, if there is one."""
        if stream := self._streams.get((tenant, conversation)):
            stream.cancel()

    # -- from a stream -------------------------------------------------------------------------------------------

    def count(self, stream: KeptStream) -> None:
        """Count what it holds, and let go of others where that is too much."""
        if not stream.kept:
            return
        self._bytes += stream.held_bytes - stream.counted_bytes
        stream.counted_bytes = stream.held_bytes
        while self._bytes > self._max_bytes:
            oldest = next(one for one in self._streams.values() if one is not stream)
            self.forget(oldest)
            oldest.let_go()

    def expire(self, stream: KeptStream) -> None:
        if stream.kept:
            stream.expiry = self._loop.call_later(self._window, lambda: self.forget(stream))

    def forget(self, stream: KeptStream) -> None:
        if self._streams.get((stream.tenant, stream.conversation)) is not stream:
            return
        del self._streams[stream.tenant, stream.conversation]
        self._bytes -= stream.counted_bytes
        stream.kept = False
        if stream.expiry is not None:
            stream.expiry.cancel()
