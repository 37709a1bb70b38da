"""OpenAI's Responses API: what each field may be, in which words it is refused, and what comes back."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import NOT_GIVEN
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter
from routes import facts

from tests.support.routes import MODEL_INFO
from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Logprobs,
    Placed,
    Prefilled,
    Prefilling,
    Scored,
    Started,
    Timing,
    Token,
    Usage,
    Waiting,
)
from umaserve.core.requests import (
    Attachment,
    Audio,
    ChatTurn,
    Generate,
    Grammar,
    Image,
    Priority,
    Syntax,
    Tool,
    ToolCall,
)
from umaserve.dialects.facts import Facts
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.openai.errors import error_body, error_fields
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.responses import pages
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.items import sealed
from umaserve.dialects.responses.keeping import RELAY_HEADER, relay_fields
from umaserve.dialects.responses.kept import MAX_AGE_S, MAX_BYTES, AllKept, StoredResponse
from umaserve.dialects.skipped_tools import log_ignored
from umaserve.dialects.timings import timings
from umaserve.wire.http_head import Request

# A busy machine is no fault of the code.

FACTS = replace(
    facts(),
    limits=RequestLimits(max_prompt_bytes=2000),
    model=lambda _name: MODEL_INFO,
    new_id=lambda prefix: f"{prefix}7",
    now=lambda: 5,
)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
F_TOOL = {"type": "function", "name": "f", "description": "does f", "parameters": SCHEMA, "strict": True}
TOOLS = [F_TOOL, {"type": "function", "name": "g"}]
PATCH = {"type": "custom", "name": "patch", "description": "edits"}
F = Tool("f", "does f", SCHEMA_TEXT, strict=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
PATCH_CALL = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'
PNG = "data:image/png;base64,QUJD"
ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseItem])
EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""The models of OpenAI's own client, by the events' types."""


def body(**wanted: Any) -> bytes:
    return json.dumps({"model": "any", "input": "hi", **wanted}).encode()


def request(**wanted: Any) -> Generate:
    [asked] = ResponseBody(FACTS).receive(body(**wanted))
    return asked


def turns(*items: Any, **wanted: Any) -> Sequence[ChatTurn]:
    prompt = request(input=list(items), **wanted).prompt
    assert isinstance(prompt, tuple)
    return prompt


def refused(**wanted: Any) -> str:
    with pytest.raises(RequestError) as raised:
        ResponseBody(FACTS).receive(body(**wanted))
    assert raised.value.fault in (Fault.BAD_REQUEST, Fault.PROMPT_TOO_LARGE)
    return raised.value.message


def reply(outputs: Sequence[Any], **wanted: Any) -> dict[str, Any]:
    """The whole answer to a request."""
    one = ResponseBody(FACTS)
    one.receive(body(**wanted))
    for output in outputs:
        assert one.send(0, output) == []
    assert one.done
    whole = json.loads(one.result())
    Response.model_validate_json(one.result(), strict=True)
    return whole


