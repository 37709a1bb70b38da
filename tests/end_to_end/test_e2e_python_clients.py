"""The libraries and programs that Python agents are written with, unmodified: each is told the address and no more.

What a model of this size says is left to it nowhere. Free text equals what OpenAI's own client gets for the same
messages; calls and typed values are bound by schemas that have no other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Literal

import openai
import pydantic
import pytest
from daemon import CHAT_FAR_FROM_A_TIE, Daemon

MODEL = "default"
N_TOKENS = 12
QUESTION = "What is the weather in Paris?"


class Forecast(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]
    sky: Literal["sunny", "cloudy"]


FORECASTS = [Forecast(city="Paris", sky="sunny"), Forecast(city="Paris", sky="cloudy")]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    """One that also makes embeddings."""
    flags = ("--http", "127.0.0.1:0", "--no-speculation", "--pooling", "mean")
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def address(daemon: Daemon) -> str:
    return f"http://{daemon.http}"


@pytest.fixture(scope="module")
def plain(address: str):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def said(plain: openai.OpenAI) -> str:
    """The greedy answer to ``CHAT_FAR_FROM_A_TIE``."""
    answer = plain.chat.completions.create(
        model=MODEL, messages=CHAT_FAR_FROM_A_TIE, temperature=0, max_tokens=N_TOKENS
    )
    assert answer.usage.completion_tokens == N_TOKENS
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def vectors(plain: openai.OpenAI) -> list[list[float]]:
    answer = plain.embeddings.create(model=MODEL, input=["hello", "goodbye"])
    return [pytest.approx(item.embedding, abs=1e-3) for item in answer.data]


# -- pydantic-ai -------------------------------------------------------------------------------------------------


def pydantic_ai_models(address: str) -> dict:
    """By API. Of a model whose name is none of Anthropic's, the library thinks that it can't follow a schema."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    return {
        "responses": OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=f"{address}/v1")),
        "openai": OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{address}/v1")),
        "anthropic": AnthropicModel("claude-opus-5", provider=AnthropicProvider(base_url=address, api_key="none")),
    }


GREEDY = {"min_p": 1}
"""To newer models of Anthropic's, the library sends no temperature."""
PYDANTIC_AI = pytest.mark.parametrize("api", ["openai", "responses", "anthropic"])


@PYDANTIC_AI
def test_pydantic_ai_says_and_streams(address: str, said: str, api: str):
    from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart

    asked, answered, repeat = (turn["content"] for turn in CHAT_FAR_FROM_A_TIE)
    history = [ModelRequest.user_text_prompt(asked), ModelResponse([TextPart(answered)])]
    agent = Agent(
        pydantic_ai_models(address)[api],
        model_settings={"max_tokens": N_TOKENS, "extra_body": GREEDY},
    )
    whole = agent.run_sync(repeat, message_history=history)
    assert whole.output == said
    assert whole.usage.output_tokens == N_TOKENS
    streamed = agent.run_stream_sync(repeat, message_history=history)
    assert "".join(streamed.stream_text(delta=True)) == said


@PYDANTIC_AI
def test_pydantic_ai_calls_a_tool_and_returns_a_typed_value(address: str, api: str):
    from pydantic_ai import Agent, RunContext

    def first_the_tool(context: RunContext) -> dict:
        choice = ["look_outside"] if context.run_step == 1 else "none"
        return {"tool_choice": choice, "extra_body": GREEDY}

    agent = Agent(pydantic_ai_models(address)[api], output_type=Forecast, model_settings=first_the_tool)
    calls = []

    @agent.tool_plain
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return "The sky is sunny."

    assert agent.run_sync(QUESTION).output in FORECASTS
    assert calls == ["Paris"]


@PYDANTIC_AI
def test_pydantic_ai_binds_the_text_by_a_schema(address: str, api: str):
    from pydantic_ai import Agent, NativeOutput

    agent = Agent(pydantic_ai_models(address)[api], output_type=NativeOutput(Forecast))
    assert agent.run_sync(QUESTION).output in FORECASTS


# -- langchain ---------------------------------------------------------------------------------------------------


