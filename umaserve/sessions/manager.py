"""All sessions, from their arrival to their end. Only ``SessionManager`` changes their states."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from umaserve.core.commands import EndThought, Modify, Pause, Resume, Steering
from umaserve.core.errors import Fault, RequestError, shutting_down
from umaserve.core.events import Finished, FinishReason, Output, Steered, Token
from umaserve.core.requests import Generate
from umaserve.sessions.answer_text import AnswerText, Said
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Prepared
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import NEVER, Hold, Session, Sink
from umaserve.sessions.speculation import Repetition
from umaserve.sessions.states import TRANSITIONS, Event, State, TransitionError

log = logging.getLogger(__name__)


MAX_CHANGES = 8
"""Changes to one request that may wait for the end of a tick."""

Admit = Callable[[Caller, int, float], None]
"""Admission check, called with the caller, the length of the queue and the time; raises ``RequestError`` to refuse a
request."""


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    sessions: int = 0
    rejected: int = 0


class SessionManager:
    """All sessions that have not ended; the only writer of their states."""

    def __init__(
        self,
        admit: Admit | None = None,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[Session, str], None] = lambda _session, _end: None,
        model: str = "",
        totals: Totals | None = None,
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        """``ended`` is called for each request that has ended, was refused or abandoned, with how it ended. ``model``:
        the name of the one that answers. ``totals``: those of all models; they number the sessions. ``wanted`` is
        called when a request comes, goes on or is changed: for it the model has to be loaded."""
        self.totals = totals or Totals()
        self.draining = False
        self.holds_back = False
        """Whether new requests wait, since the engine is to make way for another one."""
        self.version = 0
        """Number that goes up with whatever may change the next tick: a request is prepared, changes its state or is
        steered."""
        self._ended = ended
        self._admit = admit
        self._now = clock
        self._model = model
        self._wanted = wanted
        self._running: dict[int, Session] = {}
        self._arrived: dict[int, Session] = {}
        self._held: dict[int, Session] = {}
        self._changes: dict[int, list[Steering]] = {}
        self._with_output: dict[int, Session] = {}

    def start(
        self,
        request: Generate,
        sink: Sink,
        caller: Caller,
        now: float,
        *,
        admitted: bool = False,
        arrived_at: float | None = None,
    ) -> Session:
        """Start ``request``, whose outputs ``sink`` gets; raises ``RequestError`` if it is refused. ``admitted``: it
        was, as a part of another. ``arrived_at``: where it could not be read before ``now``."""
        arrived_at = now if arrived_at is None else arrived_at
        try:
            if not admitted:
                self.admit(caller, now)
        except RequestError as error:
            self.refuse(request, caller, arrived_at, error, self._model)
            raise
        request = replace(request, priority=max(request.priority, caller.priority))
        session = self._new(request, sink, caller, self._model, arrived_at)
        session.waits_since = arrived_at
        self._running[session.id] = session
        self._arrived[session.id] = session
        self.version += 1
        self._wanted()
        return session

    def refuse(
        self, request: Generate, caller: Caller, arrived_at: float, error: RequestError, model: str = ""
    ) -> None:
        """Report the end of a request that is refused with ``error``. ``model``: the one that it is for; empty: none
        that there is."""
        error.request_id = request.id
        self._ended(self._new(request, _drop, caller, model, arrived_at), error.fault.name.lower())

    def _new(self, request: Generate, sink: Sink, caller: Caller, model: str, arrived_at: float) -> Session:
        self.totals.sessions += 1
        return Session(self.totals.sessions, self, request, sink, caller, model, arrived_at)

    def take_over(self, request: Generate, begun: Resumed, sink: Sink, caller: Caller, now: float) -> Session:
        """Go on with a request that another process has begun, of which its client knows; detached for now."""
        session = self.start(request, sink, caller, now, admitted=True, arrived_at=now - begun.took_s)
        session.begun, session.announced = begun, True
        session.generated, session.reused = list(begun.generated), begun.reused
        if begun.started_s is not None:
            session.started_at = session.requested_at + begun.started_s
        if begun.first_token_s is not None:
            session.first_made_at, session.last_made_at = session.requested_at + begun.first_token_s, now
        self.hold(session, Hold.DETACHED)
        if begun.paused:
            self.hold(session, Hold.PAUSE)
        return session

    def admit(self, caller: Caller, now: float) -> None:
        """Raise ``RequestError`` if a request of this caller is refused now."""
        if self.draining:
            raise shutting_down()
        if self._admit is not None:
            self._admit(caller, self.waiting, now)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot; held ones do not count."""
        return sum(session.slot is None and not session.holds for session in self._running.values())

    def cancel(self, session: Session, request_id: str) -> None:
        """End a running request. One that has ended, or another id, is no error: a cancel may cross the end."""
        if session.running and session.request.id == request_id:
            self.finish(session, FinishReason.CANCELLED)

    def abandon(self, session: Session, end: str = "abandoned") -> None:
        """End a session and drop its outputs: nobody waits for them. ``end`` is the reason, for logs and metrics."""
        left = session.running or bool(session.outbox)
        if not session.ended:
            self._end(session, Event.FINISH)
        session.outbox.clear()
        self._with_output.pop(session.id, None)
        if left:
            self._ended(session, end)

    def steer(self, session: Session, command: Steering) -> None:
        """Pause, resume or modify a running request; one that has just ended is no error."""
        if not session.running:
            return
        match command:
            case Pause():
                self.hold(session, Hold.PAUSE)
            case Resume():
                self.release(session, Hold.PAUSE)
        self.version += 1
        self._wanted()
        # The tick in flight uses the sampler, and may make one more token for a stream that has just been paused. The
        # scheduler applies and acknowledges the change after that tick.
        waiting = self._changes.setdefault(session.id, [])
        if len(waiting) < MAX_CHANGES:
            waiting.append(command)
        elif isinstance(command, Modify | EndThought):
            problem = f"{MAX_CHANGES} changes are waiting, which is the limit; try again later"
            self.put(session, Steered(command, RequestError(Fault.BAD_REQUEST, "request", problem)))
        else:
            self.put(session, Steered(command))

    def hold(self, session: Session, why: Hold) -> None:
        """Compute no more tokens of a session until every hold is released."""
        if not session.running or (why is Hold.READER and session.state is State.PREFILL):
            return
        if not session.holds:
            session.held_at = self._now()
        session.holds.add(why)
        self._held[session.id] = session
        if session.state is State.DECODE:
            self._move(session, Event.HOLD)

    def release(self, session: Session, why: Hold) -> None:
        session.holds.discard(why)
        if session.holds:
            return
        session.waits_since = self._now()
        self.version += 1
        if self._held.pop(session.id, None) is not None:
            session.held_s += self._now() - session.held_at
        if session.state is State.STREAM:
            self._move(session, Event.RELEASE)
        self._wanted()

    def prepared(
        self, session: Session, prepared: Prepared, text: AnswerText, repetition: Repetition | None = None
    ) -> None:
        """Record that a session is prepared: its prompt can start."""
        session.prepared, session.text, session.repetition = prepared, text, repetition
        session.prepared_at = self._now() if session.prepared_at is None else session.prepared_at
        self.version += 1

    def prompt_done(self, session: Session) -> None:
        self._move(session, Event.PROMPT_DONE)
        if session.holds:
            self._move(session, Event.HOLD)

    def preempted(self, session: Session) -> None:
        """Have a session that lost its slot wait for another: its tokens are restored, or computed again, when it gets
        another."""
        self._move(session, Event.PREEMPT)
        session.slot = None
        session.computed = 0
        session.looked_at = NEVER
        session.waits_since = self._now()

    def start_over(self) -> None:
        """Start all running sessions over, since the engine was lost: they are prepared and computed again by another
        one, and go on where they were."""
        for session in self._running.values():
            session.before, session.prepared = session.prepared or session.before, None
            session.follows, session.draft_tokens = None, ()
            self.preempted(session)
        self._arrived = dict(self._running)
        self.version += 1

    def put(self, session: Session, output: Output | RequestError) -> None:
        """Queue ``output`` for the next ``deliver``."""
        session.outbox.append(output)
        self._with_output[session.id] = session

    def finish(self, session: Session, reason: FinishReason) -> None:
        """End with ``reason``, after the queued outputs and the text held back."""
        try:
            said, filtered = (Said(""), False) if session.text is None else session.text.finish()
        except RequestError as error:
            self.fail(session, error)
            return
        self._end(session, Event.FINISH)
        now = self._now()
        if any(said):
            took = now - session.requested_at
            token = Token(said.text, session.generated[-1], elapsed_s=took, sampled=False)
            self.put(session, token._replace(thoughts=said.thoughts, answer=said.answer))
        reason = FinishReason.CONTENT_FILTER if filtered else reason
        stop_string = session.text.stop_string if reason is FinishReason.STOP and session.text is not None else None
        # Of an answer that was cut for its content, the tokens would tell what its text may not.
        told = session.request.wants_tokens and reason is not FinishReason.CONTENT_FILTER
        tokens = session.tokens if told else ()
        end = Finished(reason, session.usage, session.timing(now), stop_string=stop_string, tokens=tokens)
        self.put(session, end)

    def fail(self, session: Session, error: RequestError) -> None:
        """End with ``error``, after the queued outputs."""
        error.request_id = session.request.id
        self._end(session, Event.FAIL)
        self.put(session, error)

    def expire(self, seconds: float) -> None:
        """Fail the requests that have taken longer than ``seconds``, time in holds not counted."""
        now = self._now()
        overdue = [s for s in self._running.values() if not s.holds and now - s.requested_at - s.held_s > seconds]
        for session in overdue:
            self.fail(
                session,
                RequestError(Fault.TIMED_OUT, "request", f"it took more than {seconds:g} s (--request-timeout)"),
            )

    def _end(self, session: Session, event: Event) -> None:
        self._move(session, event)
        self._running.pop(session.id, None)
        self._arrived.pop(session.id, None)
        self._held.pop(session.id, None)
        self._changes.pop(session.id, None)

    def take_arrived(self) -> list[Session]:
        """Sessions whose request arrived since the last call and has not ended; none while it ``holds_back``."""
        if self.holds_back:
            return []
        arrived, self._arrived = self._arrived, {}
        return list(arrived.values())

    @property
    def arrived(self) -> Collection[Session]:
        """Sessions that ``take_arrived`` would return if it held nothing back."""
        return self._arrived.values()

    @property
    def changing(self) -> bool:
        """Whether ``take_changes`` would return any."""
        return any(self._running[id_].prepared is not None for id_ in self._changes)

    def take_changes(self, limit: int) -> list[tuple[Session, list[Steering]]]:
        """Changes to at most ``limit`` prepared requests, each request's in order of arrival."""
        ready = [self._running[id_] for id_ in self._changes if self._running[id_].prepared is not None]
        return [(session, self._changes.pop(session.id)) for session in ready[:limit]]

    def get(self, session_id: int) -> Session:
        """The running session of this id."""
        return self._running[session_id]

    def find(self, session_id: int) -> Session | None:
        """The running session of this id; ``None`` if it has ended."""
        return self._running.get(session_id)

    def running(self) -> Iterator[Session]:
        """Sessions with a request that has not ended, oldest first."""
        return iter(self._running.values())

    @property
    def count(self) -> int:
        """Number of running sessions."""
        return len(self._running)

    def held(self) -> Iterator[Session]:
        """Running sessions that get no tokens for now, the one held longest first."""
        return iter(self._held.values())

    @property
    def undelivered(self) -> bool:
        """Whether outputs wait for ``deliver``."""
        return bool(self._with_output)

    def deliver(self) -> Iterator[tuple[Session, Output | RequestError]]:
        """Hand each queued output to its sink, then yield it. If a sink raises, which is a bug of ours, only its own
        session is abandoned."""
        while self._with_output:
            sessions, self._with_output = self._with_output, {}
            for session in sessions.values():
                # One by one, since a sink may abandon this session or another.
                while session.outbox:
                    output = session.outbox.popleft()
                    try:
                        session.sink(output)
                    except Exception:
                        log.exception(
                            "request %s: cancelled: internal error while delivering its output", session.request.id
                        )
                        # Queued again, so that abandon() reports the end of a session that has ended, too.
                        session.outbox.appendleft(output)
                        self.abandon(session, "failed")
                        break
                    if isinstance(output, Finished):
                        self._ended(session, output.reason.value)
                    elif isinstance(output, RequestError):
                        self._ended(session, output.fault.name.lower())
                    yield session, output

    def _move(self, session: Session, event: Event) -> None:
        state = TRANSITIONS.get((session.state, event))
        if state is None:
            raise TransitionError(f"session {session.id}: {event.value!r} in state {session.state.value}")
        log.debug("session %d: %s -> %s (%s)", session.id, session.state.value, state.value, event.value)
        session.state = state
        self.version += 1


def _drop(_output: Output | RequestError) -> None:
    """Take nothing: a request that was refused has no outputs."""
