"""Anthropic's Messages API: what each field may be, in which words it is refused, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from routes import facts

from tests.support.routes import MODEL_INFO, listed
from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import Finished, FinishReason, ModelState, Prefilled, Started, Token, Usage, Waiting
from umaserve.core.requests import Attachment, ChatTurn, Generate, Grammar, Image, Priority, Syntax, Tool, ToolCall
from umaserve.dialects.anthropic.errors import error_body, http_error
from umaserve.dialects.anthropic.messages import MessageBody
from umaserve.dialects.anthropic.models import model, models
from umaserve.dialects.anthropic.requests import count_request
from umaserve.dialects.anthropic.schemas import AnthropicModels
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.skipped_tools import log_ignored
from umaserve.wire.http_head import Request

LIMITS = RequestLimits(max_prompt_bytes=2000)
USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TOOLS = [{"name": "f", "description": "does f", "input_schema": SCHEMA}, {"name": "g", "input_schema": SCHEMA}]
F, G = Tool("f", "does f", SCHEMA_TEXT), Tool("g", "", SCHEMA_TEXT)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def new_body(limits: RequestLimits = LIMITS) -> MessageBody:
    return MessageBody(limits, lambda _name: MODEL_INFO, "7")


def body(**wanted: Any) -> bytes:
    return json.dumps({"model": "any", "max_tokens": 8, "messages": USER, **wanted}).encode()


def request(**wanted: Any) -> Generate:
    [asked] = new_body().receive(body(**wanted))
    return asked


def said(role: str, content: Any) -> Sequence[ChatTurn]:
    prompt = request(messages=[{"role": role, "content": content}]).prompt
    assert isinstance(prompt, tuple)
    return prompt


def refused(**wanted: Any) -> str:
    with pytest.raises(RequestError) as raised:
        new_body().receive(body(**wanted))
    assert raised.value.fault in (Fault.BAD_REQUEST, Fault.PROMPT_TOO_LARGE)
    return raised.value.message


def refused_block(block: Any, role: str = "user") -> str:
    return refused(messages=[{"role": role, "content": [block]}])


def reply(outputs: Sequence[Any], **wanted: Any) -> dict[str, Any]:
    """The whole answer to a request."""
    one = new_body()
    one.receive(body(**wanted))
    for output in outputs:
        assert one.send(0, output) == []
    whole = json.loads(one.result())
    Message.model_validate(whole, strict=True)
    return whole


def events(outputs: Sequence[Any], **wanted: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, whose names are their types."""
    one = new_body()
    one.receive(body(stream=True, **wanted))
    read = []
    for framed in (data for output in outputs for data in one.send(0, output)):
        name, data, *rest = one.frame(framed).decode().split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert (name, rest) == (f"event: {read[-1]['type']}", ["", ""])
        EVENT.validate_python(read[-1], strict=True)
    assert one.end is None
    return read


def answer(*texts: str, reason: FinishReason = FinishReason.STOP, stop: str | None = None) -> list[Any]:
    tokens = [Token(text, 5) for text in texts]
    return [Started(), Prefilled(9, 4), *tokens, Finished(reason, Usage(9, len(texts), 4), stop_string=stop)]


# -- requests ----------------------------------------------------------------------------------------------------


def test_a_plain_request():
    asked = request()
    assert asked == Generate(
        "msg_7", (ChatTurn("user", "hi"),), 8, asked.sampling, enable_thinking=False, splits_thoughts=True, model="any"
    )
    assert (asked.sampling.temperature, asked.sampling.top_p) == (1.0, 1.0)


def test_all_fields():
    asked = request(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        metadata={"user_id": "user_1_session_2"},
        service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 2000},
        output_config={"effort": "low"},
        priority="background",
        slo={"target_tbt_ms": 100},
        cache_control={"type": "ephemeral"},
        context_management={"edits": []},
    )
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0.5, 0.9, 7)
    assert asked.stop == ("a", "b")
    assert (asked.enable_thinking, asked.thought_budget) == (True, 2000)
    assert asked.chat_template_kwargs == {"reasoning_effort": "low"}
    assert (asked.priority, asked.target_tbt_s) == (Priority.BACKGROUND, 0.1)


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking(kind: str, thinks: bool):
    assert request(thinking={"type": kind}).enable_thinking is thinks


