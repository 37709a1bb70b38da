"""The way to other relays through Redis or Valkey: each adds its news to streams there, and all read them.

One stream has what was given to workers, for as long as that counts without more word of it, and one what keys have
used, for as long as it counts in a bucket. So a relay that starts, or was away, reads what it has missed. Nothing is
left of either when no relay has said anything for that long.

While Redis can't be reached, each relay goes on alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.typing import KeyT, StreamIdT

from umaserve.core.errors import RequestError
from umaserve.net.loop import Loop
from umaserve.relay.peers.peer_updates import LOOK_S, REFILLED_S, RETRY_S, TELL_S, PublishedState, UnackedUsage
from umaserve.relay.pool.peer_load import FORGET_S
from umaserve.system.threads import JobThread

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
BLOCK_S = 1.0
"""How long a read waits for news."""
MAX_ENTRIES = 1000
"""Most entries of a stream that one read returns."""
FIELD = b"news"

Credentials = tuple[str] | tuple[str, str]
"""The password, or user and password."""
EntryId = tuple[int, int]
"""Milliseconds by Redis' clock, and a number among those of the same millisecond."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a relay has told; ``age_s``: how long ago, by Redis' clock."""

    age_s: float
    body: bytes


class RedisLink:
    """Tells ``news``, and calls ``hear`` with what any relay has told, this one included, and with its age in seconds.
    ``hear`` may raise ``RequestError``."""

    def __init__(
        self,
        loop: Loop,
        url: str,
        credentials: Callable[[], Credentials] | None,
        fleet: str,
        name: str,
        news: PublishedState,
        hear: Callable[[bytes, float], None],
    ) -> None:
        """``credentials`` are asked for at each connection. Only relays of the same ``fleet`` hear each other. ``name``
        is this relay's, another one after each start."""
        self._loop = loop
        self._url = url
        self._name = name
        self._news = news
        self._hear = hear
        self._redis = redis.Redis.from_url(
            url,
            credential_provider=_Credentials(credentials) if credentials is not None else None,
            protocol=2,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._loads, self._used = f"umaserve:{fleet}:loads", f"umaserve:{fleet}:used"
        self._kept_s = {self._loads: FORGET_S, self._used: REFILLED_S}
        self._seen: dict[str, EntryId] = {}
        """The last entry of each stream that was read; of the reading thread."""
        self._caught_up = False
        """Whether ``_seen`` is of this connection."""
        self._untold = UnackedUsage(news.used, loop.now)
        self._changes = -1
        self._told_at = 0.0
        self._failing: set[JobThread] = set()
        self._complaint = ""
        self._writing = JobThread("telling relays", loop.wake)
        self._reading = JobThread("hearing relays", loop.wake)
        self.threads = (self._writing, self._reading)

    def start(self) -> None:
        self._read()
        self._look()

    def close(self) -> None:
        """Tell at the relay's end that it has no load: the others need not wait until they forget it."""
        self._writing.submit(self._telling({}), lambda _result: None)

    # -- what is told --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Tell what has changed."""
        now = self._loop.now()
        if self._changes == self._news.changes and now - self._told_at < TELL_S:
            self._loop.call_later(LOOK_S, self._look)
            return
        self._changes, self._told_at = self._news.changes, now
        self._writing.submit(self._telling(self._news.loads()), self._was_told)

    def _telling(self, loads: object) -> Callable[[], None]:
        """Make the thread's job that tells ``loads``, and what keys have used."""
        bodies = {self._loads: orjson.dumps({"relay": self._name, "workers": loads})}
        if used := self._untold.take():
            bodies[self._used] = orjson.dumps({"relay": self._name, "keys": used})
        return lambda: self._add(bodies)

    def _add(self, bodies: dict[str, bytes]) -> None:
        now_ms = self._now_ms()
        with self._redis.pipeline(transaction=False) as pipeline:
            for stream, body in bodies.items():
                kept_ms = round(self._kept_s[stream] * 1000)
                pipeline.xadd(stream, {FIELD: body}, minid=max(0, now_ms - kept_ms))
                pipeline.pexpire(stream, kept_ms)
            pipeline.execute()

    def _was_told(self, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            self._changes = -1
            self._untold.was_lost()
            self._fail(self._writing, result)
        else:
            self._untold.was_told()
            self._succeed(self._writing)
        self._loop.call_later(LOOK_S if result is None else RETRY_S, self._look)

    # -- what is heard -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._reading.submit(self._receive, self._received)

    def _receive(self) -> Sequence[Entry]:
        if not self._caught_up:
            # Not beyond its clock, which may be another one's now.
            now_ms = self._now_ms()
            for stream, kept_s in self._kept_s.items():
                kept_ms = round(kept_s * 1000)
                self._seen[stream] = min(self._seen.get(stream, (now_ms - kept_ms, 0)), (now_ms, 0))
            self._caught_up = True
        with self._redis.pipeline(transaction=False) as pipeline:
            after: dict[KeyT, StreamIdT] = {stream: f"{ms}-{number}" for stream, (ms, number) in self._seen.items()}
            pipeline.xread(after, count=MAX_ENTRIES, block=round(BLOCK_S * 1000))
            pipeline.time()
            streams, (seconds, microseconds) = pipeline.execute()
        now_s = seconds + microseconds / 1e6
        entries = []
        for stream, found in dict(streams).items():
            for entry_id, fields in found:
                ms, number = (int(part) for part in entry_id.split(b"-"))
                self._seen[stream.decode()] = ms, number
                entries.append(Entry(max(0.0, now_s - ms / 1000), fields.get(FIELD, b"")))
        return entries

    def _received(self, result: Sequence[Entry] | BaseException) -> None:
        if isinstance(result, BaseException):
            self._caught_up = False
            self._fail(self._reading, result)
            self._loop.call_later(RETRY_S, self._read)
            return
        self._succeed(self._reading)
        self._read()
        for entry in result:
            try:
                self._hear(entry.body, entry.age_s)
            except RequestError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    log.warning("ignored an update in Redis that no relay has written: %s", error, extra=self._fields)

    def _now_ms(self) -> int:
        seconds, microseconds = self._redis.time()
        return seconds * 1000 + microseconds // 1000

    # -- what goes wrong -----------------------------------------------------------------------------------------

    @property
    def _fields(self) -> dict[str, object]:
        return {"fields": {"url": self._url}}

    def _fail(self, thread: JobThread, problem: BaseException) -> None:
        if not self._failing:
            advice = "until it works, each relay counts for itself"
            bug = None if isinstance(problem, redis.RedisError) else problem
            log.warning(
                "counters can't be shared through Redis: %s: %s", problem, advice, extra=self._fields, exc_info=bug
            )
        self._failing.add(thread)

    def _succeed(self, thread: JobThread) -> None:
        if thread in self._failing:
            self._failing.remove(thread)
            if not self._failing:
                log.info("counters are shared through Redis", extra=self._fields)


class _Credentials(CredentialProvider):
    def __init__(self, credentials: Callable[[], Credentials]) -> None:
        self._credentials = credentials

    def get_credentials(self) -> Credentials:
        return self._credentials()
