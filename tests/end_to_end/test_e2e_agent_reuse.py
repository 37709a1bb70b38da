"""An agent's conversation is computed once: from its second request on, nearly all of the prompt is cached.

The conversations are made here, in the shape of those that coding agents have: long instructions, many tools, five
calls with their results, a system message in the middle, and beside them requests for titles, by sub-agents and the
like, which share nothing with it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from cached_prompts import RECURRENT, WINDOWED, Body, Cached, asked
from daemon import Daemon
from tiny_models import tiny_model

INSTRUCTIONS = " ".join(
    f"Rule {n}: where a file of kind {n * 7} is changed, read it first, keep its style, and say in one line why."
    for n in range(60)
)
TOOLS = [
    (f"{verb}_{thing}", f"Use it to {verb} one {thing} of the repository, never more.")
    for verb in ("read", "write", "find")
    for thing in ("file", "folder", "symbol", "note")
]
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["path"],
}
TASK = "Have hello.py greet the world."
REMINDER = "The user has opened notes.txt. It may not matter."
CALLS = 5
TITLE = "Write a title of three words for what the user asks: {n}. Have hello.py greet the world."
SUBAGENT = "You look for files and nothing else. Be brief. " * 12
SIDES = 3
"""Requests beside each one of the conversation."""


class Api(NamedTuple):
    """One way to ask: the path, a request for a conversation after ``n`` calls, and one of a short text."""

    path: str
    conversation: Callable[[int], Body]
    short: Callable[[str, str], Body]


def _arguments(n: int) -> Body:
    return {"path": f"src/part{n}.py", "line": n}


def _result(n: int) -> str:
    return "\n".join(f"{line}: value_{n}_{line} = {n * line}" for line in range(4))


def _functions() -> list[Body]:
    return [{"name": name, "description": told, "parameters": SCHEMA} for name, told in TOOLS]


def _chat(n: int) -> Body:
    messages: list[Body] = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": TASK}]
    for k in range(n):
        call = {"name": TOOLS[k][0], "arguments": json.dumps(_arguments(k))}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": f"call{k:05}", "type": "function", "function": call}]}
        )
        messages.append({"role": "tool", "tool_call_id": f"call{k:05}", "content": _result(k)})
        if k == 2:
            messages.append({"role": "system", "content": REMINDER})
    tools = [{"type": "function", "function": function} for function in _functions()]
    return {"messages": messages, "tools": tools, "max_tokens": 4}


def _responses(n: int) -> Body:
    items: list[Body] = [{"role": "user", "content": TASK}]
    for k in range(n):
        call = {"call_id": f"call{k:05}", "name": TOOLS[k][0], "arguments": json.dumps(_arguments(k))}
        items.append({"type": "function_call", **call})
        items.append({"type": "function_call_output", "call_id": f"call{k:05}", "output": _result(k)})
        if k == 2:
            items.append({"role": "developer", "content": REMINDER})
    tools = [{"type": "function", "strict": False, **function} for function in _functions()]
    return {"instructions": INSTRUCTIONS, "input": items, "tools": tools, "max_output_tokens": 4, "store": False}


def _anthropic(n: int) -> Body:
    messages: list[Body] = [{"role": "user", "content": [{"type": "text", "text": TASK}]}]
    for k in range(n):
        call = {"type": "tool_use", "id": f"call{k:05}", "name": TOOLS[k][0], "input": _arguments(k)}
        messages.append({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"call{k:05}", "content": _result(k)}
        messages.append({"role": "user", "content": [result]})
        if k == 2:
            messages.append({"role": "system", "content": REMINDER})
    tools = [{"name": name, "description": told, "input_schema": SCHEMA} for name, told in TOOLS]
    system = [{"type": "text", "text": INSTRUCTIONS, "cache_control": {"type": "ephemeral"}}]
    return {"system": system, "messages": messages, "tools": tools, "max_tokens": 4}


APIS = {
    "chat": Api(
        "/v1/chat/completions",
        _chat,
        lambda system, text: {
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "max_tokens": 16,
        },
    ),
    "responses": Api(
        "/v1/responses",
        _responses,
        lambda system, text: {"instructions": system, "input": text, "max_output_tokens": 16},
    ),
    "anthropic": Api(
        "/v1/messages",
        _anthropic,
        lambda system, text: {
            "system": system,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 16,
        },
    ),
}


def beside(daemon: Daemon, api: Api, n: int) -> Iterator[Callable[[], object]]:
    """What agents ask beside the request number ``n`` of a conversation."""
    yield lambda: asked(daemon, api.path, api.short(TITLE.format(n=n), TASK))
    for k in range(1, SIDES):
        yield lambda k=k: asked(daemon, api.path, api.short(f"{n}.{k}: {SUBAGENT}", f"Is there a file number {k}?"))


def converse(daemon: Daemon, api: Api, numbers: Sequence[int]) -> list[Cached]:
    """What each request of the conversation was told, with others at the same time."""
    told = []
    with ThreadPoolExecutor(SIDES) as pool:
        for n in numbers:
            sides = [pool.submit(side) for side in beside(daemon, api, n)]
            told.append(asked(daemon, api.path, api.conversation(n)))
            for side in sides:
                side.result()
    return told


CASES = [("default", "chat"), *itertools.product([WINDOWED, RECURRENT], APIS)]
"""By model and API. The default model computes for a minute, and what it reuses does not depend on the API."""


@pytest.fixture(scope="module")
def flags(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two places for four requests at once, and KV cells for hardly more than the conversation."""
    model = []
    if request.param != "default":
        path = tmp_path_factory.mktemp("model") / "model.gguf"
        model = ["--model", tiny_model(path, request.param, context_length=32768)]
    n_ctx = "16384" if model else "4096"
    return ["--http", "127.0.0.1:0", "--parallel", "2", "--n-ctx", n_ctx, "--no-speculation", *model]


@pytest.mark.parametrize(("flags", "name"), CASES, indirect=["flags"])
def test_later_requests_of_an_agent_are_cached_beside_others_and_after_a_restart(
    own_daemon: Callable[..., Daemon], flags: list[str], tmp_path: Path, name: str
) -> None:
    flags = [*flags, "--kv-cache", str(tmp_path / "kv")]
    daemon, api = own_daemon(*flags), APIS[name]
    first, *later = converse(daemon, api, range(CALLS))
    assert first.cached == 0
    assert all(told.nearly_whole for told in later), later
    assert daemon.stop() == 0, daemon.logs
    daemon = own_daemon(*flags)
    daemon.wait_for(lambda values: values["disk_cache_bytes"] > 0)
    [told] = converse(daemon, api, [CALLS])
    assert told.nearly_whole, told
