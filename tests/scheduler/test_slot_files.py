"""What a slot held is saved under a name, and found again after all caches have parted with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from scheduler_world import KEEPING, Client, SchedulerWorld, reused

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import SlotFile

LONG = "a prompt that is long enough to be worth reading " * 6
CAPACITY = KEEPING | {"host_bytes": 100_000, "cells": 2000, "sequence_tokens": 600}


@pytest.fixture(params=[400, 0], ids=["cuttable", "entire"])
def world(request: pytest.FixtureRequest) -> SchedulerWorld:
    return SchedulerWorld(**CAPACITY | {"cached_cells": request.param}, keeps=True)


class Asked:
    """An answer that comes later."""

    def __init__(self) -> None:
        self.answer: SlotFile | RequestError | None = None

    def take(self, answer: SlotFile | RequestError) -> None:
        assert self.answer is None, "one answer"
        self.answer = answer


def ended(world: SchedulerWorld, prompt: str, **fields: object) -> Client:
    client = world.arrive(prompt, max_tokens=4, **fields)
    world.turn_until(lambda: client.end)
    return client


def answer(world: SchedulerWorld, ask: Callable[[Callable[[SlotFile | RequestError], None]], None]) -> SlotFile:
    asked = Asked()
    ask(asked.take)
    for _ in range(20):
        if asked.answer is not None:
            break
        world.disk.step()
        world.turn()
    assert isinstance(asked.answer, SlotFile), asked.answer
    return asked.answer


def save(world: SchedulerWorld, number: int, filename: str) -> SlotFile:
    return answer(world, lambda take: world.scheduler.save_slot(number, filename, take))


def restore(world: SchedulerWorld, filename: str) -> SlotFile:
    return answer(world, lambda take: world.scheduler.restore_slot(filename, take))


def forget(world: SchedulerWorld) -> None:
    """Part with all that is cached, on disk too."""
    world.scheduler.erase_cached()
    world.engine.disk.clear()
    for _ in range(3):
        world.clock.now += 60
        world.turn()
        world.disk.step()


def test_what_was_saved_is_not_computed_again(world: SchedulerWorld) -> None:
    first = ended(world, LONG)
    saved = save(world, 0, "first")
    assert saved.tokens == len(LONG) + len(first.text) - 1, "the last token of an answer was never computed"
    assert (saved.filename, saved.n_bytes) == ("first", saved.tokens)
    forget(world)
    assert reused(ended(world, LONG)) == 0
    forget(world)
    restored = restore(world, "first")
    assert (restored.tokens, restored.n_bytes) == (saved.tokens, saved.n_bytes)
    goes_on = LONG + first.text + " and then?"
    again = world.arrive(goes_on, max_tokens=4)
    for _ in range(20):
        world.disk.step()
        world.turn()
    world.turn_until(lambda: again.end)
    assert reused(again) == saved.tokens
    assert again.text == again.expected
    world.finish()


def test_slots_stand_for_the_latest_answers_one_of_each_conversation(world: SchedulerWorld) -> None:
    first = ended(world, LONG)
    second = ended(world, "something else: " + LONG)
    ended(world, LONG + first.text + " and then?")
    assert save(world, 0, "a").tokens > len(LONG) + 10
    assert save(world, 1, "b").tokens == len(second.request.prompt) + len(second.text) - 1
    with pytest.raises(RequestError, match="id: this slot has held nothing yet"):
        world.scheduler.save_slot(2, "c", lambda _answer: None)
    assert sorted(world.engine.files) == ["a", "b"]


def test_a_running_answer_is_saved_afterwards(world: SchedulerWorld) -> None:
    ended(world, LONG)
    running = world.arrive("another one", max_tokens=60)
    world.turn_until(lambda: running.tokens)
    with pytest.raises(RequestError) as refused:
        world.scheduler.save_slot(0, "x", lambda _answer: None)
    assert refused.value.fault is Fault.BUSY
    assert save(world, 1, "x").tokens > len(LONG)
    world.finish()


def test_what_is_not_to_be_cached_is_not_saved(world: SchedulerWorld) -> None:
    ended(world, LONG, cache_prompt=False)
    with pytest.raises(RequestError):
        world.scheduler.save_slot(0, "x", lambda _answer: None)


def test_what_was_erased_cannot_be_saved(world: SchedulerWorld) -> None:
    ended(world, LONG)
    world.scheduler.erase_cached()
    with pytest.raises(RequestError, match="this slot has held nothing yet"):
        world.scheduler.save_slot(0, "x", lambda _answer: None)


def test_what_host_memory_has_no_room_for_cannot_be_saved() -> None:
    world = SchedulerWorld(**CAPACITY | {"host_bytes": 100}, keeps=True)
    ended(world, LONG)
    with pytest.raises(RequestError, match="is larger than host_cache_bytes"):
        world.scheduler.save_slot(0, "x", lambda _answer: None)


def test_a_file_that_is_not_there(world: SchedulerWorld) -> None:
    asked = Asked()
    world.scheduler.restore_slot("none", asked.take)
    world.disk.step()
    world.turn()
    assert isinstance(asked.answer, RequestError)
    assert asked.answer.fault is Fault.NOT_FOUND


def test_whoever_waits_is_told_that_the_engine_has_ended(world: SchedulerWorld) -> None:
    ended(world, LONG)
    asked = Asked()
    world.scheduler.save_slot(0, "x", asked.take)
    world.scheduler.leave()
    assert isinstance(asked.answer, RequestError)
    assert asked.answer.fault is Fault.MODEL_NOT_LOADED


def test_it_is_off_without_a_folder() -> None:
    world = SchedulerWorld(**CAPACITY, keeps=True)
    world.engine.capacity = dataclasses.replace(world.engine.capacity, names=False)
    plain = SchedulerWorld(**CAPACITY)
    for do in (plain.scheduler.save_slot, lambda _number, name, take: plain.scheduler.restore_slot(name, take)):
        with pytest.raises(
            RequestError, match="--slot-save-path, the folder for their files, and --kv-cache"
        ) as refused:
            do(0, "x", lambda _answer: None)
        assert refused.value.fault is Fault.NOT_SUPPORTED
