"""How many cells are promised: by what answers took, a step ahead of each stream, and never more than there are."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.requests import Generate
from umaserve.kvcache.reservations import QUANTILE, REMEMBERED, STEP, UNKNOWN, AnswerLengths, Reservations, step
from umaserve.kvcache.slots import Room, Slots
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Capacity, Prepared
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session
from umaserve.sessions.states import State


def lengths(*answers: int) -> AnswerLengths:
    learned = AnswerLengths()
    for answer in answers:
        learned.observe(answer)
    return learned


def test_before_anything_is_learned_a_guess_is_promised() -> None:
    assert AnswerLengths().more(0) == UNKNOWN
    assert AnswerLengths().more(UNKNOWN - STEP - 1) == STEP + 1
    assert AnswerLengths().more(10**6) == STEP


def test_most_answers_end_within_what_they_are_promised() -> None:
    answers = range(1000, 0, -10)
    promised = lengths(*answers).more(0)
    assert sum(answer <= promised for answer in answers) == pytest.approx(QUANTILE * len(answers), abs=1)


def test_who_has_got_far_is_promised_what_those_took_that_got_further() -> None:
    learned = lengths(*[100] * 90, *[2000] * 10)
    assert learned.more(0) == 2000
    assert lengths(*[100] * 95, *[2000] * 5).more(0) == 100
    assert lengths(*[100] * 95, *[2000] * 5).more(100) == 1900
    assert learned.more(2000) == STEP, "longer than all"


def test_short_answers_are_promised_a_step_and_old_ones_are_forgotten() -> None:
    assert lengths(1, 2, 3).more(0) == STEP
    assert lengths(5000, *[100] * REMEMBERED).more(100) == STEP


@given(st.lists(st.integers(1, 10**5), max_size=300), st.integers(0, 10**5))
def test_a_step_at_least_and_no_more_than_the_longest_took(answers: list[int], generated: int) -> None:
    more = lengths(*answers).more(generated)
    assert STEP <= more <= max(STEP, UNKNOWN, *answers[-REMEMBERED:], 0)


@given(st.integers(1, 2000), st.integers(0, 500), st.integers(1, 3000))
def test_a_stream_is_promised_more_before_it_needs_it(length: int, spare: int, further: int) -> None:
    most = length + further
    promised = min(most, length + spare)
    after = step(length, promised, most)
    assert promised <= after <= most
    assert after >= min(most, length + STEP // 4)
    assert after in (promised, min(most, length + STEP))


def session(prompt: int, max_tokens: int, number: int = 0) -> Session:
    one = Session(
        number, SessionManager(), Generate("r", "hello"), print, Caller("uds", "uid:1000"), state=State.DECODE
    )
    one.prepared = Prepared([1] * prompt, max_tokens, None)
    return one


def test_streams_grow_as_far_as_cells_are_free_the_oldest_first() -> None:
    slots = Slots(Capacity(slots=4, cells=400, sequence_tokens=400, batch_tokens=16))
    promises = Reservations(slots)
    old, young = session(100, 300, 1), session(100, 300, 2)
    for one in (old, young):
        slots.take(one, Room(150, one.prepared.tokens, ""))
        one.generated += [1] * 50
    assert [promises.extend(one) for one in (old, young)] == [STEP, 100 - STEP]
    assert [one.cells for one in (old, young)] == [150 + STEP, 150 + 100 - STEP]
    old.generated += [1] * STEP
    young.generated += [1] * (100 - STEP)
    assert [promises.extend(one) for one in (old, young)] == [0, 0]
    young.generated.append(1)
    assert promises.extend(young) == -1
    with pytest.raises(RuntimeError, match="session 2: a stream was planned without cells"):
        promises.give_lacking(young)
    slots.give_up(old, [], keep=False)
    promises.give_lacking(young)
    assert young.cells == young.length


def test_a_shorter_answer_gives_back_what_it_can_not_need_any_more() -> None:
    slots = Slots(Capacity(slots=1, cells=400, sequence_tokens=400, batch_tokens=16))
    promises = Reservations(slots)
    one = session(100, 300)
    slots.take(one, Room(promises.to_start(one), one.prepared.tokens, ""))
    assert one.cells == 100 + UNKNOWN
    one.prepared = dataclasses.replace(one.prepared, max_tokens=20)
    promises.cut(one)
    assert (one.cells, slots.free_cells) == (120, 280)
    one.prepared = dataclasses.replace(one.prepared, max_tokens=200)
    promises.cut(one)
    assert one.cells == 120, "a longer one grows as it comes to it"