def read(framed: bytes) -> list[dict[str, Any]]:
    """The events in a part of a stream."""
    events = []
    for one in framed.decode().split("\n\n")[:-1]:
        name, data = one.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def events(outputs: Sequence[Any], **wanted: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, in their order."""
    one = ResponseBody(FACTS)
    one.receive(body(stream=True, **wanted))
    framed = [one.frame(data) for output in outputs for data in one.send(0, output)]
    assert one.done
    assert one.end is None
    return read(b"".join(framed))


def answer(*tokens: Token | str, reason: FinishReason = FinishReason.STOP) -> list[Any]:
    said = [Token(token, 5) if isinstance(token, str) else token for token in tokens]
    return [Started(), Waiting(1, 1, None), Placed(), *said, Finished(reason, Usage(9, len(said), 4, 1))]


def thought(text: str) -> Token:
    return Token("", 5, thoughts=text, answer="")


# -- the order of events -----------------------------------------------------------------------------------------


class Order:
    """What may follow what: the stream's state machine. Collects the items as a program does."""

    def __init__(self) -> None:
        self.numbers = 0
        self.state = "new"
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.part: str | None = None
        self.text = ""
        self.final: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        assert event["sequence_number"] == self.numbers
        self.numbers += 1
        kind = event["type"].removeprefix("response.")
        if "output_index" in event:
            assert event["output_index"] == len(self.items)
        if "item_id" in event:
            assert self.open is not None
            assert event["item_id"] == self.open["id"]
        if "content_index" in event:
            assert event["content_index"] == 0
        if kind in ("created", "in_progress", "completed", "incomplete", "failed"):
            self.lifecycle(kind, event["response"])
            return
        assert self.state == "in_progress"
        match kind.split("."):
            case ["output_item", "added"]:
                assert self.open is None
                self.open, self.text = event["item"], ""
                assert self.open["status"] == "in_progress"
            case ["content_part", "added"]:
                assert self.part is None
                self.part = event["part"]["type"]
                assert event["part"]["text"] == ""
            case [told, "delta"]:
                self.about(told)
                assert event["delta"]
                self.text += event["delta"]
            case ["content_part", "done"]:
                assert event["part"]["text"] == self.text
                self.part = None
            case ["output_item", "done"]:
                self.close(event["item"])
            case [told, "done"]:
                self.about(told)
                assert self.text == event[{"function_call_arguments": "arguments"}.get(told, told[-5:].lstrip("_"))]
            case _:
                raise AssertionError(kind)

    def lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        follows = {"created": ("new",), "in_progress": ("created", "in_progress")}
        assert self.state in follows.get(kind, ("in_progress",))
        self.state = kind
        assert response["status"] == ("in_progress" if kind in follows else kind)
        if kind not in follows:
            assert self.open is None or kind == "failed"
            self.final = response
            if kind != "failed":
                assert response["output"] == self.items

    def about(self, told: str) -> None:
        assert self.open is not None
        expected = {
            "output_text": ("message", "output_text"),
            "reasoning_text": ("reasoning", "reasoning_text"),
            "function_call_arguments": ("function_call", None),
            "custom_tool_call_input": ("custom_tool_call", None),
        }
        assert (self.open["type"], self.part) == expected[told]

    def close(self, item: dict[str, Any]) -> None:
        assert self.open is not None
        assert self.part is None
        assert (item["id"], item["type"]) == (self.open["id"], self.open["type"])
        assert item["status"] in ("completed", "incomplete")
        texts = [part["text"] for part in item.get("content", ())]
        assert "".join([*texts, item.get("arguments", ""), item.get("input", "")]) == self.text
        self.items.append(item)
        self.open = None


def ordered(told: Sequence[dict[str, Any]]) -> Order:
    order = Order()
    for event in told:
        order.take(event)
        if event["type"] != "response.failed":
            EVENTS[event["type"]].model_validate_json(json.dumps(event), strict=True)
    return order


PIECES = st.one_of(
    st.text(max_size=4),
    st.sampled_from([CALL, PATCH_CALL, CALL[:30], PATCH_CALL[:60], "<tool_call>", "</tool_call>", '{"x": ', " ", "\n"]),
    st.text(min_size=1, max_size=3).map(thought),
)


@given(
    st.lists(PIECES, max_size=6),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTENT_FILTER]),
)
def test_the_order_of_events_for_any_answer_however_it_is_cut(
    pieces: list[str | Token], size: int, several: bool, reason: FinishReason
):
    cut: list[str | Token] = []
    for piece in pieces:
        whole = isinstance(piece, Token)
        cut += [piece] if whole else [piece[at : at + size] for at in range(0, len(piece), size)]
    wanted = {"tools": [*TOOLS, PATCH], "parallel_tool_calls": several}
    told = events(answer(*cut, reason=reason), **wanted)
    order = ordered(told)
    assert order.state == ("completed" if reason is FinishReason.STOP else "incomplete")
    whole = reply(answer(*cut, reason=reason), **wanted)
    assert {**order.final, "timings": whole["timings"]} == whole
    assert order.items == reply(answer(*pieces, reason=reason), **wanted)["output"]
    assert all(item["status"] == "completed" for item in order.items[:-1] if item["type"] in ("message", "reasoning"))
    for item in order.items:
        if item["type"] == "function_call" and item["status"] == "completed":
            assert json.loads(item["arguments"]) == {"x": 1}
    # OpenAI's own client takes it.
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=NOT_GIVEN, text_format=NOT_GIVEN)
    for event in told:
        state.handle_event(EVENTS[event["type"]].model_validate(event))


def test_a_stream():
    told = events(answer("Hel", "lo"))
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    final = ordered(told).final
    assert (final["id"], final["status"], final["model"], final["completed_at"]) == (
        "resp_7",
        "completed",
        "small-1",
        5,
    )
    assert final["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 11,
    }
    assert told[0]["response"]["usage"] is None
    assert told[0]["response"].keys() == final.keys()
    whole = reply(answer("Hello"))
    assert final == {key: whole[key] for key in final} | {"usage": final["usage"]}
    assert whole.keys() - final.keys() == {"timings"}


def test_a_stream_in_which_nothing_comes_says_that_it_goes_on():
    one = ResponseBody(replace(FACTS, model=lambda _name: None))
    one.receive(body(stream=True, model="some"))
    told = read(one.ping() + one.ping())
    assert [event["type"] for event in told] == ["response.created"] + ["response.in_progress"] * 3
    assert told[-1]["response"]["model"] == "some"
    assert ordered(told).numbers == 4


