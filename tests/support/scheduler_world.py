"""A scheduler with a stand-in engine, and its clients, which check what they are sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from clock import Clock
from remote_engine import remote_engine
from standin import DEFAULT_MAX_TOKENS, StandInEngine, StandInRunAhead, SteppedWorker, answer

from umaserve.core.commands import Modify, Pause, Resume
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Started, Steered, Token
from umaserve.core.requests import ChatTurn, Generate, TokenIds
from umaserve.scheduler.observer import observe_end
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.caller import Caller
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session
from umaserve.sessions.targets import Targets

ORIGIN = Caller("uds", "uid:1000")
KEEPING = {"sequences": 12, "cached_cells": 400, "cells": 800}
"""A capacity in which ended sequences are kept for later prompts."""


class Client:
    """One request and what came of it."""

    def __init__(self, request: Generate, context: int) -> None:
        self.request = request
        self.session: Session
        self.outputs: list[Output | RequestError] = []
        self._room = context - len(request.prompt.encode()) if isinstance(request.prompt, str) else context
        self.limits = [(0, self._length(request), request.stop)]
        """From which token on which length and ``stop`` hold."""
        self.gone = False
        self.at_token: Callable[[], None] = lambda: None

    def receive(self, output: Output | RequestError) -> None:
        assert not self.gone, "something came after the client had gone"
        assert self.end is None, "something came after the end"
        if isinstance(output, Started | Token):
            assert isinstance(output, Token) == (Started() in self.outputs), "one start, and before the first token"
        if isinstance(output, Steered) and isinstance(output.command, Modify) and output.refusal is None:
            wanted = output.command.request
            self.limits.append((len(self.tokens), self._length(wanted), wanted.stop))
        self.outputs.append(output)
        if isinstance(output, Token):
            self.at_token()

    def _length(self, request: Generate) -> int:
        return min(DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens, self._room)

    @property
    def tokens(self) -> list[Token]:
        return [output for output in self.outputs if isinstance(output, Token)]

    @property
    def steered(self) -> list[Steered]:
        return [output for output in self.outputs if isinstance(output, Steered)]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def end(self) -> FinishReason | Fault | None:
        last = self.outputs[-1] if self.outputs else None
        if isinstance(last, Finished):
            return last.reason
        return last.fault if isinstance(last, RequestError) else None

    @property
    def whole(self) -> str:
        """The text without stops and as long as it gets."""
        assert isinstance(self.request.prompt, str)
        return answer(self.request.prompt, self._room)

    @property
    def expected(self) -> str:
        return self.expected_end[0]

    @property
    def expected_end(self) -> tuple[str, FinishReason]:
        """The text and its end by what held when. Modified stops must be of one character: a part of longer ones could
        be in what is held back."""
        whole = self.whole
        for at in range(len(whole) + 1):
            start, most, stops = [limits for limits in self.limits if limits[0] <= at][-1]
            found = [at - len(stop) for stop in stops if at > start and whole[:at].endswith(stop)]
            if found:
                return whole[: min(found)], FinishReason.STOP
            if at >= most:
                return whole[:at], FinishReason.LENGTH
        return whole, FinishReason.STOP


class SchedulerWorld:
    """A scheduler with its stand-ins, turned as the daemon turns it, and a clock that moves with the turns."""

    def __init__(
        self,
        patterns: tuple[str, ...] = (),
        *,
        shared_prefixes: bool = False,
        draft_tokens: bool = True,
        remote: bool = False,
        **capacity: Any,
    ) -> None:
        """``remote``: whether all that the engine is asked crosses a socket."""
        self.clock = Clock()
        self.spent: list[tuple[Caller, int, float]] = []
        self.sessions = SessionManager(
            clock=self.clock,
            ended=lambda session, end: observe_end(self.scheduler.metrics, session, end, self.clock.now),
        )
        self.clients: list[Client] = []

        def start() -> None:
            self.engine = StandInEngine(**capacity)
            self.compute, self.preparing, self.disk = SteppedWorker(), SteppedWorker(), SteppedWorker()
            self.engine.run_ahead = StandInRunAhead(self.engine, self.compute)
            self.scheduler = Scheduler(
                self.sessions,
                remote_engine(self.engine) if remote else self.engine,
                self.compute,
                self.preparing,
                self.preparing,
                Targets(1.0, 0.1),
                self.clock,
                ContentFilter("patterns", list(enumerate(patterns, 1))) if patterns else None,
                lambda *spent: self.spent.append(spent),
                disk=self.disk,
                shared_prefixes=shared_prefixes,
                draft_tokens=draft_tokens,
            )

        self._start = start
        start()

    def lose_engine(self) -> None:
        """The engine is gone with all that it had; another one takes its place."""
        self.sessions.start_over()
        self._start()

    def arrive(self, prompt: str | tuple[ChatTurn, ...] | TokenIds, caller: Caller = ORIGIN, **fields: Any) -> Client:
        request = Generate(f"r{len(self.clients)}", prompt, **fields)
        client = Client(request, self.engine.capacity.sequence_tokens)
        client.session = self.sessions.start(client.request, client.receive, caller, self.clock.now)
        self.clients.append(client)
        return client

    def cancel(self, client: Client) -> None:
        self.sessions.cancel(client.session, client.request.id)

    def pause(self, client: Client) -> None:
        self.sessions.steer(client.session, Pause())

    def resume(self, client: Client) -> None:
        self.sessions.steer(client.session, Resume())

    def modify(self, client: Client, **fields: Any) -> Modify:
        command = Modify(dataclasses.replace(client.request, **fields))
        self.sessions.steer(client.session, command)
        return command

    def abandon(self, client: Client) -> None:
        self.sessions.abandon(client.session)
        client.gone = True

    def turn(self) -> None:
        """Collect, then plan and submit, then deliver."""
        self.clock.now += 0.01
        self.compute.step()
        self.preparing.step()
        self.scheduler.pump()
        placed = [session for session in self.sessions.running() if session.slot is not None]
        assert len({session.slot for session in placed}) == len(placed), "two sessions in one slot"
        assert sum(session.cells for session in placed) <= self.engine.capacity.cells, "cells promised twice"
        for session in placed:
            assert session.prepared is not None
            most = len(session.prepared.tokens) + session.prepared.max_tokens
            assert session.computed <= session.cells <= most, "fewer cells than it uses, or more than it ever can"
        self.scheduler.deliver()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def turn_until(self, condition: Callable[[], object]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.turn()
        raise AssertionError("it never came to that")

    def finish(self) -> None:
        """Turn until nothing is left to do, and see that nothing is left behind."""
        self.turn_until(lambda: self.scheduler.idle and not self.compute.jobs)
        assert self.scheduler.snapshot()["kv_cells_used"] == 0
        assert not self.sessions.undelivered
        kept = self.scheduler.snapshot()["kv_cells_cached"]
        assert isinstance(kept, int)
        assert sum(map(len, self.engine.memory.sequences)) == kept <= self.engine.capacity.cached_cells
        # Work for all slots at once, and then for all cells, fits again.
        capacity = self.engine.capacity
        share = min(capacity.cells // capacity.slots, capacity.sequence_tokens)
        before = len(self.engine.ticks)
        last = [self.arrive(f"{number:02}", max_tokens=share - 2) for number in range(capacity.slots)]
        self.turn_until(lambda: all(client.end for client in last))
        assert [client.text for client in last] == [client.expected for client in last]
        assert max(len(tick.runs) for tick in self.engine.ticks[before:]) == capacity.slots


def reused(client: Client) -> int:
    """How many tokens of its prompt were computed for others, as its client is told."""
    end = client.outputs[-1]
    assert isinstance(end, Finished)
    return end.usage.prefix_reused_tokens
