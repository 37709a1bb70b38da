"""CrewAI's language model, by OpenAI's API."""

from typing import Any, Literal

import pytest
from crewai import LLM
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast


@pytest.fixture
def told(base_url: str) -> dict[str, Any]:
    return {
        "model": f"openai/{MODEL}",
        "base_url": base_url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": N_TOKENS,
    }


def test_chat(told: dict[str, Any], said: str) -> None:
    assert LLM(**told).call(TURNS) == said


def test_stream(told: dict[str, Any], said: str) -> None:
    chunks = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMStreamChunkEvent)
        def keep(source: object, event: LLMStreamChunkEvent) -> None:
            chunks.append(event.chunk)

        assert LLM(**told, stream=True).call(TURNS) == said
        crewai_event_bus.flush()
    assert "".join(chunks) == said


def test_tool(told: dict[str, Any]) -> None:
    calls = []

    @tool("look_outside")
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return RESULT

    function = {
        "name": "look_outside",
        "description": "Tells the weather of a city.",
        "parameters": look_outside.args_schema.model_json_schema(),
    }
    # A tool_choice of its own it would overwrite: it leaves the choice to the model.
    llm = LLM(**told, additional_params={"extra_body": {"tool_choice": "required"}})
    functions = {"look_outside": look_outside.run}
    answer = llm.call(QUESTION, tools=[{"type": "function", "function": function}], available_functions=functions)
    assert RESULT in str(answer)
    assert calls == ["Paris"]


def test_structured_output(told: dict[str, Any]) -> None:
    answer = LLM(**told).call(QUESTION, response_model=Forecast)
    assert isinstance(answer, Forecast) or Forecast.model_validate_json(answer)
