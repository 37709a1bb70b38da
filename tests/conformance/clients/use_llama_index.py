"""LlamaIndex, by its class for servers that are like OpenAI's."""

from typing import Literal

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from questions import MODEL, N_TOKENS, QUESTION, RESULT, TURNS, Forecast


def look_outside(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return RESULT


@pytest.fixture
def llm(base_url: str) -> OpenAILike:
    kinds = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    told = {"model": MODEL, "api_base": base_url, "api_key": "none", "max_retries": 0}
    return OpenAILike(**told, **kinds, temperature=0, max_tokens=N_TOKENS)


@pytest.fixture
def turns() -> list[ChatMessage]:
    return [ChatMessage(**turn) for turn in TURNS]


def test_chat(llm: OpenAILike, turns: list[ChatMessage], said: str) -> None:
    assert llm.chat(turns).message.content == said


def test_stream(llm: OpenAILike, turns: list[ChatMessage], said: str) -> None:
    assert "".join(chunk.delta or "" for chunk in llm.stream_chat(turns)) == said


def test_tool(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(look_outside)
    answer = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    [call] = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("look_outside", {"city": "Paris"})
    result = ChatMessage(role="tool", content=tool(**call.tool_kwargs).content)
    result.additional_kwargs["tool_call_id"] = call.tool_id
    history = [ChatMessage(role="user", content=QUESTION), answer.message, result]
    assert llm.chat(history).message.content


def test_structured_output(llm: OpenAILike) -> None:
    assert isinstance(llm.structured_predict(Forecast, PromptTemplate(QUESTION)), Forecast)
