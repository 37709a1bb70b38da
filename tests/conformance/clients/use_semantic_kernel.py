"""Semantic Kernel, by its service of OpenAI's API."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function


@pytest.fixture
def service(base_url: str) -> OpenAIChatCompletion:
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    return OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)


@pytest.fixture
def settings() -> OpenAIChatPromptExecutionSettings:
    return OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=N_TOKENS)


@pytest.fixture
def history() -> ChatHistory:
    history = ChatHistory()
    for turn in TURNS:
        history.add_message(turn)
    return history


def test_chat(
    service: OpenAIChatCompletion, settings: OpenAIChatPromptExecutionSettings, history: ChatHistory, said: str
) -> None:
    assert str(asyncio.run(service.get_chat_message_content(history, settings))) == said


def test_stream(
    service: OpenAIChatCompletion, settings: OpenAIChatPromptExecutionSettings, history: ChatHistory, said: str
) -> None:
    async def deltas() -> list[str]:
        return [str(chunk) async for chunk in service.get_streaming_chat_message_content(history, settings)]

    assert "".join(asyncio.run(deltas())) == said


class Weather:
    def __init__(self) -> None:
        self.calls: list[str] = []

    @kernel_function
    def look_outside(self, city: str) -> str:
        """Tells the weather of a city."""
        self.calls.append(city)
        return RESULT


def test_tool(service: OpenAIChatCompletion, settings: OpenAIChatPromptExecutionSettings) -> None:
    kernel, weather, history = Kernel(), Weather(), ChatHistory()
    kernel.add_plugin(weather, "weather")
    history.add_user_message(QUESTION)
    settings.function_choice_behavior = FunctionChoiceBehavior.Required(auto_invoke=True)
    answer = asyncio.run(service.get_chat_message_content(history, settings, kernel=kernel))
    assert str(answer)
    assert len(weather.calls) == 1


def test_structured_output(service: OpenAIChatCompletion, settings: OpenAIChatPromptExecutionSettings) -> None:
    history = ChatHistory()
    history.add_user_message(QUESTION)
    settings.response_format = Forecast
    Forecast.model_validate_json(str(asyncio.run(service.get_chat_message_content(history, settings))))
