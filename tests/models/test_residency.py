"""The rules that decide which models are loaded: one by one, over random snapshots, and in a simulation."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from residency_simulation import UNLOADING_S, SimulatedModel, Simulation

from umaserve.models.residency import (
    MAX_GATHERING_S,
    MAX_PATIENCE_S,
    MAX_RETRY_S,
    MAX_STAY_S,
    MIN_PATIENCE_S,
    MIN_STAY_S,
    RETRY_S,
    gather_s,
    most_bytes,
    patience_s,
    plan,
    retry_pause_s,
    stay_s,
)
from umaserve.models.residency_snapshot import Model, Moves, Snapshot, State

NOW = 1000.0
LONG_AGO = 100.0
MIB = 2**20


def wanted(name: str, needed: int, seconds: float = 0.0, **fields: object) -> Model:
    """Not loaded; somebody has waited so long for it."""
    plain = Model(name, needed, waiting=1, waiting_since=NOW - seconds, load_s=4.0)
    return dataclasses.replace(plain, **fields)


def idle(name: str, needed: int, seconds: float = 500.0, **fields: object) -> Model:
    """Loaded long ago, and without work for so long."""
    plain = Model(name, needed, State.LOADED, loaded_at=LONG_AGO, last_used_at=NOW - seconds, load_s=4.0)
    return dataclasses.replace(plain, **fields)


def busy(name: str, needed: int, **fields: object) -> Model:
    return idle(name, needed, 0.0, **{"idle": False, **fields})


def moves(*models: Model, free: int, **fields: object) -> Moves:
    return plan(Snapshot(NOW, models, free, **fields))


# Rules 1 and 2: the order, and one load at a time.


def test_one_that_fits_is_loaded_at_once():
    assert moves(wanted("a", 3), busy("b", 3), free=3) == Moves(load=("a",))


def test_the_reserve_and_what_loads_in_progress_will_take_are_left():
    assert not moves(wanted("a", 3), busy("b", 9), free=5, reserve_bytes=3).load
    assert not moves(wanted("a", 3), busy("b", 9), free=5, promised_bytes=3).load


def test_the_first_request_decides_the_order_and_then_the_default_model():
    assert moves(wanted("a", 1, 1.0), wanted("b", 1, 2.0), free=9).load == ("b",)
    assert moves(wanted("a", 1, 1.0), wanted("b", 1, 1.0, default=True), free=9).load == ("b",)


def test_a_small_one_overtakes_a_large_one_only_if_it_leaves_room_for_it():
    large, other = wanted("large", 6, 5.0), busy("other", 4)
    assert moves(large, wanted("small", 2), other, free=4).load == ("small",)
    assert not moves(large, wanted("small", 3), other, free=4).load


@pytest.mark.parametrize("state", [State.LOADING, State.UNLOADING])
def test_none_is_loaded_while_another_is_loaded_or_unloaded(state: State):
    assert moves(wanted("a", 1), Model("b", 1, state), free=9) == Moves()


# Rule 3: what is displaced.


def test_the_least_recently_used_is_unloaded_and_no_more_than_necessary():
    oldest, older, newer = idle("oldest", 1, 400.0), idle("older", 3, 300.0), idle("newer", 3, 200.0)
    assert moves(wanted("a", 3, 60.0), newer, older, oldest, free=0).unload == ("older",)
    assert set(moves(wanted("a", 4, 60.0), newer, older, oldest, free=0).unload) == {"oldest", "older"}


def test_none_is_unloaded_where_all_that_could_be_do_not_suffice():
    assert moves(wanted("a", 6, 60.0), idle("b", 3), Model("c", 3, State.LOADING), free=0) == Moves()


def test_none_is_displaced_while_another_is_loading():
    assert moves(wanted("a", 3, 60.0), idle("b", 3), Model("c", 3, State.LOADING), free=0) == Moves()


def test_pinned_ones_and_those_that_run_requests_are_not_unloaded():
    assert moves(wanted("a", 3, 60.0), idle("b", 3, pinned=True), busy("c", 3), free=0).unload == ()


def test_a_later_one_displaces_what_the_earlier_ones_do_not_need():
    first, later = wanted("first", 3, 0.2, load_s=30.0), wanted("later", 1, 0.1)
    assert moves(first, later, idle("b", 3, 0.0), idle("c", 1), free=0).unload == ("c",)
    assert moves(first, later, idle("b", 4, 0.0), free=0) == Moves(again_at=NOW + 9.8)
    assert moves(first, later, idle("b", 2, 0.0), idle("c", 1), free=0) == Moves(again_at=NOW + 9.8)


# Rule 4: stays.


def test_a_model_stays_for_its_loading_time():
    assert [stay_s(Model("a", 1, load_s=load_s)) for load_s in (0.1, 20.0, 999.0)] == [MIN_STAY_S, 20.0, MAX_STAY_S]
    young = idle("b", 3, loaded_at=NOW - 19.0, load_s=20.0)
    assert moves(wanted("a", 3, 60.0), young, free=0) == Moves(again_at=NOW + 1.0)
    assert moves(wanted("a", 3, 60.0), dataclasses.replace(young, loaded_at=NOW - 20.0), free=0).unload == ("b",)


def test_one_that_has_not_stayed_does_not_make_way_for_requests_either():
    young = busy("b", 3, loaded_at=NOW - 19.0, load_s=20.0)
    assert moves(wanted("a", 3, MAX_PATIENCE_S), young, free=0) == Moves(again_at=NOW + 1.0)


def test_one_that_has_stayed_goes_before_one_that_has_not():
    young = idle("young", 3, 40.0, loaded_at=NOW - 50.0, load_s=55.0)
    assert moves(wanted("a", 3, 60.0), young, idle("old", 3, 10.0), free=0).unload == ("old",)


# Rule 5: gathering.


def test_requests_are_gathered_the_longer_the_dearer_the_swap_is():
    a, b = Model("a", 3, load_s=2.0, waiting=1), Model("b", 3, load_s=4.0)
    assert gather_s(a, [b]) == 3.0
    assert gather_s(dataclasses.replace(a, waiting=3), [b]) == 1.0
    assert gather_s(a, [dataclasses.replace(b, load_s=999.0)]) == MAX_GATHERING_S


def test_a_swap_waits_until_enough_is_gathered():
    just_used = idle("b", 3, 0.0)
    assert moves(wanted("a", 3, 3.0), just_used, free=0) == Moves(again_at=NOW + 1.0)
    assert moves(wanted("a", 3, 4.0), just_used, free=0).unload == ("b",)
    assert moves(wanted("a", 3, 3.0, waiting=2), just_used, free=0).unload == ("b",)


def test_nothing_is_gathered_where_the_others_have_had_no_work():
    assert moves(wanted("a", 3), idle("b", 3, 4.0), free=0).unload == ("b",)
    assert moves(wanted("a", 3), idle("b", 3, 3.0), free=0) == Moves(again_at=NOW + 1.0)


# Rule 6: those with work make way.


def test_patience_grows_with_the_price_of_the_swap():
    a = Model("a", 3, load_s=4.0)
    waits = [patience_s(a, [Model("b", 3, load_s=load_s)]) for load_s in (0.0, 4.0, 999.0)]
    assert waits == [MIN_PATIENCE_S, 24.0, MAX_PATIENCE_S]


def test_those_with_work_make_way_once_patience_ends():
    assert moves(wanted("a", 3, 23.0), busy("b", 3), free=0) == Moves(again_at=NOW + 1.0)
    assert moves(wanted("a", 3, 24.0), busy("b", 3), free=0) == Moves(hold=frozenset("b"))


def test_one_that_makes_way_is_unloaded_when_it_runs_nothing_though_requests_wait_for_it():
    held = busy("b", 3, waiting=2, waiting_since=NOW)
    assert moves(wanted("a", 3, 30.0), held, free=0).hold == {"b"}
    ended = dataclasses.replace(held, idle=True)
    assert moves(wanted("a", 3, 30.0), ended, free=0) == Moves(unload=("b",))


def test_it_goes_on_making_way_while_another_is_unloaded():
    held = busy("b", 3, waiting=2, waiting_since=NOW)
    for is_idle in (True, False):
        models = [wanted("a", 3, 30.0), dataclasses.replace(held, idle=is_idle), Model("c", 1, State.UNLOADING)]
        assert moves(*models, free=0) == Moves(hold=frozenset("b"))


def test_the_one_that_was_loaded_first_makes_way_and_only_where_idle_ones_do_not_suffice():
    first, last = busy("first", 3), busy("last", 3, loaded_at=LONG_AGO + 1)
    assert moves(wanted("a", 3, 200.0), last, first, free=0).hold == {"first"}
    assert moves(wanted("a", 3, 200.0), last, first, idle("b", 3), free=0) == Moves(unload=("b",))
    assert moves(wanted("a", 5, 200.0), last, first, idle("b", 3), free=0).hold == {"first", "b"}


def test_only_for_the_first_in_the_order_do_others_make_way():
    first, later = wanted("first", 3, 41.0, load_s=60.0), wanted("later", 1, 40.0)
    models = [busy("b", 3, loaded_at=LONG_AGO + 1.0), busy("c", 1)]
    assert moves(later, *models, free=0).hold == {"c"}
    assert moves(first, later, *models, free=0) == Moves(again_at=NOW - 41.0 + MAX_PATIENCE_S)


def test_nothing_else_is_loaded_or_displaced_while_models_make_way():
    small = wanted("small", 1, preload=True)
    models = [wanted("a", 6, 200.0), busy("b", 6), small, dataclasses.replace(small, name="c", waiting=0)]
    assert moves(*models, free=3) == Moves(hold=frozenset("b"))


# Rule 7: what can't fit.


def test_requests_that_can_never_be_served_are_refused():
    models = [busy("b", 3 * MIB), idle("c", 3 * MIB, pinned=True), Model("d", MIB, State.LOADING)]
    refused = moves(wanted("a", 7 * MIB), *models, free=MIB).refuse
    assert list(refused) == ["a"]
    assert "takes 7 MiB" in refused["a"]
    assert "5 MiB are available" in refused["a"]
    assert refused["a"].endswith(": choose a smaller model, or lower its n_ctx or parallel")
    assert not moves(wanted("a", 5 * MIB), *models, free=MIB).refuse
    assert most_bytes(Snapshot(NOW, models, MIB)) == 5 * MIB


def test_one_that_will_not_fit_beside_a_pinned_one_that_is_loaded_now_is_refused_now():
    assert moves(wanted("a", 3, 9.0, pinned=True), wanted("b", 3), free=5).refuse.keys() == {"b"}
    assert not moves(wanted("a", 3, 9.0), wanted("b", 3), free=5).refuse


def test_a_refused_one_keeps_no_other_waiting():
    assert moves(wanted("a", 9, 9.0), wanted("b", 3), free=3).load == ("b",)


# Rule 8: what is unloaded though nobody waits.


def test_one_without_work_for_its_limit_is_unloaded():
    assert moves(idle("a", 3, 59.0, idle_unload_s=60.0), free=9) == Moves(again_at=NOW + 1.0)
    assert moves(idle("a", 3, 60.0, idle_unload_s=60.0), free=9) == Moves(unload=("a",))
    assert moves(idle("a", 3, 60.0, idle_unload_s=60.0, pinned=True), free=9) == Moves()
    assert moves(busy("a", 3, last_used_at=NOW - 60.0, idle_unload_s=60.0), free=9) == Moves()


def test_idle_ones_are_unloaded_where_less_than_the_reserve_is_left():
    young = idle("young", 3, 1.0, loaded_at=NOW - 1.0)
    assert moves(young, busy("b", 3), free=1, reserve_bytes=2) == Moves(unload=("young",))
    assert moves(young, busy("b", 3), free=2, reserve_bytes=2) == Moves()
    assert moves(young, idle("old", 3), free=1, reserve_bytes=2) == Moves(unload=("old",))
    assert moves(young, idle("pinned", 3, pinned=True), free=0, reserve_bytes=9) == Moves(unload=("young",))
    assert moves(busy("b", 3), free=0, reserve_bytes=9) == Moves()


# Rule 9: preloading.


def test_models_to_preload_are_loaded_once_the_default_one_first():
    a, b = Model("a", 3, preload=True), Model("b", 3, preload=True)
    assert moves(a, b, free=3).load == ("a",)
    assert moves(a, dataclasses.replace(b, default=True), free=9).load == ("b",)
    assert moves(dataclasses.replace(a, needed_bytes=9), b, free=3).load == ("b",)
    assert moves(dataclasses.replace(a, loaded_at=LONG_AGO), free=9) == Moves()
    assert moves(dataclasses.replace(a, state=State.FAILED), free=9) == Moves()
    assert moves(dataclasses.replace(a, preload=False), free=9) == Moves()


def test_preloading_displaces_nothing_and_waits_while_somebody_waits():
    a = Model("a", 3, preload=True)
    assert moves(a, idle("b", 3), free=2) == Moves()
    assert not moves(a, wanted("c", 5), busy("b", 6), free=4).load
    failed = wanted("c", 5, state=State.FAILED, retry_at=NOW + 1.0)
    assert moves(a, failed, free=4) == Moves(load=("a",), again_at=NOW + 1.0)


# Rule 10: failures.


def test_pauses_between_tries_double():
    assert [retry_pause_s(failures) for failures in (1, 2, 3)] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert retry_pause_s(10**9) == MAX_RETRY_S


def test_one_that_failed_is_tried_again_after_its_pause_if_somebody_waits():
    failed = wanted("a", 3, state=State.FAILED, retry_at=NOW + 1.0)
    assert moves(failed, free=9) == Moves(again_at=NOW + 1.0)
    assert moves(dataclasses.replace(failed, retry_at=NOW), free=9) == Moves(load=("a",))
    assert moves(dataclasses.replace(failed, retry_at=NOW, waiting=0), free=9) == Moves()


# Rule 11: what the operator wants unloaded.


def test_one_that_is_to_leave_is_unloaded_when_it_runs_nothing_though_requests_wait_for_it():
    assert moves(busy("a", 3, leaving=True, waiting=1, waiting_since=NOW), free=1) == Moves(hold=frozenset("a"))
    assert moves(idle("a", 3, 0.0, leaving=True, waiting=1, waiting_since=NOW), free=1).unload == ("a",)


def test_others_are_loaded_while_one_that_is_to_leave_ends_its_work_and_none_is_displaced_beside_it():
    leaves = busy("a", 3, leaving=True)
    assert moves(wanted("b", 2), leaves, idle("c", 3), free=2).load == ("b",)
    waits = moves(wanted("b", 3, 500.0), leaves, idle("c", 3), free=2)
    assert (waits.load, waits.unload) == ((), ())


# Over random snapshots.


@st.composite
def models_of(draw: st.DrawFn, name: str) -> Model:
    state = draw(st.sampled_from([State.UNLOADED, State.LOADED, State.LOADED, State.UNLOADING, State.FAILED]))
    loaded = state is State.LOADED
    # Often a few values, so that much is equal or comes at once.
    ago = (st.sampled_from((0.0, 1.0, 200.0)) | st.floats(0.0, 200.0)).map(lambda seconds: NOW - seconds)
    waiting = draw(st.integers(0, 3))
    # Requests for a loaded model wait only since it has had to make way.
    since = NOW if loaded else draw(ago)
    return Model(
        name,
        needed_bytes=draw(st.integers(1, 6)),
        state=state,
        idle=not loaded or draw(st.booleans()),
        waiting=waiting,
        waiting_since=since if waiting else math.inf,
        loaded_at=draw(ago) if loaded else draw(st.just(-math.inf) | ago),
        last_used_at=draw(st.just(-math.inf) | ago),
        load_s=draw(st.sampled_from((0.0, 5.0)) | st.floats(0.0, 80.0)),
        retry_at=draw(st.floats(NOW - 9, NOW + 9)),
        pinned=draw(st.booleans()) and draw(st.booleans()),
        preload=draw(st.booleans()),
        idle_unload_s=draw(st.just(0.0) | st.floats(1.0, 300.0)),
        default=name == "a",
        leaving=loaded and draw(st.integers(0, 5)) == 0,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    models = [draw(models_of(name)) for name in "abcdef"[: draw(st.integers(1, 6))]]
    promised = 0
    if draw(st.integers(0, 3)) == 0:
        models[0] = dataclasses.replace(models[0], state=State.LOADING, idle=True, leaving=False)
        promised = draw(st.integers(0, models[0].needed_bytes))
    available = promised + draw(st.integers(0, 8))
    return Snapshot(NOW, models, available, promised, draw(st.just(0) | st.integers(0, 4)))


# A busy box makes no test fail.
over_snapshots = settings(max_examples=examples(250))


def room(snapshot: Snapshot) -> int:
    return snapshot.available_bytes - snapshot.promised_bytes - snapshot.reserve_bytes


def named(snapshot: Snapshot, names: tuple[str, ...] | frozenset[str]) -> list[Model]:
    return [one for one in snapshot.models if one.name in names]


def begun(snapshot: Snapshot, moves: Moves) -> Snapshot:
    """All moves are in progress."""

    def after(model: Model) -> Model:
        if model.name in moves.load:
            return dataclasses.replace(model, state=State.LOADING)
        if model.name in moves.unload:
            return dataclasses.replace(model, state=State.UNLOADING)
        if model.name in moves.refuse:
            return dataclasses.replace(model, waiting=0, waiting_since=math.inf)
        return model

    promised = snapshot.promised_bytes + sum(one.needed_bytes for one in named(snapshot, moves.load))
    return dataclasses.replace(snapshot, models=[after(one) for one in snapshot.models], promised_bytes=promised)


def unloaded(snapshot: Snapshot, models: list[Model]) -> Snapshot:
    """``models``, and those that were being unloaded, have gone, and nobody waits for them."""
    gone = [one for one in snapshot.models if one in models or one.state is State.UNLOADING]
    rest = [
        dataclasses.replace(one, state=State.UNLOADED, waiting=0) if one in gone else one for one in snapshot.models
    ]
    free = snapshot.available_bytes + sum(one.needed_bytes for one in gone)
    return dataclasses.replace(snapshot, models=rest, available_bytes=free)


@over_snapshots
@given(snapshots())
def test_moves_fit_the_memory_and_the_states(snapshot: Snapshot):
    made = plan(snapshot)
    loads, unloads = named(snapshot, made.load), named(snapshot, made.unload)
    assert len(made.load) == len(loads) <= 1
    assert sum(one.needed_bytes for one in loads) <= max(0, room(snapshot))
    assert all(one.state in (State.UNLOADED, State.FAILED) for one in loads)
    assert not (loads and any(one.state is State.LOADING for one in snapshot.models))
    assert len(made.unload) == len(unloads)
    assert all(one.state is State.LOADED and one.idle and not one.pinned for one in unloads)
    assert all(one.state is State.LOADED and not one.pinned for one in named(snapshot, made.hold))
    assert not made.hold & set(made.unload)
    assert not (made.load and any(not one.leaving for one in named(snapshot, made.hold)))
    leaving = [one for one in snapshot.models if one.leaving and not one.pinned]
    assert {one.name for one in leaving} <= {*made.hold, *made.unload}
    assert all(one.waiting and one.state is not State.LOADED for one in named(snapshot, frozenset(made.refuse)))


@over_snapshots
@given(snapshots())
def test_none_is_unloaded_or_held_in_vain(snapshot: Snapshot):
    made = plan(snapshot)
    displaced = [
        one
        for one in named(snapshot, made.unload)
        if not one.leaving and (not one.idle_unload_s or one.unused_since + one.idle_unload_s > NOW)
    ]
    unloading = sum(one.needed_bytes for one in snapshot.models if one.state is State.UNLOADING)
    if room(snapshot) + unloading < 0:
        displaced = []
    waiting = [
        one
        for one in snapshot.models
        if one.waiting and one.state in (State.UNLOADED, State.FAILED) and one.name not in made.refuse
        if one.state is State.UNLOADED or one.retry_at <= NOW
    ]
    held = [one for one in named(snapshot, made.hold) if not one.leaving]
    leaving = [one for one in snapshot.models if one.leaving and not one.pinned]
    for chosen in (displaced, held):
        if chosen:
            later = unloaded(snapshot, [*chosen, *leaving, *named(snapshot, made.unload)])
            needed = sum(one.needed_bytes for one in waiting)
            assert all(needed > room(later) - one.needed_bytes for one in chosen)
            first = min(waiting, key=lambda one: (one.waiting_since, not one.default))
            if held or len(waiting) == 1:
                assert plan(later).load == (first.name,)


@over_snapshots
@given(snapshots(), st.floats(0.0, 1.0, exclude_max=True))
def test_the_plan_stays_the_same_until_again_at(snapshot: Snapshot, share: float):
    made = plan(snapshot)
    assert made.again_at > NOW
    last = min(made.again_at, NOW + 10_000.0)
    for now in (NOW + share * (last - NOW), math.nextafter(last, NOW)):
        if now < made.again_at:
            assert plan(dataclasses.replace(snapshot, now=now)) == made


@over_snapshots
@given(snapshots())
def test_planning_again_moves_nothing_more(snapshot: Snapshot):
    made = plan(snapshot)
    again = plan(begun(snapshot, made))
    assert (again.load, again.unload, again.refuse) == ((), (), {})
    assert again.hold == made.hold


# In a simulation.

LONGEST_S = 2.0
RATES = {"hog": 8.0, "often": 1.0, "seldom": 0.1, "rare": 0.02}


def four_models(needed: tuple[int, ...]) -> list[SimulatedModel]:
    return [
        SimulatedModel(name, size, load_s)
        for name, size, load_s in zip(RATES, needed, (6.0, 3.0, 1.0, 8.0), strict=True)
    ]


def longest_wait_s(models: list[SimulatedModel]) -> float:
    """What the rules promise: patience ends for all that wait at the same time; then come the load that is in progress,
    and for each in the order the stay of those that make way, the end of what they run, the unload and the load."""
    seen = [one.seen() for one in models]
    patience = max(patience_s(one, seen) for one in seen)
    load, stay = max(one.load_s for one in models), max(map(stay_s, seen))
    return patience + load + len(models) * (stay + LONGEST_S + UNLOADING_S + load)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("needed", [(3, 3, 3, 3), (3, 2, 2, 4), (4, 3, 3, 7)])
def test_memory_for_two_of_four_models_and_one_hog(needed: tuple[int, ...], seed: int):
    models = four_models(needed)
    simulation = Simulation([*models, SimulatedModel("giant", 8, 1.0)], memory_bytes=8, reserve_bytes=1)
    for name, rate in RATES.items():
        simulation.poisson(name, rate, 400.0, LONGEST_S, random.Random(f"{seed} {name}"))
    simulation.request(100.0, "giant", 1.0)
    simulation.run()
    for one in models:
        assert len(one.waits) == simulation.arrived.count(one.name) > 0
        assert max(one.waits) <= longest_wait_s(models)
    assert simulation.models["giant"].refused == 1
    alternations = sum(one != other for one, other in itertools.pairwise(simulation.arrived))
    assert 10 * sum(one.loads for one in models) < alternations


def test_alternating_requests_for_models_that_exclude_each_other_share_loads():
    models = [SimulatedModel(name, 3, 4.0) for name in "ab"]
    simulation = Simulation(models, memory_bytes=5)
    for index in range(600):
        simulation.request(index * 0.5, "ab"[index % 2], 0.2)
    simulation.run()
    assert sum(len(one.waits) for one in models) == 600
    assert sum(one.loads for one in models) < 600 / 10
    assert simulation.loading_s < simulation.now / 2


def test_pinned_and_failing_and_unused_models_keep_nobody_waiting_for_ever():
    models = four_models((3, 3, 3, 3))
    models[1].pinned, models[2].loads_that_fail, models[3].idle_unload_s = True, 3, 10.0
    simulation = Simulation(models, memory_bytes=7)
    for name, rate in RATES.items():
        simulation.poisson(name, rate, 400.0, LONGEST_S, random.Random(f"failing {name}"))
    simulation.run()
    assert all(len(one.waits) == simulation.arrived.count(one.name) > 0 for one in models)
    assert models[2].failures == 3
    assert models[1].loads == 1
