"""Stand-ins for models, their requests and the memory, under an invented clock: what a plan of the loaded models leads
to. Each move is checked when it is made."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from umaserve.models.residency import plan, retry_pause_s
from umaserve.models.residency_snapshot import Model, Snapshot, State

UNLOADING_S = 0.5


@dataclass(eq=False)
class SimulatedModel:
    """Answers any number of requests at once."""

    name: str
    needed_bytes: int
    load_s: float
    pinned: bool = False
    loads_that_fail: int = 0
    idle_unload_s: float = 0.0

    state: State = State.UNLOADED
    taken_bytes: int = 0
    running: int = 0
    waiting: list[tuple[float, float]] = field(default_factory=list)
    """When each came, and how long it will run."""
    loaded_at: float = -math.inf
    last_used_at: float = -math.inf
    retry_at: float = -math.inf
    failures: int = 0
    waits: list[float] = field(default_factory=list)
    """Of the requests that were served."""
    refused: int = 0
    loads: int = 0

    def seen(self) -> Model:
        return Model(
            self.name,
            self.needed_bytes,
            self.state,
            idle=not self.running,
            waiting=len(self.waiting),
            waiting_since=self.waiting[0][0] if self.waiting else math.inf,
            loaded_at=self.loaded_at,
            last_used_at=self.last_used_at,
            load_s=self.load_s,
            retry_at=self.retry_at,
            pinned=self.pinned,
            idle_unload_s=self.idle_unload_s,
        )


class Simulation:
    def __init__(self, models: list[SimulatedModel], memory_bytes: int, reserve_bytes: int = 0) -> None:
        self.now = 0.0
        self.models = {one.name: one for one in models}
        self.arrived: list[str] = []
        self.loading_s = 0.0
        self._memory_bytes, self._reserve_bytes = memory_bytes, reserve_bytes
        self._held: frozenset[str] = frozenset()
        self._again_at = math.inf
        self._counter = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._counter), event))

    def request(self, time: float, name: str, run_s: float) -> None:
        self.at(time, lambda: self._arrive(self.models[name], run_s))

    def poisson(self, name: str, rate: float, until: float, longest_s: float, chance: random.Random) -> None:
        """Requests for ``name``, ``rate`` a second on average."""
        time = chance.expovariate(rate)
        while time < until:
            self.request(time, name, chance.uniform(0.1, longest_s))
            time += chance.expovariate(rate)

    def run(self) -> None:
        """Until nothing more happens."""
        while self._events or self._again_at < math.inf:
            if self._events and self._events[0][0] <= self._again_at:
                self.now, _, event = heapq.heappop(self._events)
                event()
            else:
                self.now = self._again_at
            self._plan()

    def _plan(self) -> None:
        models = list(self.models.values())
        taken = sum(one.taken_bytes for one in models)
        promised = sum(one.needed_bytes - one.taken_bytes for one in models if one.state is State.LOADING)
        free = self._memory_bytes - taken
        moves = plan(Snapshot(self.now, [one.seen() for one in models], free, promised, self._reserve_bytes))
        for name in moves.load:
            self._load(self.models[name])
        for name in moves.unload:
            self._unload(self.models[name])
        for name in moves.refuse:
            self.models[name].refused += len(self.models[name].waiting)
            self.models[name].waiting.clear()
        self._held = moves.hold
        for one in models:
            if one.state is State.LOADED and one.name not in self._held:
                self._serve(one)
        assert moves.again_at > self.now
        self._again_at = moves.again_at
        needed = sum(one.needed_bytes for one in models if one.state in (State.LOADING, State.LOADED, State.UNLOADING))
        assert needed + self._reserve_bytes <= self._memory_bytes

    def _arrive(self, model: SimulatedModel, run_s: float) -> None:
        self.arrived.append(model.name)
        model.waiting.append((self.now, run_s))

    def _serve(self, model: SimulatedModel) -> None:
        for came_at, run_s in model.waiting:
            model.waits.append(self.now - came_at)
            model.running += 1
            self.at(self.now + run_s, lambda: self._end(model))
        model.waiting.clear()

    def _end(self, model: SimulatedModel) -> None:
        model.running -= 1
        model.last_used_at = self.now

    def _load(self, model: SimulatedModel) -> None:
        assert model.state is State.UNLOADED or (model.state is State.FAILED and self.now >= model.retry_at)
        assert not any(one.state is State.LOADING for one in self.models.values())
        model.state, model.taken_bytes = State.LOADING, model.needed_bytes // 2
        model.loads += 1
        self.loading_s += model.load_s
        self.at(self.now + model.load_s, lambda: self._loaded(model))

    def _loaded(self, model: SimulatedModel) -> None:
        if model.loads_that_fail:
            model.loads_that_fail -= 1
            model.failures += 1
            model.state, model.taken_bytes = State.FAILED, 0
            model.retry_at = self.now + retry_pause_s(model.failures)
        else:
            model.state, model.taken_bytes = State.LOADED, model.needed_bytes
            model.loaded_at = self.now

    def _unload(self, model: SimulatedModel) -> None:
        assert model.state is State.LOADED
        assert not model.running
        assert not model.pinned
        model.state = State.UNLOADING
        self.at(self.now + UNLOADING_S, lambda: self._unloaded(model))

    def _unloaded(self, model: SimulatedModel) -> None:
        model.state, model.taken_bytes = State.UNLOADED, 0