def test_a_schema_for_the_answer():
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    grammar = request(output_config=wanted).sampling.grammar
    assert grammar == Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "output_config.format.schema")
    by_its_old_name = request(output_format=wanted["format"]).sampling.grammar
    assert by_its_old_name == Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "output_format.schema")
    both = refused(output_format=wanted["format"], output_config=wanted)
    assert both.startswith("output_format.schema: expected to be absent where output_config.format.schema is given")
    with_call = {"tools": TOOLS, "tool_choice": {"type": "any"}}
    assert request(output_config=wanted, **with_call).sampling.grammar is None, "no words, so no format of them"
    assert refused(output_config={"format": {"type": "json_schema"}}, **with_call).startswith("output_config.format")
    by_grammar = refused(grammar='root ::= "a"', **with_call)
    assert by_grammar.startswith('tool_choice.type: expected "auto" or "none" where grammar is given, got a required')


def test_max_tokens_is_cut_to_the_operators_cap():
    [asked] = new_body(RequestLimits(2000, max_tokens=100)).receive(body(max_tokens=32000))
    assert asked.max_tokens == 100


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.", "Be brief."),
        (
            [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
            "a\n\nb",
        ),
        ("x-anthropic-billing-header: cc_version=2; cch=1f2e3;", None),
        ("x-anthropic-billing-header: cch=1f2e3;\n\nBe brief.", "Be brief."),
        ([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "b"}], "b"),
        ("Of x-anthropic-billing-header: cch=1;", "Of x-anthropic-billing-header: cch=1;"),
        ("", None),
        ([], None),
    ],
)
def test_system(system: Any, text: str | None):
    lead = () if text is None else (ChatTurn("system", text),)
    assert request(system=system).prompt == (*lead, ChatTurn("user", "hi"))


def test_the_blocks_of_a_user():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    [turn] = said("user", [{"type": "text", "text": "a"}, image, document, {"type": "text", "text": "b"}])
    assert turn.content == "aT\n\nD\n\nb"
    assert turn.attachments == (Attachment(1, Image("QUJD", "messages[0].content[1].source.data")),)


def test_results_of_tools_stand_in_the_order_of_their_calls():
    calls = [{"type": "tool_use", "id": id_, "name": "f", "input": {}} for id_ in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": id_} for id_ in "xba"]
    messages = [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    assert [turn.content for turn in request(messages=messages).prompt[1:]] == ["a", "b", "x"]


def test_results_of_tools_are_turns_of_their_own():
    image = {"type": "image", "source": {"type": "base64", "data": "QUJD"}}
    blocks = [
        {"type": "tool_result", "tool_use_id": "1", "content": "fine"},
        {
            "type": "tool_result",
            "tool_use_id": "2",
            "content": [{"type": "text", "text": "no"}, image],
            "is_error": True,
        },
        {"type": "tool_result", "tool_use_id": "3"},
        {"type": "text", "text": "go on"},
    ]
    seen = Attachment(10, Image("QUJD", "messages[0].content[1].content[1].source.data"))
    assert said("user", blocks) == (
        ChatTurn("tool", "fine", tool_call_id="1"),
        ChatTurn("tool", "Error:\n\nno", attachments=(seen,), tool_call_id="2"),
        ChatTurn("tool", "", tool_call_id="3"),
        ChatTurn("user", "go on"),
    )


def test_the_blocks_of_an_answer():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "anything"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": [1]}, "cache_control": None},
    ]
    assert said("assistant", blocks) == (
        ChatTurn("assistant", "ab", (ToolCall("1", "f", '{"x":[1]}'),), thoughts="hm"),
    )


def test_tools():
    asked = request(tools=[{"type": "custom", "cache_control": {}, **TOOLS[0]}, TOOLS[1]])
    assert (asked.tools, asked.must_call, asked.parallel_calls) == ((F, G), False, True)


OWN = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250124", "name": "str_replace_editor"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768},
    {"type": "memory_20250818", "name": "memory"},
]
CALLS = [
    ("bash", {"command": "ls"}, {"command": 5}),
    ("str_replace_editor", {"command": "undo_edit", "path": "/a"}, {"command": "view"}),
    (
        "str_replace_based_edit_tool",
        {"command": "insert", "path": "/a", "insert_line": 0, "new_str": "x"},
        {"command": "undo_edit", "path": "/a"},
    ),
    ("computer", {"action": "left_click", "coordinate": [10, 20]}, {"action": "left_click", "coordinate": [10]}),
    ("memory", {"command": "rename", "old_path": "/a", "new_path": "/b"}, {"command": "move"}),
]


