"""DSPy: its language model, and programs whose fields are bound by a schema."""

from __future__ import annotations

import asyncio
from typing import Literal

import dspy
import pytest
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast


class Local(dspy.LM):
    """A model whose abilities DSPy has no list of."""

    supports_function_calling = True
    supports_response_schema = True

    @property
    def supported_params(self) -> set[str]:
        return {*super().supported_params, "response_format"}


class Weather(dspy.Signature):
    """Tell the weather."""

    question: str = dspy.InputField()
    forecast: Forecast = dspy.OutputField()


@pytest.fixture
def lm(base_url: str) -> dspy.LM:
    told = {"api_base": base_url, "api_key": "none", "num_retries": 0, "cache": False}
    return Local(f"openai/{MODEL}", **told, temperature=0, max_tokens=N_TOKENS)


def test_chat(lm: dspy.LM, said: str) -> None:
    assert lm(messages=TURNS) == [said]


def test_structured_output(lm: dspy.LM) -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Weather)(question=QUESTION).forecast, Forecast)


def test_stream(lm: dspy.LM) -> None:
    async def chunks() -> list[object]:
        with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            return [chunk async for chunk in dspy.streamify(dspy.Predict(Weather))(question=QUESTION)]

    *streamed, prediction = asyncio.run(chunks())
    assert streamed
    assert isinstance(prediction, dspy.Prediction)
    assert isinstance(prediction.forecast, Forecast)


class WithTools(dspy.Signature):
    """Answer with calls of tools."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def test_tool(lm: dspy.LM) -> None:
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        return RESULT

    adapter = dspy.JSONAdapter(use_native_function_calling=True)
    with dspy.context(lm=lm.copy(tool_choice="required"), adapter=adapter):
        answer = dspy.Predict(WithTools)(question=QUESTION, tools=[dspy.Tool(look_outside)])
    [call] = answer.calls.tool_calls
    assert (call.name, call.args) == ("look_outside", {"city": "Paris"})
