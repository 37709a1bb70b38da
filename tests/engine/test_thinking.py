"""Thoughts of a real model: closed by force, counted, and followed by what a grammar allows.

The default model doesn't think: a template opens its thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from engine_world import Answer, EngineWorld

from umaserve.core.commands import EndThought
from umaserve.core.events import Finished, FinishReason, Logprobs, Token
from umaserve.core.requests import ChatTurn, Generate, Grammar, Sampling, Syntax, Tool
from umaserve.engine.template.chat_template import CHATML

THINKS = CHATML.replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}",
).replace("<|im_start|>assistant\n", "<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}")
ASKED = (ChatTurn("user", "Name a colour."),)
COLOUR = Sampling(
    grammar=Grammar(
        Syntax.JSON_SCHEMA,
        '{"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], '
        '"additionalProperties": false}',
        "json_schema",
    )
)
BUDGET = 5


@pytest.fixture(scope="module")
def world() -> Iterator[EngineWorld]:
    made = EngineWorld("", THINKS)
    yield made
    made.close()


def parts(answer: Answer) -> tuple[str, str, str]:
    """The text, the thoughts and the answer."""
    tokens = [output for output in answer.outputs if isinstance(output, Token)]
    text = "".join(token.text for token in tokens)
    return text, "".join(token.thoughts for token in tokens), "".join(token.answer or "" for token in tokens)


def thought_tokens(answer: Answer) -> int:
    end = answer.outputs[-1]
    assert isinstance(end, Finished)
    return end.usage.reasoning_tokens


def closing(world: EngineWorld) -> int:
    return len(world.engine._preparation._closing(Generate("r", ASKED)))


@pytest.mark.parametrize("budget", [0, 1, BUDGET])
def test_a_thought_is_closed_by_force_after_its_budget(world: EngineWorld, budget: int):
    answer = world.answer(ASKED, 24, thought_budget=budget, splits_thoughts=True)
    text, thoughts, _said = parts(answer)
    free = world.answer(ASKED, 24)
    assert answer.tokens[:budget] == free.tokens[:budget]
    before, mark, after = text.partition("</think>")
    assert mark
    assert thoughts == before.strip()
    assert after.startswith("\n\n")
    assert thought_tokens(answer) >= budget + closing(world) - 1


@pytest.mark.parametrize("budget", [None, 100])
@pytest.mark.parametrize("sampling", [Sampling(), COLOUR], ids=["free", "bound"])
def test_a_thought_is_closed_when_its_client_says_so(world: EngineWorld, budget: int | None, sampling: Sampling):
    answer = world.ask(ASKED, 40, thought_budget=budget, splits_thoughts=True, sampling=sampling)
    (session,) = world._sessions.running()
    while len(session.generated) < BUDGET:
        world.turn()
    world._sessions.steer(session, EndThought())
    told = len(session.generated)
    world.finish()
    text, thoughts, said = parts(answer)
    assert answer.tokens[:BUDGET] == world.answer(ASKED, BUDGET).tokens
    assert thoughts
    assert said
    assert thought_tokens(answer) <= told + 1 + closing(world), "a tick may be in flight"
    if sampling is COLOUR:
        assert json.loads(said)["colour"] in ("red", "blue")
    assert thoughts == text.partition("</think>")[0].strip()


def test_a_text_that_is_taken_as_it_is_has_no_thought_to_end(world: EngineWorld):
    answer = world.ask("Once upon a time", 8)
    (session,) = world._sessions.running()
    world._sessions.steer(session, EndThought())
    world.finish()
    assert answer.tokens == world.answer("Once upon a time", 8).tokens


def test_without_a_budget_a_thought_goes_on(world: EngineWorld):
    answer = world.answer(ASKED, 24, splits_thoughts=True)
    _text, thoughts, said = parts(answer)
    assert (bool(thoughts), said) == (True, "")
    assert thought_tokens(answer) == len(answer.tokens)


def test_a_model_that_is_not_to_think_has_no_thoughts(world: EngineWorld):
    answer = world.answer(ASKED, 8, splits_thoughts=True, enable_thinking=False, thought_budget=0)
    text, thoughts, said = parts(answer)
    assert (thoughts, said) == ("", text)
    assert thought_tokens(answer) == 0


def test_the_daemon_sets_a_budget_for_requests_without_one():
    world = EngineWorld("", THINKS, reasoning_budget=BUDGET)
    assert "</think>" in parts(world.answer(ASKED, 24))[0]
    assert "</think>" not in parts(world.answer(ASKED, 24, thought_budget=1000))[0]
    world.close()


def test_draft_tokens_and_log_probabilities_don_t_change_it(world: EngineWorld):
    plain = EngineWorld("", THINKS, speculation=False)
    asked = (ChatTurn("user", "Repeat: red red red red red red red red red red red red"),)
    one, other = (each.answer(asked, 32, thought_budget=BUDGET, logprobs=0) for each in (world, plain))
    assert one.tokens == other.tokens
    assert len(one.logprobs) == len(one.tokens)
    assert all(
        isinstance(output.logprobs, Logprobs) for output in one.outputs if isinstance(output, Token) and output.sampled
    )
    plain.close()


@pytest.mark.parametrize("thinks", [True, False])
def test_a_grammar_begins_after_the_thought(world: EngineWorld, thinks: bool):
    answer = world.answer(
        ASKED, 48, sampling=COLOUR, thought_budget=BUDGET, splits_thoughts=True, enable_thinking=thinks
    )
    _text, thoughts, said = parts(answer)
    assert json.loads(said)["colour"] in ("red", "blue")
    assert bool(thoughts) == thinks
    assert answer.end is FinishReason.STOP


def test_a_required_call_follows_the_thought(world: EngineWorld):
    tool = Tool(
        "paint", "Paints.", '{"type": "object", "properties": {"colour": {"enum": ["red"]}}, "required": ["colour"]}'
    )
    answer = world.answer(
        ASKED, 64, tools=(tool,), must_call=True, parallel_calls=False, thought_budget=BUDGET, splits_thoughts=True
    )
    _text, thoughts, said = parts(answer)
    assert thoughts
    assert said.startswith("<tool_call>")
    assert json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"] == {"colour": "red"}


def test_where_no_thought_is_opened_the_grammar_may_begin_at_once():
    world = EngineWorld("", THINKS.replace("{% if enable_thinking %}<think>\n{% endif %}", ""))
    answer = world.answer(ASKED, 48, sampling=COLOUR, splits_thoughts=True)
    _text, thoughts, said = parts(answer)
    assert (thoughts, json.loads(said)["colour"] in ("red", "blue")) == ("", True)
    world.close()


def test_stop_strings_end_no_thought_unless_asked(world: EngineWorld):
    free = parts(world.answer(ASKED, 12))[0]
    stop = free.split()[1]
    kept, stopped = (world.answer(ASKED, 12, stop=(stop,), stops_in_thoughts=asked) for asked in (False, True))
    assert parts(kept)[0] == free
    assert parts(stopped)[0] == free.partition(stop)[0]
    assert stopped.end is FinishReason.STOP


def test_an_answer_continues_in_its_thought(world: EngineWorld):
    begun = (*ASKED, ChatTurn("assistant", "", thoughts="The sky is"))
    answer = world.answer(begun, 12, thought_budget=3, splits_thoughts=True)
    text, thoughts, _said = parts(answer)
    assert thoughts
    assert "</think>" in text
