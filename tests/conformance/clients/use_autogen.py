"""AutoGen's client of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast

ABILITIES = {"function_calling": True, "json_output": True, "structured_output": True, "vision": False}


@pytest.fixture
def client(base_url: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=MODEL,
        base_url=base_url,
        api_key="none",
        model_info={**ABILITIES, "family": "unknown"},
        temperature=0,
        max_tokens=N_TOKENS,
        max_retries=0,
    )


@pytest.fixture
def turns() -> list[LLMMessage]:
    kinds = {"user": UserMessage, "assistant": AssistantMessage}
    return [kinds[turn["role"]](content=turn["content"], source=turn["role"]) for turn in TURNS]


def test_chat(client: OpenAIChatCompletionClient, turns: list[LLMMessage], said: str) -> None:
    assert asyncio.run(client.create(turns)).content == said


def test_stream(client: OpenAIChatCompletionClient, turns: list[LLMMessage], said: str) -> None:
    async def chunks() -> list[object]:
        return [chunk async for chunk in client.create_stream(turns)]

    *deltas, end = asyncio.run(chunks())
    assert "".join(map(str, deltas)) == end.content == said


async def look_outside(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return RESULT


def test_tool(client: OpenAIChatCompletionClient) -> None:
    async def go() -> object:
        question = UserMessage(content=QUESTION, source="user")
        tool = FunctionTool(look_outside, "Tells the weather of a city.")
        answer = await client.create([question], tools=[tool], tool_choice="required")
        [call] = answer.content
        assert (call.name, json.loads(call.arguments)) == ("look_outside", {"city": "Paris"})
        result = FunctionExecutionResult(content=RESULT, name=call.name, call_id=call.id, is_error=False)
        calls = AssistantMessage(content=answer.content, source="assistant")
        return (await client.create([question, calls, FunctionExecutionResultMessage(content=[result])])).content

    assert asyncio.run(go())


def test_structured_output(client: OpenAIChatCompletionClient) -> None:
    answer = asyncio.run(client.create([UserMessage(content=QUESTION, source="user")], json_output=Forecast))
    Forecast.model_validate_json(answer.content)
