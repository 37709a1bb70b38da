"""Which prompts can start: what of each is cached, and what it had better wait for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from umaserve.kvcache.disk_cache import PRIVATE, DiskCache
from umaserve.kvcache.slots import Slots
from umaserve.scheduler.policy.snapshot import urgency
from umaserve.scheduler.work import sequence
from umaserve.sessions.engine_api import Chunk, Span
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import NEVER, Session
from umaserve.sessions.states import State
from umaserve.sessions.targets import Targets
from umaserve.sessions.waiting import Why

COMPARED = 16
"""Prompts that are compared with each other before they start."""
LOOKED_UP = 4
"""Waiting prompts whose cached prefix is looked up before one tick: the lookup of a long prompt takes its time."""


class Readiness:
    """Looks prompts up in the caches, and holds those back for which more of them is coming."""

    def __init__(
        self,
        sessions: SessionManager,
        slots: Slots,
        disk: DiskCache | None,
        targets: Targets,
        clock: Callable[[], float],
        *,
        shared_prefixes: bool,
    ) -> None:
        """``shared_prefixes``: tenants may reuse each other's cached prefixes."""
        self._sessions = sessions
        self._slots = slots
        self._disk = disk
        self._targets = targets
        self._now = clock
        self._shares_prefixes = shared_prefixes
        self.to_encode: list[tuple[Session, Chunk]] = []
        """Prompts that can't start before this chunk of media is encoded, oldest first, as of the last plan."""
        self._to_fetch: dict[int, str] = {}
        """Sequences on disk that prompts wait for, with their scopes, as of the last plan."""

    def of(self, prefill: Sequence[Session]) -> list[Session]:
        """Select the sessions of ``prefill`` that can start or go on now; sets ``to_encode``."""
        self._look_up_some([s for s in prefill if s.slot is None and s.looked_at != self._slots.version])
        ready: list[Session] = []
        self.to_encode = []
        self._to_fetch = {}
        for session in prefill:
            if session.slot is None and session.follows is not None and self._follows(session, session.follows):
                continue
            if session.slot is None and session.awaits is not None and self._comes_from_disk(session.awaits):
                self._to_fetch[session.awaits] = self.scope(session)
                continue
            prepared = session.prepared
            chunk = _not_encoded(session, prepared.spans) if prepared is not None and prepared.spans else None
            if chunk is None:
                ready.append(session)
            elif session.slot is not None or session.looked_at != NEVER:
                # Before its first lookup it is unknown which chunks it has to compute.
                self.to_encode.append((session, chunk))
        return ready

    def one_of_alike(self, ready: list[Session]) -> list[Session]:
        """Leave out prompts that have not started and begin as a more urgent one does for half of what they lack: they
        follow it, to reuse what it computes."""
        new = [session for session in ready if session.slot is None and session.request.shares_prefixes]
        leaders: list[Session] = []
        followers: set[int] = set()
        for session in heapq.nsmallest(COMPARED, new, key=self.urgency) if len(new) > 1 else ():
            leader = next((leader for leader in leaders if self._repeats(session, leader)), None)
            if leader is None:
                leaders.append(session)
            else:
                session.follows = leader.id
                followers.add(session.id)
        return [session for session in ready if session.id not in followers]

    def _repeats(self, session: Session, leader: Session) -> bool:
        mine, its = sequence(session), sequence(leader)
        half = session.reusable + max(1, (len(mine) - session.reusable) // 2)
        # Mostly the last of them differs, and the long comparison is spared.
        same = len(its) >= half and mine[half - 1] == its[half - 1] and mine[:half] == its[:half]
        return same and self.scope(session) == self.scope(leader)

    def why_waiting(self, session: Session) -> Why | None:
        """What a prepared session without a slot waits for, as of the last plan; ``None``: for no more than a slot."""
        if session.follows is not None and self._follows(session, session.follows):
            return Why.PREFIX
        if session.awaits is not None and self._comes_from_disk(session.awaits):
            return Why.DISK
        return Why.MEDIA if any(one is session for one, _chunk in self.to_encode) else None

    def scope(self, session: Session) -> str:
        """The scope of its cache entries: tenant and adapters, or only itself. Were they shared between tenants, timing
        would tell one tenant what another one has asked."""
        request, prepared = session.request, session.prepared
        assert prepared is not None
        if not request.shares_prefixes:
            return f"{PRIVATE}{session.id}"
        tenant = "" if self._shares_prefixes else session.caller.tenant
        return f"{tenant} {prepared.adapters}" if prepared.adapters else tenant

    def urgency(self, session: Session) -> tuple[bool, bool, bool, float, int]:
        """The sort key of waiting sessions: the least is served first."""
        request = session.request
        own = request.target_ttft_s
        target = own or self._targets.ttft_s
        key = urgency(
            request.priority,
            session.requested_at,
            target,
            self._now(),
            own_target=own is not None,
            resumes=resumes(session),
        )
        return *key, session.id

    def between_ticks(self) -> None:
        """Start reading from disk what prompts wait for: no tick with KV operations is under way."""
        if self._disk is not None and not self._slots.kv_operations:
            self._disk.between_ticks(self._to_fetch)

    def drop_fetched(self) -> None:
        """Forget the sequences that were read from disk: a sequence could not be loaded."""
        if self._disk is not None:
            self._disk.drop_fetched()

    # -- of one prompt -------------------------------------------------------------------------------------------

    def _comes_from_disk(self, key: int) -> bool:
        return self._disk is not None and self._disk.is_awaited(key)

    def _look_up_some(self, stale: list[Session]) -> None:
        """Look up the most urgent session, which may start in this tick, and those with the oldest lookups."""
        if stale:
            most_urgent = min(stale, key=self.urgency)
            stale.remove(most_urgent)
            for session in (most_urgent, *heapq.nsmallest(LOOKED_UP - 1, stale, key=lambda s: s.looked_at)):
                self._look_up(session)

    def _look_up(self, session: Session) -> None:
        """Find the longest cached prefix, and the session that is now computing a longer one, if any."""
        scope, tokens = self.scope(session), sequence(session)
        session.looked_at = self._slots.version
        session.reusable = self._slots.reusable(scope, tokens)
        coming = self._slots.coming.match(scope, tokens)
        session.follows = coming.holder if coming is not None and coming.length > session.reusable else None
        if self._disk is not None and session.slot is None and session.awaits is None:
            known = max(session.reusable, 0 if coming is None else coming.length)
            session.awaits = self._disk.better(scope, tuple(tokens), known)

    def _follows(self, session: Session, leader_id: int) -> bool:
        """Whether it waits to reuse that session's prompt in prefill, which will be served before it in any case."""
        leader = self._sessions.find(leader_id)
        if leader is None or leader.state is not State.PREFILL or leader.slot is None or leader.holds:
            return False
        in_time = self._now() <= self._deadline(leader) <= self._deadline(session)
        return in_time and leader.request.priority <= session.request.priority

    def _deadline(self, session: Session) -> float:
        return session.requested_at + (session.request.target_ttft_s or self._targets.ttft_s)


def resumes(session: Session) -> bool:
    """Whether it lost its slot to another, and goes on where it was."""
    return bool(session.generated) or (session.slot is None and session.started_at is not None)


def _not_encoded(session: Session, spans: Sequence[Span]) -> Chunk | None:
    """The first chunk to encode before this prompt can start, so that it takes no slot meanwhile; or before it can go
    on, where the lookup had found the chunk cached."""
    start = session.reusable if session.slot is None else session.computed
    for span in spans:
        if span.end > start and not span.chunk.encoded:
            return span.chunk
    return None
