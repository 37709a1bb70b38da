"""The sessions of all models: each is the business of the model that its request chooses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from umaserve.core.errors import ModelNotFound, RequestError
from umaserve.core.requests import Generate, Steering
from umaserve.models.registry import Models
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager, Totals
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import Hold, Session, Sink


class ModelSessions:
    """Has the methods of a ``SessionManager`` for what has clients, and their meaning."""

    def __init__(self, models: Models, ended: Callable[[Session, str], None]) -> None:
        self._models = models
        self._ended = ended

    @property
    def totals(self) -> Totals:
        return self._models.default.sessions.totals

    @property
    def draining(self) -> bool:
        return self._models.default.sessions.draining

    def drain(self) -> None:
        """Admit no more requests."""
        for host in self._models:
            host.sessions.draining = True

    def open(self, sink: Sink, caller: Caller) -> Session:
        return self._models.default.sessions.open(sink, caller)

    def request(
        self,
        session: Session,
        request: Generate,
        now: float,
        *,
        admitted: bool = False,
        arrived_at: float | None = None,
    ) -> None:
        try:
            host = self._models.choose(request.model, session.caller)
        except RequestError as error:
            error.request_id = request.id
            session.request, session.requested_at = request, now if arrived_at is None else arrived_at
            self._ended(session, error.fault.name.lower())
            raise
        session.model = host.name
        host.sessions.request(session, request, now, admitted=admitted, arrived_at=arrived_at)
        self._models.request_load(host)

    def take_over(self, session: Session, request: Generate, begun: Resumed, now: float) -> None:
        """Take over a request, as in ``SessionManager``; raises ``RequestError`` where the model isn't there."""
        host = self._models.choose(request.model, session.caller)
        if host.name != begun.model:
            raise ModelNotFound(begun.model)
        session.model = host.name
        host.sessions.take_over(session, request, begun, now)

    def admit(self, caller: Caller, now: float) -> None:
        self._models.default.sessions.admit(caller, now)

    def cancel(self, session: Session, request_id: str) -> None:
        self._of(session).cancel(session, request_id)

    def abandon(self, session: Session, end: str = "abandoned") -> None:
        self._of(session).abandon(session, end)

    def fail(self, session: Session, error: RequestError) -> None:
        self._of(session).fail(session, error)

    def steer(self, session: Session, command: Steering) -> None:
        self._of(session).steer(session, command)
        self._models.request_load(self._models.of(session))

    def hold(self, session: Session, why: Hold) -> None:
        self._of(session).hold(session, why)

    def release(self, session: Session, why: Hold) -> None:
        self._of(session).release(session, why)
        self._models.request_load(self._models.of(session))

    def expire(self, seconds: float) -> None:
        for host in self._models:
            host.expire(seconds)

    def running(self) -> Iterator[Session]:
        """Running sessions of each model, the oldest first."""
        return itertools.chain.from_iterable(host.sessions.running() for host in self._models)

    def _of(self, session: Session) -> SessionManager:
        return self._models.of(session).sessions
