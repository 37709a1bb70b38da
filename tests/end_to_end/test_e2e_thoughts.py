"""Thoughts over sockets, in all dialects: closed by force, apart from the answer, and before what a grammar allows.

The default model doesn't think: one template opens a thought for every answer, as DeepSeek-R1's does, the other one
leaves that to the model, as Qwen3's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import Daemon, serving
from generate_wire import Conversation
from http_wire import ask, events

from umaserve.engine.template.chat_template import CHATML

OPENED = "<|im_start|>assistant\n"
OPENS = CHATML.replace(OPENED, OPENED + "<think>\n")
MAY_OPEN = CHATML.replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}",
).replace(OPENED, OPENED + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}")
BUDGET = 6
ASKED = [{"role": "user", "content": "List three fruits."}]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
BOUND = {"response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}}
GREEDY = {"temperature": 0, "max_tokens": 24}
WRITTEN = 'root ::= "<think>\\nHm.\\n</think>\\n\\nRed."'
"""Has the model write a thought itself."""


def thinking(directories: pytest.TempPathFactory, template: str) -> Iterator[Daemon]:
    file: Path = directories.mktemp("template") / "thinking.jinja"
    file.write_text(template)
    yield from serving(directories, "--chat-template", str(file), "--reasoning-budget", str(BUDGET), "--no-speculation")


@pytest.fixture(scope="module")
def opens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from thinking(tmp_path_factory, OPENS)


@pytest.fixture(scope="module")
def may_open(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from thinking(tmp_path_factory, MAY_OPEN)


def chat(daemon: Daemon, **wanted: Any) -> dict[str, Any]:
    """The message and the usage of a whole answer."""
    told = ask(daemon, "POST", "/v1/chat/completions", {"messages": ASKED, **GREEDY, **wanted}).json
    (choice,) = told["choices"]
    details = told["usage"].get("completion_tokens_details", {})
    return {**choice["message"], **choice, **details}


def told(daemon: Daemon, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream."""
    response = ask(daemon, "POST", path, {**body, "stream": True})
    assert response.status == 200, response.body
    datas = [event.rpartition(b"data: ")[2] for event in events(response.body)]
    return [json.loads(data) for data in datas if data != b"[DONE]"]


# -- OpenAI ------------------------------------------------------------------------------------------------------


def test_a_thought_is_closed_by_force_and_apart(opens: Daemon):
    answer = chat(opens)
    assert answer["reasoning_content"]
    assert answer["content"]
    assert "think>" not in answer["reasoning_content"] + answer["content"]
    inline = chat(opens, reasoning_format="none")
    thoughts, mark, rest = inline["content"].partition("</think>")
    assert mark
    assert (thoughts.strip(), rest.lstrip()) == (answer["reasoning_content"], answer["content"])
    assert BUDGET < answer["reasoning_tokens"] == inline["reasoning_tokens"] < GREEDY["max_tokens"]


def test_a_requests_own_budget_comes_first(opens: Daemon):
    without, more = (chat(opens, reasoning_budget=budget) for budget in (0, 2 * BUDGET))
    assert "reasoning_content" not in without
    assert without["content"]
    assert more["reasoning_tokens"] - without["reasoning_tokens"] == 2 * BUDGET
    endless = chat(opens, reasoning_budget=-1, ignore_eos=True)
    assert (endless["content"], endless["reasoning_tokens"]) == ("", GREEDY["max_tokens"])


