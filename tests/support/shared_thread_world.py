"""Schedulers of several models on one compute thread, by a clock that each tick moves by what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from clock import Clock
from scheduler_world import ORIGIN, Client
from standin import StandInEngine, StandInRunAhead, SteppedWorker

from umaserve.core.commands import Pause
from umaserve.core.requests import Generate
from umaserve.scheduler.other_models import OtherModels
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Tick, TickResult
from umaserve.sessions.kv_operations import Divide
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.targets import Targets

TARGET_S = 0.1
DIVIDE_S = 0.15


class TimedEngine(StandInEngine):
    """Its ticks take invented time."""

    def __init__(self, clock: Clock, cost: Cost, *, prompts_apart: bool, parts: int = 0) -> None:
        """``cost``: the same for every row, since an engine does not see which of them belong to prompts."""
        super().__init__(
            slots=4,
            cells=3_000,
            batch_tokens=128,
            sequence_tokens=600,
            cached_cells=50,
            sequences=parts,
            parts=parts,
        )
        assert cost.decode_row_s == cost.prefill_row_s
        self.capacity = dataclasses.replace(self.capacity, prompts_apart=prompts_apart)
        self.seconds: list[float] = []
        """Of each tick."""
        self.divided = 0
        """How often the cells were."""
        self._clock, self._cost = clock, cost

    def run(self, tick: Tick) -> TickResult:
        result = super().run(tick)
        lengths = [len(run.tokens) for run in tick.runs]
        decodes = sum(length > 1 for length in lengths) + (1 in lengths) if self.capacity.prompts_apart else 1
        self.seconds.append(self._cost.seconds(sum(lengths), 0, 0, decodes) if lengths else 0.0)
        divided = sum(isinstance(one, Divide) for one in tick.kv_operations)
        self.divided += divided
        self._clock.now += self.seconds[-1] + divided * DIVIDE_S
        return dataclasses.replace(result, seconds=self.seconds[-1], moving_s=divided * DIVIDE_S)


class Model:
    """One model and its clients."""

    def __init__(
        self,
        clock: Clock,
        compute: SteppedWorker,
        neighbours: OtherModels,
        cost: Cost,
        *,
        prompts_apart: bool,
        parts: int,
    ) -> None:
        self.engine = TimedEngine(clock, cost, prompts_apart=prompts_apart, parts=parts)
        self.engine.run_ahead = StandInRunAhead(self.engine, compute)
        self.clients: list[Client] = []
        self.preparing = SteppedWorker()
        self._clock = clock
        self._sessions = SessionManager(clock=clock)
        self.scheduler = Scheduler(
            self._sessions,
            self.engine,
            compute,
            self.preparing,
            self.preparing,
            Targets(1.0, TARGET_S),
            clock,
            neighbours=neighbours,
        )

    def arrive(self, prompt: str, **fields: Any) -> Client:
        client = Client(Generate(f"r{len(self.clients)}", prompt, **fields), self.engine.capacity.sequence_tokens)
        client.session = self._sessions.start(client.request, client.receive, ORIGIN, self._clock.now)
        self.clients.append(client)
        return client

    def pause(self, client: Client) -> None:
        self._sessions.steer(client.session, Pause())

    def turn(self) -> None:
        now = self._clock.now
        while self.preparing.jobs:
            self.preparing.step()
        # Another thread's time.
        self._clock.now = now
        self.scheduler.pump()
        self.scheduler.deliver()

    def served(self) -> bool:
        """Whether all clients have got their answers, which must be right."""
        if not all(client.end for client in self.clients):
            return False
        assert [client.text for client in self.clients] == [client.expected for client in self.clients]
        return True


class SharedThreadWorld:
    """Models that know their costs by some requests that each has served."""

    def __init__(self, *costs: Cost, prompts_apart: bool = False, parts: int = 0) -> None:
        self.clock = Clock()
        self.compute = SteppedWorker()
        neighbours = OtherModels()
        self.models = [
            Model(self.clock, self.compute, neighbours, cost, prompts_apart=prompts_apart, parts=parts)
            for cost in costs
        ]
        for model in self.models:
            for number in range(4):
                model.arrive(f"{number}" * (20 + 40 * number), max_tokens=20)
            self.turn_until(model.served)
            model.clients.clear()

    def turn(self) -> None:
        """One job of the compute thread; each model sees what came of it."""
        self.compute.step()
        for model in self.models:
            model.turn()
        if not self.compute.jobs:
            self.clock.now += 0.001

    def turn_until(self, condition: Callable[[], object]) -> None:
        for _ in range(5000):
            if condition():
                return
            self.turn()
        raise AssertionError("it never came to that")


def gaps(client: Client) -> list[float]:
    """Seconds between every two of its tokens."""
    return [token.since_last_s for token in client.tokens[1:]]
