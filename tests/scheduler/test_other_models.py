"""Models that share a compute thread: the streams of each keep their target beside the prompts of all."""

from __future__ import annotations

import math
import random

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scheduler_world import Client
from shared_thread_world import DIVIDE_S, TARGET_S, SharedThreadWorld, gaps

from umaserve.core.requests import Priority
from umaserve.scheduler.other_models import OtherModels
from umaserve.scheduler.policy.policy import HEADROOM, MAX_IDLE_TICK_S, plan
from umaserve.scheduler.policy.snapshot import OtherModelsLoad, Plan, Prompt, Snapshot
from umaserve.sessions.cost_model import Cost

SMALL = Cost(0.004, 0.004, 0.004, 0.0, 0.0)
SLOW = Cost(0.03, 0.002, 0.002, 0.0, 0.0)
LARGE = Cost(0.02, 0.006, 0.006, 0.0, 0.0)


def words(dice: random.Random, count: int) -> str:
    return "".join(dice.choices("abcdefgh ", k=count))


def storm(world: SharedThreadWorld, at: int, count: int, length: int = 150, **fields: object) -> list[Client]:
    """Long prompts for a model, all at once."""
    dice = random.Random(at)
    return [world.models[at].arrive(words(dice, length), **{"max_tokens": 2} | fields) for _ in range(count)]


def computed(world: SharedThreadWorld, at: int) -> int:
    """Prompt tokens that a model has computed."""
    return world.models[at].scheduler.metrics.prompt_tokens


# Two models by a clock of their own.


@pytest.mark.parametrize("costs", [(SMALL, SMALL), (SMALL, LARGE), (LARGE, SMALL)])
def test_a_stream_keeps_its_target_beside_another_models_storm_of_prompts(costs: tuple[Cost, Cost]) -> None:
    world = SharedThreadWorld(*costs)
    stream = world.models[0].arrive("a stream", max_tokens=400)
    world.turn_until(lambda: len(stream.tokens) > 3)
    prompts = storm(world, 1, 12)
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert not stream.end, "it ran all the time"
    assert max(gaps(stream)) <= TARGET_S
    assert sum(gaps(stream)[3:]) > 0.7 * TARGET_S * len(gaps(stream)[3:]), "and prompts got the time that it leaves"
    world.turn_until(lambda: all(model.served() for model in world.models))


def test_a_stream_that_begins_amid_another_models_storm_keeps_its_target_from_the_first_token() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    before = computed(world, 1)
    # Its prompts never are streams.
    storm(world, 1, 12, max_tokens=1)
    world.turn_until(lambda: computed(world, 1) > before + 400)
    assert max(world.models[1].engine.seconds) > 2 * TARGET_S, "nobody waits for its ticks"
    streams = [world.models[0].arrive(f"stream {number}", max_tokens=30) for number in range(3)]
    world.turn_until(lambda: all(model.served() for model in world.models))
    assert max(gap for stream in streams for gap in gaps(stream)) <= TARGET_S


def test_a_prompt_with_other_adapters_than_its_models_stream_has_its_turn() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    streams = [model.arrive("a stream", max_tokens=400) for model in world.models]
    world.turn_until(lambda: all(len(stream.tokens) > 3 for stream in streams))
    prompts = storm(world, 1, 20, length=550)
    before = computed(world, 1)
    world.turn_until(lambda: computed(world, 1) > before + 100)
    (adapted,) = storm(world, 0, 1, lora=(("a", 1.0),))
    world.turn_until(lambda: bool(adapted.end or streams[0].end))
    assert adapted.end
    assert not streams[0].end
    assert computed(world, 1) - before < 1000
    assert not all(prompt.end for prompt in prompts)


def test_models_with_streams_and_prompts_get_equal_shares() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    streams = [model.arrive("a stream", max_tokens=400) for model in world.models]
    world.turn_until(lambda: all(len(stream.tokens) > 3 for stream in streams))
    storm(world, 0, 9)
    for _ in range(10):
        world.turn()
    before = [computed(world, at) for at in range(2)]
    storm(world, 1, 9)
    while min(computed(world, at) - before[at] for at in range(2)) < 700:
        world.turn()
    first, second = (computed(world, at) - before[at] for at in range(2))
    assert second == pytest.approx(first, rel=0.15)
    world.turn_until(lambda: all(model.served() for model in world.models))
    assert max(gap for stream in streams for gap in gaps(stream)) <= TARGET_S