def test_anthropics_tools_that_the_client_runs_have_schemas_of_our_own():
    [asked] = new_body(RequestLimits(100_000)).receive(body(tools=[*OWN, TOOLS[0]]))
    assert [tool.name for tool in asked.tools] == [*(name for name, _right, _wrong in CALLS), "f"]
    for tool, (_name, right, wrong) in zip(asked.tools, CALLS, strict=False):
        validator = jsonschema.Draft202012Validator(json.loads(tool.parameters))
        assert (validator.is_valid(right), validator.is_valid(wrong)) == (True, False)
    assert "1024 x 768" in asked.tools[3].description


def test_tools_of_anthropics_service_are_skipped_which_is_told_once(caplog: pytest.LogCaptureFixture):
    log_ignored.cache_clear()
    served = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, {"type": "mcp_toolset"}]
    for _ in range(2):
        assert request(tools=[*served, TOOLS[0]]).tools == (F,)
    assert caplog.messages == [
        "ignored tools of type 'web_search_20250305', which this server doesn't run (logged once)",
        "ignored tools of type 'mcp_toolset', which this server doesn't run (logged once)",
    ]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"type": "auto"}, ((F, G), False, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ((F, G), False, False)),
        ({"type": "any"}, ((F, G), True, False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ((F, G), True, True)),
        ({"type": "tool", "name": "g"}, ((G,), True, False)),
        ({"type": "none"}, ((), False, True)),
    ],
)
def test_tool_choice(choice: Any, chosen: Any):
    asked = request(tools=TOOLS, tool_choice=choice)
    assert (asked.tools, asked.must_call, asked.parallel_calls) == chosen


