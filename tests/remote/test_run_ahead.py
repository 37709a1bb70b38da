"""Ticks that an engine behind sockets runs by itself, behind the one before."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from remote_engine import ALLOWANCE, serving
from standin import END, EngineFailure, StandInEngine, answer

from umaserve.core.queries import Embed, Embedded
from umaserve.core.requests import Generate
from umaserve.remote import frames
from umaserve.remote.channel import Channel, Kind
from umaserve.remote.client import RemoteEngine
from umaserve.remote.failures import EngineFailed
from umaserve.remote.run_ahead import Granted, RunAhead, next_tick
from umaserve.sessions.engine_api import Outcome, Prepared, Run, Tick, TickResult, YieldPoint
from umaserve.settings.daemon import Config

ANSWER_S = 30
Result = TickResult | BaseException | None


class Gated(StandInEngine):
    """Its ticks wait for the test, where that wants it."""

    def __init__(self) -> None:
        super().__init__(cached_cells=40)
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(1000)
        self.embeds = threading.Event()

    def run(self, tick: Tick) -> TickResult:
        self.begun.release()
        self.may_end.acquire()
        return super().run(tick)

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        # Until a tick has run meanwhile.
        n_ticks = len(self.ticks)
        self.embeds.set()
        while len(self.ticks) == n_ticks:
            pause()
        return super().embed(query, pause)


class World:
    """The daemon's end of an engine that runs ticks ahead, on threads of this process."""

    def __init__(self) -> None:
        self.behind = Gated()
        grants, self.theirs = socket.socketpair()
        self.ahead = RunAhead(grants, self.theirs)
        server = serving(self.behind, granted=Granted(self.theirs))
        self.channels, self.ends, self.threads = [], [], []
        for _ in range(2):
            ours, theirs = socket.socketpair()
            self.channels.append(Channel(ours))
            self.ends.append(theirs)
            self.threads.append(threading.Thread(target=server.serve, args=(Channel(theirs),), daemon=True))
            self.threads[-1].start()
        self.engine = RemoteEngine(
            self.channels, Config(), None, ALLOWANCE, lambda _fraction: True, run_ahead=self.ahead
        )
        self.compute = ThreadPoolExecutor(1)
        self.results: list[Result] = []

    def first(self, prepared: Prepared, number: int = 1) -> Tick:
        return Tick([], [Run(0, 0, prepared.tokens, prepared.sampler)], number=number)

    def second(self, prepared: Prepared, token: int, number: int = 2) -> Tick:
        return Tick([], [Run(0, len(prepared.tokens), [token], prepared.sampler)], number=number)

    def run(self, tick: Tick) -> TickResult:
        return self.compute.submit(self.engine.run, tick).result(ANSWER_S)

    def grant(self, before: Tick) -> None:
        assert self.ahead.grant(before, self.results.append)

    def taken(self) -> Result:
        """The next result."""
        self.ahead.socket.settimeout(ANSWER_S)
        while not self.results:
            self.ahead.socket.recv(1, socket.MSG_PEEK)
            self.ahead.receive(0)
        return self.results.pop(0)

    def close(self) -> None:
        for channel, thread in zip(self.channels, self.threads, strict=True):
            channel.close()
            thread.join(ANSWER_S)
        self.ahead.close()
        self.compute.shutdown()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def tokens(result: Result) -> list[int]:
    assert isinstance(result, TickResult)
    return [token for of_run in result.tokens for token in of_run]


def begun(world: World) -> tuple[Prepared, Tick]:
    """A stream that has a token, and its second tick, which has ended."""
    prepared = world.engine.prepare(Generate("r", "hello"))
    (token,) = tokens(world.run(world.first(prepared)))
    tick = world.second(prepared, token)
    assert tokens(world.run(tick)) == [ord(answer("hello")[1])]
    return prepared, tick


def test_a_granted_tick_goes_on_with_the_tokens_before_it(world: World) -> None:
    _, tick = begun(world)
    for at in range(2, 5):
        world.grant(tick)
        assert tokens(world.taken()) == [ord(answer("hello")[at])]
        tick = replace(tick, number=tick.number + 1)
    assert [one.number for one in world.behind.ticks] == [1, 2, 3, 4, 5]
    assert [len(one.runs[0].tokens) for one in world.behind.ticks] == [len("hello"), 1, 1, 1, 1]


def test_numbers_begin_again(world: World) -> None:
    prepared = world.engine.prepare(Generate("r", "hello"))
    (token,) = tokens(world.run(world.first(prepared, 254)))
    tick = world.second(prepared, token, 255)
    world.run(tick)
    for at in range(2, 5):
        world.grant(tick)
        assert tokens(world.taken()) == [ord(answer("hello")[at])]
        tick = replace(tick, number=tick.number + 1)


def test_it_waits_for_the_tick_that_it_follows(world: World) -> None:
    prepared, tick = begun(world)
    (token,) = tokens(world.behind.result)
    third = Tick([], [Run(0, tick.runs[0].start + 1, [token], prepared.sampler)], number=3)
    world.grant(third)
    assert tokens(world.run(third)) == [ord(answer("hello")[2])]
    assert tokens(world.taken()) == [ord(answer("hello")[3])]


