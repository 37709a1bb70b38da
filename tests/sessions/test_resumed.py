"""A request that another process has begun: its text goes on where it was, or it ends, and never changes."""

from __future__ import annotations

import dataclasses

import pytest
from scheduler_world import Client, SchedulerWorld

from umaserve.core.errors import Fault
from umaserve.core.events import FinishReason
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import Hold

PROMPT = "carry on"


def begun(world: SchedulerWorld, tokens: int, **fields: object) -> tuple[Client, Resumed]:
    """A request of which another process has made so many tokens, and what it leaves."""
    client = world.arrive(PROMPT, **fields)
    world.turn_until(lambda: client.outputs and len(client.tokens) >= tokens)
    session = client.session
    left = Resumed(
        "stand-in", list(session.generated), client.text, "", session.reused, False, 2.0, 0.5, 1.0 if tokens else None
    )
    world.abandon(client)
    world.finish()
    return client, left


def go_on(world: SchedulerWorld, client: Client, left: Resumed) -> Client:
    """A client of another process, which resumes what ``client`` had."""
    again = Client(client.request, world.engine.capacity.sequence_tokens)
    again.outputs = list(client.outputs)
    again.session = world.sessions.take_over(
        client.request, left, again.receive, client.session.caller, world.clock.now
    )
    return again


@pytest.mark.parametrize("draft_tokens", [True, False])
@pytest.mark.parametrize("stop", [(), ("zzz",)])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_the_text_goes_on_where_it_was(tokens: int, stop: tuple[str, ...], draft_tokens: bool) -> None:
    client, left = begun(SchedulerWorld(), tokens, max_tokens=20, stop=stop)
    world = SchedulerWorld(draft_tokens=draft_tokens)
    again = go_on(world, client, left)
    world.turns(20)
    assert again.session.holds == {Hold.DETACHED}
    assert again.outputs == client.outputs, "nothing comes before somebody resumes it"
    world.sessions.release(again.session, Hold.DETACHED)
    world.turn_until(lambda: again.end)
    assert (again.text, again.end) == again.expected_end
    assert len(again.tokens) == len(again.session.generated) == 20
    assert again.outputs[-1].timing.started_s == 0.5
    world.finish()


def test_what_the_client_has_paused_stays_so() -> None:
    client, left = begun(SchedulerWorld(), 3, max_tokens=10)
    world = SchedulerWorld()
    again = go_on(world, client, dataclasses.replace(left, paused=True))
    world.sessions.release(again.session, Hold.DETACHED)
    world.turns(20)
    assert (again.session.holds, len(again.tokens)) == ({Hold.PAUSE}, 3)
    world.resume(again)
    world.turn_until(lambda: again.end)
    assert again.text == again.expected


def test_the_time_that_it_has_taken_counts() -> None:
    client, left = begun(SchedulerWorld(), 3, max_tokens=10)
    world = SchedulerWorld()
    again = go_on(world, client, left)
    world.sessions.expire(1.0)
    assert again.session.running, "held ones have time"
    world.sessions.release(again.session, Hold.DETACHED)
    world.sessions.expire(1.0)
    assert again.session.ended


@pytest.mark.parametrize("change", ["text", "thoughts", "stop", "filter"])
def test_a_text_that_would_change_fails(change: str) -> None:
    client, left = begun(SchedulerWorld(), 5, max_tokens=10)
    world = SchedulerWorld(patterns=(client.text[1:3],) if change == "filter" else ())
    if change in ("text", "thoughts"):
        left = dataclasses.replace(left, **{change: "other"})
    elif change == "stop":
        client.request = dataclasses.replace(client.request, stop=(client.text[1:3],))
    again = go_on(world, client, left)
    world.turn_until(lambda: again.end)
    assert (again.end, again.text) == (Fault.NOT_FOUND, client.text)
    world.finish()


def test_where_there_is_less_room_now_it_ends() -> None:
    client, left = begun(SchedulerWorld(), 20, max_tokens=40)
    world = SchedulerWorld(sequence_tokens=len(PROMPT) + 10)
    again = go_on(world, client, left)
    world.turn_until(lambda: again.end)
    assert (again.end, again.text) == (FinishReason.LENGTH, client.text)
