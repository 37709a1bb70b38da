"""Answers in which the daemon calls tools of MCP servers: what the model is told, and what the client gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routes import MODEL_INFO, facts

from umaserve.core.events import Finished, FinishReason, Output, Token, Usage
from umaserve.core.requests import ChatTurn, Generate
from umaserve.core.server_tools import CallResult, ServerCall, ServerTool
from umaserve.dialects import tool_rounds
from umaserve.dialects.http import CallingBody
from umaserve.dialects.openai.completions import ChatBody
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.responses.body import ResponseBody

SCHEMA = '{"type":"object","properties":{"word":{"type":"string"}}}'
LOOK_UP = ServerTool("look.up", "Looks a word up.", SCHEMA, read_only=True)
FACTS = replace(
    facts(),
    limits=RequestLimits(max_prompt_bytes=2000),
    model=lambda _name: MODEL_INFO,
    new_id=lambda prefix: f"{prefix}7",
    now=lambda: 5,
    server_tools=lambda _name, _field: [LOOK_UP],
)
SERVER = {"type": "mcp", "server_label": "box"}
OWN = {"name": "own", "parameters": {"type": "object"}}
USAGE = Usage(prompt_tokens=10, completion_tokens=4, prefix_reused_tokens=6)
FERRY = ServerCall("box", "look.up", '{"word": "ferry"}')
A_BOAT = CallResult("a boat", failed=False)


def written(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL, OWN_CALL = written("box__look_up", FERRY.arguments), written("own", "{}")


class Api:
    """One request of an API, and all of its reply."""

    def __init__(self, body: CallingBody, asked: dict[str, Any]) -> None:
        self.body = body
        (self.request,) = body.receive(json.dumps(asked).encode())
        self.sent = b""

    def says(self, *texts: str, reason: FinishReason = FinishReason.STOP) -> list[ServerCall]:
        """The calls that the daemon is to make after what the model writes."""
        outputs: list[Output] = [*(Token(text, 1) for text in texts), Finished(reason, USAGE)]
        for output in outputs:
            self._send(self.body.send(0, output))
        return [*self.body.take_calls().values()]

    def returns(self, *results: CallResult) -> Generate | None:
        """The request that follows the results of all calls; ``None``: none does."""
        for number, result in zip(self.body.take_calls(), results, strict=True):
            self._send(self.body.called(number, result))
        return None if self.body.done else self.body.next_request()

    def _send(self, events: list[bytes]) -> None:
        self.sent += b"".join(map(self.body.frame, events))

    @property
    def result(self) -> Any:
        return json.loads(self.body.result())


def chat(**wanted: Any) -> Api:
    tools = [SERVER, {"type": "function", "function": OWN}]
    body = ChatBody(FACTS.limits, None, FACTS.model, "chatcmpl-7", 5, FACTS.server_tools)
    return Api(body, {"messages": [{"role": "user", "content": "hi"}], "tools": tools, **wanted})


def response(**wanted: Any) -> Api:
    tools = [{**SERVER, "require_approval": "never"}, {"type": "function", **OWN}]
    return Api(ResponseBody(FACTS), {"input": "hi", "tools": tools, **wanted})


APIS = pytest.mark.parametrize("api", [chat, response])


def turns(request: Generate | None) -> Sequence[ChatTurn]:
    assert request is not None
    assert isinstance(request.prompt, tuple)
    return request.prompt


@APIS
def test_the_model_is_offered_the_tools_and_told_the_results(api: Any) -> None:
    one = api(temperature=0, tool_choice="required")
    assert {tool.name for tool in one.request.tools} == {"box__look_up", "own"}
    assert one.says("Well. ", CALL) == [FERRY]
    follows = one.returns(A_BOAT)
    asked, said, told = turns(follows)
    assert (asked.role, asked.content) == ("user", "hi")
    (call,) = said.tool_calls
    assert (said.content.strip(), call.name, call.arguments) == ("Well.", "box__look_up", FERRY.arguments)
    assert (told.role, told.content, told.tool_call_id) == ("tool", "a boat", call.id)
    assert (one.request.must_call, follows.must_call) == (True, False), "it may answer now"
    assert one.says("It is a boat.") == []
    assert one.body.done


@APIS
def test_tokens_of_all_parts_count(api: Any) -> None:
    one = api()
    one.says(CALL)
    one.returns(A_BOAT)
    one.says("It is.")
    usage = one.result["usage"]
    assert usage["total_tokens"] == 28
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    assert details["cached_tokens"] == 12


def test_an_answer_has_no_more_tokens_than_wanted_in_all() -> None:
    for one in (chat(max_tokens=7), response(max_output_tokens=7)):
        one.says(CALL)
        follows = one.returns(A_BOAT)
        assert follows is not None
        assert (one.request.max_tokens, follows.max_tokens) == (7, 3)


@APIS
def test_several_calls_in_one_turn(api: Any) -> None:
    one = api()
    other = ServerCall("box", "look.up", '{"word": "sea"}')
    assert one.says(CALL, written("box__look_up", other.arguments)) == [FERRY, other]
    told = [
        turn.content for turn in turns(one.returns(A_BOAT, CallResult("water", failed=True))) if turn.role == "tool"
    ]
    assert told == ["a boat", "water"]


@APIS
def test_after_so_many_calls_the_model_has_no_more_such_tools(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_rounds, "MAX_CALLS", 2)
    one = api()
    one.says(CALL)
    assert {tool.name for tool in one.returns(A_BOAT).tools} == {"box__look_up", "own"}
    assert one.says(CALL, CALL, CALL) == [FERRY], "the others are refused"
    follows = one.returns(A_BOAT)
    assert {tool.name for tool in follows.tools} == {"own"}
    told = [turn.content for turn in turns(follows) if turn.role == "tool"]
    assert told[-2:] == ["The call was not made: no more calls are allowed."] * 2


@APIS
def test_a_call_that_is_cut_is_not_made(api: Any) -> None:
    one = api()
    assert one.says(CALL[:-20], reason=FinishReason.LENGTH) == []
    assert one.body.done


@APIS
def test_an_answer_that_is_cut_after_a_call_ends(api: Any) -> None:
    one = api()
    assert one.says(CALL, "and", reason=FinishReason.LENGTH) == []
    assert one.body.done
    if api is response:
        assert [item.get("status") for item in one.result["output"]] == [None, "incomplete", "incomplete"]


def test_a_chat_with_a_call_of_the_clients_ends_there() -> None:
    one = chat()
    assert one.says(CALL, OWN_CALL) == []
    (choice,) = one.result["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["own"]


def test_a_response_with_a_call_of_the_clients_ends_with_the_results() -> None:
    one = response()
    assert one.says(CALL, OWN_CALL) == [FERRY]
    assert one.returns(A_BOAT) is None
    output = one.result["output"]
    assert [item["type"] for item in output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert (output[1]["output"], output[1]["status"], one.result["status"]) == ("a boat", "completed", "completed")


def test_what_a_client_sends_back_is_what_the_model_was_told() -> None:
    one = response()
    one.says("Well. ", CALL)
    follows = turns(one.returns(CallResult("no boat", failed=True)))
    one.says("Done.")
    again = response(input=[{"role": "user", "content": "hi"}, *one.result["output"]])
    whole = turns(again.request)
    assert [(turn.role, turn.content, turn.tool_calls) for turn in whole[:-1]] == [
        (turn.role, turn.content, turn.tool_calls) for turn in follows
    ]
    assert (whole[-1].role, whole[-1].content) == ("assistant", "Done.")
    assert again.result is not None


@given(st.data())
def test_a_stream_says_the_same_however_the_text_is_split(data: st.DataObject) -> None:
    text = f"Well. {CALL}{OWN_CALL}"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for api in (chat, response):
        whole, split = api(stream=True), api(stream=True)
        assert whole.says(text) == split.says(*pieces)
        if api is response:
            whole.returns(A_BOAT)
            split.returns(A_BOAT)
        assert said(whole) == said(split)


def said(one: Api) -> list[Any]:
    """What a client makes of the events of a stream."""
    events = [
        json.loads(line.removeprefix("data: ")) for line in one.sent.decode().splitlines() if line.startswith("data: {")
    ]
    if "choices" not in events[0]:
        return list(events[-1]["response"]["output"])
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    return [text, arguments, [call["function"]["name"] for call in calls if "id" in call]]