@pytest.mark.parametrize("prompts_apart", [False, True])
def test_the_prompts_of_slow_models_take_turns_within_the_target_of_anothers_stream(prompts_apart: bool) -> None:
    world = SharedThreadWorld(*[SLOW] * 4, prompts_apart=prompts_apart)
    stream = world.models[0].arrive("a stream", max_tokens=400)
    world.turn_until(lambda: len(stream.tokens) > 3)
    before, begun_at = [computed(world, at) for at in range(4)], world.clock.now
    prompts = [prompt for at in range(1, 4) for prompt in storm(world, at, 3, max_tokens=1)]
    world.turn_until(lambda: min(computed(world, at) - before[at] for at in range(1, 4)) > 300)
    most = max(computed(world, at) - before[at] for at in range(1, 4))
    assert most < 360, "each gets as much as the others"
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert not stream.end
    between = sorted(gaps(stream))
    assert between[int(0.95 * len(between))] <= TARGET_S
    assert max(between) <= 1.5 * TARGET_S
    # Were all to compute some in each round, their decodes alone would take more than the target.
    assert world.clock.now - begun_at < 15


TIMES = st.floats(0, 100) | st.just(-math.inf)


@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=6))
def test_where_no_prompts_are_under_way_one_that_waits_has_the_turn(models: list[tuple[float, bool]]) -> None:
    neighbours = OtherModels()
    for at, (prefilled_at, waits) in enumerate(models):
        neighbours.tell(at, OtherModelsLoad(0.02, 0.1, False, prefilled_at if waits else math.inf, 0.02))

    def plans(at: int) -> Plan:
        prompt = Prompt(1, 100, 0.0, 1.0, Priority.INTERACTIVE, started=True, cells=100)
        elsewhere = neighbours.elsewhere(at)
        return plan(Snapshot(1.0, (), [prompt], 1, 100, 0, 128, SMALL, elsewhere=elsewhere, prefilled_at=models[at][0]))

    waiting = [at for at, (_, waits) in enumerate(models) if waits]
    turns = [at for at in waiting if plans(at).prefill]
    longest = min((models[at][0] for at in waiting), default=None)
    assert turns == [at for at in waiting if models[at][0] == longest]
    assert all(plans(at).throttled for at in waiting if at not in turns)
    # As soon as one of them has its turn, the others wait.
    for taken in turns:
        neighbours.tell(taken, OtherModelsLoad(0.02, 0.1, True, 101.0, 0.1))
        assert not any(plans(at).prefill for at in waiting if at != taken)
        neighbours.tell(taken, OtherModelsLoad(0.02, 0.1, False, models[taken][0], 0.02))


@pytest.mark.parametrize("prompts_apart", [False, True])
@pytest.mark.parametrize("seed", range(examples(4)))
def test_whatever_arrives_every_stream_keeps_its_target(seed: int, prompts_apart: bool) -> None:
    dice = random.Random(seed)
    row_s = [dice.choice([0.0005, 0.001, 0.003]) for _ in range(2 + seed % 2)]
    costs = [Cost(dice.choice([0.002, 0.005, 0.01]), one, one, 0.0, 0.0) for one in row_s]
    world = SharedThreadWorld(*costs, prompts_apart=prompts_apart)
    for _ in range(25):
        prompt = words(dice, dice.choice([5, 40, 250]))
        dice.choice(world.models).arrive(prompt, max_tokens=dice.randint(1, 60))
        for _ in range(dice.randint(0, 15)):
            world.turn()
    world.turn_until(lambda: all(model.served() for model in world.models))
    between = [gap for model in world.models for client in model.clients for gap in gaps(client)]
    # Of a tick unlike any before, the time can't be predicted well.
    assert sum(gap > TARGET_S for gap in between) <= 0.01 * len(between)
    assert max(between) <= 1.2 * TARGET_S


def test_four_models_each_with_all_kinds_of_work_starve_nobody() -> None:
    world = SharedThreadWorld(*[SMALL] * 4)
    dice = random.Random(1)
    for _ in range(20):
        model = dice.choice(world.models)
        priority = dice.choice(list(Priority))
        model.arrive(words(dice, dice.choice([5, 20, 150])), max_tokens=dice.randint(1, 40), priority=priority)
        for _ in range(dice.randint(0, 12)):
            world.turn()
    world.turn_until(lambda: all(model.served() for model in world.models))
    worst = sorted(gap for model in world.models for client in model.clients for gap in gaps(client))
    # Up to four streams of each model: 80 ms of the target, and a background stream may wait for its turn.
    assert worst[int(0.99 * len(worst))] <= TARGET_S


def test_a_target_that_the_decodes_of_two_models_exceed_still_leaves_prompts_their_share() -> None:
    world = SharedThreadWorld(*[Cost(0.06, 0.004, 0.004, 0.0, 0.0)] * 2)
    streams = [model.arrive("a stream", max_tokens=400) for model in world.models]
    prompts = [*storm(world, 0, 3), *storm(world, 1, 3)]
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert not any(stream.end for stream in streams)
    assert max(gap for stream in streams for gap in gaps(stream)) < 4 * TARGET_S


def test_a_model_that_has_left_is_waited_for_by_nobody() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    lost, model = world.models
    stream = lost.arrive("a stream", max_tokens=400)
    world.turn_until(lambda: len(stream.tokens) > 3)
    world.models.remove(lost)
    world.compute.jobs.clear()
    lost.scheduler.leave()
    prompts = storm(world, 0, 4)
    before = len(model.engine.seconds)
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert max(model.engine.seconds[before:]) > HEADROOM * TARGET_S


