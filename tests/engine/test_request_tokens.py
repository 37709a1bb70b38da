"""Tokens that a request forbids, awaits or ends with, on a real model; and the samplers that need its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_world import EngineWorld

from umaserve.core.errors import RequestError
from umaserve.core.events import FinishReason, Token
from umaserve.core.requests import ChatTurn, Sampling

PROMPT = "red, green, blue, red, green, blue, red, green, blue, red, green, blue,"


@pytest.fixture(scope="module")
def world() -> Iterator[EngineWorld]:
    made = EngineWorld("")
    yield made
    made.close()


def text(world: EngineWorld, prompt: str | tuple[ChatTurn, ...] = PROMPT, n: int = 12, **sampling: object) -> str:
    answer = world.answer(prompt, n, sampling=Sampling(**sampling))
    return "".join(output.text for output in answer.outputs if isinstance(output, Token))


def test_bad_words_do_not_come_with_or_without_a_space(world: EngineWorld) -> None:
    assert " green" in text(world)
    assert "green" not in text(world, bad_words=("green",))
    assert "green" not in text(world, bad_words=(" green",))
    assert " red" in text(world, bad_words=("green", "red, green"))
    assert "green, blue" not in text(world, bad_words=("green, blue",))


def test_a_repetition_is_left(world: EngineWorld) -> None:
    assert text(world, n=6).split() == PROMPT.split()[:3]
    assert text(world, n=6, dry_multiplier=5.0, dry_sequence_breakers=("#",)).split() != PROMPT.split()[:3]


def test_an_answer_ends_at_a_token_and_not_before_a_number_of_them(world: EngineWorld) -> None:
    comma = world.engine._preparation._model.tokenize(",", special=False)
    assert len(comma) == 1
    answer = world.answer(PROMPT, 12, sampling=Sampling(stop_token_ids=tuple(comma)))
    assert (answer.end, len(answer.tokens)) == (FinishReason.STOP, 1)
    later = world.answer(PROMPT, 12, sampling=Sampling(stop_token_ids=tuple(comma), min_tokens=4))
    assert later.end is not FinishReason.STOP or len(later.tokens) >= 4
    assert len(later.tokens) >= 4


def test_a_token_beyond_the_vocabulary_ends_nothing(world: EngineWorld) -> None:
    answer = world.answer(PROMPT, 2, sampling=Sampling(stop_token_ids=(2**31 - 1,)))
    assert isinstance(answer.end, RequestError)
    assert answer.end.field == "stop_token_ids"
