"""Steps, with a stand-in for the sampler that takes as long as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from umaserve.core.errors import RequestError
from umaserve.engine.sampling import steps
from umaserve.engine.sampling.candidates import Candidates, Logits
from umaserve.engine.sampling.steps import Sampled, Step, StepThread

N_VOCAB = 8
PATIENCE_S = 60.0


@pytest.fixture
def thread() -> Iterator[StepThread]:
    made = StepThread(N_VOCAB)
    yield made
    made.close()


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def step(rows: int = 1, before: Callable[[int], object] = lambda _row: None) -> Step:
    """Samples the number of each row, after ``before`` with it."""

    def sample(logits: Logits, _candidates: Candidates) -> Sampled:
        row = int(logits[0])
        before(row)
        return row, None

    logits = [np.full(N_VOCAB, row, np.float32) for row in range(rows)]
    return Step(logits, sample, lambda row, _token: row == rows - 1, "grammar")


def test_all_tokens_of_a_step_are_taken_at_once(thread: StepThread) -> None:
    one = step(rows=3)
    thread.begin([one])
    thread.wait([one], PATIENCE_S)
    assert one.take() == ([(0, None), (1, None), (2, None)], True)


def test_those_behind_a_slow_step_go_on_without_it(thread: StepThread, go_on: threading.Event) -> None:
    begun = threading.Event()
    slow, other = step(before=lambda _row: begun.set() or go_on.wait()), step()
    thread.begin([slow, other])
    assert begun.wait(PATIENCE_S)
    thread.wait([slow, other], 0.0)
    assert other.ended.wait(PATIENCE_S)
    assert other.take() == ([(0, None)], True)
    assert slow.take() == ([], False)
    thread.wait([slow], 0.0)
    again = step()
    thread.begin([again])
    assert again.ended.wait(PATIENCE_S)
    go_on.set()
    assert slow.ended.wait(PATIENCE_S)
    assert slow.take() == ([(0, None)], True)


def test_a_step_ends_with_the_token_that_it_is_at(thread: StepThread, go_on: threading.Event) -> None:
    reached = threading.Event()
    slow = step(rows=3, before=lambda row: row != 1 or (reached.set() or go_on.wait()))
    thread.begin([slow])
    assert reached.wait(PATIENCE_S)
    assert slow.take() == ([(0, None)], False)
    go_on.set()
    assert slow.ended.wait(PATIENCE_S)
    assert slow.take() == ([(1, None)], True)


def test_a_step_that_takes_too_long_is_given_up(
    thread: StepThread, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_STEP_S", -1.0)
    slow = step(before=lambda _row: go_on.wait())
    thread.begin([slow])
    with pytest.raises(RequestError, match=r"^grammar: expected a grammar that llguidance can follow"):
        slow.take()


def test_what_sampling_raises_is_raised_where_the_tokens_are_taken(thread: StepThread) -> None:
    def refuse(_row: int) -> None:
        raise KeyError("told to")

    one, other = step(before=refuse), step()
    thread.begin([one, other])
    thread.wait([one, other], PATIENCE_S)
    with pytest.raises(KeyError):
        one.take()
    assert other.take() == ([(0, None)], True)