def test_thoughts_come_as_items_of_their_own():
    said = Token("c", 5, answer="c")
    told = events(answer(thought("a"), thought("b"), said), include=["reasoning.encrypted_content"])
    thoughts, message = ordered(told).items
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "ab"}]
    assert thoughts["encrypted_content"] == sealed("ab")
    assert message["content"][0]["text"] == "c"
    [plain, _] = reply(answer(thought("ab"), said))["output"]
    assert "encrypted_content" not in plain


def test_calls():
    told = events(answer("I look.", CALL, PATCH_CALL), tools=[*TOOLS, PATCH])
    message, call, patch = ordered(told).items
    assert message["content"][0]["text"] == "I look."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"x": 1}')
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a\nb")
    assert len({call["call_id"], patch["call_id"], call["id"], patch["id"]}) == 4


@given(st.text(), st.booleans(), st.lists(st.integers(0, 99)), st.booleans())
def test_a_custom_tools_input_comes_as_it_is_while_it_is_written(
    text: str, ascii: bool, cuts: list[int], cut_off: bool
):
    call = PATCH_CALL.replace('"a\\nb"', json.dumps(text, ensure_ascii=ascii))
    call = call[:-15] if cut_off else call
    places = sorted({0, *cuts})
    told = ordered(
        events(answer(*(call[i:j] for i, j in zip(places, [*places[1:], None], strict=True))), tools=[PATCH])
    )
    item = told.items[0]
    assert (item["type"], item["input"]) == ("custom_tool_call", text)
    assert item["status"] == ("incomplete" if cut_off else "completed")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ('{"input": "a\\nb\\"\\\\"}', ["a", "\n", "b", '"', "\\"]),
        ('{ "input" :"\\ud83e\\udd99\\u0001"}', ["🦙", "\x01"]),
        ('{"input": ""}', []),
        ('{"text": "a"}', ['{"text": "a"}']),
        ('{"input": 1}', ['{"input": 1}']),
    ],
)
def test_a_custom_tools_input_comes_in_parts(arguments: str, parts: list[str]):
    call = PATCH_CALL.replace('{"input": "a\\nb"}', arguments)
    told = events(answer(*call), tools=[PATCH])
    assert [event["delta"] for event in told if event["type"] == "response.custom_tool_call_input.delta"] == parts
    assert ordered(told).items[0]["input"] == "".join(parts)


@pytest.mark.parametrize("rest", ['\\q"}', '\\ud83eb"}', "\\u00", ""])
def test_a_custom_tools_input_that_is_no_text_ends_before_that(rest: str):
    begun = PATCH_CALL.partition("\\n")[0]
    told = ordered(events(answer(begun, rest), tools=[PATCH]))
    assert (told.items[0]["input"], told.items[0]["status"]) == ("a", "incomplete")


def test_a_call_in_a_namespace_comes_back_with_both_names():
    space = {"type": "namespace", "name": "mcp__disk", "description": "", "tools": [F_TOOL]}
    assert [tool.name for tool in request(tools=[space, F_TOOL]).tools] == ["mcp__disk__f", "f"]
    [call] = reply(answer(CALL.replace('"f"', '"mcp__disk__f"')), tools=[space])["output"]
    assert (call["name"], call["namespace"]) == ("f", "mcp__disk")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
    [said, _result] = turns(call, output)
    assert said.tool_calls[0].name == "mcp__disk__f"


def test_a_call_that_is_cut_short_is_told_as_such():
    [call] = reply(answer(CALL[:45], reason=FinishReason.LENGTH), tools=TOOLS)["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"x": ')
    [said] = turns(call)
    assert [one.arguments for one in said.tool_calls] == ['{"x": ']


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        (FinishReason.LENGTH, "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.CONTENT_FILTER, "incomplete", {"reason": "content_filter"}),
        (FinishReason.CANCELLED, "cancelled", None),
    ],
)
def test_ends(reason: FinishReason, status: str, details: Any):
    whole = reply(answer("a", reason=reason))
    assert (whole["status"], whole["incomplete_details"], whole["output"][0]["status"]) == (
        status,
        details,
        "incomplete",
    )
    assert events(answer("a", reason=reason))[-1]["type"] == "response.incomplete"


def test_nothing_said_is_an_empty_message():
    [message] = reply(answer())["output"]
    assert (message["type"], message["content"][0]["text"]) == ("message", "")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ContextExceeded(9, 8), "context_length_exceeded", "prompt: expected at most 7 tokens"),
        (
            RequestError(Fault.RATE_LIMITED, "request", "too many", retry_after_s=1.2),
            "rate_limit_exceeded",
            "again in 2s",
        ),
        (RequestError(Fault.BAD_REQUEST, "tools", "too deep"), "invalid_prompt", "tools: too deep"),
        (RequestError(Fault.TIMED_OUT, "request", "too slow"), "server_error", "too slow"),
    ],
)
def test_failures(error: RequestError, code: str, message: str):
    one = ResponseBody(FACTS)
    one.receive(body(stream=True))
    framed = [one.frame(data) for output in answer("a")[:-1] for data in one.send(0, output)]
    told = read(b"".join([*framed, *map(one.frame, one.fail(0, error))]))
    final = ordered(told).final
    assert (final["status"], final["error"]["code"]) == ("failed", code)
    assert message in final["error"]["message"]
    assert one.done


