"""OpenAI's Agents SDK, by both of OpenAI's APIs."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast

set_tracing_disabled(True)
GREEDY = ModelSettings(temperature=0, max_tokens=N_TOKENS)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def model(request: pytest.FixtureRequest, base_url: str) -> Model:
    made: Model = request.param(MODEL, AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))
    return made


def test_chat(model: Model, said: str) -> None:
    agent = Agent(name="counter", model=model, model_settings=GREEDY)
    assert Runner.run_sync(agent, TURNS).final_output == said


def test_stream(model: Model, said: str) -> None:
    async def deltas() -> str:
        streamed = Runner.run_streamed(Agent(name="counter", model=model, model_settings=GREEDY), TURNS)
        events = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    assert asyncio.run(deltas()) == said


def test_tool(model: Model) -> None:
    calls = []

    @function_tool
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return RESULT

    settings = ModelSettings(temperature=0, max_tokens=64, tool_choice="required")
    agent = Agent(name="forecaster", model=model, tools=[look_outside], model_settings=settings)
    assert Runner.run_sync(agent, QUESTION).final_output
    assert calls == ["Paris"]


def test_structured_output(model: Model) -> None:
    agent = Agent(name="forecaster", model=model, output_type=Forecast)
    assert isinstance(Runner.run_sync(agent, QUESTION).final_output, Forecast)


def test_session(base_url: str) -> None:
    async def texts() -> list[str]:
        client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        session = OpenAIConversationsSession(openai_client=client)
        # An answer that is cut counts as a failure.
        settings = ModelSettings(temperature=0, max_tokens=512)
        agent = Agent(name="counter", model=OpenAIResponsesModel(MODEL, client), model_settings=settings)
        for text in ("Hello!", "Go on."):
            await Runner.run(agent, text, session=session)
        items = [dict(item) for item in await session.get_items()]
        await session.pop_item()
        assert len(await session.get_items()) == len(items) - 1
        await session.clear_session()
        return [str(item["role"]) for item in items]

    assert asyncio.run(texts()) == ["user", "assistant", "user", "assistant"]
