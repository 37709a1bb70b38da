"""Bursts of prompts that take longer to compute than a first token may wait."""

from __future__ import annotations

from shared_thread_world import SharedThreadWorld

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
