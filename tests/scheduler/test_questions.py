"""Questions: embeddings together and in turns, answers rendered on their thread, and what a client sees."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from standin import EngineFailure, StandInEngine, SteppedWorker, vector

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import (
    Answer,
    Counted,
    CountPrompt,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Query,
    Tokenize,
    Tokenized,
)
from umaserve.core.requests import Attachment, ChatTurn, Generate, Image, TokenIds
from umaserve.scheduler.questions import BYTES_AT_ONCE, TEXTS_AT_ONCE, Question, Questions
from umaserve.sessions.engine_api import YieldPoint

MOST = 4


class QuestionWorld:
    """Questions with their engine and its threads, and what came of each question, in the order of the ends."""

    def __init__(self) -> None:
        self.engine, self.compute, self.preparing = StandInEngine(), SteppedWorker(), SteppedWorker()
        self.media = SteppedWorker()
        self.questions = Questions(self.engine, self.compute, self.preparing, self.media, MOST)
        self.answers: list[tuple[str, bytes | RequestError]] = []
        self.rendered: list[Answer] = []
        self.embedded: list[list[bytes]] = []
        """The texts of each call of the engine."""
        self._embed = self.engine.embed
        self.engine.embed = self._noted

    def _noted(self, query: Embed, pause: YieldPoint) -> Embedded:
        self.embedded.append([bytes(one.ids) for one in query.inputs if isinstance(one, TokenIds)])
        return self._embed(query, pause)

    def ask(self, query: Query, name: str = "", render: Callable[[Answer], bytes] | None = None) -> Question:
        def note(answer: Answer) -> bytes:
            self.rendered.append(answer)
            return repr(answer).encode()

        question = Question(query, render or note, lambda answer: self.answers.append((name, answer)))
        self.questions.ask(question)
        return question

    def embed(self, *inputs: str | TokenIds, name: str = "") -> Question:
        return self.ask(Embed(inputs), name)

    def finish(self) -> None:
        while self.compute.jobs or self.preparing.jobs:
            self.preparing.step()
            self.compute.step()
        assert self.questions.idle

    def error(self) -> RequestError:
        ((_name, error),) = self.answers
        assert isinstance(error, RequestError)
        return error


@pytest.fixture
def world() -> QuestionWorld:
    return QuestionWorld()


# One question.


def test_prompts_with_media_are_counted_on_the_thread_for_media(world: QuestionWorld) -> None:
    image = Attachment(0, Image("QUJD", "messages[0].content"))
    texts, pictures = (ChatTurn("user", "ab"),), (ChatTurn("user", "ab", attachments=(image,)),)
    world.ask(CountPrompt(Generate("", texts)), "text")
    world.ask(CountPrompt(Generate("", pictures)), "picture")
    assert (len(world.preparing.jobs), len(world.media.jobs)) == (1, 1)
    world.media.step()
    world.preparing.step()
    assert [name for name, _answer in world.answers] == ["picture", "text"]
    assert [type(answer) for answer in world.rendered] == [Counted, Counted]


def test_each_text_gets_its_vector_in_order(world: QuestionWorld) -> None:
    world.embed("one", TokenIds(tuple(b"two")), "one")
    world.finish()
    embedded = Embedded([vector(b"one"), vector(b"two"), vector(b"one")], 9)
    assert world.rendered == [embedded]
    assert world.answers == [("", repr(embedded).encode())]


def test_texts_are_tokenized_on_the_preparing_thread_and_tokens_are_taken_as_they_are() -> None:
    text, tokens = QuestionWorld(), QuestionWorld()
    text.embed("one")
    tokens.embed(TokenIds((1, 2)))
    assert (len(text.preparing.jobs), len(text.compute.jobs)) == (1, 0)
    assert (len(tokens.preparing.jobs), len(tokens.compute.jobs)) == (0, 1)


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (Tokenize("hi", special=False), Tokenized([104, 105], [b"h", b"i"])),
        (Detokenize((104, 105)), Detokenized("hi")),
        (Embed((TokenIds(tuple(b"hi")),)), Embedded([vector(b"hi")], 2)),
    ],
)
def test_an_answer_is_rendered_on_the_preparing_thread(world: QuestionWorld, query: Query, answer: Answer) -> None:
    world.ask(query)
    world.compute.step()
    assert world.rendered == []
    assert not world.questions.idle
    assert len(world.preparing.jobs) == 1
    world.preparing.step()
    assert world.rendered == [answer]
    assert world.answers == [("", repr(answer).encode())]
    assert world.questions.idle


# Embeddings of several askers.


def test_texts_of_several_askers_are_embedded_together(world: QuestionWorld) -> None:
    world.embed("a1", "a2", "a3", name="a")
    world.embed("b1", name="b")
    world.embed(TokenIds(tuple(b"c1")), TokenIds(tuple(b"c2")), name="c")
    world.finish()
    assert world.embedded == [[b"a1", b"a2", b"a3"], [b"b1", b"c1", b"c2"]]
    assert sorted(world.answers) == [
        (name, repr(Embedded([vector(f"{name}{i + 1}".encode()) for i in range(n)], 2 * n)).encode())
        for name, n in (("a", 3), ("b", 1), ("c", 2))
    ]


@pytest.mark.parametrize(("size", "at_once"), [(1, TEXTS_AT_ONCE), (BYTES_AT_ONCE // 4, 4), (2 * BYTES_AT_ONCE, 1)])
def test_no_asker_waits_for_all_texts_of_another(world: QuestionWorld, size: int, at_once: int) -> None:
    many, one = [bytes([index]) * size for index in range(33, 33 + 2 * TEXTS_AT_ONCE)], "z" * size
    world.embed(*(text.decode() for text in many), name="many")
    world.embed(one, name="one")
    world.finish()
    assert max(map(len, world.embedded)) == at_once
    assert one.encode() in [text for together in world.embedded[:3] for text in together]
    assert [text for together in world.embedded for text in together if text != one.encode()] == many
    assert [name for name, _answer in world.answers] == ["one", "many"]


@pytest.mark.parametrize("other", [{"ranks": True}, {"raw": True}])
def test_only_what_is_wanted_alike_is_embedded_together(world: QuestionWorld, other: dict[str, bool]) -> None:
    asked: list[Embed] = []
    embed = world.engine.embed
    world.engine.embed = lambda query, pause: (asked.append(query), embed(query, pause))[1]
    one = TokenIds((1,))
    for wanted in ({}, {}, other, other):
        world.ask(Embed((one,), **wanted))
    world.finish()
    # The first is in work when the second comes.
    assert asked == [Embed((one,)), Embed((one,)), Embed((one, one), **other)]


def test_ticks_run_while_texts_are_embedded(world: QuestionWorld) -> None:
    world.embed("one", "two", "three")
    world.preparing.step()
    done: list[str] = []
    world.compute.submit(lambda: done.append("tick"), lambda _result: None)
    embed = world.engine.embed
    world.engine.embed = lambda query, pause: (embed(query, pause), done.append("embedded"))[0]
    world.compute.step()
    assert done == ["tick", "embedded"]


@pytest.mark.parametrize("when", ["tokenizing", "embedding", "waiting"])
def test_the_texts_of_who_has_left_are_embedded_no_more(world: QuestionWorld, when: str) -> None:
    other = world.embed("b1", "b2", name="b") if when == "waiting" else None
    many = [f"a{index}" for index in range(2 * TEXTS_AT_ONCE)]
    gone = world.embed(*many, name="a")
    if when == "embedding":
        world.preparing.step()
    gone.forgotten = True
    if other is None:
        world.embed("b1", "b2", name="b")
    world.finish()
    assert [name for name, _answer in world.answers] == ["b"]
    begun = [[text.encode() for text in many[:TEXTS_AT_ONCE]]] if when == "embedding" else []
    assert world.embedded == [*begun, [b"b1", b"b2"]]
    assert len(world.rendered) == 1


def test_who_left_while_its_last_texts_were_embedded_is_not_counted_any_more(world: QuestionWorld) -> None:
    gone = world.embed("a1", "a2")
    world.preparing.step()
    ((job, done),) = world.compute.jobs
    world.compute.jobs.clear()
    result = job()
    gone.forgotten = True
    done(result)
    assert world.questions.idle
    assert world.answers == world.rendered == []


# Leaving, and too many.


def test_nothing_is_asked_for_who_left_before_its_turn(world: QuestionWorld) -> None:
    asked: list[Query] = []
    answer = world.engine.answer
    world.engine.answer = lambda query: (asked.append(query), answer(query))[1]
    gone = world.ask(Tokenize("gone", special=False))
    world.ask(Tokenize("stays", special=False))
    gone.forgotten = True
    world.finish()
    assert asked == [Tokenize("stays", special=False)]
    assert len(world.answers) == len(world.rendered) == 1


def test_who_left_while_it_was_answered_is_told_nothing(world: QuestionWorld) -> None:
    question = world.ask(Tokenize("gone", special=False))
    ((job, done),) = world.preparing.jobs
    world.preparing.jobs.clear()
    result = job()
    question.forgotten = True
    done(result)
    assert world.answers == []
    assert world.questions.idle


@pytest.mark.parametrize("query", [Tokenize("x", special=False), Embed(("x", "y"))], ids=["tokenize", "embed"])
def test_no_more_than_so_many_wait(world: QuestionWorld, query: Query) -> None:
    for _ in range(MOST - 1):
        world.ask(query)
    gone = world.ask(query)
    gone.forgotten = True
    with pytest.raises(RequestError, match=f"request: {MOST} requests of this kind are waiting") as refused:
        world.ask(Detokenize(()))
    assert (refused.value.fault, refused.value.retry_after_s) == (Fault.QUEUE_FULL, 1)
    world.finish()
    assert len(world.answers) == MOST - 1
    world.ask(query)
    world.finish()
    assert len(world.answers) == MOST


# Failures.


@pytest.mark.parametrize(
    "failure", [EngineFailure("told to"), RequestError(Fault.BAD_REQUEST, "input", "no")], ids=repr
)
def test_a_text_that_cannot_be_tokenized_ends_it(world: QuestionWorld, failure: Exception) -> None:
    world.engine.answer = lambda _query: (_ for _ in ()).throw(failure)
    world.embed("one", "two")
    world.finish()
    assert world.error().fault is (Fault.BAD_REQUEST if world.error() is failure else Fault.DECODE_FAILED)
    assert world.embedded == []


@pytest.mark.parametrize(("bad", "fault"), [("refuse", Fault.CONTEXT_EXCEEDED), ("raise", Fault.DECODE_FAILED)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_first_text_that_fails_ends_it_and_is_named(world: QuestionWorld, bad: str, fault: Fault, at: int) -> None:
    inputs = ["a", "b", "c"]
    inputs[at] = bad
    world.embed(*inputs)
    world.finish()
    assert world.error().fault is fault
    expected = f"input[{at}]: too long" if bad == "refuse" else "request: internal error; see the server's log"
    assert world.error().message == expected
    texts = [text.encode() for text in inputs]
    assert world.embedded == [texts, *([text] for text in texts[: at + 1])]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("input: too long", "input[1]: too long"),
        ("input[0][2]: expected a token id", "input[1][2]: expected a token id"),
        ("model: makes no embeddings", "model: makes no embeddings"),
        ("inputs: many", "inputs: many"),
    ],
)
def test_the_engine_sees_one_text_and_the_client_its_number(world: QuestionWorld, said: str, seen: str) -> None:
    def embed(query: Embed, _pause: YieldPoint) -> Embedded:
        if query.inputs == (TokenIds((1,)),):
            return Embedded([vector(b"")], 1)
        raise RequestError.of_text(Fault.BAD_REQUEST, said)

    world.engine.embed = embed
    world.embed(TokenIds((1,)), TokenIds((2,)), TokenIds((3,)))
    world.finish()
    assert world.error().message == seen


def test_one_askers_failure_is_nobody_elses(world: QuestionWorld) -> None:
    world.embed("a1", "a2", name="a")
    world.embed("raise", "b2", name="b")
    world.embed("refuse", "c2", name="c")
    world.finish()
    assert {name: type(answer) for name, answer in world.answers} == {"a": bytes, "b": RequestError, "c": RequestError}
    assert world.embedded[1] == [b"raise", b"refuse", b"b2", b"c2"]


@pytest.mark.parametrize("query", [Tokenize("x", special=False), Embed(("x",))], ids=["tokenize", "embed"])
def test_an_answer_that_cannot_be_rendered_is_a_mistake_of_ours(
    world: QuestionWorld, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    def render(_answer: Answer) -> bytes:
        raise ValueError("told to")

    world.ask(query, render=render)
    world.finish()
    assert (world.error().fault, world.error().message) == (
        Fault.DECODE_FAILED,
        "request: internal error; see the server's log",
    )
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def test_a_refusal_is_told_as_it_is(world: QuestionWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.ask(Detokenize((1000,)))
    world.finish()
    assert (world.error().fault, world.error().message) == (Fault.BAD_REQUEST, "tokens: out of range")
    assert caplog.records == []


@pytest.mark.parametrize(("blamed", "fails_at"), [(True, 2), (False, 3)], ids=["crashed", "killed"])
def test_a_question_that_is_in_work_whenever_an_engine_is_lost_fails(*, blamed: bool, fails_at: int) -> None:
    world = QuestionWorld()
    question = world.embed(TokenIds((1,)))
    for _ in range(fails_at):
        assert question.begun
        assert not world.answers
        again = world.questions.lose_engine(blamed=blamed)
        world.questions = QuestionWorld().questions
        world.questions.ask_again(again)
    assert world.error().fault is Fault.DECODE_FAILED


def test_a_question_that_waits_while_engines_are_lost_is_asked_again(world: QuestionWorld) -> None:
    question = world.ask(Tokenize("x", special=False))
    for _ in range(5):
        again = world.questions.lose_engine(blamed=True)
        world.preparing.jobs.clear()
        world.questions.ask_again(again)
    assert (question.begun, world.answers) == (False, [])
