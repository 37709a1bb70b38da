"""Prompts with media through the scheduler, on the stand-in engine: encoded once, computed in order, found again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_world import Client, SchedulerWorld
from standin import END, next_token

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Prefilled, Token, Waiting
from umaserve.core.requests import Attachment, ChatTurn, Image, Priority
from umaserve.kvcache import reservations
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.scheduler.positions import PATIENCE_S
from umaserve.scheduler.preparing import MAX_MEDIA_AHEAD
from umaserve.sessions.caller import Caller

OTHER = Caller("uds", "another")


def turns(*parts: str) -> tuple[ChatTurn, ...]:
    """One turn: every second part is the data of an image."""
    content, attachments = "", []
    for i, part in enumerate(parts):
        if i % 2:
            attachments.append(Attachment(len(content), Image(part, f"image {i}")))
        else:
            content += part
    return (ChatTurn("user", content, attachments=tuple(attachments)),)


def expected(world: SchedulerWorld, client: Client) -> str:
    """Its answer, made without a scheduler."""
    assert client.session.prepared is not None
    sequence, text = list(client.session.prepared.tokens), ""
    for _ in range(client.session.prepared.max_tokens):
        token = next_token(sequence)
        if token == END:
            break
        sequence.append(token)
        text += chr(token)
    return text


def answered(client: Client) -> str:
    assert isinstance(client.outputs[-1], Finished), client.outputs[-1]
    return "".join(output.text for output in client.outputs if isinstance(output, Token))


def finish(world: SchedulerWorld) -> None:
    for _ in range(2000):
        if all(isinstance(c.outputs[-1:], list) and c.session.ended for c in world.clients) and world.scheduler.idle:
            return
        world.turn()
    raise AssertionError("it never ends")


def encoded(world: SchedulerWorld) -> int:
    return int(world.scheduler.metrics.snapshot()["media_chunks_encoded_total"])


@pytest.mark.parametrize(
    "parts", [("look: ", "a cat", " what is it?"), ("", "a", "b", "whole dog", "c"), ("a", "b" * 50, "c")]
)
def test_a_prompt_with_media_is_computed_in_order(parts: tuple[str, ...]) -> None:
    world = SchedulerWorld(batch_tokens=16)
    client = world.arrive(turns(*parts), max_tokens=20)
    finish(world)
    assert answered(client) == expected(world, client)
    prompt = next(output for output in client.outputs if isinstance(output, Prefilled))
    assert prompt.input_tokens == sum(map(len, parts))
    assert encoded(world) == len(parts) // 2


def test_text_that_decodes_goes_on_while_media_wait_and_are_encoded() -> None:
    world = SchedulerWorld()
    stream = world.arrive("s" * 10, max_tokens=30)
    world.turns(8)
    client = world.arrive(turns("look: ", "a cat", "?"), max_tokens=5)
    finish(world)
    assert answered(stream) == expected(world, stream)
    assert answered(client) == expected(world, client)
    slots = [{run.slot for run in tick.runs} for tick in world.engine.ticks]
    assert any(len(each) < len(tick.runs) for each, tick in zip(slots, world.engine.ticks, strict=True))
    assert world.scheduler.metrics.batch_sessions == sum(map(len, slots)), "a prompt in two pieces is one"


def test_the_same_image_is_encoded_once_and_its_cells_are_found_again() -> None:
    world = SchedulerWorld(cached_cells=100, sequences=8)
    first = world.arrive(turns("look: ", "a cat on a mat", " what is it?"), max_tokens=5)
    finish(world)
    again = world.arrive(turns("look: ", "a cat on a mat", " and where?"), max_tokens=5)
    finish(world)
    assert encoded(world) == 1
    assert again.session.reused == len("look: a cat on a mat ")
    assert [answered(first), answered(again)] == [expected(world, first), expected(world, again)]


def test_what_the_kv_holds_is_not_encoded_again_for_one_behind_many_that_wait() -> None:
    world = SchedulerWorld(slots=1, batch_tokens=2, cells=300, cached_cells=200, sequences=3)
    world.arrive(turns("look: ", "a cat on a mat", " what?"), max_tokens=5)
    finish(world)
    world.engine.shed()
    world.arrive("x" * 150, max_tokens=5)
    for number in range(10):
        world.arrive(f"{number} waits for long", max_tokens=5, priority=Priority.BACKGROUND)
    world.turn_until(lambda: all(client.session.prepared for client in world.clients))
    again = world.arrive(turns("look: ", "a cat on a mat", " where?"), max_tokens=5)
    finish(world)
    assert again.session.reused == len("look: a cat on a mat wh")
    assert encoded(world) == 1


def test_an_image_is_never_reused_from_its_middle() -> None:
    world = SchedulerWorld(cached_cells=100, sequences=8, batch_tokens=4)
    leaver = world.arrive(turns("look: ", "a cat on a mat", " what?"), max_tokens=5)
    while leaver.session.computed <= len("look: a "):
        world.turn()
    world.cancel(leaver)
    later = world.arrive(turns("look: ", "a cat on a mat", " what?"), max_tokens=5)
    finish(world)
    assert later.session.reused == len("look: ")
    assert answered(later) == expected(world, later)


def test_tenants_share_no_cells_of_an_image() -> None:
    world = SchedulerWorld(cached_cells=100, sequences=8)
    for caller in (Caller("uds", "one"), OTHER):
        client = world.arrive(turns("look: ", "a cat", "?"), caller, max_tokens=5)
        finish(world)
        assert client.session.reused == 0
    assert encoded(world) == 2


@pytest.mark.parametrize(("data", "fault"), [("refuse", Fault.DECODE_FAILED), ("raise", Fault.DECODE_FAILED)])
def test_what_a_projector_fails_on_costs_nobody_else_anything(data: str, fault: Fault) -> None:
    world = SchedulerWorld()
    good = world.arrive(turns("a", "good", "b"), max_tokens=5)
    bad = world.arrive(turns("a", data, "b"), max_tokens=5)
    finish(world)
    error = bad.outputs[-1]
    assert isinstance(error, RequestError)
    assert error.fault is fault
    assert error.request_id == bad.request.id
    assert answered(good) == expected(world, good)


def test_an_image_whose_askers_have_left_is_given_up() -> None:
    world = SchedulerWorld()
    leaver = world.arrive(turns("", "a cat", "?"), max_tokens=5)
    while not world.compute.jobs:
        world.turn()
    world.cancel(leaver)
    finish(world)
    assert encoded(world) == 0
    stayer = world.arrive(turns("", "a cat", "?"), max_tokens=5)
    finish(world)
    assert answered(stayer) == expected(world, stayer)


def test_short_memory_sheds_what_is_kept_of_media() -> None:
    world = SchedulerWorld()
    world.arrive(turns("", "a cat", "?"), max_tokens=5)
    finish(world)
    world.scheduler.shed_caches()
    world.turn()
    world.arrive(turns("", "a cat", "?"), max_tokens=5)
    finish(world)
    assert encoded(world) == 2


def test_prompts_that_wait_for_an_encoding_hold_no_places() -> None:
    world = SchedulerWorld(slots=4)
    films = [world.arrive(turns("see: ", "cat" * n, "?", "dog" * n, "!"), max_tokens=3) for n in range(1, 5)]
    world.turns(2)
    text = world.arrive("text", OTHER, max_tokens=3)
    while not text.session.ended:
        world.turn()
        assert all(film.session.slot is None or not _blocked(film) for film in films)
    assert any(not film.session.ended for film in films)
    finish(world)


def _blocked(client: Client) -> bool:
    prepared = client.session.prepared
    return prepared is not None and any(not span.chunk.encoded for span in prepared.spans)


def order(world: SchedulerWorld) -> list[str]:
    """The data of what is encoded, in turn."""
    seen: list[str] = []
    encode = world.engine.encode
    world.engine.encode = lambda chunk, *more: (seen.append(chunk.data), encode(chunk, *more))[1]
    return seen


def test_tenants_take_turns_with_what_is_encoded() -> None:
    world = SchedulerWorld()
    seen = order(world)
    film = [part for n in range(4) for part in ("", f"film {n}")]
    for tenant in ("one", "two"):
        world.arrive(turns(*film, "?"), Caller("uds", tenant), max_tokens=1)
    while not seen:
        world.turn()
    world.arrive(turns("", "picture", "?"), Caller("uds", "three"), max_tokens=1)
    finish(world)
    assert seen.index("picture") <= 3


@pytest.mark.parametrize(
    ("aged", "expected"),
    [(False, ["busy", "interactive", "background"]), (True, ["busy", "background", "interactive"])],
)
def test_in_the_background_media_wait_for_those_of_others_until_they_have_aged(aged: bool, expected: list[str]) -> None:
    world = SchedulerWorld()
    seen = order(world)
    world.arrive(turns("", "busy", "?"), Caller("uds", "one"), max_tokens=1)
    while not world.compute.jobs:
        world.turn()
    world.arrive(turns("", "background", "?"), Caller("uds", "two"), max_tokens=1, priority=Priority.BACKGROUND)
    world.clock.now += AGING_S * aged
    world.arrive(turns("", "interactive", "?"), Caller("uds", "three"), max_tokens=1)
    for _ in range(4):
        world.preparing.step()
        world.scheduler.pump()
    finish(world)
    assert seen == expected


def test_who_comes_to_a_chunk_that_is_being_encoded_goes_on_when_the_first_asker_leaves() -> None:
    world = SchedulerWorld()
    seen = order(world)
    first = world.arrive(turns("", "a cat", "?"), max_tokens=3)
    while not world.compute.jobs:
        world.turn()
    second = world.arrive(turns("", "a cat", "!"), max_tokens=3)
    world.preparing.step()
    world.scheduler.pump()
    world.preparing.step()
    world.scheduler.pump()
    world.cancel(first)
    finish(world)
    assert seen == ["a cat"]
    assert answered(second) == expected(world, second)


def test_no_more_media_are_prepared_than_start_soon() -> None:
    world = SchedulerWorld(slots=1)
    clients = [world.arrive(turns("", f"picture {n}", "?"), max_tokens=3) for n in range(12)]
    for _ in range(2000):
        world.turn()
        ahead = [c for c in clients if c.session.prepared and c.session.started_at is None and not c.session.ended]
        assert len(ahead) <= MAX_MEDIA_AHEAD
        if all(client.session.ended for client in clients):
            return
    raise AssertionError("it never ends")


_parts = st.lists(st.sampled_from(["cat", "dog" * 9, "whole bird", "refuse"]), max_size=3)


@given(
    asked=st.lists(st.tuples(_parts, st.integers(0, 6), st.booleans(), st.booleans()), min_size=1, max_size=6),
    kept=st.booleans(),
    room=st.sampled_from([{"cells": 300}, {"cells": 140, "sequence_tokens": 140}, {"cells": 140, "host_bytes": 900}]),
    remote=st.booleans(),
)
def test_whatever_is_asked_and_left_all_that_stay_get_their_own_answer(
    asked: list[tuple[list[str], int, bool, bool]], kept: bool, room: dict[str, int], remote: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reservations, "STEP", 2)
        patch.setattr(reservations, "UNKNOWN", 2)
        capacity = {"sequence_tokens": 140, "cached_cells": 60 * kept, "sequences": 8, "slots": 3} | room
        world = SchedulerWorld(remote=remote, **capacity)
        for images, wait, leaves, background in asked:
            parts = itertools.chain.from_iterable(zip(itertools.repeat("text "), images))
            client = world.arrive(turns(*parts, " end"), OTHER if background else Caller("uds", "one"), max_tokens=30)
            world.turns(wait)
            if leaves:
                world.cancel(client)
        finish(world)
    for client, (images, _wait, leaves, _background) in zip(world.clients, asked, strict=True):
        if "refuse" in images and not leaves:
            assert isinstance(client.outputs[-1], RequestError)
        elif not leaves:
            assert answered(client) == expected(world, client)


def told(world: SchedulerWorld) -> list[list[int]]:
    """The positions that each client has been told."""
    world.scheduler.tell_waiting()
    world.scheduler.deliver()
    return [[one.position for one in client.outputs if isinstance(one, Waiting)] for client in world.clients]


def test_who_is_alone_waits_for_nobody_however_long_its_media_take() -> None:
    world = SchedulerWorld()
    world.arrive(turns("", "a cat", "?"), max_tokens=3)
    for _ in range(20):
        world.turn()
        world.clock.now += 10 * PATIENCE_S
        assert told(world) == [[]]
    finish(world)
    assert encoded(world) == 1


def test_who_stands_behind_the_media_of_another_is_told_so() -> None:
    world = SchedulerWorld()
    world.arrive(turns("", "a cat", "?"), max_tokens=3)
    second = world.arrive(turns("", "a dog", "?"), OTHER, max_tokens=3)
    world.scheduler.pump()
    world.clock.now += PATIENCE_S
    assert told(world) == [[], [2]], "the first one's picture is being decoded"
    while second.session.prepared is None:
        world.preparing.step()
        world.scheduler.pump()
        assert told(world) == [[], [2]], "its own picture is being decoded"
    world.clock.now += PATIENCE_S
    assert told(world) == [[], [2, 2]], "the first one's picture is being encoded"
    finish(world)


@pytest.mark.parametrize(
    ("parts", "draft_tokens"),
    [
        (("abcdabc",), "dabcdabcd"),
        (("", "a cat", "abcdabc"), "dabcdabcd"),
        (("abcd", "a cat", "abc"), ""),
        (("ab",), ""),
    ],
)
def test_the_text_behind_the_media_is_indexed_before_a_prompt_starts(parts: tuple[str, ...], draft_tokens: str) -> None:
    world = SchedulerWorld(slots=1, cached_cells=100)
    world.arrive("takes the slot", max_tokens=50)
    world.turns(2)
    client = world.arrive(turns(*parts))
    world.turn_until(lambda: client.session.prepared)
    assert client.session.slot is None
    assert client.session.repetition is not None
    assert bytes(client.session.repetition.draft_tokens(9)).decode() == draft_tokens