def langchain_model(address: str, api: str, max_tokens: int):
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI

    if api == "ollama":
        return ChatOllama(base_url=address, model=MODEL, temperature=0, num_predict=max_tokens, repeat_penalty=1)
    fields = {"api_key": "none", "model": MODEL, "temperature": 0, "max_tokens": max_tokens, "max_retries": 0}
    return ChatOpenAI(base_url=f"{address}/v1", use_responses_api=api == "responses", **fields)


LANGCHAIN = pytest.mark.parametrize("api", ["openai", "responses", "ollama"])


@LANGCHAIN
def test_langchain_says_and_streams(address: str, said: str, api: str):
    model = langchain_model(address, api, N_TOKENS)
    whole = model.invoke(CHAT_FAR_FROM_A_TIE)
    assert whole.text == said
    assert whole.usage_metadata["output_tokens"] == N_TOKENS
    assert "".join(chunk.text for chunk in model.stream(CHAT_FAR_FROM_A_TIE)) == said


def look_outside(city: Literal["Paris"]) -> str:
    """Tells the weather of a city."""
    return "The sky is sunny."


@pytest.mark.parametrize("api", ["openai", "responses"])
def test_langchain_calls_a_tool(address: str, api: str):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    looking = tool(look_outside)
    model = langchain_model(address, api, 100)
    required = model.bind_tools([looking], tool_choice="any")
    question = HumanMessage(QUESTION)
    answer = required.invoke([question])
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("look_outside", {"city": "Paris"})
    streamed = None
    for chunk in required.stream([question]):
        streamed = chunk if streamed is None else streamed + chunk
    assert [call["args"] for call in streamed.tool_calls] == [{"city": "Paris"}]
    assert model.bind_tools([looking]).invoke([question, answer, looking.invoke(call)]).content


@pytest.mark.parametrize(
    ("api", "method"),
    [
        *(("openai", "json_schema"), ("openai", "function_calling")),
        *(("responses", "json_schema"), ("responses", "function_calling"), ("ollama", "json_schema")),
    ],
)
def test_langchain_returns_a_typed_value(address: str, api: str, method: str):
    model = langchain_model(address, api, 100)
    assert model.with_structured_output(Forecast, method=method).invoke(QUESTION) in FORECASTS


def test_langchain_embeds(address: str, vectors: list):
    from langchain_ollama import OllamaEmbeddings
    from langchain_openai import OpenAIEmbeddings

    by_openai = OpenAIEmbeddings(
        base_url=f"{address}/v1", api_key="none", model=MODEL, check_embedding_ctx_length=False
    )
    assert by_openai.embed_documents(["hello", "goodbye"]) == vectors
    by_ollama = OllamaEmbeddings(base_url=address, model=MODEL)
    assert by_ollama.embed_documents(["hello", "goodbye"]) == vectors
    assert by_ollama.embed_query("hello") == vectors[0]


# -- llm ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(address: str, tmp_path_factory: pytest.TempPathFactory):
    """Runs ``llm`` with these arguments; what it prints."""
    directory = tmp_path_factory.mktemp("llm")
    (directory / "extra-openai-models.yaml").write_text(
        f'- {{model_id: uma, model_name: {MODEL}, api_base: "{address}/v1", supports_schema: true}}\n'
        f'- {{model_id: by-responses, model_name: {MODEL}, api_base: "{address}/v1", responses: true}}\n'
    )

    def run(*arguments: str) -> str:
        environment = os.environ | {"LLM_USER_PATH": str(directory)}
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_llm_asks_and_goes_on(plain: openai.OpenAI, llm):
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(N_TOKENS)]
    turns = []
    for prompt, more in (("Count: 1, 2, 3", []), ("Repeat: 1, 2, 3, 4, 5, 6, 7, 8, 9", ["-c", "--no-stream"])):
        turns.append({"role": "user", "content": prompt})
        expected = plain.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_tokens=N_TOKENS)
        text = expected.choices[0].message.content
        assert llm("-m", "uma", *options, *more, prompt) == text + "\n"
        turns.append({"role": "assistant", "content": text})
    assert llm("-m", "by-responses", *options, turns[0]["content"]) == turns[1]["content"] + "\n"


def test_llm_returns_a_typed_value(llm):
    schema = json.dumps(Forecast.model_json_schema())
    assert Forecast.model_validate_json(llm("-m", "uma", "--schema", schema, QUESTION)) in FORECASTS
