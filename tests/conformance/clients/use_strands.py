"""Strands Agents, by its model of OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast
from strands import Agent, tool
from strands.models.openai import OpenAIModel

GREEDY = {"temperature": 0, "max_tokens": N_TOKENS}


@pytest.fixture
def model(base_url: str) -> OpenAIModel:
    told = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    return OpenAIModel(client_args=told, model_id=MODEL, params=GREEDY)


def counting(model: OpenAIModel) -> tuple[Agent, str]:
    """An agent that knows the first turns, and the last one."""
    *first, last = [{"role": turn["role"], "content": [{"text": turn["content"]}]} for turn in TURNS]
    return Agent(model=model, messages=first, callback_handler=None), last["content"][0]["text"]


def test_chat(model: OpenAIModel, said: str) -> None:
    agent, last = counting(model)
    assert str(agent(last)).strip() == said


def test_stream(model: OpenAIModel, said: str) -> None:
    async def deltas() -> list[Any]:
        agent, last = counting(model)
        return [event["data"] async for event in agent.stream_async(last) if "data" in event]

    assert "".join(asyncio.run(deltas())) == said


def test_tool(model: OpenAIModel) -> None:
    calls = []

    @tool
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        model.update_config(params=GREEDY)
        return RESULT

    model.update_config(params={**GREEDY, "tool_choice": "required"})
    agent = Agent(model=model, tools=[look_outside], callback_handler=None)
    agent(QUESTION)
    assert calls[0] == "Paris"


def test_structured_output(model: OpenAIModel) -> None:
    agent = Agent(model=model, callback_handler=None)
    assert isinstance(agent(QUESTION, structured_output_model=Forecast).structured_output, Forecast)
