"""Invented workers and clients around a relay's own pool, by an invented clock."""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from umaserve.net.timers import Timer, Timers
from umaserve.relay.pool.pool import Pool, PoolLimits
from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.worker import Worker
from umaserve.wire.relay_messages import FromProxy, Request, ResponseComplete

MODEL = "model"
PREFIX, IN_ORDER, LOWEST_LOAD, RANDOM = "prefix", "prefix, in order", "lowest load", "random"
"""``IN_ORDER``: of those who wait, each place goes to whoever waited longest."""
POLICIES = (PREFIX, IN_ORDER, LOWEST_LOAD, RANDOM)
_LIMITS = PoolLimits(
    queue_len=1 << 20, queue_timeout=30.0, request_timeout=300.0, silence=300.0, response_bytes=1 << 20
)
_TRIES = 64


@dataclass(frozen=True, slots=True)
class Load:
    """What clients ask for, and what it costs a worker. Lengths in tokens, times in seconds."""

    turns: int = 6
    think_s: float = 20.0
    system: int = 500
    asked: int = 200
    answer: int = 150
    prefill: float = 5_000.0
    """Prompt tokens that a worker computes in a second."""
    token_s: float = 0.010
    stream_s: float = 0.0005
    """Time of a token, and what each other stream adds to it."""
    places: int = 16
    cache: int = 250_000
    target_s: float = 1.0

    def described(self) -> Mapping[str, float]:
        return {**dataclasses.asdict(self), "think": self.think_s, "target": self.target_s}


class Clock:
    """Timers only."""

    def __init__(self) -> None:
        self.time = 0.0
        self._timers = Timers()

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(self.time + delay, callback)

    def run(self, seconds: float) -> None:
        while (at := self._timers.next_at()) is not None and at <= seconds:
            self.time = max(self.time, at)
            for callback in self._timers.due(self.time):
                callback()


@dataclass(slots=True)
class Served:
    """One request."""

    client: int
    asked_at: float
    prompt: int
    given_at: float = 0.0
    first_at: float = 0.0
    reused: int = 0
    failed: bool = False


class Link:
    """A worker: computes one prompt after the other, and decodes up to ``places`` answers together."""

    overfull = False

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.computed = 0
        self._fleet = fleet
        self._computing_until = 0.0
        self._running = 0
        self._kept: OrderedDict[int, int] = OrderedDict()
        """The tokens of each conversation that it has, the latest last."""
        self._n_kept = 0
        load = fleet.load
        self._worker = fleet.pool.register(self, f"box {number}", [MODEL], load.places, 0, [])
        fleet.pool.welcome(self._worker)

    def send(self, message: FromProxy) -> None:
        if not isinstance(message, Request):
            return
        client, load, clock = self._fleet.asking.pop(message.request_id), self._fleet.load, self._fleet.clock
        served = client.served
        known = max(load.system, self._kept.get(client.conversation, 0))
        served.reused = min(known, served.prompt - 1)
        served.given_at = clock.time
        new = served.prompt - served.reused
        self.computed += new
        self._computing_until = max(self._computing_until, clock.time) + new / load.prefill
        served.first_at = self._computing_until
        self._running += 1
        answer_s = load.answer * (load.token_s + load.stream_s * self._running)
        self._keep(client.conversation, served.prompt + load.answer)
        clock.call_later(served.first_at + answer_s - clock.time, lambda: self._answer(message.request_id))

    def close(self, code: int, reason: str) -> None:
        raise AssertionError("nobody leaves here")

    def _keep(self, conversation: int, tokens: int) -> None:
        self._n_kept += tokens - self._kept.pop(conversation, 0)
        self._kept[conversation] = tokens
        while self._n_kept > self._fleet.load.cache:
            self._n_kept -= self._kept.popitem(last=False)[1]

    def _answer(self, request_id: str) -> None:
        self._running -= 1
        self._fleet.pool.replies.complete(self._worker, ResponseComplete(request_id, 200))


class Client:
    """Has one conversation after the other; implements ``relay.pool.request.Client``."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.conversation = 0
        self.served: Served
        self._fleet = fleet
        self._number = number
        self._turn = 0
        self._think()

    def _think(self) -> None:
        self._fleet.clock.call_later(self._fleet.dice.expovariate(1 / self._fleet.load.think_s), self._ask)

    def _ask(self) -> None:
        fleet, load = self._fleet, self._fleet.load
        if self._turn % load.turns == 0:
            self._turn = 0
            self.conversation = fleet.dice.getrandbits(64)
        self._turn += 1
        prompt = load.system + self._turn * load.asked + (self._turn - 1) * load.answer
        self.served = Served(self._number, fleet.clock.time, prompt)
        fleet.served.append(self.served)
        beginning = self.conversation if fleet.policy in (PREFIX, IN_ORDER) else None
        request = RelayedRequest(f"r-{len(fleet.served)}", MODEL, "/", False, "", {}, self, beginning=beginning)
        fleet.asking[request.id] = self
        fleet.pool.submit(request)

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        self._think()

    def fail(self, status: int, error: str) -> None:
        self.served.failed = True
        self._think()

    def begin(self, status: int, headers: Mapping[str, str]) -> None: ...

    def write(self, chunk: str | bytes) -> None: ...

    def end(self) -> None: ...


class Fleet:
    """A relay with its workers and clients."""

    def __init__(self, policy: str, workers: int, clients: int, load: Load, seed: int) -> None:
        self.policy = policy
        self.load = load
        self.dice = random.Random(seed)
        self.clock = Clock()
        self.pool = Pool(self.clock, _LIMITS)
        self.asking: dict[str, Client] = {}
        self.served: list[Served] = []
        self.links = [Link(self, number) for number in range(workers)]
        if policy == IN_ORDER:
            self.pool.workers.home_of = lambda _request: ""  # type: ignore[method-assign]
        if policy == RANDOM:
            self.pool.workers.best_for = self._anybody  # type: ignore[method-assign]
        self._all = list(self.pool.workers)
        for number in range(clients):
            Client(self, number)

    def run(self, seconds: float) -> list[Served]:
        """What was answered, or failed, within so many seconds."""
        self.clock.run(seconds)
        return [one for one in self.served if one.failed or 0 < one.first_at <= seconds]

    def _anybody(self, _request: RelayedRequest) -> Worker | None:
        """Any free worker."""
        tried = (self.dice.choice(self._all) for _ in range(_TRIES))
        if (found := next((worker for worker in tried if worker.free), None)) is not None:
            return found
        free = [worker for worker in self._all if worker.free]
        return self.dice.choice(free) if free else None