def test_an_error_before_the_stream_names_its_field():
    error = RequestError(Fault.BAD_REQUEST, "input", "expected more")
    status, content, _ = ResponseBody(FACTS).error(error)
    assert (status, json.loads(content)["error"]["param"]) == (400, "input")


def test_log_probabilities():
    scores = Logprobs(Scored(1, b"a", -0.5), (Scored(1, b"a", -0.5), Scored(2, b"b", -1.0)))
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    assert request(**wanted).logprobs == 2
    assert request(top_logprobs=2).logprobs is None
    told = events(answer(Token("a", 1, scores)), **wanted)
    [message] = ordered(told).items
    [one] = message["content"][0]["logprobs"]
    assert (one["token"], one["logprob"], len(one["top_logprobs"])) == ("a", -0.5, 2)


# -- requests ----------------------------------------------------------------------------------------------------


def test_a_plain_request():
    asked = request()
    assert asked == Generate(
        "resp_7", (ChatTurn("user", "hi"),), None, asked.sampling, splits_thoughts=True, model="any"
    )
    assert (asked.sampling.temperature, asked.sampling.top_p) == (1.0, 1.0)


def test_all_fields():
    wanted = {
        "instructions": "Be brief.",
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "text"}},
        "metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "truncation": "auto",
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "max_tool_calls": 3,
        "priority": "background",
        "slo": {"target_tbt_ms": 100},
        "client_metadata": {},
    }
    asked = request(**wanted)
    assert asked.prompt == (ChatTurn("system", "Be brief."), ChatTurn("user", "hi"))
    assert (asked.max_tokens, asked.sampling.temperature, asked.sampling.top_p) == (7, 0.5, 0.9)
    assert asked.chat_template_kwargs == {"reasoning_effort": "low"}
    assert (asked.priority, asked.target_tbt_s) == (Priority.BACKGROUND, 0.1)
    shown = reply(answer("a"), **wanted)
    same = ("instructions", "max_output_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty")
    same += ("metadata", "prompt_cache_key", "user", "text")
    assert {key: shown[key] for key in same} == {key: wanted[key] for key in same}
    assert shown["truncation"] == "disabled"
    assert request(reasoning={"effort": "none"}).enable_thinking is False


def test_formats():
    wanted = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    grammar = request(text={"format": wanted}).sampling.grammar
    assert grammar == Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "")
    assert grammar.field == "text.format.schema"
    assert reply(answer("{}"), text={"format": wanted})["text"] == {"format": wanted}
    assert request(text={"format": {"type": "json_object"}}).sampling.grammar is not None
    assert refused(text={"format": {"type": "json_schema"}}) == "text.format.schema: expected an object, got null"
    both = refused(text={"format": wanted}, regex="a")
    assert both == "text.format.schema: expected to be absent where regex is given, got both"
    assert request(text={"format": wanted}, tools=TOOLS, tool_choice="required").sampling.grammar is None


def test_a_conversation_of_all_items():
    items = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "d\n"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "f"}]},
        {"type": "function_call_output", "call_id": "1", "output": "e"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "g"},
    ]
    calls = (ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "patch", '{"input":"d\\n"}'))
    assert turns(*items, instructions="You help.") == (
        ChatTurn("system", "You help.\n\nBe brief."),
        ChatTurn("user", "a\nb"),
        ChatTurn("assistant", "c", tool_calls=calls, thoughts="hm"),
        ChatTurn("tool", "e", tool_call_id="1"),
        ChatTurn("tool", "f", tool_call_id="2"),
        ChatTurn("assistant", "no"),
        ChatTurn("user", "g"),
    )


@pytest.mark.parametrize(
    ("item", "thoughts"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": "x"}, "a"),
        ({"summary": [], "encrypted_content": sealed("é")}, "é"),
        ({"summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAA=="}, "s"),
    ],
)
def test_thoughts_that_come_back(item: dict[str, Any], thoughts: str):
    said = {"role": "assistant", "content": "b"}
    assert turns({"type": "reasoning", **item}, said) == (ChatTurn("assistant", "b", thoughts=thoughts),)


def test_thoughts_that_only_another_service_can_read_are_left_out():
    said = {"role": "assistant", "content": "b"}
    theirs = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert turns(theirs, said) == (ChatTurn("assistant", "b"),)


