"""A conversation that is too long is refused in words that agents look for: they then shorten it, and go on."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from openapi_document import POSTS, check_response
from routes import facts

from umaserve.core.errors import ContextExceeded
from umaserve.dialects.anthropic.errors import ERRORS as ANTHROPIC
from umaserve.dialects.generate.generation import ERRORS as GENERATE
from umaserve.dialects.http import ErrorShape
from umaserve.dialects.llama_server.errors import ERRORS as LLAMA_SERVER
from umaserve.dialects.ollama.errors import ERRORS as OLLAMA
from umaserve.dialects.openai.errors import ERRORS as OPENAI
from umaserve.dialects.responses.body import ResponseBody

TOO_LONG = ContextExceeded(20_000, 16_384)
OF_OPENAI = {
    "litellm, and so aider": "This model's maximum context length is",
    "pi, as OpenRouter says it": r"maximum context length is \d+ tokens",
    "those who look for llama.cpp's words": "exceeds the available context size",
    "those who take both numbers": "16383.*20000.*16384",
}
LISTS = {
    "pi (packages/ai/src/utils/overflow.ts)": (
        "prompt is too long",
        "input is too long for requested model",
        "exceeds the context window",
        "input token count.*exceeds the maximum",
        r"maximum prompt length is \d+",
        "reduce the length of the messages",
        r"maximum context length is \d+ tokens",
        r"exceeds the limit of \d+",
        "exceeds the available context size",
        "greater than the context length",
        "context window exceeds limit",
        "exceeded model token limit",
        r"too large for model with \d+ maximum context length",
        "context[_ ]length[_ ]exceeded",
        "too many tokens",
        "token limit exceeded",
    ),
    "opencode (packages/opencode/src/provider/error.ts)": (
        "prompt is too long",
        r"maximum context length is \d+ tokens",
        "exceeds the available context size",
        "context[_ ]length[_ ]exceeded",
        r"context length is only \d+ tokens",
        "input length.*exceeds.*context length",
    ),
    "Cline, with status 400 (src/core/context/context-management/context-error-handling.ts)": (
        r"context\s*(length|window)",
        "input tokens exceed",
        "too many tokens",
        "maximum context",
    ),
}
"""What an agent looks for in any message, without regard to case: one of these will do."""
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


@pytest.mark.parametrize("shape", [OPENAI, LLAMA_SERVER, OLLAMA], ids=["OpenAI", "llama-server", "Ollama"])
@pytest.mark.parametrize("agent", LISTS)
def test_an_agent_finds_one_of_its_many(shape: ErrorShape, agent: str) -> None:
    assert any(re.search(words, message(shape), re.IGNORECASE) for words in LISTS[agent])


@pytest.mark.parametrize("agent", [agent for agent in LISTS if not agent.startswith("Cline")])
def test_an_agent_finds_one_of_its_many_in_anthropics_words(agent: str) -> None:
    """Cline takes any ``invalid_request_error`` of Anthropic's for an overflow."""
    assert any(re.search(words, message(ANTHROPIC), re.IGNORECASE) for words in LISTS[agent])
    assert json.loads(ANTHROPIC.of_request(TOO_LONG).body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("agent", OF_ANTHROPIC)
def test_an_agent_finds_anthropics_words(agent: str) -> None:
    assert re.search(OF_ANTHROPIC[agent], message(ANTHROPIC))


def test_the_code_and_the_counts_are_beside() -> None:
    error = json.loads(OPENAI.of_request(TOO_LONG).body)["error"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (20_000, 16_384)
    assert GENERATE[TOO_LONG.fault][0] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        (OPENAI, "/v1/chat/completions"),
        (LLAMA_SERVER, "/completion"),
        (OLLAMA, "/api/chat"),
        (ANTHROPIC, "/v1/messages"),
    ],
    ids=["OpenAI", "llama-server", "Ollama", "Anthropic"],
)
def test_the_reference_describes_it(shape: ErrorShape, path: str) -> None:
    answer = shape.of_request(TOO_LONG)
    headers = {"Content-Type": "application/json"}
    check_response(httpx.Response(answer.status, headers=headers, content=answer.body), POSTS[path])


@pytest.mark.parametrize("begun", [False, True])
def test_codex_finds_the_code_before_a_stream_and_in_it(begun: bool) -> None:
    """Codex reads it in a reply of status 400, and in ``response.failed``; opencode and Cline do too."""
    reply = ResponseBody(facts())
    reply.receive(b'{"model": "m", "input": "a", "stream": true}')
    if not begun:
        status, content, _headers = reply.error(TOO_LONG)
        assert (status, json.loads(content)["error"]["code"]) == (400, "context_length_exceeded")
        return
    stream = b"".join(map(reply.frame, reply.fail(0, TOO_LONG)))
    event = json.loads(stream.decode().rpartition("data: ")[2])
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["code"] == "context_length_exceeded"
