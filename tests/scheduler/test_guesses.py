"""Guessed tokens, verified in the same decode."""

from __future__ import annotations

import pytest
from moments import LONG
from scheduler_world import KEEPING, ORIGIN, SchedulerWorld, reused
from standin import (
    ECHO,
    answer,
    scored,
)

from umaserve.core.requests import Sampling
from umaserve.sessions.caller import Caller
from umaserve.sessions.states import State


def guessing(**settings: object) -> SchedulerWorld:
    """A world that has seen that a tick of many rows takes no longer than one of a single row."""
    world = SchedulerWorld(**{"cached_cells": 100} | settings)
    for rows in range(1, 20):
        world.scheduler._governor.observe(1, rows, 0, 0, 0.01, 0.0)
    return world


def per_tick(world: SchedulerWorld) -> list[int]:
    """How many rows of guesses each tick had."""
    return [sum(run.draft_tokens for run in tick.runs) for tick in world.engine.ticks]


@pytest.mark.parametrize("draft_tokens", [True, False])
@pytest.mark.parametrize("drafts", [True, False])
def test_guesses_change_nothing_but_the_number_of_ticks(draft_tokens: bool, drafts: bool) -> None:
    world = guessing(draft_tokens=draft_tokens, drafts=drafts, sequences=8)
    client = world.arrive(ECHO + "and again", max_tokens=80, logprobs=1)
    other = world.arrive("no echo", max_tokens=30)
    world.turn_until(lambda: client.end and other.end)
    assert (client.text, client.end) == client.expected_end
    assert (other.text, other.end) == other.expected_end
    assert [token.token_id for token in client.tokens] == list(client.text.encode())
    assert [token.logprobs.chosen for token in client.tokens] == [scored(token.token_id) for token in client.tokens]
    ticks = sum(any(run.sampler for run in tick.runs) for tick in world.engine.ticks)
    metrics = world.scheduler.metrics
    assert (ticks < 60) == (metrics.draft_tokens_accepted > 20) == draft_tokens
    assert metrics.draft_tokens >= metrics.draft_tokens_accepted >= 0
    assert metrics.draft_tokens >= metrics.drafts
    assert (metrics.drafts > 0) == draft_tokens
    assert (sum(per_tick(world)) > 0) == draft_tokens
    assert any(tick.drafts for tick in world.engine.ticks) == (draft_tokens and drafts)
    world.finish()


@pytest.mark.parametrize("max_tokens", range(30, 46))
def test_guesses_do_not_go_beyond_the_length(max_tokens: int) -> None:
    world = guessing(cells=60, sequence_tokens=55)
    client = world.arrive(ECHO + "again", max_tokens=max_tokens)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert len(client.tokens) == max_tokens
    assert sum(per_tick(world))


@pytest.mark.parametrize("at", range(20, 36))
def test_a_stop_string_among_guessed_tokens_ends_there(at: int) -> None:
    whole = answer(ECHO + "stop it!", 60)
    stop = whole[at : at + 9]
    world = guessing(**KEEPING)
    client = world.arrive(ECHO + "stop it!", max_tokens=60, stop=(stop,))
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == client.expected_end
    made = len(client.session.generated)
    assert made == whole.index(stop) + len(stop), "what follows was dropped"
    assert world.scheduler.metrics.tokens_generated == made
    # All of it that was computed can be gone on with, and no more.
    again = world.arrive(client.request.prompt + whole, max_tokens=5)
    world.turn_until(lambda: again.end)
    assert again.text == again.expected
    assert reused(again) in (len(client.request.prompt) + made - 1, len(client.request.prompt) + made)
    world.finish()


def test_nothing_is_guessed_while_a_prompt_wants_the_time() -> None:
    world = guessing()
    world.arrive(ECHO + "and again", max_tokens=100)
    world.turn_until(lambda: sum(per_tick(world)) > 5)
    prompt = world.arrive(LONG)
    world.turn_until(lambda: prompt.session.computed)
    ticks = len(world.engine.ticks)
    world.turn_until(lambda: prompt.text)
    assert sum(per_tick(world)[ticks:-1]) == 0
    world.finish()
    assert [one.text for one in world.clients] == [one.expected for one in world.clients]


def test_a_stream_that_lost_its_place_with_guesses_left_counts_them_once() -> None:
    world = guessing(slots=1, batch_tokens=8)
    client = world.arrive(ECHO + "and again", max_tokens=60)
    world.turn_until(lambda: client.session.draft_tokens and sum(per_tick(world)) > 5)
    world.pause(client)
    world.turn_until(lambda: not world.compute.jobs)
    right = world.scheduler.metrics.draft_tokens_accepted
    other = world.arrive("other", max_tokens=3)
    world.turn_until(lambda: other.end)
    assert client.session.slot is None
    world.resume(client)
    world.turn_until(lambda: client.session.state is State.DECODE)
    assert world.scheduler.metrics.draft_tokens_accepted >= right
    world.finish()
    assert client.text == client.expected


RANDOM = Sampling(temperature=1.0)
OTHER = Caller("uds", "uid:1001")


def drafted(world: SchedulerWorld, caller: Caller, **fields: object) -> int:
    """How many draft tokens a request had that says what others with its prompt have said."""
    before = sum(per_tick(world))
    client = world.arrive("say it", caller, **{"max_tokens": 60, "sampling": RANDOM, **fields})
    world.turn_until(lambda: client.end and not world.compute.jobs)
    assert client.text == client.expected
    return sum(per_tick(world)) - before


def test_what_a_tenant_was_told_is_drafted_for_it_and_for_nobody_else() -> None:
    world = guessing(**KEEPING)
    assert drafted(world, ORIGIN) == 0
    assert drafted(world, OTHER) == 0
    assert drafted(world, ORIGIN) > 30
    assert world.scheduler.metrics.draft_tokens_accepted > 30
    world.finish()


def test_tenants_that_share_prefixes_share_drafts() -> None:
    world = guessing(shared_prefixes=True, **KEEPING)
    assert drafted(world, ORIGIN) == 0
    assert drafted(world, OTHER) > 30
    world.finish()


def test_drafts_come_from_no_request_without_cache_and_are_made_for_none() -> None:
    world = guessing(**KEEPING)
    assert drafted(world, ORIGIN, cache_prompt=False) == 0
    assert drafted(world, ORIGIN) == 0
    assert drafted(world, ORIGIN, cache_prompt=False) == 0
    world.finish()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
def test_answers_that_are_to_be_equal_have_none_from_earlier_requests(sampling: Sampling) -> None:
    world = guessing(**KEEPING)
    assert drafted(world, ORIGIN, sampling=sampling) == 0
    assert drafted(world, ORIGIN, sampling=sampling) == 0
    assert drafted(world, ORIGIN) > 30
    world.finish()


def test_nothing_is_drafted_from_what_was_dropped_for_want_of_memory() -> None:
    world = guessing(**KEEPING)
    assert drafted(world, ORIGIN) == 0
    world.scheduler.shed_caches()
    assert drafted(world, ORIGIN) == 0
    assert drafted(world, ORIGIN) > 30
    world.finish()