def test_media():
    image = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    [turn] = turns({"role": "user", "content": [{"type": "input_text", "text": "a"}, image, sound]})
    assert turn.attachments == (
        Attachment(1, Image("QUJD", "input[0].content[1].image_url")),
        Attachment(1, Audio("QUJD", "input[0].content[2].input_audio.data")),
    )
    [_call, result] = turns(
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [image]},
    )
    assert len(result.attachments) == 1
    url = {"type": "input_image", "image_url": "https://a.example/b.png"}
    assert refused(input=[{"role": "user", "content": [url]}]).startswith("input[0].content[0].image_url: expected")


def test_a_large_image_is_not_copied():
    image = {"type": "input_image", "image_url": PNG[:-4] + "QUJD" * (1 << 18)}
    [turn] = turns({"role": "user", "content": [image]})
    assert isinstance(turn.attachments[0].media.data, memoryview)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"input": None}, "input: expected a string or an array of items, got null"),
        ({"input": []}, "input: expected an array of 1 to 4096 items, got 0"),
        ({"input": ["a"]}, "input[0]: expected an object, got a string"),
        ({"input": "a" * 2001}, "input: expected at most 2000 bytes, got 2001"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt: expected to be absent: "),
        ({"truncation": "some"}, 'truncation: expected "auto" or "disabled", got "some"'),
        ({"reasoning": {"effort": "some"}}, 'reasoning.effort: expected "none" or '),
        ({"text": {"format": {"type": "xml"}}}, 'text.format.type: expected "text" or '),
        ({"metadata": {"a": 1}}, "metadata.a: expected a string of at most 512 bytes, got a whole number"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata: expected at most 16 pairs, got 17"),
        ({"max_output_tokens": 0}, "max_output_tokens: expected a whole number from 1, got 0"),
        ({"include": [5]}, "include[0]: expected a non-empty string of at most 256 bytes, got a whole number"),
        ({"top_logprobs": 21}, "top_logprobs: expected a whole number from 0 to 20, got 21"),
        ({"tool_choice": "required"}, 'tool_choice: expected "auto", "none" or null, since tools is empty'),
        ({"tool_choice": "some"}, 'tool_choice: expected "none" or "auto" or "required", got "some"'),
        ({"tools": [{}]}, "tools[0].type: expected a non-empty string of at most 64 bytes, got null"),
        ({"tools": [{"type": "function"}]}, "tools[0].name: expected 1 to 128 letters, digits, _ or -, got null"),
        ({"tools": [F_TOOL, F_TOOL]}, 'tools[1].name: expected a name that no other tool has, got "f"'),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools: expected an array of 0 to 256 tools"),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"a": "b" * MAX_SCHEMA_BYTES}}]},
            "tools[0].parameters: expected an object of at most 262144 bytes",
        ),
        (
            {"tools": [{"type": "function", "name": "f", "description": "b" * 2000}]},
            "tools: expected at most 2000 bytes, got 2034",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "h"}},
            'tool_choice.name: expected the name of one of the tools, got "h"',
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "web_search"}},
            'tool_choice.type: expected "function" or "custom" or "mcp" or "allowed_tools", got "web_search"',
        ),
    ],
)
def test_refusals(wanted: dict[str, Any], message: str):
    assert refused(**wanted).startswith(message)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "item_reference", "id": "msg_1"}, 'type: expected "message" or '),
        ({"role": "tool", "content": "a"}, 'role: expected "system" or '),
        ({"role": "user", "content": 5}, "content: expected a string or an array of parts, got a whole number"),
        ({"role": "user", "content": []}, "content: expected an array of 1 to 256 parts, got 0"),
        ({"role": "user", "content": [{"type": "input_file"}]}, 'content[0].type: expected "input_text" or '),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text: expected a string, got null"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "content[0].refusal: expected a string, got null"),
        ({"type": "function_call", "call_id": "1", "arguments": "{}"}, "name: expected a non-empty string"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id: expected a non-empty string"),
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": 5}, "arguments: expected a string, got"),
        ({"type": "function_call_output", "call_id": "1"}, "output: expected a string or an array of parts, got null"),
        (
            {"type": "function_call_output", "call_id": "1", "output": "a"},
            "call_id: expected the call_id of a call before",
        ),
        ({"type": "custom_tool_call", "call_id": "1", "name": "f"}, "input: expected a string, got null"),
        ({"type": "reasoning", "content": [{"type": "a"}]}, 'content[0].type: expected "reasoning_text" or '),
        ({"type": "reasoning", "encrypted_content": 5}, "encrypted_content: expected a string, got a whole number"),
    ],
)
def test_refused_items(item: dict[str, Any], message: str):
    assert refused(input=[item]).startswith(f"input[0].{message}")


# -- timings, as llama-server has them ---------------------------------------------------------------------------


