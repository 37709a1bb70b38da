"""A program with tools, written with OpenAI's client, against answers in the forms of six models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from umaserve.chat_format.written_calls import written
from umaserve.core.events import Finished, FinishReason, ModelInfo, Started, Token, Usage
from umaserve.core.requests import ChatTurn, ToolCall
from umaserve.core.tool_call_format import TOLD_IN_WORDS, ParameterForm, Slot, ToolForm
from umaserve.dialects.openai.completions import SSE_DONE, ChatBody
from umaserve.dialects.parameters import RequestLimits

TYPES = ("string", "number", "boolean", "object", "array")
FORMS = {
    "Hermes": TOLD_IN_WORDS,
    "Mistral": ToolForm(("[TOOL_CALLS]", Slot.NAME, "[CALL_ID]", Slot.ID, "[ARGS]", Slot.ARGUMENTS), between=""),
    "Kimi": ToolForm(
        (
            "<|tool_call_begin|>functions.",
            Slot.NAME,
            ":",
            Slot.INDEX,
            "<|argument|>",
            Slot.ARGUMENTS,
            "<|tool_call_end|>",
        ),
        opens="<|section_begin|>",
        closes="<|section_end|>",
        between="",
    ),
    "Qwen3-Coder": ToolForm(
        ("<tool_call>\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n</tool_call>"),
        parameters=ParameterForm("<parameter=", tuple((kind, ">\n") for kind in TYPES), "\n</parameter>\n"),
    ),
    "GLM": ToolForm(
        ("<tool_call>", Slot.NAME, "\n", Slot.ARGUMENTS, "</tool_call>"),
        parameters=ParameterForm(
            "<arg_key>", tuple((kind, "</arg_key>\n<arg_value>") for kind in TYPES), "</arg_value>\n"
        ),
    ),
    "LFM2": ToolForm(
        (Slot.NAME, "(", Slot.ARGUMENTS, ")"),
        opens="<|tool_call_start|>[",
        closes="]<|tool_call_end|>",
        between=", ",
        parameters=ParameterForm("", tuple((kind, "=") for kind in TYPES), "", ", ", "'", "python"),
    ),
}
NOTE = "It is 18 degrees,\nand 2 + 3 is 5."
DONE = "All noted."


def weather(city: str) -> str:
    return f"18 degrees in {city}"


def add(a: int, b: int) -> str:
    return str(a + b)


def note(text: str, tags: list[str]) -> str:
    return f"noted {len(text)} characters under {', '.join(tags)}"


FUNCTIONS: dict[str, Callable[..., str]] = {"weather": weather, "add": add, "note": note}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {"city": {"type": "string"}},
    "add": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "note": {"text": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": [*properties]},
        },
    }
    for name, properties in SCHEMAS.items()
]


class Model:
    """Answers over HTTP as the daemon does, in three scripted turns, two characters a token."""

    def __init__(self, form: ToolForm) -> None:
        self._info = ModelInfo("m", "llama", "Q8_0", 1, 1, 4096, 4096, 100, 8, None, "<s>", "</s>", tool_form=form)
        first = [
            ToolCall("firstid01", "weather", '{"city": "Paris"}'),
            ToolCall("firstid02", "add", '{"a": 2, "b": 3}'),
        ]
        second = [ToolCall("secondid1", "note", json.dumps({"text": NOTE, "tags": ["weather", "sums"]}))]
        self._answers = iter(["I look.\n" + written(form, first), written(form, second), DONE])
        self.prompts: list[tuple[ChatTurn, ...]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = ChatBody(
            RequestLimits(max_prompt_bytes=10_000),
            None,
            lambda _name: self._info,
            f"chatcmpl-{len(self.prompts)}",
            1700000000,
        )
        [asked] = body.receive(request.read())
        assert isinstance(asked.prompt, tuple)
        self.prompts.append(asked.prompt)
        chunks = [chunk for output in self._outputs() for chunk in body.send(0, output)]
        if body.streaming:
            events = b"".join(body.frame(chunk) for chunk in [*chunks, SSE_DONE])
            return httpx.Response(200, headers={"content-type": body.stream_type}, content=events)
        return httpx.Response(200, headers={"content-type": "application/json"}, content=body.result())

    def _outputs(self) -> Iterator[Started | Token | Finished]:
        text = next(self._answers)
        yield Started()
        yield from (Token(text[at : at + 2], 1) for at in range(0, len(text), 2))
        yield Finished(FinishReason.STOP, Usage(1, len(text)))


def whole_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    [choice] = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices  # type: ignore[call-overload]
    assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)
    return dict(choice.message.model_dump(exclude_none=True))


def streamed_turn(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    content, calls = "", dict[int, dict[str, Any]]()
    for chunk in client.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True):  # type: ignore[call-overload]
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or ():
            if piece.id is not None:
                function = {"name": piece.function.name, "arguments": ""}
                calls[piece.index] = {"id": piece.id, "type": "function", "function": function}
            calls[piece.index]["function"]["arguments"] += piece.function.arguments
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return message | ({"tool_calls": list(calls.values())} if calls else {})


@pytest.mark.parametrize("turn", [whole_turn, streamed_turn])
@pytest.mark.parametrize("name", FORMS)
def test_an_agent_calls_its_tools_and_gets_an_answer(name: str, turn: Callable[..., dict[str, Any]]) -> None:
    model = Model(FORMS[name])
    http = httpx.Client(transport=httpx.MockTransport(model.handle))
    client = openai.OpenAI(base_url="http://umaserve/v1", api_key="none", http_client=http, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "Weather, a sum, and a note of both, please."}]
    called: list[str] = []
    while (message := turn(client, messages)).get("tool_calls"):
        messages.append(message)
        for call in message["tool_calls"]:
            function = call["function"]
            called.append(function["name"])
            result = FUNCTIONS[function["name"]](**json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert message["content"] == DONE
    assert called == ["weather", "add", "note"]
    assert messages[1]["content"] == "I look.\n"
    last = model.prompts[-1]
    assert [turn.content for turn in last if turn.role == "tool"] == [
        "18 degrees in Paris",
        "5",
        f"noted {len(NOTE)} characters under weather, sums",
    ]
    ids = [call.id for turn in last for call in turn.tool_calls]
    assert ids == [turn.tool_call_id for turn in last if turn.role == "tool"]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    assert len(set(ids)) == 3