def test_long_descriptions_of_tools_are_limited_as_prompts_are():
    tool = {"name": "f", "description": "d" * 2 * MAX_SCHEMA_BYTES, "input_schema": SCHEMA}
    [asked] = new_body(RequestLimits(4 * MAX_SCHEMA_BYTES)).receive(body(tools=[tool]))
    assert len(asked.tools[0].description) == 2 * MAX_SCHEMA_BYTES
    assert refused(tools=[tool]).startswith("tools: expected at most 2000 bytes, got ")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"messages": None}, "messages: expected an array of 1 to 1024 messages, got null"),
        ({"messages": []}, "messages: expected an array of 1 to 1024 messages, got 0"),
        ({"messages": ["hi"]}, "messages[0]: expected an object, got a string"),
        ({"messages": [{"content": "a"}]}, 'messages[0].role: expected "user" or "assistant" or "system", got null'),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected a string or an array of blocks, got null"),
        (
            {"messages": [{"role": "user", "content": []}]},
            "messages[0].content: expected an array of 1 to 1024 blocks, got 0",
        ),
        ({"messages": [{"role": "user", "content": "x" * 2001}]}, "messages: expected at most 2000 bytes, got 2001"),
        ({"system": 5}, "system: expected a string or an array of text blocks, got a whole number"),
        ({"system": [{"type": "image"}]}, 'system[0].type: expected "text", got "image"'),
        ({"model": 5}, "model: expected a string of at most 256 bytes, got a whole number"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number from 1, got 0"),
        ({"max_tokens": "8"}, "max_tokens: expected a whole number from 1, got a string"),
        ({"stream": 1}, "stream: expected true or false, got a whole number"),
        ({"temperature": -1}, "temperature: expected a number from 0 to 10, got -1"),
        (
            {"stop_sequences": [""]},
            "stop_sequences[0]: expected a non-empty string of at most 256 bytes, got an empty one",
        ),
        ({"stop_sequences": 5}, "stop_sequences: expected a string or an array of strings, got a whole number"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id: expected a string of at most 4096 bytes, got a whole number"),
        ({"service_tier": "fast"}, 'service_tier: expected "auto" or "standard_only", got "fast"'),
        ({"thinking": {"type": "on"}}, 'thinking.type: expected "enabled" or "adaptive" or "disabled", got "on"'),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            "thinking.budget_tokens: expected a whole number from 1 to 2147483647, got 0",
        ),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema: expected an object, got null",
        ),
        ({"output_format": "json"}, "output_format: expected an object, got a string"),
        ({"output_format": {"type": "json"}}, 'output_format.type: expected "json_schema", got "json"'),
        ({"tools": {}}, "tools: expected an array of 0 to 256 tools, got an object"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: expected an object, got null"),
        (
            {"tools": [{"name": "a b", "input_schema": {}}]},
            'tools[0].name: expected 1 to 128 letters, digits, _ or -, got "a b"',
        ),
        ({"tools": [{"type": "bash_20250124"}]}, "tools[0].name: expected a non-empty string, got null"),
        (
            {"tools": [{"type": 5}]},
            "tools[0].type: expected a non-empty string of at most 64 bytes, got a whole number",
        ),
        ({"tools": [TOOLS[0], TOOLS[0]]}, 'tools[1].name: expected a name that no other tool has, got "f"'),
        ({"tool_choice": "any"}, "tool_choice: expected an object, got a string"),
        (
            {"tool_choice": {"type": "any"}},
            'tool_choice.type: expected "auto" or "none", since tools is empty, got "any"',
        ),
        (
            {"tool_choice": {"type": "tool", "name": "h"}, "tools": TOOLS},
            'tool_choice.name: expected the name of one of the tools, got "h"',
        ),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice.name: expected a non-empty string, got null"),
    ],
)
def test_a_wrong_field_is_named(wanted: dict[str, Any], message: str):
    assert refused(**wanted) == message


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("a", ": expected an object, got a string"),
        ({"type": "video"}, '.type: expected "text" or "image" or "document" or "tool_result", got "video"'),
        ({"type": "text"}, ".text: expected a string, got null"),
        ({"type": "image"}, ".source: expected an object, got null"),
        ({"type": "image", "source": {}}, '.source.type: expected "base64", got null'),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a.example/"}},
            '.source.type: expected "base64", since this server fetches nothing and keeps no files, got "url"',
        ),
        (
            {"type": "image", "source": {"type": "base64", "data": ""}},
            ".source.data: expected a non-empty string, got an empty one",
        ),
        (
            {"type": "document", "source": {"type": "base64", "data": "QUJD"}},
            '.source.type: expected "text", since this server reads no other documents, got "base64"',
        ),
        ({"type": "tool_result"}, ".tool_use_id: expected a non-empty string of at most 256 bytes, got null"),
        (
            {"type": "tool_result", "tool_use_id": "1", "content": 5},
            ".content: expected a string or an array of blocks, got a whole number",
        ),
        (
            {"type": "tool_result", "tool_use_id": "1", "is_error": 5},
            ".is_error: expected true or false, got a whole number",
        ),
    ],
)
def test_a_wrong_block_is_named(block: Any, message: str):
    assert refused_block(block) == f"messages[0].content[0]{message}"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "image"}, '.type: expected "text" or "thinking" or "redacted_thinking" or "tool_use", got "image"'),
        ({"type": "thinking"}, ".thinking: expected a string, got null"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": "{}"}, ".input: expected an object, got a string"),
        ({"type": "tool_use", "id": "1", "input": {}}, ".name: expected a non-empty string, got null"),
        (
            {"type": "tool_use", "name": "f", "input": {}},
            ".id: expected a non-empty string of at most 256 bytes, got null",
        ),
    ],
)
def test_a_wrong_block_of_an_answer_is_named(block: Any, message: str):
    assert refused_block(block, "assistant") == f"messages[0].content[0]{message}"


def test_what_is_counted():
    asked = {"system": "Be brief.", "tools": TOOLS, "thinking": {"type": "enabled"}}
    counted = count_request(body(**asked, stream=5), LIMITS).request
    made = request(**asked)
    assert (counted.prompt, counted.tools, counted.enable_thinking) == (made.prompt, made.tools, True)
    assert counted.cache_prompt is False


# -- models ------------------------------------------------------------------------------------------------------