def test_the_end_has_the_timings():
    outputs = [*answer("a", "b")[:-1], Finished(FinishReason.STOP, Usage(9, 2, 4), Timing(0.1, 0.6, 1.1))]
    wanted = timings(outputs[-1].usage, outputs[-1].timing)
    assert reply(outputs)["timings"] == wanted
    told = events(outputs)
    assert [event.get("timings") for event in told] == [*[None] * (len(told) - 1), wanted]


def test_parts_have_timings_and_the_prompt_its_progress():
    outputs = [
        *(Placed(), Prefilling(9, 4, 6, 0.2), Prefilled(9, 4, 0.1)),
        *(Token("a", 5, elapsed_s=0.6), Token("b", 5, elapsed_s=1.1)),
        Finished(FinishReason.STOP, Usage(9, 2, 4), Timing(0.1, 0.6, 1.1)),
    ]
    told = events(outputs, timings_per_token=True, return_progress=True)
    part, first, second = [event for event in told[2:-1] if "timings" in event]
    assert (part["type"], part["response"]["output"]) == ("response.in_progress", [])
    assert part["prompt_progress"] == {"total": 9, "cache": 4, "processed": 6, "time_ms": 200}
    assert (part["timings"]["prompt_n"], part["timings"]["predicted_n"]) == (2, 0)
    assert {first["type"], second["type"]} == {"response.output_text.delta"}
    assert first["timings"] == timings(Usage(9, 1, 4), Timing(0.1, 0.6, 0.6))
    assert second["timings"] == told[-1]["timings"] == timings(Usage(9, 2, 4), Timing(0.1, 0.6, 1.1))
    assert not any("prompt_progress" in event for event in events(outputs, timings_per_token=True))
    assert request(return_progress=True, stream=True).wants_progress
    assert not request(return_progress=True).wants_progress


# -- responses that are kept -------------------------------------------------------------------------------------


def keeping(tenant: str = "ann", all_kept: AllKept | None = None) -> Facts:
    """Facts with numbered ids, for a tenant of its own."""
    numbers = itertools.count(1)
    kept = (all_kept or AllKept(lambda: 0.0)).of(tenant)
    return replace(FACTS, new_id=lambda prefix: f"{prefix}{next(numbers)}", kept=kept)


def respond(known: Facts, *said: Token | str, **wanted: Any) -> dict[str, Any]:
    one = ResponseBody(known)
    one.receive(body(**wanted))
    for output in answer(*said):
        one.send(0, output)
    whole: dict[str, Any] = json.loads(one.result())
    return whole


def page(known: Facts, make: Any, response_id: str, tail: str = "", **query: str) -> Any:
    status, _type, content = make(known.kept, Request("GET", f"{pages.PATH}/{response_id}{tail}", query, (), b""))
    assert status == 200
    return json.loads(content)


def test_a_response_is_kept_and_forgotten():
    known = keeping()
    whole = respond(known, "a")
    assert (whole["id"], whole["store"]) == ("resp_1", True)
    assert page(known, pages.retrieve, "resp_1") == whole
    assert page(known, pages.delete, "resp_1") == {"id": "resp_1", "object": "response", "deleted": True}
    with pytest.raises(RequestError, match=r"^response_id: expected the id of a response of the last 60 minutes"):
        pages.retrieve(known.kept, Request("GET", f"{pages.PATH}/resp_1", {}, (), b""))
    assert respond(known, "a", store=False)["store"] is False
    with pytest.raises(RequestError) as raised:
        pages.retrieve(known.kept, Request("GET", f"{pages.PATH}/resp_2", {}, (), b""))
    assert raised.value.fault is Fault.NOT_FOUND


def test_another_tenants_response_is_not_there():
    all_kept = AllKept(lambda: 0.0)
    respond(keeping("ann", all_kept), "a")
    with pytest.raises(RequestError) as raised:
        respond(keeping("bob", all_kept), "a", previous_response_id="resp_1")
    assert error_fields(raised.value)["code"] == "previous_response_not_found"
    assert error_body(raised.value).status == 400


def test_a_response_follows_another():
    known = keeping()
    first = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG}]}
    ]
    made = respond(known, thought("hm"), CALL, instructions="Be brief.", input=first, tools=TOOLS)
    one = ResponseBody(known)
    call_id = made["output"][1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "b"}
    [asked] = one.receive(body(input=[output], previous_response_id="resp_1"))
    user, called, told = asked.prompt
    assert (user.content, len(user.attachments)) == ("a", 1)
    assert (called.thoughts, called.tool_calls[0].arguments) == ("hm", '{"x": 1}')
    assert told == ChatTurn("tool", "b", tool_call_id=call_id)
    for token in answer("c"):
        one.send(0, token)
    assert json.loads(one.result())["previous_response_id"] == "resp_1"
    [asked] = ResponseBody(known).receive(body(previous_response_id="resp_2"))
    assert asked.prompt == (user, called, told, ChatTurn("assistant", "c"), ChatTurn("user", "hi"))


