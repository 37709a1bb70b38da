"""A conversation that is too long is refused in words that agents look for: they then shorten it, and go on."""

from __future__ import annotations

import json
import re

import pytest

from umaserve.core.errors import ContextExceeded
from umaserve.dialects.anthropic.errors import ERRORS as ANTHROPIC
from umaserve.dialects.generate.generation import ERRORS as GENERATE
from umaserve.dialects.http import ErrorShape
from umaserve.dialects.llama_server.errors import ERRORS as LLAMA_SERVER
from umaserve.dialects.ollama.errors import ERRORS as OLLAMA
from umaserve.dialects.openai.errors import ERRORS as OPENAI

TOO_LONG = ContextExceeded(20_000, 16_384)
OF_OPENAI = {
    "litellm, and so aider": "This model's maximum context length is",
    "pi, as OpenRouter says it": r"maximum context length is \d+ tokens",
    "those who look for llama.cpp's words": "exceeds the available context size",
    "those who take both numbers": "16383.*20000.*16384",
}
OF_ANTHROPIC = {
    "Claude Code, Cline, pi": r"prompt is too long: \d+ tokens > \d+ maximum",
    "Claude Code, which then asks for a shorter answer": r"exceed context limit: \d+ \+ \d+ > \d+",
}


def message(shape: ErrorShape) -> str:
    answer = shape.of_request(TOO_LONG)
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("shape", [OPENAI, LLAMA_SERVER, OLLAMA], ids=["OpenAI", "llama-server", "Ollama"])
@pytest.mark.parametrize("agent", OF_OPENAI)
def test_an_agent_finds_its_words(shape: ErrorShape, agent: str) -> None:
    assert re.search(OF_OPENAI[agent], message(shape))


@pytest.mark.parametrize("agent", OF_ANTHROPIC)
def test_an_agent_finds_anthropics_words(agent: str) -> None:
    assert re.search(OF_ANTHROPIC[agent], message(ANTHROPIC))


def test_the_code_and_the_counts_are_beside() -> None:
    error = json.loads(OPENAI.of_request(TOO_LONG).body)["error"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (20_000, 16_384)
    assert GENERATE[TOO_LONG.fault][0] == "context_length_exceeded"
