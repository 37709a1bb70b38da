"""Requests that are modified while they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from moments import LONG, arrived, held, in_decode, in_prefill, in_prefill_again, preempted, preparing, waiting
from scheduler_world import ORIGIN, Client, SchedulerWorld
from standin import (
    DEFAULT_MAX_TOKENS,
    answer,
)

from umaserve.core.commands import Pause, Resume
from umaserve.core.errors import Fault
from umaserve.core.events import Finished, FinishReason, Steered
from umaserve.core.requests import Grammar, Priority, Sampling, Syntax
from umaserve.scheduler.steering import CHANGED_PER_TICK
from umaserve.sessions.session import Hold


@pytest.mark.parametrize(
    "moment", [arrived, preparing, waiting, in_prefill, in_decode, held, preempted, in_prefill_again]
)
@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"max_tokens": 60}, {"stop": tuple("aeiou")}, {}], ids=str)
def test_a_modification_holds_from_the_next_token_on(
    moment: Callable[[SchedulerWorld], Client], fields: dict[str, object], world: SchedulerWorld
) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    command = world.modify(client, **fields)
    world.turn_until(lambda: Steered(command) in client.outputs)
    world.sessions.release(client.session, Hold.READER)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert all(one.text == one.expected for one in world.clients)
    assert other.end is FinishReason.LENGTH


@pytest.mark.parametrize("moment", [in_decode, held, preempted, in_prefill_again])
def test_fewer_tokens_than_there_are_end_it_there(
    moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld
) -> None:
    client = moment(world)
    command = world.modify(client, max_tokens=2)
    world.turn_until(lambda: client.end)
    assert client.end is FinishReason.LENGTH
    assert client.outputs[-2] == Steered(command)
    assert client.text == client.whole[: len(client.session.generated)]
    assert len(client.text) >= 5
    world.finish()


def test_other_stops_see_what_was_held_back(world: SchedulerWorld) -> None:
    whole = answer("held back", 20)
    client = world.arrive("held back", max_tokens=20, stop=(whole[3:6] + "!",))
    world.turn_until(lambda: len(client.session.generated) == 5)
    world.modify(client, stop=(whole[4:6],))
    world.turn_until(lambda: client.steered)
    assert (client.text, len(client.tokens)) == (whole[:3], 6)
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == (whole[:4], FinishReason.STOP)
    world.finish()


@pytest.mark.parametrize("moment", [arrived, preparing, waiting, in_prefill, in_decode, held, preempted])
def test_a_refused_modification_changes_nothing(
    moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld
) -> None:
    client = moment(world)
    command = world.modify(client, stop=tuple("aeiou"), prompt="refuse", max_tokens=3)
    world.turn_until(lambda: client.steered and client.steered[-1].command is command)
    assert str(client.steered[-1].refusal) == "prompt: too long"
    assert client.session.request == client.request
    world.sessions.release(client.session, Hold.READER)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert len(client.limits) == 1


@pytest.mark.parametrize(
    ("changes", "refusal", "applied"),
    [
        (({"prompt": "refuse"}, {"max_tokens": 50}), None, 50),
        (({"max_tokens": 50}, {"prompt": "refuse"}), "prompt: too long", 40),
        (({"max_tokens": 1}, {"max_tokens": 60}), None, 60),
        (({"max_tokens": 1}, {"max_tokens": 10**9}), None, 200 - len(LONG)),
    ],
    ids=str,
)
def test_of_several_modifications_the_last_holds_and_all_are_answered_alike(
    world: SchedulerWorld, changes: tuple[dict[str, object], dict[str, object]], refusal: str | None, applied: int
) -> None:
    client, made = in_decode(world), []
    change = world.engine.change
    world.engine.change = lambda *arguments: (made.append(arguments), change(*arguments))[1]
    first = world.modify(client, **changes[0])
    world.pause(client)
    second = world.modify(client, **changes[1])
    world.resume(client)
    world.turn_until(lambda: client.steered)
    assert [one.command for one in client.steered] == [first, Pause(), second, Resume()]
    said = [one.refusal and str(one.refusal) for one in client.steered]
    assert said == [refusal, None, refusal, None]
    assert len(made) == 1, "a sampler is made for the last one only"
    assert client.session.prepared.max_tokens == applied
    world.finish()
    assert (client.text, len(client.text), client.end) == (client.expected, applied, FinishReason.LENGTH)


@pytest.mark.parametrize("turns_between", [0, 3])
def test_a_modification_stands_by_itself_whether_or_not_the_one_before_was_applied(
    world: SchedulerWorld, turns_between: int
) -> None:
    client = in_decode(world)
    world.modify(client, max_tokens=12)
    world.turns(turns_between)
    world.modify(client, max_tokens=None)
    world.finish()
    assert (len(client.text), client.end) == (DEFAULT_MAX_TOKENS, FinishReason.LENGTH)
    assert client.text == client.expected


def test_a_modification_that_ends_it_is_answered_before_the_end(world: SchedulerWorld) -> None:
    client = in_decode(world)
    world.modify(client, max_tokens=60)
    world.modify(client, max_tokens=1)
    world.finish()
    assert client.end is FinishReason.LENGTH
    assert [type(output) for output in client.outputs[-3:]] == [Steered, Steered, Finished]


def test_so_many_requests_are_modified_before_one_tick_and_the_others_before_the_next() -> None:
    world = SchedulerWorld(slots=3 * CHANGED_PER_TICK, cells=2000, batch_tokens=100)
    clients = [world.arrive(f"{number:02}", max_tokens=60) for number in range(2 * CHANGED_PER_TICK + 1)]
    world.turn_until(lambda: all(client.text for client in clients))
    for client in clients:
        world.modify(client, max_tokens=30)
    answered = []
    while len(answered) < 3:
        world.turn()
        answered.append(sum(bool(client.steered) for client in clients))
    assert answered == [CHANGED_PER_TICK, 2 * CHANGED_PER_TICK, 2 * CHANGED_PER_TICK + 1]
    world.finish()
    assert [client.text for client in clients] == [client.expected for client in clients]


def test_the_loop_turns_again_where_more_changes_wait_than_one_turn_applies() -> None:
    world = SchedulerWorld(slots=2 * CHANGED_PER_TICK, cells=2000)
    clients = [world.arrive(f"{number:02}", max_tokens=60) for number in range(CHANGED_PER_TICK + 1)]
    world.turn_until(lambda: all(client.text for client in clients))
    for client in clients:
        world.pause(client)
    world.turn_until(lambda: not world.compute.jobs)
    for client in clients:
        world.modify(client, max_tokens=30)
    assert world.scheduler.eager, "no tick runs whose end would make the loop turn"
    steered = []
    while world.scheduler.eager:
        world.turn()
        steered.append(sum(len(client.steered) - 1 for client in clients))
    assert steered == [CHANGED_PER_TICK, CHANGED_PER_TICK + 1]
    world.resume(clients[0])
    world.turn()
    world.modify(clients[0], max_tokens=20)
    assert world.compute.jobs
    assert not world.scheduler.eager, "the end of the tick makes the loop turn"
    for client in clients:
        world.resume(client)
    world.finish()


def test_changes_of_what_is_not_prepared_make_nobody_turn(world: SchedulerWorld) -> None:
    client = preparing(world)
    world.pause(client)
    assert not world.scheduler.eager
    world.preparing.step()
    assert world.scheduler.eager
    world.turn()
    assert not world.scheduler.eager
    assert client.steered == [Steered(Pause())]
    world.resume(client)
    world.finish()


def test_a_modification_that_fails_inside_fails_its_request_alone(world: SchedulerWorld) -> None:
    other, client = world.arrive("other", max_tokens=40), in_decode(world)
    world.modify(client, prompt="raise")
    world.finish()
    assert client.end is Fault.DECODE_FAILED
    assert client.steered == []
    assert other.text == other.expected


def test_a_modification_leaves_the_id_and_the_class(world: SchedulerWorld) -> None:
    caller = dataclasses.replace(ORIGIN, priority=Priority.BACKGROUND)
    client = world.arrive(LONG, caller, max_tokens=40, priority=Priority.INTERACTIVE)
    world.turn_until(lambda: client.text)
    world.modify(client, id="another", max_tokens=50, priority=Priority.INTERACTIVE)
    world.turn_until(lambda: client.steered)
    request = client.session.request
    assert (request.id, request.priority, request.max_tokens) == (client.request.id, Priority.BACKGROUND, 50)
    world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED


def test_a_modification_leaves_the_grammar_to_which_the_answer_holds(world: SchedulerWorld) -> None:
    own, other = Grammar(Syntax.REGEX, "a+", "grammar"), Grammar(Syntax.REGEX, "b+", "grammar")
    client = world.arrive(LONG, max_tokens=40, sampling=Sampling(grammar=own))
    world.turn_until(lambda: client.text)
    world.modify(client, sampling=Sampling(temperature=0.5, grammar=other))
    world.turn_until(lambda: client.steered)
    assert client.session.request.sampling == Sampling(temperature=0.5, grammar=own)
    world.finish()


@pytest.mark.parametrize("paused", [False, True])
def test_an_answer_that_may_get_longer_waits_for_no_cells_before_it_does(paused: bool) -> None:
    world = SchedulerWorld(slots=4, cells=60, sequence_tokens=60)
    other, grows = world.arrive("other", max_tokens=30), world.arrive("grows", max_tokens=15)
    world.turn_until(lambda: grows.text and other.text)
    if paused:
        world.pause(grows)
    world.modify(grows, max_tokens=50)
    world.turn_until(lambda: len(grows.steered) == 1 + paused)
    assert grows.session.slot is not None
    world.resume(grows)
    world.turn_until(lambda: grows.end)
    assert world.scheduler.metrics.preemptions == 1, "the younger one, which is the one that grew"
    assert (other.text, grows.text) == (other.expected, grows.expected)
    assert (len(grows.text), grows.end) == (50, FinishReason.LENGTH)
    world.finish()


def test_a_shorter_answer_gives_cells_back() -> None:
    world = SchedulerWorld(slots=4, cells=60, sequence_tokens=60)
    shrinks = world.arrive("shrinks", max_tokens=50)
    world.turn_until(lambda: shrinks.text)
    late = world.arrive("late", max_tokens=20)
    world.turns(3)
    assert late.session.slot is None
    world.modify(shrinks, max_tokens=25)
    world.turn_until(lambda: late.text)
    assert shrinks.end is None
    world.finish()
    assert (shrinks.text, late.text) == (shrinks.expected, late.expected)