def test_the_items_before_a_response_are_listed():
    known = keeping()
    respond(known, "a", input=[{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
    respond(known, "b", input="z", previous_response_id="resp_1")
    listed = page(known, pages.input_items, "resp_2", "/input_items")
    ITEMS.validate_python(listed["data"])
    texts = [item["content"][0]["text"] for item in listed["data"]]
    assert (texts, listed["has_more"]) == (["z", "a", "y", "x"], False)
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], len(set(ids))) == (ids[0], ids[-1], 4)
    some = page(known, pages.input_items, "resp_2", "/input_items", order="asc", limit="2", after=ids[3])
    assert ([item["id"] for item in some["data"]], some["has_more"]) == ([ids[2], ids[1]], True)
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "item_0"}):
        with pytest.raises(RequestError, match=f"^{next(iter(wrong))}: expected "):
            page(known, pages.input_items, "resp_2", "/input_items", **wrong)


def test_a_response_in_the_background():
    known, ended = keeping(), list[str]()
    one = ResponseBody(known)
    [asked] = one.receive(body(background=True))
    assert (one.background, asked.priority) == (True, Priority.BACKGROUND)
    one.go_on(lambda: ended.append("it"))
    assert page(known, pages.retrieve, "resp_1") == json.loads(one.result())
    assert page(known, pages.retrieve, "resp_1")["status"] == "queued"
    one.send(0, Placed())
    assert page(known, pages.retrieve, "resp_1")["status"] == "in_progress"
    with pytest.raises(RequestError, match=r"^previous_response_id: expected a response that has ended"):
        ResponseBody(known).receive(body(previous_response_id="resp_1"))
    one.send(0, Token("a", 1))
    cancelled = page(known, pages.cancel, "resp_1", "/cancel")
    assert (cancelled["status"], ended) == ("cancelled", ["it"])
    assert cancelled["output"][0]["content"][0]["text"] == "a"
    Response.model_validate_json(json.dumps(cancelled), strict=True)
    assert page(known, pages.cancel, "resp_1", "/cancel") == cancelled
    assert ended == ["it"]


def test_a_response_in_the_background_that_is_deleted_ends():
    known, ended = keeping(), list[str]()
    one = ResponseBody(known)
    one.receive(body(background=True))
    one.go_on(lambda: ended.append("it"))
    page(known, pages.delete, "resp_1")
    assert ended == ["it"]
    with pytest.raises(RequestError):
        page(known, pages.retrieve, "resp_1")


def test_a_response_in_the_background_that_fails_says_so():
    known = keeping()
    one = ResponseBody(known)
    one.receive(body(background=True))
    one.go_on(lambda: None)
    one.fail(0, ContextExceeded(9, 8))
    failed = page(known, pages.retrieve, "resp_1")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "context_length_exceeded")


def test_only_a_response_in_the_background_is_cancelled():
    known = keeping()
    respond(known, "a")
    with pytest.raises(RequestError, match=r"^response_id: expected one with background"):
        page(known, pages.cancel, "resp_1", "/cancel")
    with pytest.raises(RequestError, match=r"^stream: expected false"):
        page(known, pages.retrieve, "resp_1", stream="true")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"background": True, "stream": True}, "stream: expected false where background is true"),
        ({"background": True, "store": False}, "store: expected true where background is, got false"),
        ({"previous_response_id": 5}, "previous_response_id: expected a non-empty string"),
    ],
)
def test_refused_ways_to_keep(wanted: dict[str, Any], message: str):
    assert refused(**wanted).startswith(message)