def test_a_model_whose_work_has_ended_leaves_the_others_all_the_time() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    stream = world.models[0].arrive("a stream", max_tokens=5)
    world.turn_until(lambda: stream.end)
    before = len(world.models[1].engine.seconds)
    storm(world, 1, 6)
    world.turn_until(world.models[1].served)
    assert TARGET_S < max(world.models[1].engine.seconds[before:]) <= 1.3 * MAX_IDLE_TICK_S


def test_dividing_a_silent_models_cells_holds_up_no_other_models_stream() -> None:
    world = SharedThreadWorld(SMALL, SMALL, parts=8)
    stream = world.models[0].arrive("a stream", max_tokens=400)
    world.turn_until(lambda: len(stream.tokens) > 3)
    prompts = storm(world, 1, 2, length=590, max_tokens=5)
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert world.models[1].engine.divided
    assert not stream.end
    assert max(gaps(stream)) <= TARGET_S
    world.turn_until(lambda: all(model.served() for model in world.models))


def test_a_tick_that_divides_the_cells_beside_streams_has_no_prompts_to_spare() -> None:
    world = SharedThreadWorld(SMALL, SMALL, parts=8)
    streams = [model.arrive("a stream", max_tokens=400) for model in world.models]
    world.turn_until(lambda: all(len(stream.tokens) > 3 for stream in streams))
    prompts = storm(world, 1, 1, length=590, max_tokens=5)
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert world.models[1].engine.divided
    assert max(gaps(streams[0])) <= DIVIDE_S + 4 * SMALL.seconds(1, 0, 0)
    world.turn_until(lambda: all(model.served() for model in world.models))


def test_a_paused_stream_takes_nobodys_time() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    stream = world.models[0].arrive("a stream", max_tokens=400)
    world.turn_until(lambda: len(stream.tokens) > 3)
    world.models[0].pause(stream)
    for _ in range(3):
        world.turn()
    before = len(world.models[1].engine.seconds)
    storm(world, 1, 4)
    world.turn_until(world.models[1].served)
    assert max(world.models[1].engine.seconds[before:]) > TARGET_S


def test_streams_whose_adapters_take_turns_keep_their_target_too() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    loras = [(("a", 1.0),), (("b", 1.0),), (("b", 1.0),)]
    streams = [world.models[0].arrive("a stream", max_tokens=200, lora=lora) for lora in loras]
    world.turn_until(lambda: all(len(stream.tokens) > 3 for stream in streams))
    prompts = storm(world, 1, 6)
    world.turn_until(lambda: all(prompt.end for prompt in prompts))
    assert not any(stream.end for stream in streams)
    assert max(gap for stream in streams for gap in gaps(stream)) <= TARGET_S


def test_ticks_are_submitted_ahead_only_where_no_other_model_has_work() -> None:
    world = SharedThreadWorld(SMALL, SMALL)
    first = world.models[0].arrive("a stream", max_tokens=100)
    world.turn_until(lambda: len(world.compute.jobs) == 2)
    second = world.models[1].arrive("another one", max_tokens=20)
    world.turn_until(lambda: len(second.tokens) > 2)
    while not second.end:
        assert len(world.compute.jobs) <= 2, "one of each"
        world.turn()
    assert max(gaps(second)) < 2.5 * SMALL.seconds(1, 0, 0)
    world.turn_until(lambda: len(world.compute.jobs) == 2)
    world.turn_until(lambda: first.end)


# What they tell each other.


def test_what_others_have_is_their_sum() -> None:
    neighbours = OtherModels()
    assert neighbours.elsewhere("a") == OtherModelsLoad()
    neighbours.tell("a", OtherModelsLoad(0.01, 0.2, True, 5.0, 0.03))
    assert neighbours.elsewhere("a") == OtherModelsLoad()
    neighbours.tell("b", OtherModelsLoad(0.02, 0.1, False, 4.0, 0.02))
    neighbours.tell("c", OtherModelsLoad())
    assert neighbours.elsewhere("c") == OtherModelsLoad(pytest.approx(0.03), 0.1, True, 4.0, pytest.approx(0.05))
    neighbours.leave("b")
    neighbours.leave("b")
    assert neighbours.elsewhere("c") == OtherModelsLoad(0.01, 0.2, True, 5.0, 0.03)


def test_who_has_no_prompts_any_more_has_the_others_plan_again() -> None:
    woken: list[str] = []
    neighbours = OtherModels(lambda: woken.append("woken"))
    neighbours.tell("a", OtherModelsLoad(0.01, 0.2, True, 5.0, 0.03))
    neighbours.tell("a", OtherModelsLoad(0.01, 0.2, False, 6.0, 0.03))
    assert not woken
    neighbours.tell("a", OtherModelsLoad())
    assert len(woken) == 1
    neighbours.tell("a", OtherModelsLoad())
    assert len(woken) == 1
    neighbours.leave("a")
    assert len(woken) == 2
