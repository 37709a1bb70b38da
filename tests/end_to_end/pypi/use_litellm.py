"""litellm by its adapters. MESSAGES SCHEMA MODEL ADDRESS: prints one line of JSON."""

import asyncio
import json
import sys

import litellm

MESSAGES, SCHEMA = map(json.loads, sys.argv[1:3])
MODEL, ADDRESS = sys.argv[3:5]
ADAPTERS = {
    "openai": {"model": f"openai/{MODEL}", "api_base": f"{ADDRESS}/v1", "api_key": "none"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": ADDRESS, "api_key": "none"},
    # By this name it knows a model that follows schemas; for others it makes them calls.
    "claude": {"model": "anthropic/claude-sonnet-4-6", "api_base": ADDRESS, "api_key": "none"},
    "ollama_chat": {"model": f"ollama_chat/{MODEL}", "api_base": ADDRESS, "repeat_penalty": 1},
    "ollama": {"model": f"ollama/{MODEL}", "api_base": ADDRESS, "repeat_penalty": 1},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
PARIS, ROME = ({"role": "user", "content": f"What is the weather in {city}?"} for city in ("Paris", "Rome"))
CALL = {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "C"}'}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "c0", "type": "function", "function": CALL}]}


def text(chunks) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


async def streamed_by_asyncio(fields: dict) -> str:
    return text([chunk async for chunk in await litellm.acompletion(**fields, stream=True)])


def calls(answer) -> list:
    made = answer.choices[0].message.tool_calls or ()
    return [[call.function.name, json.loads(call.function.arguments)] for call in made]


def called(fields: dict) -> dict:
    whole = litellm.completion(**fields)
    joined = litellm.stream_chunk_builder([*litellm.completion(**fields, stream=True)])
    return {"calls": [calls(whole), calls(joined)], "call_end": whole.choices[0].finish_reason}


def told(adapter: str) -> dict:
    to = {**ADAPTERS[adapter], "temperature": 0}
    greedy = {**to, "messages": MESSAGES, "max_tokens": 12}
    whole = litellm.completion(**greedy)
    bound = litellm.completion(**to, messages=[ROME], max_tokens=100, response_format=FORMAT)
    result = {
        "texts": [
            whole.choices[0].message.content,
            text(litellm.completion(**greedy, stream=True)),
            asyncio.run(streamed_by_asyncio(greedy)),
        ],
        "end": [whole.choices[0].finish_reason, whole.usage.completion_tokens],
        "bound": json.loads(bound.choices[0].message.content),
    }
    calling = {**to, "max_tokens": 100, "tools": TOOLS}
    if not adapter.startswith("ollama"):
        return result | called({**calling, "messages": [ROME], "tool_choice": "required"})
    if adapter == "ollama":
        return result  # Tools are words of a prompt there, which litellm writes.
    # litellm requires no call of Ollama, but a model that has called calls again.
    return result | called({**calling, "messages": [PARIS, CALLED, ROME]})


print(json.dumps({adapter: told(adapter) for adapter in ADAPTERS}))
