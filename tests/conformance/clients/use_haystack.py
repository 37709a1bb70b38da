"""Haystack's generator of chats by OpenAI's API."""

from __future__ import annotations

from typing import Literal

import pytest
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast


@tool
def look_outside(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return RESULT


@pytest.fixture
def generator(base_url: str) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model=MODEL,
        api_base_url=base_url,
        generation_kwargs={"temperature": 0, "max_tokens": N_TOKENS},
        max_retries=0,
    )


@pytest.fixture
def turns() -> list[ChatMessage]:
    return [ChatMessage.from_openai_dict_format(turn) for turn in TURNS]


def test_chat(generator: OpenAIChatGenerator, turns: list[ChatMessage], said: str) -> None:
    assert generator.run(turns)["replies"][0].text == said


def test_stream(generator: OpenAIChatGenerator, turns: list[ChatMessage], said: str) -> None:
    chunks = []
    reply = generator.run(turns, streaming_callback=chunks.append)["replies"][0]
    assert "".join(chunk.content for chunk in chunks) == reply.text == said


def test_tool(generator: OpenAIChatGenerator) -> None:
    question = ChatMessage.from_user(QUESTION)
    [answer] = generator.run([question], tools=[look_outside], generation_kwargs={"tool_choice": "required"})["replies"]
    [call] = answer.tool_calls
    assert (call.tool_name, call.arguments) == ("look_outside", {"city": "Paris"})
    result = ChatMessage.from_tool(look_outside.invoke(**call.arguments), origin=call)
    assert generator.run([question, answer, result])["replies"][0].text


def test_structured_output(generator: OpenAIChatGenerator) -> None:
    question = ChatMessage.from_user(QUESTION)
    [answer] = generator.run([question], generation_kwargs={"response_format": Forecast})["replies"]
    Forecast.model_validate_json(answer.text)
