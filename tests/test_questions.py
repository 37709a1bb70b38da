"""Questions: embeddings one text after another, and what a client sees of a failure."""

from __future__ import annotations

import logging

import pytest

from umaserve.errors import Fault, RequestError
from umaserve.messages import Answer, Detokenized, Embed, Embedded, TokenIds
from umaserve.serving.questions import embed_all, result_or_error

pytest.register_assert_rewrite("standin")
from standin import EngineFailure, StandInEngine, SteppedWorker, vector  # noqa: E402


class Asked:
    """One question, its engine and what came of it."""

    def __init__(self, *inputs: str | TokenIds) -> None:
        self.engine, self.compute, self.preparing = StandInEngine(), SteppedWorker(), SteppedWorker()
        self.answers: list[Answer | RequestError] = []
        embed_all(self.engine, self.compute, self.preparing, Embed(inputs), self.answers.append)

    def finish(self) -> Answer | RequestError:
        while self.compute.jobs or self.preparing.jobs:
            assert self.answers == []
            assert len(self.compute.jobs) + len(self.preparing.jobs) == 1, "one text at a time"
            self.preparing.step()
            self.compute.step()
        (answer,) = self.answers
        return answer


def test_each_text_gets_its_vector_in_order() -> None:
    answer = Asked("one", TokenIds(tuple(b"two")), "one").finish()
    assert answer == Embedded([vector(b"one"), vector(b"two"), vector(b"one")], 9)


def test_texts_are_tokenized_on_the_preparing_thread_and_tokens_are_taken_as_they_are() -> None:
    text, tokens = Asked("one"), Asked(TokenIds((1, 2)))
    assert (len(text.preparing.jobs), len(text.compute.jobs)) == (1, 0)
    assert (len(tokens.preparing.jobs), len(tokens.compute.jobs)) == (0, 1)


def test_ticks_may_come_between_the_texts() -> None:
    asked = Asked("one", "two", "three")
    order: list[str] = []
    embed = asked.engine.embed
    asked.engine.embed = lambda query: (order.append(bytes(query.inputs[0].ids).decode()), embed(query))[1]
    while not asked.answers:
        asked.preparing.step()
        asked.compute.submit(lambda: order.append("tick"), lambda _result: None)
        asked.compute.step()
        asked.compute.step()
    assert order == ["one", "tick", "two", "tick", "three", "tick"]


@pytest.mark.parametrize("failure", [EngineFailure("told to"), RequestError(Fault.BAD_REQUEST, "input: no")], ids=repr)
def test_a_text_that_cannot_be_tokenized_ends_it(failure: Exception) -> None:
    asked = Asked("one", "two")
    asked.engine.answer = lambda _query: (_ for _ in ()).throw(failure)
    error = asked.finish()
    assert isinstance(error, RequestError)
    assert error.fault is (Fault.BAD_REQUEST if error is failure else Fault.DECODE_FAILED)


@pytest.mark.parametrize(("bad", "fault"), [("refuse", Fault.CONTEXT_EXCEEDED), ("raise", Fault.DECODE_FAILED)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_first_text_that_fails_ends_it(bad: str, fault: Fault, at: int) -> None:
    inputs = ["a", "b", "c"]
    inputs[at] = bad
    error = Asked(*inputs).finish()
    assert isinstance(error, RequestError)
    assert error.fault is fault
    assert "told to" not in error.message


def test_a_client_sees_the_answer_and_the_refusal_but_no_mistake_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    answer, refusal = Detokenized("text"), RequestError(Fault.BAD_REQUEST, "tokens: no")
    assert result_or_error(answer) is answer
    assert result_or_error(refusal) is refusal
    assert caplog.records == []
    error = result_or_error(EngineFailure("told to"))
    assert isinstance(error, RequestError)
    assert (error.fault, error.message) == (Fault.DECODE_FAILED, "request: the server failed on it")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
