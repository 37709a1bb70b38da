"""Thoughts in the answers of all dialects: apart from the answer, within it, or left out."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from thought_tokens import split_tokens

from tests.support.routes import listed
from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, FinishReason, Logprobs, ModelInfo, Scored, Usage
from umaserve.core.requests import Generate
from umaserve.dialects.generate.conversation import GenerateDialect
from umaserve.dialects.generate.rest import GenerateBody
from umaserve.dialects.openai.completions import ChatBody
from umaserve.dialects.parameters import MAX_TOKEN_ID, RequestLimits
from umaserve.dialects.uds.conversation import JsonDialect

LIMITS = RequestLimits(max_prompt_bytes=4096)
INFO = ModelInfo("m", "a", "q", 1, 1, 64, 64, 8, 8, None, "", "")
TEXT = '<think>\nHm, <tool_call>{"name": "f", "arguments": {}}</tool_call>\n</think>\n\nNo.'
THOUGHT, ANSWER = 'Hm, <tool_call>{"name": "f", "arguments": {}}</tool_call>', "No."
TOOL = {"type": "function", "function": {"name": "f"}}
END = Finished(FinishReason.STOP, Usage(3, 20, 0, 17))
ENDED_WITHIN = Finished(FinishReason.LENGTH, Usage(3, 20, 0, 20))


def chat(**wanted: Any) -> tuple[ChatBody, Generate]:
    body = ChatBody(LIMITS, None, lambda _name: INFO, "chatcmpl-7", 0)
    (request,) = body.receive(json.dumps({"messages": [{"role": "user", "content": "hi"}], **wanted}).encode())
    return body, request


def whole(body: ChatBody, text: str, end: Finished) -> dict[str, Any]:
    for output in (*split_tokens(text), end):
        assert body.send(0, output) == []
    return json.loads(body.result())


def test_a_message_has_its_thoughts_apart_and_no_call_in_them():
    body, request = chat(tools=[TOOL])
    assert request.splits_thoughts
    told = whole(body, TEXT, END)
    message = told["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, ANSWER)
    assert "tool_calls" not in message
    assert told["usage"]["completion_tokens_details"] == {"reasoning_tokens": 17}


def test_a_stream_has_its_thoughts_apart():
    body, _ = chat(stream=True)
    chunks = [json.loads(data) for output in (*split_tokens(TEXT), END) for data in body.send(0, output)]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER
    assert all(list(delta) == ["reasoning_content"] for delta in deltas if "reasoning_content" in delta)


def test_each_tokens_logprobs_are_told_once():
    body, _ = chat(stream=True, logprobs=True)
    scores = Logprobs(Scored(1, b"x", -1.0), ())
    tokens = [token._replace(logprobs=scores) for token in split_tokens(TEXT)]
    chunks = [json.loads(data) for output in (*tokens, END) for data in body.send(0, output)]
    told = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert sum(map(len, told)) == len(tokens)


def test_a_thought_without_end_is_no_answer():
    body, _ = chat()
    message = whole(body, "<think>Hm", ENDED_WITHIN)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm", "")


@pytest.mark.parametrize(("wanted", "split"), [("none", False), ("auto", True), ("deepseek", True), (None, True)])
def test_the_format_of_thoughts(wanted: str | None, split: bool):
    assert chat(reasoning_format=wanted)[1].splits_thoughts == split


@pytest.mark.parametrize("name", ["reasoning_budget", "thinking_budget_tokens"])
@pytest.mark.parametrize(("given", "budget"), [(None, None), (-1, MAX_TOKEN_ID), (0, 0), (9, 9)])
def test_the_budget_of_thoughts(name: str, given: int | None, budget: int | None):
    assert chat(**{name: given})[1].thought_budget == budget
    assert uds(**{name: given})[1].thought_budget == budget
    assert generate(**{name: given})[1].thought_budget == budget


@pytest.mark.parametrize("of", ["chat", "uds", "generate"])
@pytest.mark.parametrize(
    ("wanted", "kwargs", "thinks"),
    [
        ({}, {}, None),
        ({"enable_thinking": False}, {}, False),
        ({"chat_template_kwargs": {"enable_thinking": True, "style": "brief"}}, {"style": "brief"}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {}, False),
        ({"enable_thinking": True, "chat_template_kwargs": {}}, {}, True),
    ],
)
def test_the_variables_of_the_chat_template(of: str, wanted: dict[str, Any], kwargs: dict[str, Any], thinks: bool):
    request = {"chat": chat, "uds": uds, "generate": generate}[of](**wanted)[1]
    assert (request.chat_template_kwargs, request.enable_thinking) == (kwargs, thinks)


def test_stop_strings_may_apply_to_thoughts():
    assert not chat()[1].stops_in_thoughts
    assert chat(stop_in_reasoning=True)[1].stops_in_thoughts
    assert uds(stop_in_reasoning=True)[1].stops_in_thoughts
    assert generate(stop_in_reasoning=True)[1].stops_in_thoughts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_budget", -2),
        ("reasoning_budget", 1.5),
        ("stop_in_reasoning", "yes"),
        ("reasoning", "never"),
        ("enable_thinking", 1),
        ("chat_template_kwargs", "no"),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: object):
    for asked in (uds, generate):
        with pytest.raises(RequestError, match=field):
            asked(**{field: value})


def uds(**wanted: Any) -> tuple[JsonDialect, Generate]:
    dialect = JsonDialect(LIMITS, keep_alive=False)
    request = dialect.receive(json.dumps({"id": "r", "prompt": "hi", **wanted}).encode())
    assert isinstance(request, Generate)
    return dialect, request


def generate(**options: Any) -> tuple[GenerateDialect, Generate]:
    numbers = itertools.count()
    dialect = GenerateDialect(
        LIMITS,
        lambda _name: INFO,
        lambda: [listed(INFO)],
        lambda: str(next(numbers)),
        resumable=False,
        authenticate=None,
    )
    request = dialect.receive(json.dumps({"type": "config", "prompt": "hi", "options": options}).encode())
    assert isinstance(request, Generate)
    return dialect, request


@pytest.mark.parametrize(
    ("reasoning", "text", "thoughts"),
    [("inline", TEXT, None), (None, TEXT, None), ("separate", ANSWER, THOUGHT), ("off", ANSWER, None)],
)
def test_uds(reasoning: str | None, text: str, thoughts: str | None):
    dialect, request = uds(reasoning=reasoning)
    split = reasoning not in (None, "inline")
    assert request.splits_thoughts == split
    tokens = split_tokens(TEXT) if split else [token._replace(thoughts="", answer=None) for token in split_tokens(TEXT)]
    events = [json.loads(reply.payload) for output in (*tokens, END) if (reply := dialect.send(output))]
    assert "".join(event["text"] for event in events[:-1]) == text
    assert (
        ("".join(event["reasoning"] for event in events[:-1]) == thoughts)
        if thoughts
        else "reasoning" not in str(events[:-1]).replace("reasoning_tokens", "")
    )
    assert events[-1]["usage"].get("reasoning_tokens") == (17 if split else None)


def test_uds_without_a_stream():
    dialect, _ = uds(reasoning="separate", stream=False)
    assert [dialect.send(token) for token in split_tokens(TEXT)] == [None] * (len(TEXT) + 1)
    reply = dialect.send(END)
    assert reply is not None
    end = json.loads(reply.payload)
    assert (end["text"], end["reasoning"]) == (ANSWER, THOUGHT)


@pytest.mark.parametrize(("reasoning", "text", "thoughts"), [("separate", ANSWER, THOUGHT), ("off", ANSWER, None)])
def test_generate(reasoning: str, text: str, thoughts: str | None):
    body = GenerateBody(LIMITS, lambda _name: INFO, lambda: [listed(INFO)], "g")
    (request,) = body.receive(json.dumps({"prompt": "hi", "options": {"reasoning": reasoning}}).encode())
    assert request.splits_thoughts
    for output in (*split_tokens(TEXT), END):
        body.send(0, output)
    told = json.loads(body.result())
    assert (told["generated_text"], told.get("reasoning")) == (text, thoughts)
    assert told["usage"]["reasoning_tokens"] == 17


def test_a_stream_of_generate():
    dialect, _ = generate(reasoning="separate")
    replies = [dialect.send(output) for output in (*split_tokens(TEXT), END)]
    told = [json.loads(payload) for reply in replies if reply is not None for payload in (*reply.before, reply.payload)]
    tokens = [message for message in told if message["type"] == "token" and "position" in message]
    assert "".join(message["token"] for message in tokens) == ANSWER
    assert "".join(message["reasoning"] for message in tokens) == THOUGHT
    assert (told[-1]["generated_text"], told[-1]["reasoning"]) == (ANSWER, THOUGHT)