def test_through_a_relay_nothing_is_kept():
    known = replace(keeping(), kept=None)
    assert respond(known, "a")["store"] is False
    for wanted in ({"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "conv_1"}):
        with pytest.raises(RequestError, match=r"this relay stores no responses"):
            ResponseBody(known).receive(body(**wanted))


def test_what_a_relay_keeps_is_as_the_relay_says():
    said = {"store": True, "previous_response_id": "resp_9", "background": False}
    told = relay_fields({RELAY_HEADER: json.dumps(said)})
    known = replace(keeping(), kept=None, kept_by_relay=told)
    assert {key: respond(known, "a")[key] for key in said} == said


@pytest.mark.parametrize("wrong", ["", "{", "[]", '{"store":1}', '{"id":"x"}', '{"previous_response_id":false}'])
def test_what_no_relay_says_is_nothing(wrong: str):
    assert relay_fields({RELAY_HEADER: wrong}) == {} == relay_fields({})


def test_what_is_too_large_to_be_kept_is_not_and_says_so(caplog: pytest.LogCaptureFixture):
    known = keeping()
    image = {"type": "input_image", "image_url": PNG[:-4] + "QUJD" * (MAX_BYTES // 4)}
    large = [{"role": "user", "content": [image]}]
    with caplog.at_level(logging.WARNING):
        assert respond(known, "a", input=large)["store"] is False
    assert "not stored" in caplog.text
    with pytest.raises(RequestError, match=r"^input: expected at most "):
        ResponseBody(known).receive(body(input=large, background=True))


def kept_of(all_kept: AllKept, tenant: str, count: int) -> list[str]:
    """Which of the responses "0", "1" and so on are still there."""

    def there(response_id: str) -> bool:
        try:
            all_kept.of(tenant).responses.get(response_id, "")
        except RequestError:
            return False
        return True

    return [str(number) for number in range(count) if there(str(number))]


def test_a_tenants_bytes_and_those_of_all_are_bounded():
    all_kept = AllKept(lambda: 0.0)
    half = b"x" * (MAX_BYTES // 2 - 10_000)
    for number in range(3):
        all_kept.of("ann").responses.keep(StoredResponse(id=str(number), input=(half,)))
    assert kept_of(all_kept, "ann", 3) == ["1", "2"]
    all_kept.of("ann").responses.drop("1")
    for tenant in ("b", "c", "d", "e"):
        for number in range(2):
            all_kept.of(tenant).responses.keep(StoredResponse(id=str(number), input=(half,)))
    # Who has most gives up its oldest; who has less keeps what it has.
    assert kept_of(all_kept, "ann", 3) == ["2"]
    assert sum(len(kept_of(all_kept, tenant, 2)) for tenant in ("b", "c", "d", "e")) == 7


def test_age_ends_what_is_kept():
    clock = [0.0]
    all_kept, ended = AllKept(lambda: clock[0]), list[str]()
    all_kept.of("ann").responses.keep(StoredResponse(id="0", input=(), cancel=lambda: ended.append("0")))
    clock[0] = MAX_AGE_S - 1
    all_kept.of("ann").responses.keep(StoredResponse(id="1", input=()))
    clock[0] = MAX_AGE_S + 1
    all_kept.expire()
    assert (kept_of(all_kept, "ann", 2), ended) == (["1"], ["0"])


# -- tools -------------------------------------------------------------------------------------------------------


def test_tools():
    asked = request(tools=TOOLS)
    assert asked.tools == (F, Tool("g", "", '{"type":"object","properties":{}}'))
    assert (asked.must_call, asked.parallel_calls) == (False, True)
    assert reply(answer("a"), tools=TOOLS)["tools"][0] == F_TOOL


def test_tools_of_openais_service_are_skipped(caplog: pytest.LogCaptureFixture):
    log_ignored.cache_clear()
    for _ in range(2):
        assert request(tools=[{"type": "web_search"}, F_TOOL, {"type": "mcp", "server_label": "x"}]).tools == (F,)
    assert [line.split("'")[1] for line in caplog.messages] == ["web_search", "mcp"]


@pytest.mark.parametrize(
    ("given", "told", "bound"),
    [
        (None, "edits", None),
        ({"type": "text"}, "edits", None),
        (
            {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
            'edits\n\nIts input is a text that matches this Lark grammar:\nstart: "a"',
            Grammar(Syntax.LARK, 'start: "a"', "tools[0].format.definition"),
        ),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a|b"},
            "edits\n\nIts input is a text that matches this regular expression:\na|b",
            Grammar(Syntax.REGEX, "a|b", "tools[0].format.definition"),
        ),
    ],
)
def test_a_custom_tool_is_a_function_of_one_text(given: Any, told: str, bound: Grammar | None):
    [tool] = request(tools=[{**PATCH, "format": given}]).tools
    assert (tool.name, tool.description, tool.bound) == ("patch", told, bound)
    assert json.loads(tool.parameters)["properties"] == {"input": {"type": "string"}}
    if bound is not None and tool.bound is not None:
        assert tool.bound.field == bound.field


def test_grammars_of_custom_tools_are_limited_with_the_schemas():
    one = {"type": "grammar", "syntax": "lark", "definition": "start: " + '"a" ' * 9000}
    tools = [{**PATCH, "name": f"patch{n}", "format": one} for n in range(2)]
    assert refused(tools=tools).startswith("tools: expected grammars of at most 65536 bytes in all")


@pytest.mark.parametrize(
    ("choice", "names", "must_call"),
    [
        (None, ["f", "g"], False),
        ("auto", ["f", "g"], False),
        ("none", [], False),
        ("required", ["f", "g"], True),
        ({"type": "function", "name": "g"}, ["g"], True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, ["f"], False),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, ["f"], True),
    ],
)
def test_choices(choice: Any, names: list[str], must_call: bool):
    asked = request(tools=TOOLS, tool_choice=choice)
    assert ([tool.name for tool in asked.tools], asked.must_call) == (names, must_call)
    assert asked.parallel_calls is not must_call
    assert reply(answer("a"), tools=TOOLS, tool_choice=choice)["tool_choice"] == (choice or "auto")
