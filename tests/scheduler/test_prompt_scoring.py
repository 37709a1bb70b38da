"""The log-probabilities of prompts: each token's once, by what was computed for it, however the prompt is divided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_world import ORIGIN, Client, SchedulerWorld
from standin import END, PIECES, SHORT, next_token, score_of_last

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Placed, PromptScores, Started, Token
from umaserve.core.requests import Generate, Priority
from umaserve.scheduler import prompt_scoring
from umaserve.scheduler.prompt_scoring import PromptScoring
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Prepared, Scoring
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

LONG = "a prompt that needs more than one tick, since a batch is shorter than it is"
PROMPTS = [LONG, "x", "xy", LONG + "!", "another prompt that is as long as the first one, or nearly so"]


@pytest.fixture
def few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_scoring, "MAX_SCORED_ROWS", 5)
        yield


def expected(prompt: str, alternatives: int) -> list:
    """What must be told of a prompt."""
    sequence = list(prompt.encode())
    return [PIECES[sequence[0]], *(score_of_last(sequence[:end], alternatives) for end in range(2, len(sequence) + 1))]


def told(client: Client) -> list:
    parts = [output for output in client.outputs if isinstance(output, PromptScores)]
    firsts = [part.first for part in parts if part.first is not None]
    return firsts + [one for part in parts for one in part.tokens]


def scored_rows(world: SchedulerWorld) -> list[int]:
    """Of each tick that has some."""
    ticks = [[len(run.tokens) for run in tick.runs if isinstance(run.logprobs, Scoring)] for tick in world.engine.ticks]
    return [sum(rows) for rows in ticks if rows]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("prompt", PROMPTS[:3])
def test_a_prompt_alone(prompt: str, remote: bool) -> None:
    world = SchedulerWorld(remote=remote)
    client = world.arrive(prompt, max_tokens=0, prompt_logprobs=3)
    world.turn_until(lambda: client.end)
    assert told(client) == expected(prompt, 3)
    assert (client.end, client.tokens) == (FinishReason.LENGTH, [])
    assert client.outputs[:3] == [Started(), Placed(), PromptScores((), prompt[:1].encode())]
    last = client.outputs[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(prompt), 0)
    world.finish()


def test_an_answer_follows_and_has_its_own() -> None:
    world = SchedulerWorld()
    client = world.arrive(LONG, max_tokens=3, prompt_logprobs=0, logprobs=2)
    world.finish()
    assert told(client) == expected(LONG, 0)
    assert client.text == client.expected
    assert [len(token.logprobs.top) for token in client.tokens if token.logprobs] == [2, 2, 2]
    kinds = [type(output) for output in client.outputs if isinstance(output, PromptScores | Token)]
    assert kinds == sorted(kinds, key=lambda kind: kind is Token), "the prompt's come first"


def test_a_prompt_whose_tokens_are_not_asked_for_gives_none() -> None:
    world = SchedulerWorld()
    client = world.arrive(LONG, logprobs=2)
    world.finish()
    assert told(client) == []
    assert not scored_rows(world)


def test_no_token_is_wanted_and_none_is_computed() -> None:
    world = SchedulerWorld()
    client = world.arrive(LONG, max_tokens=0)
    world.turn_until(lambda: client.end)
    assert (client.end, client.tokens, world.engine.ticks) == (FinishReason.LENGTH, [], [])
    world.finish()


def test_a_prompt_may_fill_the_context_where_no_token_is_wanted() -> None:
    world = SchedulerWorld(sequence_tokens=len(LONG))
    full = world.arrive(LONG, max_tokens=0, prompt_logprobs=0)
    too_long = world.arrive(LONG, max_tokens=1, prompt_logprobs=0)
    world.turn_until(lambda: full.end and too_long.end)
    assert told(full) == expected(LONG, 0)
    assert isinstance(too_long.outputs[-1], RequestError)


def test_the_token_that_ends_an_answer_has_its_log_probability() -> None:
    prompt = next(text for n in range(999) if next_token(list((text := f"{SHORT}{n}").encode())) == END)
    world = SchedulerWorld()
    scored = world.arrive(prompt, max_tokens=1, prompt_logprobs=1, logprobs=1)
    plain = world.arrive(prompt, max_tokens=1, logprobs=1)
    world.turn_until(lambda: scored.end and plain.end)
    (token,) = scored.tokens
    assert (token.text, token.token_id, token.logprobs is not None, scored.end) == ("", END, True, FinishReason.STOP)
    assert plain.tokens == [], "as before, for who counts on no tokens of the prompt"
    world.finish()


@pytest.mark.usefixtures("few_rows")
def test_a_tick_has_so_many_rows_of_all_prompts_at_most() -> None:
    world = SchedulerWorld(batch_tokens=64)
    clients = [world.arrive(prompt, max_tokens=0, prompt_logprobs=1) for prompt in (LONG, LONG + "!", LONG + "?")]
    world.turn_until(lambda: all(client.end for client in clients))
    assert [told(client) for client in clients] == [expected(client.request.prompt, 1) for client in clients]
    assert max(scored_rows(world)) == 5


def test_many_alternatives_make_the_parts_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scoring, "MAX_ENTRIES", 63)
    world = SchedulerWorld(batch_tokens=64)
    client = world.arrive(LONG, max_tokens=0, prompt_logprobs=20)
    world.turn_until(lambda: client.end)
    assert told(client) == expected(LONG, 20)
    assert max(scored_rows(world)) == 3


def test_nothing_is_reused_and_nothing_is_left() -> None:
    world = SchedulerWorld(cells=800, sequences=8, cached_cells=400)
    for _ in range(2):
        before = world.arrive(LONG, max_tokens=2)
        world.turn_until(lambda before=before: before.end)
    assert before.session.reused == len(LONG) - 1
    cached = world.scheduler.snapshot()["kv_cells_cached"]
    choices = [world.arrive(LONG, max_tokens=2, prompt_logprobs=1) for _ in range(3)]
    world.turn_until(lambda: all(client.end for client in choices))
    for client in choices:
        assert (told(client), client.text) == (expected(LONG, 1), client.expected)
        assert client.session.reused == 0
    world.turn_until(lambda: world.scheduler.idle)
    assert world.scheduler.snapshot()["kv_cells_cached"] == cached


@pytest.mark.parametrize("capacity", [{}, {"sequences": 8, "cached_cells": 400}, {"host_bytes": 4000}])
def test_a_prompt_that_loses_its_slot_goes_on_behind_what_is_told(capacity: dict[str, int]) -> None:
    world = SchedulerWorld(slots=1, cells=800, **capacity)
    client = world.arrive(LONG, max_tokens=1, prompt_logprobs=1, priority=Priority.BACKGROUND)
    world.turn_until(lambda: len(told(client)) > 20)
    urgent = world.arrive("urgent", max_tokens=3)
    world.turn_until(lambda: urgent.tokens)
    assert client.session.slot is None
    world.turn_until(lambda: client.end)
    assert (told(client), client.text) == (expected(LONG, 1), client.expected)
    assert sum(scored_rows(world)) == len(LONG) - 1, "none twice"
    world.finish()


def test_a_prompt_whose_engine_is_lost_goes_on_with_another() -> None:
    world = SchedulerWorld()
    client = world.arrive(LONG, max_tokens=1, prompt_logprobs=1)
    world.turn_until(lambda: len(told(client)) > 20)
    world.lose_engine()
    world.turn_until(lambda: client.end)
    assert (told(client), client.text) == (expected(LONG, 1), client.expected)
    assert sum(scored_rows(world)) < len(LONG) - 20, "told ones are computed as other prompts are"
    world.finish()


def test_an_engine_that_says_too_little_fails_the_tick_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SchedulerWorld()
    with monkeypatch.context() as patch:
        patch.setattr(world.engine, "_score", lambda _run: [])
        client = world.arrive(LONG, max_tokens=1, prompt_logprobs=1)
        world.turn_until(lambda: client.end)
    assert client.end is Fault.DECODE_FAILED
    again = world.arrive(LONG, max_tokens=1, prompt_logprobs=1)
    world.finish()
    assert told(again) == expected(LONG, 1)


def test_streams_get_a_token_in_each_tick_meanwhile() -> None:
    world = SchedulerWorld()
    stream = world.arrive("stream", max_tokens=100)
    world.turn_until(lambda: stream.tokens)
    before = len(world.engine.ticks)
    scored = world.arrive(LONG, max_tokens=0, prompt_logprobs=2)
    world.turn_until(lambda: scored.end)
    slot = stream.session.slot
    assert all(any(run.slot == slot for run in tick.runs) for tick in world.engine.ticks[before:])
    world.finish()
    assert stream.text == stream.expected
    assert told(scored) == expected(LONG, 2)


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_whatever_happens_each_has_its_own(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([{}, {"sequences": 8, "cached_cells": 300}, {"host_bytes": 2000}, {"parts": 4}]))
    world = SchedulerWorld(slots=3, cells=400, **kind)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["scored", "plain", "turns", "lose", "cancel"])):
            case "scored":
                length, n = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
                prompt, priority = data.draw(st.sampled_from(PROMPTS)), data.draw(st.sampled_from(Priority))
                world.arrive(prompt, max_tokens=length, prompt_logprobs=n, priority=priority)
            case "plain":
                world.arrive(data.draw(st.sampled_from(PROMPTS)), max_tokens=data.draw(st.integers(1, 20)))
            case "turns":
                world.turns(data.draw(st.integers(1, 9)))
            case "lose":
                world.lose_engine()
            case "cancel" if world.clients:
                world.cancel(data.draw(st.sampled_from(world.clients)))
    clients = list(world.clients)
    world.turn_until(lambda: all(client.end for client in clients))
    for client in clients:
        n = client.request.prompt_logprobs
        wanted = [] if n is None else expected(client.request.prompt, n)
        if client.end is FinishReason.CANCELLED:
            assert told(client) == wanted[: len(told(client))]
        else:
            assert told(client) == wanted
            assert client.text == client.expected


# The rows of a tick, and how long they take.


def session(prompt: int, *, computed: int = 0, scored: int = 1) -> Session:
    request = Generate("r", "", prompt_logprobs=1)
    made = Session(1, SessionManager(), request, print, ORIGIN, computed=computed, scored=scored)
    made.prepared = Prepared(range(prompt), 0, None)
    return made


def test_a_row_counts_as_many_as_it_takes_as_long_as() -> None:
    scoring = PromptScoring()
    cost = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=1e-3, attention_s=0.0, several_s=0.0)
    for _ in range(50):
        rows = scoring.end(session(1000), 40, 0)
        scoring.observe(cost.seconds(0, rows, 0), 4 * cost.seconds(0, rows, 0))
    assert (scoring.end(session(1000), 40, 0), scoring.as_rows(10)) == (10, 40)
    for _ in range(50):
        scoring.observe(0.0, 1e9)
    assert scoring.end(session(1000), 40, 0) == 1, "it is never none"


def test_the_last_token_is_left_to_its_sampler() -> None:
    assert PromptScoring().end(session(10, computed=8, scored=9), 10, 0) == 9


def test_rows_that_are_known_are_computed_without() -> None:
    assert PromptScoring().end(session(1000, computed=10, scored=100), 500, 0) == 99


def test_a_tick_that_has_enough_of_them_takes_no_more() -> None:
    assert PromptScoring().end(session(1000, computed=7, scored=8), 500, prompt_scoring.MAX_SCORED_ROWS) == 7