def page(path: str, n_models: int = 1, **query: str) -> dict[str, Any]:
    asked = Request("GET", path, query, (), b"")
    about = replace(FACTS, models=lambda: MODELS[:n_models])
    status, _type, content = (models if path == "/v1/models" else model)(about, asked)
    assert status == 200
    return json.loads(content)


MODELS = [
    listed(MODEL_INFO, aliases=("small",)),
    listed(MODEL_INFO, name="large-2", default=False, state=ModelState.UNLOADED, info=None),
]
FACTS = replace(facts(), model=lambda _name: MODEL_INFO, models=lambda: MODELS[:1], started_at=1700000000)
MODEL = {
    "type": "model",
    "id": "small-1",
    "display_name": "small-1",
    "created_at": "2023-11-14T22:13:20Z",
    "lifecycle": "active",
    "max_input_tokens": 4096,
    "max_tokens": 4096,
}


def test_models():
    assert page("/v1/models", limit="1000") == {
        "data": [MODEL],
        "has_more": False,
        "first_id": "small-1",
        "last_id": "small-1",
    }
    assert page("/v1/models", after_id="other")["data"] == [MODEL]


def test_several_models():
    unread = {**MODEL, "id": "large-2", "display_name": "large-2"}
    told = page("/v1/models", n_models=2)
    assert (told["data"], told["first_id"], told["last_id"]) == ([MODEL, unread], "small-1", "large-2")
    assert page("/v1/models", n_models=2, after_id="small-1")["data"] == [unread]
    more = page("/v1/models", n_models=2, limit="1")["has_more"]
    assert more is True
    jsonschema.validate(more, AnthropicModels.schema()["properties"]["has_more"])
    assert page("/v1/models/large-2", n_models=2) == unread
    assert page("/v1/models/claude-sonnet-4-5", n_models=2) == MODEL


@pytest.mark.parametrize("cursor", ["after_id", "before_id"])
def test_there_is_no_other_page_of_models(cursor: str):
    none = {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert page("/v1/models", **{cursor: "small-1"}) == none


@pytest.mark.parametrize("limit", ["0", "1001", "x", "", "-1", "²", "9" * 400])
def test_a_wrong_limit_is_refused(limit: str):
    with pytest.raises(RequestError, match=r"^limit: expected a whole number from 1 to 1000, got "):
        page("/v1/models", limit=limit)


@pytest.mark.parametrize("name", ["small-1", "small", "claude-sonnet-4-5"])
def test_one_model(name: str):
    assert page(f"/v1/models/{name}") == MODEL


def test_another_model_is_not_there():
    with pytest.raises(
        RequestError, match=r'^model: the model "gpt-9" does not exist: /v1/models lists the models, and'
    ):
        page("/v1/models/gpt-9")


# -- replies -----------------------------------------------------------------------------------------------------


def test_a_whole_message():
    assert reply([Waiting(1, 1, None), *answer("He", "llo")]) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "small-1",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 2,
        },
    }


@pytest.mark.parametrize(
    ("reason", "stop", "stopped"),
    [
        (FinishReason.STOP, None, ("end_turn", None)),
        (FinishReason.STOP, "END", ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.CONTENT_FILTER, None, ("refusal", None)),
        (FinishReason.CANCELLED, None, ("end_turn", None)),
    ],
)
def test_stop_reasons(reason: FinishReason, stop: str | None, stopped: tuple[str, str | None]):
    outputs = answer("a", reason=reason, stop=stop)
    whole = reply(outputs)
    assert (whole["stop_reason"], whole["stop_sequence"]) == stopped
    assert events(outputs)[-2]["delta"] == dict(zip(("stop_reason", "stop_sequence"), stopped, strict=True))


def test_a_stream():
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    first, *rest = events(answer("He", "", "llo"))
    assert first["message"]["usage"] == {**usage, "output_tokens": 0}
    assert first["message"]["content"] == []
    assert rest == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "He"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 3},
        },
        {"type": "message_stop"},
    ]


