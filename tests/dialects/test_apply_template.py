"""The chat template's part of a chat request, and the page that applies the template to one."""

from __future__ import annotations

import re

import orjson
import pytest

from umaserve.core.errors import RequestError
from umaserve.core.queries import Prompted
from umaserve.core.requests import ChatTurn
from umaserve.dialects.llama_server.template import apply_template_result, parse_apply_template
from umaserve.dialects.openai.requests import chat_request
from umaserve.dialects.parameters import RequestLimits

LIMITS = RequestLimits(max_prompt_bytes=200)


def chat(**fields: object) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "Hi"}]} | fields)


def test_the_chat_templates_variables() -> None:
    kwargs = {"enable_thinking": False, "thinking": True, "documents": [{"text": "a"}]}
    asked = chat_request(chat(chat_template_kwargs=kwargs, reasoning_effort="low"), LIMITS, None, "id").choices[0]
    assert asked.enable_thinking is False
    assert asked.chat_template_kwargs == {
        "thinking": True,
        "documents": [{"text": "a"}],
        "reasoning_effort": "low",
    }
    assert chat_request(chat(reasoning_effort="none"), LIMITS, None, "id").choices[0].enable_thinking is False
    assert chat_request(chat(), LIMITS, None, "id").choices[0].enable_thinking is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"chat_template_kwargs": []}, "chat_template_kwargs: expected an object, got an array"),
        ({"chat_template_kwargs": {"a b": 1}}, 'chat_template_kwargs: expected names of variables as keys, got "a b"'),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages: expected to be absent: it is a field of the request",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": 1}},
            "chat_template_kwargs.enable_thinking: expected true or false, got a whole number",
        ),
        (
            {"chat_template_kwargs": {"a": "b" * 65536}},
            "chat_template_kwargs: expected an object of at most 65536 bytes as JSON, nested less than 200 deep, "
            "got 65544 bytes",
        ),
        ({"reasoning_effort": 1}, "reasoning_effort: expected "),
    ],
)
def test_the_chat_templates_variables_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        chat_request(chat(**fields), LIMITS, None, "id")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_earlier_thoughts_are_a_part_of_their_turn(key: str) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", key: "Hm"}]
    (_user, said) = chat_request(chat(messages=messages), LIMITS, None, "id").choices[0].prompt
    assert (said.content, said.thoughts) == ("Yes", "Hm")
    messages[1][key] = "é" * 101
    with pytest.raises(RequestError, match="messages: expected at most 200 bytes"):
        chat_request(chat(messages=messages), LIMITS, None, "id")


def test_a_template_is_applied_to_a_chat_request() -> None:
    asked = parse_apply_template(chat(add_generation_prompt=False), LIMITS)
    assert asked.request.prompt == (ChatTurn("user", "Hi"),)
    assert asked.request.add_generation_prompt is False
    assert apply_template_result(Prompted("a\n")) == b'{"prompt":"a\\n"}'
