"""The sessions of all models: each is the business of the model that its request chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from umaserve.core.errors import ModelNotFound, RequestError
from umaserve.core.requests import Generate, Steering
from umaserve.models.registry import Models
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager, Totals
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import Hold, Session, Sink


class ModelSessions:
    """Has the methods of a ``SessionManager`` for what has clients, and their meaning."""

    def __init__(self, models: Models) -> None:
        self._models = models

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
        try:
            host = self._models.choose(request.model, caller)
        except RequestError as error:
            self._models.default.sessions.refuse(request, caller, now if arrived_at is None else arrived_at, error)
            raise
        session = host.sessions.start(request, sink, caller, now, admitted=admitted, arrived_at=arrived_at)
        self._models.request_load(host)
        return session

    def take_over(self, request: Generate, begun: Resumed, sink: Sink, caller: Caller, now: float) -> Session:
        """Take over a request, as in ``SessionManager``; raises ``RequestError`` where the model isn't there."""
        host = self._models.choose(request.model, caller)
        if host.name != begun.model:
            raise ModelNotFound(begun.model)
        return host.sessions.take_over(request, begun, sink, caller, now)

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