def test_what_has_not_begun_can_be_taken_back(world: World) -> None:
    prepared, tick = begun(world)
    (token,) = tokens(world.behind.result)
    third = Tick([], [Run(0, tick.runs[0].start + 1, [token], prepared.sampler)], number=3)
    world.behind.begun, world.behind.may_end = threading.Semaphore(0), threading.Semaphore(0)
    running = world.compute.submit(world.engine.run, third)
    assert world.behind.begun.acquire(timeout=ANSWER_S)
    world.grant(third)
    assert world.ahead.take_back()
    assert not world.ahead.take_back()
    world.behind.may_end.release()
    running.result(ANSWER_S)
    assert len(world.behind.ticks) == 3
    assert not world.results


def test_what_has_begun_cannot(world: World) -> None:
    _, tick = begun(world)
    world.behind.begun, world.behind.may_end = threading.Semaphore(0), threading.Semaphore(0)
    world.grant(tick)
    assert world.behind.begun.acquire(timeout=ANSWER_S)
    assert not world.ahead.take_back()
    world.behind.may_end.release()
    assert tokens(world.taken()) == [ord(answer("hello")[2])]


def test_a_failure_is_told_and_nothing_runs_behind_it(world: World) -> None:
    _, tick = begun(world)
    world.behind.failures.append(EngineFailure)
    world.grant(tick)
    assert isinstance(world.taken(), EngineFailed)
    world.grant(replace(tick, number=3))
    assert world.taken() is None
    assert len(world.behind.ticks) == 3


def test_it_runs_in_the_pause_of_a_long_call(world: World) -> None:
    _, tick = begun(world)
    embedding = world.compute.submit(world.engine.embed, Embed(("a text",)), lambda: None)
    assert world.behind.embeds.wait(ANSWER_S)
    world.grant(tick)
    assert tokens(world.taken()) == [ord(answer("hello")[2])]
    assert len(embedding.result(ANSWER_S).vectors) == 1


def test_no_call_waits_for_ticks_that_go_on_and_on(world: World) -> None:
    _, tick = begun(world)
    world.behind.begun, world.behind.may_end = threading.Semaphore(0), threading.Semaphore(0)
    for number in range(10):
        world.grant(replace(tick, number=tick.number + number))
    assert world.behind.begun.acquire(timeout=ANSWER_S)
    embedding = world.compute.submit(world.engine.embed, Embed(("a text",)), lambda: None)
    assert select.select(world.ends[1:], [], [], ANSWER_S)[0], "the call has come"
    world.behind.may_end.release()
    assert world.behind.embeds.wait(ANSWER_S), "after the tick that ran"
    world.behind.may_end.release(2)
    assert len(embedding.result(ANSWER_S).vectors) == 1, "after one more in each of its two pauses"
    world.behind.may_end.release(1000)
    for at in range(2, 12):
        assert tokens(world.taken()) == [ord(answer("hello")[at])]


@pytest.mark.parametrize(
    "result",
    [
        None,
        TickResult(Outcome.NO_CELLS, (), 0.0),
        TickResult(Outcome.DONE, [[5], [END]], 0.0),
        TickResult(Outcome.DONE, [[5], []], 0.0, late={1}),
    ],
)
def test_behind_these_there_is_no_tick(result: TickResult | None) -> None:
    tick = Tick([], [Run(0, 7, [1], None), Run(1, 9, [2], None)])
    assert next_tick(tick, result, frozenset({END})) is None


@pytest.mark.parametrize(
    "data",
    [
        frames.encode([Kind.DONE, None]),
        frames.encode([Kind.DONE, [1, 2]]),
        frames.encode([Kind.TELL, None]),
        frames.encode([Kind.FAILED, [9, []]]),
        b"\xff\xff\xff\xff\0\0\0\0",
    ],
)
def test_what_makes_no_sense_is_the_end_of_the_engine(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a grant, no result is expected at all."""
    world.theirs.sendall(data)
    ended: list[bool] = []
    world.ahead._on_failure = lambda: ended.append(True)
    world.ahead.receive(0)
    assert ended
    assert "has sent an invalid answer" in caplog.text


def test_a_result_that_cannot_be_taken_is_the_end_of_the_engine(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Streams would wait for it until the engine counts as stuck."""
    _, tick = begun(world)
    ended: list[bool] = []
    world.ahead._on_failure = lambda: ended.append(True)

    def fail(_result: Result) -> None:
        raise ZeroDivisionError

    assert world.ahead.grant(tick, fail)
    world.ahead.socket.settimeout(ANSWER_S)
    world.ahead.socket.recv(1, socket.MSG_PEEK)
    world.ahead.receive(0)
    assert ended
    assert "internal error while taking the result of a tick" in caplog.text


def test_nothing_can_be_granted_to_an_engine_that_is_gone(world: World) -> None:
    _, tick = begun(world)
    world.theirs.shutdown(socket.SHUT_RDWR)
    assert not world.ahead.grant(tick, world.results.append)
    assert not world.ahead.take_back()