def test_a_call():
    outputs = answer("Let me see.", "\n", CALL)
    whole = reply(outputs, tools=TOOLS)
    text, call = whole["content"]
    assert text == {"type": "text", "text": "Let me see.\n"}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"x": 1})
    assert whole["stop_reason"] == "tool_use"
    streamed = events(outputs, tools=TOOLS)
    begun = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    assert begun == [{"type": "text", "text": ""}, {"type": "tool_use", "id": call["id"], "name": "f", "input": {}}]
    assert streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_ends_before_the_text_that_follows_it():
    types = [event["type"] for event in events(answer(CALL, " Fine."), tools=TOOLS)]
    assert types == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]


def test_a_call_that_is_cut_off_stays_a_call():
    cut = answer('Well. <tool_call>\n{"name": "f", "arguments": {"x": 1, "y": "ab', reason=FinishReason.LENGTH)
    whole = reply(cut, tools=TOOLS)
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]
    assert whole["content"][1]["input"] == {"x": 1}
    assert whole["stop_reason"] == "max_tokens"
    streamed = events(cut, tools=TOOLS)
    begun = [event["content_block"]["type"] for event in streamed if event["type"] == "content_block_start"]
    said = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert begun == ["text", "tool_use"]
    assert [delta.get("partial_json") for delta in said[1:]] == ['{"x": 1, "y": "ab']


THOUGHT = [
    Prefilled(9, 4),
    Token("<think>", 1, answer=""),
    Token("h", 2, thoughts="h", answer=""),
    Token("m</think>Yes", 3, thoughts="m", answer="Yes"),
    Finished(FinishReason.STOP, Usage(9, 3, 4, 2)),
]


def test_thoughts():
    whole = reply(THOUGHT, thinking={"type": "adaptive"})
    thought, text = whole["content"]
    assert (thought["thinking"], text) == ("hm", {"type": "text", "text": "Yes"})
    assert thought["signature"]
    assert said("assistant", whole["content"]) == (ChatTurn("assistant", "Yes", thoughts="hm"),)
    streamed = events(THOUGHT, thinking={"type": "adaptive"})
    assert streamed[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "h"},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "signature_delta", "signature": thought["signature"]},
        {"type": "text_delta", "text": "Yes"},
    ]


def test_thoughts_that_were_not_asked_for_are_left_out():
    assert reply(THOUGHT)["content"] == [{"type": "text", "text": "Yes"}]


def test_an_answer_without_text():
    assert reply(answer())["content"] == []
    assert [event["type"] for event in events(answer())] == ["message_start", "message_delta", "message_stop"]


def test_an_answer_that_is_cancelled_before_its_prompt_is_computed():
    outputs = [Started(), Finished(FinishReason.CANCELLED, Usage(0, 0))]
    assert [event["type"] for event in events(outputs)] == ["message_start", "message_delta", "message_stop"]


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_has_a_type(fault: Fault):
    status, content, _headers = error_body(RequestError(fault, "x", "is wrong"))
    error = json.loads(content)
    assert error["type"] == "error"
    assert error["error"]["message"] == "x: is wrong"
    assert status >= 500 or error["error"]["type"] in (
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
    )
    assert status < 500 or error["error"]["type"] in ("api_error", "overloaded_error", "timeout_error")


def test_an_error_before_the_stream():
    one = new_body()
    status, content, headers = one.error(RequestError(Fault.RATE_LIMITED, "request", "too many", retry_after_s=2))
    assert (status, dict(headers)) == (429, {"request-id": "req_7", "Retry-After": "2"})
    assert json.loads(content) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "request: too many"},
        "request_id": "req_7",
    }


def test_an_error_in_the_stream():
    one = new_body()
    one.receive(body(stream=True))
    one.send(0, Prefilled(9))
    [event] = one.fail(0, RequestError(Fault.DECODE_FAILED, "request", "failed"))
    assert event.startswith(
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"request: failed"}'
    )
    assert one.done


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_look_for():
    one = new_body()
    one.receive(body(max_tokens=32000))
    status, content, _headers = one.error(ContextExceeded(5000, 4096))
    assert status == 400
    assert json.loads(content)["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 5000 tokens > 4095 maximum; "
        "input length and `max_tokens` exceed context limit: 5000 + 32000 > 4096",
    }


def test_an_error_of_http():
    assert json.loads(http_error(415, "no JSON")) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "no JSON"},
        "request_id": None,
    }
