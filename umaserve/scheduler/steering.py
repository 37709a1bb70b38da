"""Applies changes to running requests between two ticks."""

from __future__ import annotations

import logging
from dataclasses import replace

from umaserve.core.commands import EndThought, Modify, Steering
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FinishReason, Steered
from umaserve.scheduler.planner import Planner
from umaserve.sessions.engine_api import Engine, EngineLost
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

log = logging.getLogger(__name__)

CHANGED_PER_TICK = 8
"""Sessions whose changes are applied before one tick: each modification makes a new sampler."""


class Changes:
    """Modifies requests while no tick is in flight, and acknowledges pauses and resumes, which hold already."""

    def __init__(self, sessions: SessionManager, engine: Engine, planning: Planner) -> None:
        self._sessions = sessions
        self._engine = engine
        self._planning = planning

    def apply(self) -> None:
        """Apply the changes that wait, for requests that are prepared."""
        for session, commands in self._sessions.take_changes(CHANGED_PER_TICK):
            try:
                self._apply(session, commands)
            except EngineLost:
                # They wait for another one.
                for command in commands:
                    self._sessions.steer(session, command)
            except Exception:
                # It may be changed in part.
                log.exception("request %s: modifying it failed", session.request.id)
                self._sessions.fail(
                    session, RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log")
                )

    def _apply(self, session: Session, commands: list[Steering]) -> None:
        """Apply the last modification only: each one contains all changes so far."""
        modifications = [command for command in commands if isinstance(command, Modify)]
        refusal = self._modify(session, modifications[-1]) if modifications else None
        if any(isinstance(command, EndThought) for command in commands):
            self._end_thought(session)
        for command in commands:
            self._sessions.put(session, Steered(command, refusal if isinstance(command, Modify) else None))
        self._settle(session)

    def _modify(self, session: Session, command: Modify) -> RequestError | None:
        """Apply a modification; returns why it was refused, if it was."""
        request, prepared, wanted = session.request, session.prepared, command.request
        assert prepared is not None
        assert session.text is not None
        try:
            session.prepared = self._engine.change(prepared, wanted, session.generated)
        except RequestError as error:
            return error
        session.text.set_stops(wanted.stop)
        # The id and the class can't be changed, and the grammar keeps its state.
        sampling = replace(wanted.sampling, grammar=request.sampling.grammar)
        session.request = replace(request, sampling=sampling, max_tokens=wanted.max_tokens, stop=wanted.stop)
        return None

    def _end_thought(self, session: Session) -> None:
        assert session.prepared is not None
        # The request keeps its budget: what goes on elsewhere with the tokens so far may think again.
        without = replace(session.request, thought_budget=0)
        session.prepared = self._engine.change(session.prepared, without, session.generated)

    def _settle(self, session: Session) -> None:
        """End the answer if it is long enough now; else take back cells that it can't need any more."""
        assert session.prepared is not None
        if len(session.generated) >= session.prepared.max_tokens:
            self._sessions.finish(session, FinishReason.LENGTH)
        elif session.slot is not None:
            self._planning.resize(session)
