"""OpenAI's Agents SDK, by both of OpenAI's APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import pytest
from daemon import CHAT_FAR_FROM_A_TIE, Daemon
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

pytest.importorskip("agents", reason="openai-agents is not installed (umaserve[peers])")

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

set_tracing_disabled(True)
MODEL = "default"
N_TOKENS = 40
"""More than an answer far from a tie has: one that was cut is a failure to the library."""
GREEDY = ModelSettings(temperature=0, max_tokens=N_TOKENS)
QUESTION = "What is the weather in Paris?"


class Forecast(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]
    sky: Literal["sunny", "cloudy"]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    daemon = Daemon(
        tmp_path_factory.mktemp("daemon"), "--http", "127.0.0.1:0", "--no-speculation", env={"UMA_THREADS": "1"}
    )
    yield f"http://{daemon.http}/v1"
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def said(base_url: str) -> str:
    """The greedy answer that OpenAI's own client gets."""
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=CHAT_FAR_FROM_A_TIE, temperature=0, max_tokens=N_TOKENS
        )
    assert answer.choices[0].message.content
    return answer.choices[0].message.content


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def model(request: pytest.FixtureRequest, base_url: str) -> Model:
    made: Model = request.param(MODEL, AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))
    return made


def test_chat(model: Model, said: str) -> None:
    agent = Agent(name="counter", model=model, model_settings=GREEDY)
    assert Runner.run_sync(agent, CHAT_FAR_FROM_A_TIE).final_output == said


def test_stream(model: Model, said: str) -> None:
    async def deltas() -> str:
        streamed = Runner.run_streamed(Agent(name="counter", model=model, model_settings=GREEDY), CHAT_FAR_FROM_A_TIE)
        events = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    assert asyncio.run(deltas()) == said


def test_tool(model: Model) -> None:
    calls = []

    @function_tool
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return "The sky is sunny."

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
