"""Bursts of prompts that take longer to compute than a first token may wait."""

from __future__ import annotations

from shared_thread_world import SharedThreadWorld

from umaserve.scheduler.policy.burst import IN_TIME_S
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.sessions.cost_model import Cost


def test_what_is_computed_after_the_first_streams_of_a_burst_begins_together_too() -> None:
    world = SharedThreadWorld(Cost(0.01, 0.025, 0.025, 0.0, 0.0), prompts_apart=True)
    (model,) = world.models
    clients = [model.arrive(letter * 500, max_tokens=10) for letter in "abcd"]
    world.turn_until(model.served)
    first, second, third, fourth = (client.tokens[0].elapsed_s for client in clients)
    assert first == second >= AGING_S
    assert third == fourth < first + AGING_S


def test_a_computed_prompt_of_a_burst_begins_in_time_for_its_own_target() -> None:
    world = SharedThreadWorld(Cost(0.01, 0.01, 0.01, 0.0, 0.0), prompts_apart=True)
    (model,) = world.models
    hurried, *others = [
        model.arrive(letter * 500, max_tokens=10, target_ttft_s=target_s)
        for letter, target_s in zip("abcd", [10.0, 60.0, 60.0, 60.0], strict=True)
    ]
    world.turn_until(model.served)
    assert 10.0 - IN_TIME_S <= hurried.tokens[0].elapsed_s <= 10.0
    assert len({client.tokens[0].elapsed_s for client in others}) == 1
