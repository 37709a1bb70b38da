"""smolagents: its model by OpenAI's API, which always requires a call where there are tools."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast
from smolagents import ChatMessage, MessageRole, OpenAIModel, Tool, ToolCallingAgent


class LookOutside(Tool):
    name = "look_outside"
    description = "Tells the weather of a city."
    inputs: ClassVar = {"city": {"type": "string", "description": "The city", "enum": ["Paris"]}}
    output_type = "string"

    def forward(self, city: str) -> str:
        assert city == "Paris"
        return RESULT


@pytest.fixture
def model(base_url: str) -> OpenAIModel:
    told = {"max_retries": 0}
    return OpenAIModel(MODEL, api_base=base_url, api_key="none", client_kwargs=told, temperature=0, max_tokens=N_TOKENS)


def test_chat(model: OpenAIModel, said: str) -> None:
    assert model.generate(TURNS).content == said


def test_stream(model: OpenAIModel, said: str) -> None:
    assert "".join(delta.content or "" for delta in model.generate_stream(TURNS)) == said


def test_tool(model: OpenAIModel) -> None:
    asked = ChatMessage(role=MessageRole.USER, content=QUESTION)
    answer = model.generate([asked], tools_to_call_from=[LookOutside()])
    [call] = answer.tool_calls
    arguments = call.function.arguments
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert (call.function.name, arguments) == ("look_outside", {"city": "Paris"})


def test_an_agent_goes_from_call_to_call(model: OpenAIModel) -> None:
    agent = ToolCallingAgent(tools=[LookOutside()], model=model, max_steps=2, verbosity_level=0)
    agent.run(QUESTION)
    called = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
    assert called
    assert set(called) <= {"look_outside", "final_answer"}


def test_structured_output(model: OpenAIModel) -> None:
    schema = {"name": "forecast", "schema": Forecast.model_json_schema(), "strict": True}
    answer = model.generate(TURNS, response_format={"type": "json_schema", "json_schema": schema})
    Forecast.model_validate_json(answer.content)