def test_a_stream_has_first_the_thought_and_then_the_answer(opens: Daemon):
    body = {"messages": ASKED, **GREEDY, "stream_options": {"include_usage": True}}
    *chunks, last = told(opens, "/v1/chat/completions", body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    kinds = [key for delta in deltas for key in ("reasoning_content", "content") if delta.get(key)]
    assert kinds == sorted(kinds, reverse=True)
    whole = chat(opens)
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == whole[key]
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == whole["reasoning_tokens"]


def test_a_grammar_begins_after_the_thought(opens: Daemon):
    answer = chat(opens, **BOUND)
    assert json.loads(answer["content"])["colour"] in ("red", "blue")
    assert answer["reasoning_content"] == chat(opens)["reasoning_content"]
    assert answer["finish_reason"] == "stop"


def test_stop_strings_match_in_thoughts_only_where_asked(opens: Daemon):
    free = chat(opens)
    stop = free["reasoning_content"].split()[-1]
    assert chat(opens, stop=[stop])["reasoning_content"] == free["reasoning_content"]
    stopped = chat(opens, stop=[stop], stop_in_reasoning=True)
    assert stopped["reasoning_content"] == free["reasoning_content"].partition(stop)[0]
    assert (stopped["content"], stopped["finish_reason"]) == ("", "stop")
    word = free["content"].split()[2]
    stopped = chat(opens, stop=[word])
    assert (stopped["reasoning_content"], stopped["finish_reason"]) == (free["reasoning_content"], "stop")
    assert stopped["content"] == free["content"].partition(word)[0]


# -- Anthropic and Ollama ------------------------------------------------------------------------------------------


def test_blocks_of_thoughts_are_shown_where_wanted(opens: Daemon):
    body = {"model": "any", "messages": ASKED, **GREEDY}
    wanted = body | {"thinking": {"type": "enabled", "budget_tokens": BUDGET}}
    free = chat(opens)
    thought, text = ask(opens, "POST", "/v1/messages", wanted).json["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", free["reasoning_content"])
    assert (text["type"], text["text"]) == ("text", free["content"])
    (text,) = ask(opens, "POST", "/v1/messages", body).json["content"]
    assert text["text"] == free["content"]
    deltas = [event["delta"] for event in told(opens, "/v1/messages", wanted) if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == free["reasoning_content"]
    assert "".join(delta.get("text", "") for delta in deltas) == free["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_messages_have_their_thoughts_apart(opens: Daemon, stream: bool):
    options = {"temperature": 0, "num_predict": GREEDY["max_tokens"], "repeat_penalty": 1}
    free = chat(opens)
    for path, question in ("/api/chat", {"messages": ASKED}), ("/api/generate", {"prompt": ASKED[0]["content"]}):
        body = {"model": "any", "options": options, "think": True, "stream": stream} | question
        lines = [json.loads(line) for line in ask(opens, "POST", path, body).body.splitlines()]
        parts = [line.get("message", line) for line in lines]
        assert "".join(part.get("thinking", "") for part in parts) == free["reasoning_content"]
        assert "".join(part.get("content", part.get("response", "")) for part in parts) == free["content"]


# -- our own protocols ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reasoning", ["inline", "separate", "off"])
def test_thoughts_on_the_unix_socket_and_in_generate(opens: Daemon, reasoning: str):
    free, inline = chat(opens), chat(opens, reasoning_format="none")["content"]
    said = inline if reasoning == "inline" else free["content"]
    thoughts = free["reasoning_content"] if reasoning == "separate" else ""
    asked = {"prompt": ASKED[0]["content"], "chat": True, "reasoning": reasoning, **GREEDY}
    *tokens, end = opens.ask(**asked)
    assert "".join(event["text"] for event in tokens) == said
    assert "".join(event.get("reasoning", "") for event in tokens) == thoughts
    assert end["usage"].get("reasoning_tokens", free["reasoning_tokens"]) == free["reasoning_tokens"]
    (whole,) = opens.ask(**asked, stream=False)
    assert (whole["text"], whole.get("reasoning", "")) == (said, thoughts)
    with Conversation(opens) as conversation:
        conversation.config(ASKED, {"reasoning": reasoning}, **GREEDY)
        messages = conversation.until("completion", "error")
    pieces = [message for message in messages if message["type"] == "token"]
    assert "".join(message["token"] for message in pieces) == messages[-1]["generated_text"] == said
    assert "".join(message.get("reasoning", "") for message in pieces) == thoughts
    body = {"prompt": ASKED, "options": {"reasoning": reasoning}, **GREEDY}
    answer = ask(opens, "POST", "/v1/generate", body).json
    assert (answer["generated_text"], answer.get("reasoning", "")) == (said, thoughts)


def test_a_plain_prompts_text_has_thoughts_where_the_model_writes_them(may_open: Daemon):
    *tokens, end = may_open.ask("Name a colour: ", reasoning="separate", grammar=WRITTEN, reasoning_budget=-1)
    assert "".join(event["reasoning"] for event in tokens) == "Hm."
    assert "".join(event["text"] for event in tokens) == "Red."
    assert end["usage"]["reasoning_tokens"] > 0


# -- a model that may think ------------------------------------------------------------------------------------------


def test_one_that_may_think_is_told_not_to(may_open: Daemon):
    thinks, not_so = ({"messages": ASKED, "chat_template_kwargs": {"enable_thinking": on}} for on in (True, False))
    prompts = [ask(may_open, "POST", "/apply-template", body).json["prompt"] for body in (thinks, not_so)]
    assert [prompt.endswith("<think>\n\n</think>\n\n") for prompt in prompts] == [False, True]
    free = chat(may_open, enable_thinking=False)
    assert "reasoning_content" not in free
    assert chat(may_open, **not_so)["content"] == free["content"] != chat(may_open)["content"]
    off = {"prompt": ASKED[0]["content"], "chat": True, "enable_thinking": False}
    assert may_open.text(**off, **GREEDY) == free["content"]
    body = {"prompt": ASKED, "options": {"chat_template_kwargs": {"enable_thinking": False}}, **GREEDY}
    assert ask(may_open, "POST", "/v1/generate", body).json["generated_text"] == free["content"]


@pytest.mark.parametrize("thinks", [True, False])
def test_a_grammar_may_begin_at_once(may_open: Daemon, thinks: bool):
    answer = chat(may_open, **BOUND, enable_thinking=thinks)
    assert json.loads(answer["content"])["colour"] in ("red", "blue")
    assert answer["finish_reason"] == "stop"


def test_an_answer_goes_on_in_its_thought_and_is_closed_by_force(may_open: Daemon):
    begun = [*ASKED, {"role": "assistant", "reasoning_content": "The sky is", "content": ""}]
    answer = chat(may_open, messages=begun, **{**BOUND, "max_tokens": 96})
    assert answer["reasoning_content"]
    assert json.loads(answer["content"])["colour"] in ("red", "blue")
