"""The scheduler on a stand-in engine: every stream whole, every slot and cell back, every failure kept to its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.errors import Fault, RequestError
from umaserve.messages import Finished, FinishReason, Generate, Output, Priority, Token
from umaserve.serving.policy import AGING_S
from umaserve.serving.scheduler import Scheduler, Targets
from umaserve.serving.sessions import Session, SessionManager, State
from umaserve.serving.ticks import Outcome

# Its assertions must hold under -O as well.
pytest.register_assert_rewrite("standin")
from standin import SHORT, EngineFailure, StandInEngine, SteppedWorker, answer  # noqa: E402

LONG = "a prompt that needs more than one tick, since a batch is shorter than it is"


class Client:
    """One request and what came of it."""

    def __init__(self, request: Generate) -> None:
        self.request = request
        self.session: Session
        self.outputs: list[Output | RequestError] = []
        self.gone = False
        self.at_token: Callable[[], None] = lambda: None

    def receive(self, output: Output | RequestError) -> None:
        assert not self.gone, "something came after the client had gone"
        assert self.end is None, "something came after the end"
        self.outputs.append(output)
        if isinstance(output, Token):
            self.at_token()

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs if isinstance(output, Token))

    @property
    def end(self) -> FinishReason | Fault | None:
        last = self.outputs[-1] if self.outputs else None
        if isinstance(last, Finished):
            return last.reason
        return last.fault if isinstance(last, RequestError) else None

    @property
    def expected(self) -> str:
        assert isinstance(self.request.prompt, str)
        return answer(self.request.prompt, self.request.max_tokens or 16, self.request.stop)


class World:
    """A scheduler with its stand-ins, turned as the daemon turns it, and a clock that moves with the turns."""

    def __init__(self, **capacity: int) -> None:
        self.now = 0.0
        self.engine = StandInEngine(**capacity)
        self.compute, self.preparing = SteppedWorker(), SteppedWorker()
        self.sessions = SessionManager()
        self.scheduler = Scheduler(
            self.sessions, self.engine, self.compute, self.preparing, Targets(1.0, 0.1), lambda: self.now
        )
        self.clients: list[Client] = []

    def arrive(self, prompt: str, **fields: object) -> Client:
        client = Client(Generate(f"r{len(self.clients)}", prompt, **fields))
        client.session = self.sessions.open(client.receive, "uid:1000")
        self.sessions.request(client.session, client.request, self.now)
        self.clients.append(client)
        return client

    def cancel(self, client: Client) -> None:
        self.sessions.cancel(client.session, client.request.id)

    def abandon(self, client: Client) -> None:
        self.sessions.abandon(client.session)
        client.gone = True

    def turn(self) -> None:
        """Collect, then plan and submit, then deliver."""
        self.now += 0.01
        self.compute.step()
        self.preparing.step()
        self.scheduler.pump()
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
        assert self.scheduler.cells_used == 0
        assert not self.sessions.undelivered
        assert self.engine.sequences == [[]] * self.engine.capacity.slots
        # Work for all slots at once, and then for all cells, fits again.
        capacity = self.engine.capacity
        share = min(capacity.cells // capacity.slots, capacity.sequence_tokens)
        before = len(self.engine.ticks)
        last = [self.arrive(f"{number:02}", max_tokens=share - 2) for number in range(capacity.slots)]
        self.turn_until(lambda: all(client.end for client in last))
        assert [client.text for client in last] == [client.expected for client in last]
        assert max(len(tick.runs) for tick in self.engine.ticks[before:]) == capacity.slots


@pytest.fixture
def world() -> World:
    return World()


# To the end.


def test_one_request() -> None:
    world = World()
    client = world.arrive("hello", max_tokens=5)
    world.finish()
    assert client.text == client.expected
    assert len(client.text) == 5
    assert client.end is FinishReason.LENGTH
    last = client.outputs[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 5)
    assert [output.token_id for output in client.outputs[:-1]] == list(client.text.encode())


@pytest.mark.parametrize(
    "capacity",
    [
        {},
        {"slots": 1},
        {"slots": 2, "batch_tokens": 2},
        {"slots": 8, "batch_tokens": 64, "cells": 2000},
        {"cells": 130, "sequence_tokens": 120},
    ],
    ids=str,
)
def test_many_requests_each_get_their_own_text(capacity: dict[str, int]) -> None:
    world = World(**capacity)
    for number in range(20):
        world.arrive(f"{SHORT * (number % 2)}{number} {LONG[: 3 * number]}", max_tokens=1 + 7 * number % 40)
        world.turns(number % 3)
    world.turn_until(lambda: all(client.end for client in world.clients))
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    for client in world.clients:
        length = len(client.text) == client.request.max_tokens
        assert client.end is (FinishReason.LENGTH if length else FinishReason.STOP)
    world.finish()


def test_streams_run_side_by_side(world: World) -> None:
    for number in range(4):
        world.arrive(f"{number}", max_tokens=30)
    world.finish()
    assert sum(len(tick.runs) == 4 for tick in world.engine.ticks) >= 10


def test_the_end_token_is_neither_sent_nor_counted(world: World) -> None:
    prompts = (f"{SHORT}{number}" for number in itertools.count())
    prompt = next(prompt for prompt in prompts if 0 < len(answer(prompt, 50)) < 20)
    client = world.arrive(prompt, max_tokens=50)
    world.finish()
    assert client.text == client.expected
    assert client.end is FinishReason.STOP
    assert world.scheduler.metrics.tokens_generated >= len(client.text)
    assert client.session.usage.completion_tokens == len(client.text)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_ends_the_text_before_it(world: World, length: int) -> None:
    whole = answer("stop here", 40)
    stop = whole[5 : 5 + length]
    client = world.arrive("stop here", max_tokens=40, stop=(stop,))
    world.finish()
    assert client.text == client.expected == whole[: whole.index(stop)]
    assert client.end is FinishReason.STOP
    assert stop not in client.text


def test_what_a_stop_string_held_back_is_sent_when_the_length_is_reached(world: World) -> None:
    whole = answer("held back", 6)
    client = world.arrive("held back", max_tokens=6, stop=(whole[-2:] + "!",))
    world.finish()
    assert (client.text, client.end) == (whole, FinishReason.LENGTH)
    assert len(client.outputs) == 7, "with the token that released it, and not by itself"


# The order within a turn.


def test_the_next_tick_is_submitted_before_tokens_are_handed_out(world: World) -> None:
    log: list[str] = []
    client = world.arrive("order", max_tokens=8)
    client.at_token = lambda: log.append("token")
    world.turn_until(lambda: client.session.state is State.DECODE)
    log.clear()
    world.compute.submitted = lambda: log.append("submit")
    while client.end is None:
        world.turn()
    # A token comes out of each tick, and no two without a tick that computes in between; the last tick clears up.
    assert log[0::2] == ["submit"] * (len(log) // 2)
    assert log[1::2] == ["token"] * (len(log) // 2)
    world.finish()


def test_one_tick_is_in_flight_at_a_time(world: World) -> None:
    world.arrive("one", max_tokens=8)
    world.arrive("two", max_tokens=8)
    for _ in range(30):
        world.turn()
        world.scheduler.pump()
        assert len(world.compute.jobs) <= 1
    world.finish()


# Cancelling and leaving, at every moment.


def waiting(world: World) -> Client:
    for number in range(4):
        world.arrive(f"in the way {number}", max_tokens=30)
    world.turn_until(lambda: all(client.session.slot is not None for client in world.clients))
    client = world.arrive(LONG)
    world.turn_until(lambda: client.session.prepared is not None)
    assert client.session.slot is None
    return client


def arrived(world: World) -> Client:
    return world.arrive(LONG)


def preparing(world: World) -> Client:
    client = world.arrive(LONG)
    world.scheduler.pump()
    assert world.preparing.jobs
    assert client.session.prepared is None
    return client


def in_prefill(world: World) -> Client:
    client = world.arrive(LONG)
    world.turn_until(lambda: client.session.computed > 0)
    assert client.session.state is State.PREFILL
    return client


def in_decode(world: World) -> Client:
    client = world.arrive(LONG, max_tokens=40)
    world.turn_until(lambda: len(client.text) == 5)
    assert client.session.state is State.DECODE
    return client


def held(world: World) -> Client:
    client = in_decode(world)
    world.sessions.hold(client.session)
    world.turns(2)
    return client


def at_its_last_token(world: World) -> Client:
    client = world.arrive("last", max_tokens=3)
    world.turn_until(lambda: len(client.session.generated) == 2)
    assert len(world.compute.jobs) == 1
    return client


MOMENTS = [arrived, preparing, waiting, in_prefill, in_decode, held, at_its_last_token]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancel_ends_it_and_nobody_else(moment: Callable[[World], Client], world: World) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    world.cancel(client)
    world.turn()
    assert client.end is FinishReason.CANCELLED
    assert client.expected.startswith(client.text)
    world.finish()
    assert other.text == other.expected
    assert all(one.text == one.expected for one in world.clients if one is not client)


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_comes_after_a_client_has_gone(moment: Callable[[World], Client], world: World) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    world.abandon(client)
    world.finish()
    assert client.end is None
    assert other.text == other.expected


def test_a_cancelled_stream_is_computed_no_more(world: World) -> None:
    client = in_decode(world)
    world.cancel(client)
    in_flight = len(world.engine.ticks) + len(world.compute.jobs)
    world.turns(10)
    assert all(not tick.runs for tick in world.engine.ticks[in_flight:])


def test_a_sink_may_cancel_at_its_own_token(world: World) -> None:
    client = world.arrive("enough", max_tokens=40)
    client.at_token = lambda: world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED
    assert client.text == client.expected[: len(client.text)]


# Readers that fall behind.


@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_held_stream_stops_and_goes_on_from_where_it_was(world: World, at: int) -> None:
    slow, quick = world.arrive("slow", max_tokens=20), world.arrive("quick", max_tokens=20)
    world.turn_until(lambda: len(slow.text) == at)
    world.sessions.hold(slow.session)
    world.turn_until(lambda: quick.end)
    world.turns(10)
    # The token that was being computed when its reader fell behind still comes.
    assert len(slow.text) <= at + 1
    assert slow.session.state is State.STREAM
    assert world.scheduler.snapshot()["tx_stalled_sessions"] == 1
    world.sessions.release(slow.session)
    world.finish()
    assert slow.text == slow.expected
    assert quick.text == quick.expected


def test_a_reader_may_fall_behind_and_catch_up_at_every_token(world: World) -> None:
    client = world.arrive("stutter", max_tokens=20)
    client.at_token = lambda: world.sessions.hold(client.session)
    while client.end is None:
        world.turn()
        world.sessions.release(client.session)
    assert client.text == client.expected
    world.finish()


def test_held_streams_keep_their_slots_and_cells(world: World) -> None:
    clients = [world.arrive(f"{number}", max_tokens=50) for number in range(4)]
    world.turn_until(lambda: all(client.text for client in clients))
    for client in clients:
        world.sessions.hold(client.session)
    late = world.arrive("late")
    world.turns(20)
    assert (late.text, world.scheduler.snapshot()["waiting_sessions"]) == ("", 1)
    for client in clients:
        world.sessions.release(client.session)
    world.finish()
    assert [client.text for client in clients] == [client.expected for client in clients]
    assert late.text == late.expected


# Admission.


def test_cells_are_reserved_for_whole_answers() -> None:
    # Each could start, and all together would run out in the middle.
    world = World(slots=4, cells=100, sequence_tokens=100)
    clients = [world.arrive(f"{number} tokens", max_tokens=40) for number in range(6)]
    world.turn_until(lambda: all(client.end for client in clients))
    assert [client.text for client in clients] == [client.expected for client in clients]
    world.finish()


def test_interactive_goes_before_background_until_that_has_aged() -> None:
    world = World(slots=1)
    world.arrive("in the way", max_tokens=10)
    world.turns(4)
    background = world.arrive("background", priority=Priority.BACKGROUND)
    world.turns(4)
    first = world.arrive("first")
    world.turn_until(lambda: first.session.slot is not None)
    assert background.session.slot is None
    world.now += AGING_S
    second = world.arrive("second")
    world.turn_until(lambda: background.session.slot is not None)
    assert second.session.slot is None
    world.finish()


def test_a_prompt_beside_a_stream_leaves_its_target(world: World) -> None:
    stream = world.arrive("stream", max_tokens=40, target_tbt_s=0.001)
    world.turn_until(lambda: len(stream.text) >= 3)
    ticks = len(world.engine.ticks)
    prompt = world.arrive(LONG, target_ttft_s=0.001)
    world.turn_until(lambda: prompt.text)
    rows = [sum(len(run.tokens) for run in tick.runs) for tick in world.engine.ticks[ticks:]]
    # No target can be kept that is shorter than a tick: the floor of 8 prompt tokens is all that comes beside it.
    assert max(rows) == 9
    world.finish()


# Failures.


@pytest.mark.parametrize("failure", [Outcome.FAILED, EngineFailure], ids=["failed", "raised"])
def test_a_failing_tick_fails_those_in_it_and_nobody_else(world: World, failure: Outcome | type[EngineFailure]) -> None:
    held_one = held(world)
    stream, prompt = world.arrive("stream", max_tokens=40), None
    world.turn_until(lambda: stream.text)
    prompt = world.arrive(LONG)
    world.turn_until(lambda: prompt.session.computed)
    for number in range(3):
        world.arrive(f"waits {number}")
    late = world.clients[-1]
    world.engine.failures.append(failure)
    world.turn_until(lambda: stream.end)
    assert stream.end is Fault.DECODE_FAILED
    assert stream.expected.startswith(stream.text)
    world.sessions.release(held_one.session)
    world.finish()
    assert prompt.end is Fault.DECODE_FAILED
    assert held_one.text == held_one.expected, "it was not in the batch"
    assert late.text == late.expected


def test_a_client_that_left_during_a_failing_tick_hears_nothing(world: World) -> None:
    gone, cancelled = in_decode(world), world.arrive("cancelled", max_tokens=40)
    world.turn_until(lambda: cancelled.text)
    world.engine.failures.append(Outcome.FAILED)
    world.abandon(gone)
    world.cancel(cancelled)
    world.finish()
    assert cancelled.end is FinishReason.CANCELLED


def test_without_cells_the_youngest_gives_way_and_the_others_lose_nothing(world: World) -> None:
    clients = []
    for number in range(3):
        clients.append(world.arrive(f"{number}", max_tokens=30))
        world.turns(1)
    world.turn_until(lambda: all(client.text for client in clients))
    world.engine.failures += [Outcome.NO_CELLS, Outcome.NO_CELLS]
    world.finish()
    assert [client.end for client in clients[1:]] == [Fault.DECODE_FAILED] * 2
    assert clients[0].text == clients[0].expected


def test_without_cells_one_that_leaves_anyway_makes_the_room(world: World) -> None:
    old, young = world.arrive("old", max_tokens=30), None
    world.turns(3)
    young = world.arrive("young", max_tokens=30)
    world.turn_until(lambda: young.text)
    world.engine.failures.append(Outcome.NO_CELLS)
    world.cancel(young)
    world.finish()
    assert young.end is FinishReason.CANCELLED
    assert old.text == old.expected


@pytest.mark.parametrize(("prompt", "fault"), [("refuse", Fault.CONTEXT_EXCEEDED), ("raise", Fault.DECODE_FAILED)])
def test_a_request_that_cannot_be_prepared_fails_alone(world: World, prompt: str, fault: Fault) -> None:
    before = world.arrive("before")
    bad = world.arrive(prompt)
    after = world.arrive("after")
    world.finish()
    assert bad.end is fault
    (error,) = bad.outputs
    assert isinstance(error, RequestError)
    assert error.request_id == bad.request.id
    assert "told to" not in error.message, "what went wrong inside is not the client's"
    assert (before.text, after.text) == (before.expected, after.expected)


def test_a_request_that_is_cancelled_cannot_fail_any_more(world: World) -> None:
    client = world.arrive("raise")
    world.scheduler.pump()
    world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED


# Draining.


def test_draining_lets_the_running_finish_and_refuses_the_waiting(world: World) -> None:
    running = [world.arrive(f"running {number}", max_tokens=30) for number in range(4)]
    world.turn_until(lambda: all(client.session.slot is not None for client in running))
    waiting = [world.arrive("waiting"), world.arrive("not even prepared")]
    world.sessions.draining = True
    world.scheduler.refuse_waiting()
    assert not world.scheduler.idle
    world.turn_until(lambda: world.scheduler.idle)
    assert [client.end for client in waiting] == [Fault.SHUTTING_DOWN] * 2
    assert [client.text for client in running] == [client.expected for client in running]
    with pytest.raises(RequestError):
        world.arrive("too late")


def test_the_scheduler_is_not_idle_before_the_last_words_are_delivered(world: World) -> None:
    client = world.arrive("waiting")
    world.scheduler.refuse_waiting()
    assert not world.scheduler.idle
    world.turn()
    assert client.end is Fault.SHUTTING_DOWN
    world.turn_until(lambda: world.scheduler.idle)


def test_the_scheduler_is_not_idle_before_the_last_slot_is_cleared(world: World) -> None:
    client = held(world)
    world.abandon(client)
    assert not world.compute.jobs
    assert not world.scheduler.idle
    world.finish()


def test_failing_all_ends_all(world: World) -> None:
    clients = [world.arrive(f"{LONG[: number * 10]}!", max_tokens=30) for number in range(7)]
    world.turn_until(lambda: any(client.text for client in clients))
    world.sessions.hold(next(client for client in clients if client.text).session)
    world.scheduler.fail_running()
    world.turn()
    assert {client.end for client in clients} <= {Fault.SHUTTING_DOWN, FinishReason.STOP, FinishReason.LENGTH}
    assert clients[-1].end is Fault.SHUTTING_DOWN
    world.finish()


# What is counted.


def test_what_is_counted(world: World) -> None:
    clients = [world.arrive("one two three", max_tokens=6), world.arrive("four", max_tokens=6)]
    world.turn_until(lambda: all(client.end for client in clients))
    world.turns(5)
    metrics = world.scheduler.metrics
    assert metrics.tokens_generated == sum(len(client.expected) for client in clients)
    assert metrics.prompt_tokens == len("one two three" + "four")
    assert metrics.ticks.count == sum(bool(tick.runs) for tick in world.engine.ticks)
    assert metrics.ticks.last == pytest.approx(10)
    # Turns are 10 ms: a token every turn.
    assert metrics.tbt.percentile(50) == pytest.approx(10)
    assert metrics.ttft.percentile(50) > 0
    snapshot = world.scheduler.snapshot()
    assert (snapshot["kv_cells_total"], snapshot["active_sessions"], snapshot["waiting_sessions"]) == (400, 0, 0)


# All of it in any order.

moves = st.one_of(
    st.tuples(st.just("arrive"), st.text("xyz" + SHORT, min_size=1, max_size=30), st.integers(1, 12), st.booleans()),
    st.tuples(st.sampled_from(["cancel", "abandon", "hold", "release"]), st.integers(0, 20)),
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("fail"), st.sampled_from([Outcome.FAILED, Outcome.NO_CELLS, EngineFailure])),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(moves, max_size=40),
    st.sampled_from([{}, {"slots": 2, "cells": 50, "sequence_tokens": 45, "batch_tokens": 9}]),
)
def test_whatever_happens_every_text_is_its_own_and_all_comes_back(
    steps: list[tuple], capacity: dict[str, int]
) -> None:
    world = World(**capacity)
    failures = 0
    for name, *arguments in steps:
        match name:
            case "arrive":
                prompt, max_tokens, background = arguments
                stop = (answer(prompt, max_tokens)[-2:],) if max_tokens % 3 == 0 else ()
                world.arrive(
                    prompt,
                    max_tokens=max_tokens,
                    priority=Priority(background),
                    stop=tuple(filter(None, stop)),
                )
            case "turns":
                world.turns(*arguments)
            case "fail":
                failures += 1
                world.engine.failures.append(arguments[0])
            case _ if world.clients:
                client = world.clients[arguments[0] % len(world.clients)]
                if name in ("cancel", "abandon"):
                    getattr(world, name)(client)
                else:
                    getattr(world.sessions, name)(client.session)
    clients = list(world.clients)
    for _ in range(2000):
        if world.scheduler.idle and not world.compute.jobs:
            break
        for client in clients:
            world.sessions.release(client.session)
        world.turn()
    world.engine.failures.clear()
    for client in clients:
        match client.end:
            case FinishReason.STOP | FinishReason.LENGTH:
                assert client.text == client.expected
            case FinishReason.CANCELLED | Fault.DECODE_FAILED:
                # What a cancel releases may be the beginning of a stop string that never came to its end.
                whole = answer(client.request.prompt, client.request.max_tokens)
                assert whole.startswith(client.text)
            case end:
                assert client.gone, end
    if not failures:
        assert all(client.end is not Fault.DECODE_FAILED for client in clients)
    world.finish()


# Preparing.


def test_one_request_is_prepared_at_a_time_by_class_and_never_for_who_has_left(world: World) -> None:
    first = world.arrive("first", max_tokens=2)
    world.scheduler.pump()
    patient = world.arrive("patient", max_tokens=2, priority=Priority.BACKGROUND)
    gone = world.arrive("gone", max_tokens=2)
    hasty = world.arrive("hasty", max_tokens=2)
    world.scheduler.pump()
    assert len(world.preparing.jobs) == 1
    world.abandon(gone)
    order = []
    prepare = world.engine.prepare
    world.engine.prepare = lambda request: (order.append(request.prompt), prepare(request))[1]
    world.turn_until(lambda: all(client.end for client in (first, patient, hasty)))
    assert order == ["first", "hasty", "patient"]
    world.finish()


def test_a_result_that_cannot_be_taken_fails_its_tick_and_nobody_else(world: World) -> None:
    client = world.arrive("first", max_tokens=8)
    world.turn_until(lambda: client.outputs)
    session = client.session
    assert session.prepared is not None
    session.prepared.text.push = lambda token: (_ for _ in ()).throw(IndexError(token))
    world.turn_until(lambda: client.end)
    assert client.end is Fault.DECODE_FAILED
    world.finish()
