"""The OpenAI-compatible bodies: what each field may be, in which words it is refused, and what comes back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openapi_document import check_answer

from tests.support.routes import MODEL_INFO, facts, listed, routes
from umaserve.core.commands import Pause
from umaserve.core.errors import ContextExceeded, Fault, ModelNotFound, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Loading,
    Logprobs,
    ModelInfo,
    ModelState,
    Output,
    Prefilled,
    Prefilling,
    PromptScores,
    Scored,
    Started,
    Steered,
    Timing,
    Token,
    Usage,
    Waiting,
)
from umaserve.core.queries import Detokenize, Detokenized, Embed, Embedded, Tokenize, Tokenized
from umaserve.core.requests import ChatTurn, Generate, Grammar, Priority, Sampling, Syntax, TokenIds, Tool, ToolCall
from umaserve.core.tool_call_format import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Slot, ToolForm
from umaserve.dialects import grammars, parameters
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.llama_server.props import props
from umaserve.dialects.llama_server.tokens import detokenize_result, parse_detokenize, parse_tokenize, tokenize_result
from umaserve.dialects.openai.completions import SSE_DONE, ChatBody, CompletionBody
from umaserve.dialects.openai.embeddings import (
    MAX_INPUTS,
    EmbeddingsRequest,
    embeddings_result,
    parse_embeddings,
    shortened,
)
from umaserve.dialects.openai.errors import error_body, http_error
from umaserve.dialects.openai.models import model, models
from umaserve.dialects.openai.requests import count_request
from umaserve.dialects.openai.tool_schemas import MAX_ARGUMENTS_BYTES
from umaserve.dialects.parameters import RequestLimits, json_body
from umaserve.dialects.sampling_schemas import MAX_SEED
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Headers, Request

# A busy machine is no fault of the code.

LIMITS = RequestLimits(max_prompt_bytes=200)
USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"x":{"type":"integer"}}}'
SCHEMA_READ = Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "response_format.json_schema.schema")
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "does f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]
F, G = Tool("f", "does f", SCHEMA_TEXT), Tool("g", "", '{"type":"object","properties":{}}')
END = Finished(FinishReason.STOP, Usage(5, 3, 2), Timing(0.5, 1.5, 3.0))

Wanted = dict[str, Any]
Exchange = ChatBody | CompletionBody


def chat(loaded: ModelInfo | None = MODEL_INFO) -> ChatBody:
    return ChatBody(LIMITS, None, lambda _name: loaded, "chatcmpl-7", 1700000000)


def completion() -> CompletionBody:
    return CompletionBody(LIMITS, lambda _name: MODEL_INFO, "cmpl-7", 1700000000)


def chat_body(**wanted: Any) -> bytes:
    return json.dumps({"model": "gpt", "messages": USER, **wanted}).encode()


def completion_body(**wanted: Any) -> bytes:
    return json.dumps({"model": "gpt", "prompt": "hi", **wanted}).encode()


def chat_request(**wanted: Any) -> Generate:
    [request] = chat().receive(chat_body(**wanted))
    return request


@pytest.mark.parametrize(("body", "content"), [(chat, chat_body), (completion, completion_body)])
def test_a_body_of_too_many_values_is_not_parsed(
    body: Callable[[], Exchange], content: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "MAX_VALUES", 40)
    with pytest.raises(RequestError) as raised:
        body().receive(content(x=[{}] * 40))
    assert raised.value.message == "payload: expected at most 40 commas and brackets, got more"
    body().receive(content(x="." * 1000))


def turns(*messages: Any) -> object:
    return chat_request(messages=messages).prompt


def completion_requests(**wanted: Any) -> Sequence[Generate]:
    return completion().receive(completion_body(**wanted))


def chat_refusal(**wanted: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        chat().receive(chat_body(**wanted))
    return raised.value


def completion_refusal(**wanted: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        completion().receive(completion_body(**wanted))
    return raised.value


def allowed(mode: str, *names: str) -> Wanted:
    return allowed_of(mode, *map(function, names))


def allowed_of(mode: str, *tools: Wanted) -> Wanted:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def function(name: str, **more: Any) -> Wanted:
    return {"type": "function", "function": {"name": name, **more}}


def custom(name: str, **more: Any) -> Wanted:
    return {"type": "custom", "custom": {"name": name, **more}}


def bound(syntax: str, definition: str) -> Wanted:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


PATCH = custom("patch", description="edits")


# What a chat request says.


def test_chat_with_no_more_than_it_needs() -> None:
    assert chat_request() == Generate(
        "chatcmpl-7", (ChatTurn("user", "hi"),), sampling=Sampling(1.0, 1.0), splits_thoughts=True, model="gpt"
    )


def test_chat_with_every_field() -> None:
    assert chat_request(
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        n=1,
        stop=["\n", "##"],
        seed=3,
        logprobs=True,
        top_logprobs=20,
        logit_bias={"12": -100},
        presence_penalty=-2,
        frequency_penalty=2,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        tools=TOOLS,
        tool_choice="auto",
        parallel_tool_calls=False,
        stream=True,
        stream_options={"include_usage": True},
        user="u",
        service_tier="auto",
        store=False,
        metadata={"a": "b"},
        top_k=7,
        min_p=0.1,
        repeat_penalty=1.25,
        ignore_eos=True,
        cache_prompt=False,
        lora={"style": 0.5},
        priority="background",
        slo={"target_ttft_ms": 150, "target_tbt_ms": 80},
        timings_per_token=True,
    ) == Generate(
        "chatcmpl-7",
        (ChatTurn("user", "hi"),),
        max_tokens=7,
        sampling=Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            repeat_penalty=1.25,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            seed=3,
            logit_bias=((12, -100.0),),
            grammar=SCHEMA_READ,
            ignore_eos=True,
        ),
        stop=("\n", "##"),
        logprobs=20,
        tools=(F, G),
        parallel_calls=False,
        splits_thoughts=True,
        cache_prompt=False,
        lora=(("style", 0.5),),
        priority=Priority.BACKGROUND,
        target_ttft_s=0.15,
        target_tbt_s=0.08,
        model="gpt",
    )


def test_null_is_the_same_as_absent() -> None:
    names = (
        "model max_tokens n_predict max_completion_tokens temperature top_p n stop seed logprobs top_logprobs "
        "logit_bias presence_penalty frequency_penalty response_format tools tool_choice parallel_tool_calls stream "
        "stream_options user top_k min_p repeat_penalty grammar json_schema ignore_eos functions function_call "
        "cache_prompt lora priority slo return_progress"
    )
    assert chat_request(**dict.fromkeys(names.split())) == replace(chat_request(), model="")


@pytest.mark.parametrize(
    ("wanted", "max_tokens"),
    [
        ({}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2**31}, 2**31),
        ({"max_completion_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "max_tokens": 8}, 9),
        ({"max_tokens": 8, "n_predict": 7}, 8),
        ({"n_predict": 7}, 7),
        ({"n_predict": -1}, None),
        ({"max_completion_tokens": -1, "max_tokens": 8}, 8),
    ],
)
def test_chat_answer_length(wanted: Wanted, max_tokens: int | None) -> None:
    assert chat_request(**wanted).max_tokens == max_tokens


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"role": "system", "content": "s"}, ChatTurn("system", "s")),
        ({"role": "developer", "content": "s"}, ChatTurn("system", "s")),
        ({"role": "user", "content": "", "name": "ann"}, ChatTurn("user", "")),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]},
            ChatTurn("user", "a\né"),
        ),
        ({"role": "assistant", "content": "a", "refusal": None}, ChatTurn("assistant", "a")),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", **function("f", arguments='{"x": 1}')}]},
            ChatTurn("assistant", "", (ToolCall("c", "f", '{"x": 1}'),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            ChatTurn("assistant", "", (ToolCall("c", "f", "{}"),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]},
            ChatTurn("assistant", "", (ToolCall("c", "f", "{}"),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": ["é"]}}}]},
            ChatTurn("assistant", "", (ToolCall("c", "f", '{"x":["é"]}'),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", **custom("patch", input='"é"\n')}]},
            ChatTurn("assistant", "", (ToolCall("c", "patch", '{"input":"\\"é\\"\\n"}'),)),
        ),
        ({"role": "tool", "content": "1", "tool_call_id": "c"}, ChatTurn("tool", "1", tool_call_id="c")),
    ],
)
def test_messages_become_turns(message: Wanted, turn: ChatTurn) -> None:
    assert turns(message) == (turn,)


def test_results_of_tools_stand_in_the_order_of_their_calls() -> None:
    def called(*ids: str) -> Wanted:
        return {
            "role": "assistant",
            "tool_calls": [{"id": id_, "function": {"name": "f", "arguments": ""}} for id_ in ids],
        }

    def results(*ids: str) -> list[Wanted]:
        return [{"role": "tool", "content": f"of {id_}", "tool_call_id": id_} for id_ in ids]

    read = turns(called("a", "b"), *results("b", "a"), called("c", "a"), *results("a", "x", "c"))
    assert [turn.content for turn in read] == ["", "of a", "of b", "", "of c", "of a", "of x"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (1, "messages[1]: expected an object, got a whole number"),
        (
            {"content": "a"},
            'messages[1].role: expected "system" or "developer" or "user" or "assistant" or "tool", got',
        ),
        ({"role": "function", "content": "a"}, 'messages[1].role: expected "system" or'),
        ({"role": "user"}, "messages[1].content: expected a string or an array of parts, got null"),
        ({"role": "user", "content": 1}, "messages[1].content: expected a string or an array of parts, got a w"),
        ({"role": "user", "content": []}, "messages[1].content: expected an array of 1 to 256 parts, got 0"),
        ({"role": "user", "content": [{"type": "text", "text": ""}] * 257}, "messages[1].content: expected an array"),
        ({"role": "user", "content": ["a"]}, "messages[1].content[0]: expected an object, got a string"),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
            'messages[1].content[0].type: expected "text" or "image_url" or "input_audio", got "file"',
        ),
        ({"role": "user", "content": [{"text": "a"}]}, 'messages[1].content[0].type: expected "text" or'),
        (
            {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            'messages[1].content[0].type: expected "text", got "image_url"',
        ),
        ({"role": "assistant", "content": []}, "messages[1].content: expected an array of 1 to 256 text parts, got 0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text: expected a string, got null"),
        ({"role": "assistant", "content": None}, "messages[1].content: expected a string or"),
        ({"role": "assistant", "tool_calls": []}, "messages[1].content: expected a string or"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls: expected an array of 0 to 128 calls"),
        (
            {"role": "assistant", "tool_calls": [function("f")]},
            "messages[1].tool_calls[0].function.arguments: expected",
        ),
        (
            {"role": "assistant", "tool_calls": [function("f", arguments={"x": "a" * MAX_ARGUMENTS_BYTES})]},
            "messages[1].tool_calls[0].function.arguments: expected an object of at most 262144 bytes as JSON, nested",
        ),
        (
            {"role": "assistant", "tool_calls": [function("f", arguments=["{}"])]},
            "messages[1].tool_calls[0].function.arguments: expected a string, got an array",
        ),
        (
            {"role": "assistant", "tool_calls": [function("f", arguments="{}")]},
            "messages[1].tool_calls[0].id: expected a non-empty string of at most 256 bytes, got null",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp", "mcp": {}}]},
            'messages[1].tool_calls[0].type: expected "function" or "custom", got "mcp"',
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "function": {}}]},
            "messages[1].tool_calls[0].custom: expected an object, got null",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", **custom("", input="a")}]},
            "messages[1].tool_calls[0].custom.name: expected a non-empty string, got",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", **custom("patch", input={"input": "a"})}]},
            "messages[1].tool_calls[0].custom.input: expected a string, got an object",
        ),
        (
            {"role": "assistant", "tool_calls": [custom("patch", input="a")]},
            "messages[1].tool_calls[0].id: expected a non-empty string of at most 256 bytes, got null",
        ),
        (
            {"role": "tool", "content": "1"},
            "messages[1].tool_call_id: expected a non-empty string of at most 256 bytes",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_path(message: object, expected: str) -> None:
    error = chat_refusal(messages=[*USER, message])
    assert error.fault is Fault.BAD_REQUEST
    assert error.message.startswith(expected)


@pytest.mark.parametrize("messages", [None, [], {}, "hi", USER * 1025])
def test_the_messages_are_an_array_of_bounded_length(messages: object) -> None:
    assert chat_refusal(messages=messages).message.startswith("messages: expected an array of 1 to 1024 messages, got")


def test_messages_are_capped_together() -> None:
    turns({"role": "user", "content": "a" * 100}, {"role": "user", "content": "é" * 50})
    error = chat_refusal(messages=[{"role": "user", "content": "é" * 50}, {"role": "user", "content": "a" * 101}])
    assert (error.fault, error.message) == (Fault.PROMPT_TOO_LARGE, "messages: expected at most 200 bytes, got 201")
    call = {"id": "c", **function("f" * 100, arguments='{"x":"' + "a" * 92 + '"}')}
    assert turns({"role": "assistant", "tool_calls": [call]})
    error = chat_refusal(messages=[{"role": "assistant", "tool_calls": [call], "content": "a"}])
    assert error.fault is Fault.PROMPT_TOO_LARGE


EXTENSIONS_REFUSED = [
    ({"cache_prompt": "no"}, "cache_prompt"),
    ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ({"lora": {str(adapter): 1 for adapter in range(17)}}, "lora"),
    ({"lora": {"a": None}}, "lora.a"),
    ({"priority": 1}, "priority"),
    ({"slo": {"target_tbt_ms": 0}}, "slo.target_tbt_ms"),
]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"model": 1}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"stop": [1]}, "stop[0]"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": "x" * MAX_SCHEMA_BYTES}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "response_format"),
        ({"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "response_format"),
        ({"tools": {}}, "tools"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function("")]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("f\n")]}, "tools[0].function.name"),
        ({"tools": [function("f" * 65)]}, "tools[0].function.name"),
        ({"tools": [function("f", description=1)]}, "tools[0].function.description"),
        ({"tools": [function("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function("f"), function("g"), function("f")]}, "tools[2].function.name"),
        ({"tools": [function(f"f{i}", description="x" * 131072) for i in range(2)]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.custom"),
        ({"tools": TOOLS, "tool_choice": custom("f")}, "tool_choice.custom.name"),
        ({"tools": [PATCH], "tool_choice": function("patch")}, "tool_choice.function.name"),
        ({"tools": [PATCH], "tool_choice": custom("a b")}, "tool_choice.custom.name"),
        ({"tool_choice": custom("patch")}, "tool_choice"),
        (
            {"tools": [PATCH], "tool_choice": allowed_of("auto", custom("patch"), custom("f"))},
            "tool_choice.allowed_tools.tools[1].custom.name",
        ),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools[0].custom"),
        ({"tools": [custom("a b")]}, "tools[0].custom.name"),
        ({"tools": [custom("patch", description=1)]}, "tools[0].custom.description"),
        ({"tools": [function("patch"), PATCH]}, "tools[1].custom.name"),
        ({"tools": [PATCH, function("patch")]}, "tools[1].function.name"),
        ({"tools": [custom("patch", format="text")]}, "tools[0].custom.format"),
        ({"tools": [custom("patch", format={})]}, "tools[0].custom.format.type"),
        ({"tools": [custom("patch", format={"type": "grammar"})]}, "tools[0].custom.format.grammar"),
        (
            {"tools": [custom("patch", format={"type": "grammar", "syntax": "regex", "definition": "a"})]},
            "tools[0].custom.format.grammar",
        ),
        ({"tools": [custom("patch", format=bound("gbnf", "a"))]}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": [custom("patch", format=bound("lark", ""))]}, "tools[0].custom.format.grammar.definition"),
        ({"tools": [custom(f"patch{i}", format=bound("regex", "a" * 40000)) for i in range(2)]}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", "f", "h")},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": [function("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": TOOLS, "tool_choice": function("h")}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": function("f")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "json_schema": {}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "grammar": "root ::= x"}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_obfuscation": False}, "stream": False}, "stream_options"),
        ({"return_progress": 1}, "return_progress"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"grammar": "g", "json_schema": {}}, "grammar"),
        *EXTENSIONS_REFUSED,
    ],
)
def test_a_wrong_chat_field_is_refused_by_its_name(wanted: Wanted, field: str) -> None:
    error = chat_refusal(**wanted)
    assert error.fault is Fault.BAD_REQUEST
    assert error.message.startswith(f"{field}: expected ")
    _status, body, _headers = error_body(error)
    assert json.loads(body)["error"]["param"] == field


@pytest.mark.parametrize(
    ("wanted", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar(Syntax.JSON_SCHEMA, '{"type":"object"}', "response_format")),
        ({"type": "json_object", "schema": SCHEMA}, replace(SCHEMA_READ, field="response_format.schema")),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, SCHEMA_READ),
    ],
)
def test_response_format_becomes_a_schema(wanted: Wanted, schema: Grammar | None) -> None:
    (text,) = completion_requests(response_format=wanted)
    grammar = chat_request(response_format=wanted).sampling.grammar
    assert text.sampling.grammar == grammar
    assert (grammar, grammar and grammar.field) == (schema, schema and schema.field)


@pytest.mark.parametrize(
    ("wanted", "logprobs"),
    [
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_chat_logprobs(wanted: Wanted, logprobs: int | None) -> None:
    assert chat_request(**wanted).logprobs == logprobs


@pytest.mark.parametrize(
    ("choice", "tools", "must_call"),
    [
        (None, (F, G), False),
        ("auto", (F, G), False),
        ("none", (), False),
        ("required", (F, G), True),
        (function("g"), (G,), True),
        ({"type": "function", "name": "g"}, (G,), True),
        (allowed("auto", "g"), (G,), False),
        (allowed("required", "g", "f"), (F, G), True),
    ],
)
def test_tool_choice_leaves_tools(choice: object, tools: tuple[Tool, ...], must_call: bool) -> None:
    request = chat_request(tools=TOOLS, tool_choice=choice)
    assert (request.tools, request.must_call) == (tools, must_call)


@pytest.mark.parametrize(
    ("choice", "names", "must_call"),
    [
        (None, ["f", "g", "patch"], False),
        (custom("patch"), ["patch"], True),
        (function("f"), ["f"], True),
        (allowed_of("auto", custom("patch"), function("g")), ["g", "patch"], False),
        (allowed_of("required", custom("patch")), ["patch"], True),
    ],
)
def test_tool_choice_leaves_custom_tools(choice: object, names: list[str], must_call: bool) -> None:
    request = chat_request(tools=[*TOOLS, PATCH], tool_choice=choice)
    assert ([tool.name for tool in request.tools], request.must_call) == (names, must_call)


@pytest.mark.parametrize(
    ("more", "told", "grammar"),
    [
        ({"description": "edits"}, "edits", None),
        ({"description": "edits", "format": {"type": "text"}}, "edits", None),
        ({"format": None}, "", None),
        (
            {"description": "edits", "format": bound("lark", 'start: "a"')},
            'edits\n\nIts input is a text that matches this Lark grammar:\nstart: "a"',
            Grammar(Syntax.LARK, 'start: "a"', "tools[0].custom.format.grammar.definition"),
        ),
        (
            {"format": bound("regex", "a|b")},
            "Its input is a text that matches this regular expression:\na|b",
            Grammar(Syntax.REGEX, "a|b", "tools[0].custom.format.grammar.definition"),
        ),
    ],
)
def test_a_custom_tool_is_a_function_of_one_text(more: Wanted, told: str, grammar: Grammar | None) -> None:
    [tool] = chat_request(tools=[custom("patch", **more)]).tools
    assert (tool.name, tool.description, tool.bound, tool.custom) == ("patch", told, grammar, True)
    assert json.loads(tool.parameters)["properties"] == {"input": {"type": "string"}}
    if tool.bound is not None:
        assert tool.bound.field == "tools[0].custom.format.grammar.definition"


@pytest.mark.parametrize(
    ("choice", "parallel", "several"),
    [
        ("auto", None, True),
        ("auto", True, True),
        ("auto", False, False),
        ("required", None, False),
        ("required", True, True),
        (function("f"), None, False),
    ],
)
def test_a_required_call_is_one_unless_more_are_asked_for(choice: object, parallel: object, several: bool) -> None:
    asked = chat_request(tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
    assert asked.parallel_calls is several


def test_a_response_format_is_that_of_answers_in_words() -> None:
    wanted = {
        "tools": TOOLS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    }
    assert chat_request(**wanted).sampling.grammar == SCHEMA_READ
    assert chat_request(**wanted, tool_choice="required").sampling.grammar is None


def test_tools_reach_up_to_their_caps() -> None:
    assert len(chat_request(tools=[function(f"{i:064}") for i in range(128)]).tools) == 128
    room = MAX_SCHEMA_BYTES - 1 - len(G.parameters)
    assert chat_request(tools=[function("f", description="x" * room)]).tools[0].description == "x" * room


def test_several_choices_have_ids_and_seeds_of_their_own() -> None:
    requests = chat().receive(chat_body(n=8, seed=MAX_SEED - 1))
    assert [request.id for request in requests] == [f"chatcmpl-7-{i}" for i in range(8)]
    assert [request.sampling.seed for request in requests] == [MAX_SEED - 1, MAX_SEED, *range(6)]
    assert {request.sampling.seed for request in chat().receive(chat_body(n=2))} == {None}


# What a completion request says.


def test_completion_with_no_more_than_it_needs() -> None:
    assert completion_requests() == (Generate("cmpl-7", "hi", 16, Sampling(1.0, 1.0), model="gpt"),)


def test_completion_with_every_field() -> None:
    assert completion_requests(
        prompt=[1, 2**31 - 1], max_tokens=512, logprobs=5, n=1, best_of=1, suffix="", stop="x", echo=False, seed=0
    ) == (Generate("cmpl-7", TokenIds((1, 2**31 - 1)), 512, Sampling(1.0, 1.0, seed=0), ("x",), 5, model="gpt"),)


@pytest.mark.parametrize(("wanted", "max_tokens"), [(None, 16), (-1, None), (0, 0), (1, 1), (2**31, 2**31)])
def test_completion_answer_length(wanted: int | None, max_tokens: int | None) -> None:
    assert completion_requests(max_tokens=wanted)[0].max_tokens == max_tokens


def test_a_completions_length_has_llama_servers_name_too() -> None:
    assert completion_requests(n_predict=7)[0].max_tokens == 7


@pytest.mark.parametrize(("cap", "told"), [(None, ()), (9, (("x-umaserve-max-tokens", "9"),))])
def test_the_operators_cap_is_told(cap: int | None, told: Headers) -> None:
    assert CompletionBody(RequestLimits(200, cap), lambda _name: MODEL_INFO, "c", 0).headers == told


@pytest.mark.parametrize(("wanted", "max_tokens"), [(None, 9), (-1, 9), (8, 8), (10, 9)])
def test_the_operators_cap_cuts_every_answer(wanted: int | None, max_tokens: int) -> None:
    limits = RequestLimits(200, 9)
    completion = CompletionBody(limits, lambda _name: MODEL_INFO, "c", 0).receive(completion_body(max_tokens=wanted))
    chat = ChatBody(limits, None, lambda _name: MODEL_INFO, "c", 0).receive(chat_body(max_tokens=wanted))
    assert [request.max_tokens for request in (*completion, *chat)] == [max_tokens] * 2


def test_each_prompt_has_its_choices_side_by_side() -> None:
    requests = completion_requests(prompt=["a", [1], "b"], n=2, best_of=2)
    assert [(request.id, request.prompt) for request in requests] == [
        ("cmpl-7-0", "a"),
        ("cmpl-7-1", "a"),
        ("cmpl-7-2", TokenIds((1,))),
        ("cmpl-7-3", TokenIds((1,))),
        ("cmpl-7-4", "b"),
        ("cmpl-7-5", "b"),
    ]
    assert len(completion_requests(prompt=["a"] * 16)) == 16
    assert len(completion_requests(prompt=[[0]] * 16)) == 16


def test_what_is_asked_beyond_openais_fields_holds_for_every_prompt_and_choice() -> None:
    wanted = {"cache_prompt": False, "lora": {}, "priority": "background", "slo": {"target_tbt_ms": 80}}
    requests = completion_requests(prompt=["a", "b"], n=2, **wanted)
    asked = {(one.cache_prompt, one.lora, one.priority, one.target_ttft_s, one.target_tbt_s) for one in requests}
    assert asked == {(False, (), Priority.BACKGROUND, None, 0.08)}
    assert completion_requests(**dict.fromkeys(wanted)) == completion_requests()


@pytest.mark.parametrize(("wanted", "field"), EXTENSIONS_REFUSED)
def test_a_wrong_field_beyond_openais_is_refused_in_a_completion_too(wanted: Wanted, field: str) -> None:
    assert completion_refusal(**wanted).message.startswith(f"{field}: expected ")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"prompt": None}, "prompt: expected a string or an array of token ids, got null"),
        ({"prompt": []}, "prompt: expected 1 to 16 texts, got 0"),
        ({"prompt": ["a"] * 17}, "prompt: expected 1 to 16 texts, got 17"),
        ({"prompt": ["a", 1, -1]}, "prompt[2]: expected a whole number from 0 to 2147483647, got -1"),
        ({"prompt": ["a", "b", [1], {}]}, "prompt[3]: expected a string or an array of token ids, got an object"),
        ({"prompt": ["a", []]}, "prompt[1]: expected at least one token id, got none"),
        ({"prompt": ["a", ["b", 1, []]]}, "prompt[1][2]: expected a whole number from 0 to 2147483647, got an array"),
        ({"prompt": [1, True]}, "prompt[1]: expected a whole number from 0 to 2147483647, got a boolean"),
        ({"prompt": [True]}, "prompt[0]: expected a string or an array of token ids, got a boolean"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]: expected a whole number from 0 to 2147483647, got -1"),
        ({"prompt": [2**31]}, "prompt[0]: expected a whole number from 0 to 2147483647, got 2147483648"),
        ({"suffix": "x"}, "suffix: expected null or an empty string, got a string"),
        ({"n": 2, "best_of": 3}, "best_of: expected 2, the value of n, got 3"),
        ({"logprobs": 21}, "logprobs: expected a whole number from 0 to 20, got 21"),
        ({"logprobs": True}, "logprobs: expected a whole number from 0 to 20, got a boolean"),
        ({"echo": 1}, "echo: expected true or false, got a whole number"),
        (
            {"echo": True, "prompt": [1]},
            "echo: expected false where the prompt is token ids and logprobs are not asked for, got true",
        ),
        ({"max_tokens": -2}, "max_tokens: expected a whole number from 0, got -2"),
        ({"max_tokens": 1e308}, "max_tokens: expected a whole number from 0 to 9223372036854775807, got 1e+308"),
        ({"n_predict": 2**64}, f"n_predict: expected a whole number from 0 to {2**63 - 1}, got 1.8446744073709552e+19"),
        ({"prompt_logprobs": -1}, "prompt_logprobs: expected a whole number from 0 to 20, got -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs: expected a whole number from 0 to 20, got 21"),
        (
            {"prompt_logprobs": 0, "stream": True},
            "prompt_logprobs: expected to be absent in a stream, which gives the same by echo and logprobs",
        ),
    ],
)
def test_a_wrong_completion_field_is_refused_by_its_name(wanted: Wanted, expected: str) -> None:
    error = completion_refusal(**wanted)
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, expected)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("é" * 101, "prompt: expected at most 200 bytes, got 202"),
        (["a", "a" * 201], "prompt[1]: expected at most 200 bytes, got 201"),
        ([1] * 201, "prompt: expected at most 200 tokens, got 201"),
        ([[1], [1] * 201], "prompt[1]: expected at most 200 tokens, got 201"),
    ],
)
def test_a_prompt_that_is_too_long_is_refused(prompt: object, expected: str) -> None:
    error = completion_refusal(prompt=prompt)
    assert (error.fault, error.message) == (Fault.PROMPT_TOO_LARGE, expected)


@pytest.mark.parametrize("exchange", [chat, completion])
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", Fault.INVALID_JSON),
        (b"{", Fault.INVALID_JSON),
        (b"\xff", Fault.INVALID_JSON),
        (b'{"a":NaN}', Fault.INVALID_JSON),
        (b"[]", Fault.BAD_REQUEST),
        (b"null", Fault.BAD_REQUEST),
    ],
)
def test_a_body_that_is_no_object_is_refused(exchange: Any, body: bytes, fault: Fault) -> None:
    with pytest.raises(RequestError) as raised:
        exchange().receive(body)
    assert raised.value.fault is fault


LEAVES = st.none() | st.booleans() | st.integers(-5, 600) | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    LEAVES
    | st.sampled_from(["user", "tool", "auto", "required", "function", "text", "json_schema", "f", "{}", USER, TOOLS]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "function", "name", "arguments", "tool_calls", "schema"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = (
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "seed"),
    *("logprobs", "top_logprobs", "logit_bias", "response_format", "tools", "tool_choice", "parallel_tool_calls"),
    *("stream", "stream_options", "grammar", "json_schema", "prompt", "echo", "suffix", "best_of", "input"),
    *("encoding_format", "dimensions", "content", "tokens", "add_special", "with_pieces"),
    *("cache_prompt", "lora", "priority", "slo"),
    *grammars.FIELDS,
)
BODIES = VALUES | st.dictionaries(st.sampled_from(FIELDS), VALUES)


@given(body=BODIES, usual=st.sampled_from([{}, {"messages": USER}, {"prompt": "a"}, {"tools": TOOLS}]))
def test_any_body_is_a_request_or_refused(body: Any, usual: Wanted) -> None:
    data = json.dumps({**usual, **body} if isinstance(body, dict) else body).encode()
    for receive in (
        lambda: chat().receive(data),
        lambda: completion().receive(data),
        lambda: parse_embeddings(json_body(data), LIMITS, 8),
        lambda: parse_tokenize(json_body(data), LIMITS),
        lambda: parse_detokenize(json_body(data), LIMITS),
    ):
        try:
            received: object = receive()
        except RequestError as error:
            status, text, _headers = error_body(error)
            received = 400 <= status < 500 and json.loads(text)["error"]["message"] == error.message
        assert received


# What comes back.


def scored(piece: bytes, logprob: float = -0.5, token_id: int = 1) -> Scored:
    return Scored(token_id, piece, logprob)


def tokens(*texts: str) -> list[Output]:
    return [Started(), *(Token(text, 1) for text in texts), END]


def streamed(exchange: Exchange, body: bytes, *outputs: Iterable[Output]) -> list[Wanted]:
    """The chunks for the outputs of each choice, one output of each in turn."""
    assert len(exchange.receive(body)) == len(outputs)
    assert exchange.streaming
    return [json.loads(chunk) for chunk in played(exchange, *outputs)]


def whole(exchange: Exchange, body: bytes, *outputs: Iterable[Output]) -> Wanted:
    assert len(exchange.receive(body)) == len(outputs)
    assert not exchange.streaming
    assert played(exchange, *outputs) == []
    return json.loads(exchange.result())


def played(exchange: Exchange, *outputs: Iterable[Output]) -> list[bytes]:
    left = {index: list(choice) for index, choice in enumerate(outputs)}
    chunks = []
    while any(left.values()):
        for index, choice in left.items():
            if choice:
                assert not exchange.done
                chunks += exchange.send(index, choice.pop(0))
    assert exchange.done
    return chunks


HEAD = {"id": "chatcmpl-7", "created": 1700000000, "model": "small-1"}
TIMINGS = {
    "cache_n": 2,
    "prompt_n": 3,
    "prompt_ms": 1000.0,
    "prompt_per_token_ms": pytest.approx(1000 / 3),
    "prompt_per_second": 3.0,
    "predicted_n": 3,
    "predicted_ms": 1500.0,
    "predicted_per_token_ms": 750.0,
    "predicted_per_second": pytest.approx(4 / 3),
}


def usage(prompt: int, completion: int, *, cached: int) -> Wanted:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


def test_a_whole_chat_answer() -> None:
    answer = whole(chat(), chat_body(), tokens("Hel", "", "lo"))
    ChatCompletion.model_validate(answer)
    fingerprint = answer.pop("system_fingerprint")
    # As llama-server's, by which its clients know it.
    assert fingerprint.startswith("b")
    assert answer == {
        **HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": usage(5, 3, cached=2),
        "timings": TIMINGS,
    }


def test_a_streamed_chat_answer() -> None:
    chunks = streamed(chat(), chat_body(stream=True), tokens("Hel", "", "lo"))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert chunk.items() >= {**HEAD, "object": "chat.completion.chunk"}.items()
        assert "usage" not in chunk
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": None}, None),
            ({"content": "Hel"}, None),
            ({"content": "lo"}, None),
            ({}, "stop"),
        ]
    ]
    assert [chunk.get("timings") for chunk in chunks] == [None, None, None, TIMINGS]
    assert SSE_DONE == b"[DONE]"


def test_the_prompt_is_told_where_it_is_asked_for() -> None:
    outputs = (Started(), Prefilled(5, text="<s>hi"), *tokens("a"))
    assert not chat_request().wants_prompt
    assert chat_request(verbose=True).wants_prompt
    told = {"index": 0, "prompt": "<s>hi"}
    assert whole(chat(), chat_body(verbose=True), outputs)["__verbose"] == told
    assert "__verbose" not in whole(chat(), chat_body(), outputs)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for fields in ({"stream": True}, usage):
        chunks = streamed(chat(), chat_body(verbose=True, **fields), outputs)
        assert [chunk.get("__verbose") for chunk in chunks] == [None] * (len(chunks) - 1) + [told]


@pytest.mark.parametrize(("exchange", "body"), [(chat, chat_body), (completion, completion_body)])
def test_usage_comes_last_where_it_is_asked_for(exchange: Any, body: Any) -> None:
    wanted = body(stream=True, stream_options={"include_usage": True}, n=2)
    *before, last = streamed(exchange(), wanted, tokens("a"), tokens("b", "c"))
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in before)
    assert last["choices"] == []
    assert last["usage"] == usage(5, 6, cached=2)
    assert "timings" not in last
    alone = streamed(exchange(), body(stream=True, stream_options={"include_usage": True}), tokens("a"))
    assert [chunk.get("timings") is not None for chunk in alone[-3:]] == [False, True, True]


@pytest.mark.parametrize(("exchange", "body"), [(chat, chat_body), (completion, completion_body)])
def test_the_prompts_progress_is_told_in_streams_that_ask_for_it(exchange: Any, body: Any) -> None:
    asking = exchange()
    [request] = asking.receive(body(stream=True, return_progress=True))
    assert request.wants_progress
    [chunk] = [json.loads(data) for data in asking.send(0, Prefilling(9, 2, 5, 0.25))]
    assert (chunk["choices"], chunk["object"]) == ([], asking._chunk_object)
    assert chunk["prompt_progress"] == {"total": 9, "cache": 2, "processed": 5, "time_ms": 250}
    [request] = exchange().receive(body(return_progress=True))
    assert not request.wants_progress


def test_a_chats_prompt_is_counted() -> None:
    counted = count_request(chat_body(max_tokens=5, tools=TOOLS), LIMITS).request
    [asked] = chat().receive(chat_body(max_tokens=5, tools=TOOLS))
    assert (counted.prompt, counted.tools) == (asked.prompt, asked.tools)
    with pytest.raises(RequestError, match="messages"):
        count_request(b"{}", LIMITS)


def test_choices_are_told_apart() -> None:
    chunks = streamed(chat(), chat_body(stream=True, n=2), tokens("a", "b"), tokens("x"))
    texts = ["", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == ["ab", "x"]
    answer = whole(chat(), chat_body(n=2), tokens("a", "b"), tokens("x"))
    ChatCompletion.model_validate(answer)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [(0, "ab"), (1, "x")]
    assert "timings" not in answer


def test_usage_counts_each_prompt_once() -> None:
    answer = whole(completion(), completion_body(prompt=["a", "b"], n=2), *[tokens("x")] * 4)
    assert answer["usage"] == usage(10, 12, cached=4)


def test_cached_are_the_tokens_that_no_choice_of_a_prompt_had_to_compute() -> None:
    ends = [[Finished(FinishReason.STOP, Usage(5, 1, reused))] for reused in (1, 4, 0, 4)]
    assert whole(completion(), completion_body(prompt=["a", "b"], n=2), *ends)["usage"] == usage(10, 4, cached=1)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CANCELLED, "stop"),
        (FinishReason.CONTENT_FILTER, "content_filter"),
    ],
)
def test_finish_reasons(reason: FinishReason, expected: str) -> None:
    end = Finished(reason, Usage(1, 0))
    for exchange, body in ((chat, chat_body), (completion, completion_body)):
        assert whole(exchange(), body(), [end])["choices"][0]["finish_reason"] == expected
        assert streamed(exchange(), body(stream=True), [end])[-1]["choices"][0]["finish_reason"] == expected


def test_what_is_no_text_makes_no_chunk() -> None:
    exchange = chat()
    exchange.receive(chat_body(stream=True))
    exchange.send(0, Started())
    for output in (Loading(0.5, None), Waiting(1, 2, None), Steered(Pause()), Token("", 1)):
        assert exchange.send(0, output) == []
    assert len(exchange.send(0, Token("a", 1))) == 1


def test_the_role_comes_first_even_if_the_start_was_not_told() -> None:
    first, *_others = streamed(chat(), chat_body(stream=True), [Token("a", 1), END])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_without_a_model_its_name_is_the_one_asked_for() -> None:
    answer = whole(chat(None), chat_body(), tokens("a"))
    assert (answer["model"], answer["system_fingerprint"]) == ("gpt", None)


def test_an_answer_without_tokens_has_no_rate() -> None:
    end = Finished(FinishReason.STOP, Usage(5, 0), Timing(0.5, 0.0, 0.75))
    assert whole(chat(), chat_body(), [end])["timings"] == {
        "cache_n": 0,
        "prompt_n": 5,
        "prompt_ms": 250.0,
        "prompt_per_token_ms": 50.0,
        "prompt_per_second": 20.0,
        "predicted_n": 0,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
    }
    timings = whole(chat(), chat_body(), [Finished(FinishReason.STOP, Usage(5, 1))])["timings"]
    assert (timings["prompt_per_second"], timings["predicted_per_second"]) == (0.0, 0.0)


def test_one_token_alone_has_no_rate() -> None:
    end = Finished(FinishReason.LENGTH, Usage(5, 1), Timing(0.0, 0.5, 0.5001))
    timings = whole(chat(), chat_body(), [end])["timings"]
    assert (timings["predicted_per_second"], timings["predicted_per_token_ms"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "continues", "opens"),
    [
        ({}, None, True),
        ({"continue_final_message": None, "add_generation_prompt": None}, None, True),
        ({"continue_final_message": True}, True, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, True, False),
        ({"continue_final_message": False, "add_generation_prompt": True}, False, True),
        ({"add_generation_prompt": False}, None, False),
    ],
)
def test_what_an_answer_begins_with(fields: dict[str, Any], continues: bool | None, opens: bool) -> None:
    [request] = chat().receive(chat_body(**fields))
    assert (request.continue_final_message, request.add_generation_prompt) == (continues, opens)


def test_an_answer_cannot_go_on_and_begin_anew() -> None:
    with pytest.raises(RequestError, match=r"^add_generation_prompt: expected false where continue_final_message is"):
        chat().receive(chat_body(continue_final_message=True, add_generation_prompt=True))


@pytest.mark.parametrize("field", parameters.NOT_DONE)
def test_a_constraint_that_is_not_known_is_refused_by_name(field: str) -> None:
    neutral, instead = parameters.NOT_DONE[field]
    for value in (None, *neutral):
        chat().receive(chat_body(**{field: value}))
    with pytest.raises(RequestError, match=f"^{field}: expected to be absent: {re.escape(instead)}"):
        chat().receive(chat_body(**{field: {"a": 1} if neutral == ({},) else 5}))


def test_texts_to_embed_are_not_cut_without_a_word() -> None:
    with pytest.raises(
        RequestError, match=r"^truncate_prompt_tokens: expected to be absent: a prompt is never truncated"
    ):
        parse_embeddings(Fields({"input": "a", "truncate_prompt_tokens": 5}), LIMITS, 8)


# Completions.


def test_a_whole_completion() -> None:
    answer = whole(completion(), completion_body(echo=True), tokens(" th", "ere"))
    Completion.model_validate(answer)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"text": "hi there", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert answer["timings"] == TIMINGS


def test_a_streamed_completion() -> None:
    chunks = streamed(completion(), completion_body(stream=True, echo=True), tokens(" th", "", "ere"))
    said = [(chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) for chunk in chunks]
    assert said == [("hi", None), (" th", None), ("ere", None), ("", "stop")]
    Completion.model_validate(chunks[-1])
    assert [chunk.get("timings") for chunk in chunks] == [None, None, None, TIMINGS]


# Log-probabilities.

LOGPROBS = [
    Logprobs(scored(b"a"), (scored(b"a"), scored(b"b", -1.5, 2))),
    Logprobs(scored(b"\xc3", -2.5, 3), (scored(b"b", -1.5, 2),)),
    Logprobs(scored(b"\xa9", float("-inf"), 4), ()),
    Logprobs(scored(b"c", float("nan"), 5), ()),
]
SCORED = [Token("a", 1, LOGPROBS[0]), Token("", 3, LOGPROBS[1]), Token("é", 4, LOGPROBS[2]), Token("c", 5, LOGPROBS[3])]


def test_chat_logprobs_are_said_for_every_token() -> None:
    outputs = [Started(), *SCORED, END]
    expected = [
        {
            **{"token": "a", "logprob": -0.5, "bytes": [97]},
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "b", "logprob": -1.5, "bytes": [98]},
            ],
        },
        {
            **{"token": "\ufffd", "logprob": -2.5, "bytes": [0xC3]},
            "top_logprobs": [{"token": "b", "logprob": -1.5, "bytes": [98]}],
        },
        {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xA9], "top_logprobs": []},
        {"token": "c", "logprob": -9999.0, "bytes": [99], "top_logprobs": []},
    ]
    answer = whole(chat(), chat_body(logprobs=True, top_logprobs=2), outputs)
    ChatCompletion.model_validate(answer)
    assert answer["choices"][0]["logprobs"] == {"content": expected, "refusal": None}
    chunks = streamed(chat(), chat_body(logprobs=True, top_logprobs=2, stream=True), outputs)
    told = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"] is not None]
    assert [choice["delta"]["content"] for choice in told] == ["a", "", "é", "c"]
    assert [choice["logprobs"]["content"] for choice in told] == [[item] for item in expected]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)


def test_completion_logprobs_are_parallel_arrays() -> None:
    expected = {
        "tokens": ["a", "\ufffd", "\ufffd", "c"],
        "token_logprobs": [-0.5, -2.5, -9999.0, -9999.0],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {"b": -1.5, "\ufffd": -2.5}, {"\ufffd": -9999.0}, {"c": -9999.0}],
        "text_offset": [0, 1, 1, 2],
    }
    answer = whole(completion(), completion_body(logprobs=2), [Started(), *SCORED, END])
    Completion.model_validate(answer)
    assert answer["choices"][0]["logprobs"] == expected
    chunks = streamed(completion(), completion_body(logprobs=2, stream=True), [Started(), *SCORED, END])
    told = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"] is not None]
    assert {key: [item for choice in told for item in choice["logprobs"][key]] for key in expected} == expected
    assert "".join(choice["text"] for choice in told) == "aéc"


# Log-probabilities of the prompt.


@pytest.mark.parametrize(
    ("wanted", "logprobs", "of_prompt"),
    [
        ({"logprobs": 3}, 3, None),
        ({"echo": True, "logprobs": 3}, 3, 3),
        ({"echo": True, "logprobs": 0, "prompt": [1, 2]}, 0, 0),
        ({"prompt_logprobs": 0}, None, 0),
        ({"prompt_logprobs": 2, "logprobs": 5}, 5, 2),
        ({"prompt_logprobs": 2, "logprobs": 5, "echo": True}, 5, 5),
        ({"prompt_logprobs": None, "echo": True}, None, None),
    ],
)
def test_log_probabilities_of_the_prompt(wanted: Wanted, logprobs: int | None, of_prompt: int | None) -> None:
    [request] = completion_requests(**wanted)
    assert (request.logprobs, request.prompt_logprobs) == (logprobs, of_prompt)
    assert request.shares_prefixes is (of_prompt is None)


PROMPT = [
    PromptScores((), b"h"),
    PromptScores((Logprobs(scored(b"\xc3", -1.0, 7), (scored(b"x", -0.25, 9), scored(b"y", -3.0, 8)), 2),)),
    PromptScores((Logprobs(scored(b"\xa9", -2.0, 6), (scored(b"\xa9", -2.0, 6), scored(b"y", -3.0, 8)), 1),)),
]
ANSWERED = [Started(), *PROMPT, Token("a", 1, LOGPROBS[0]), END]
ECHOED = {
    "tokens": ["h", "\ufffd", "\ufffd", "a"],
    "token_logprobs": [None, -1.0, -2.0, -0.5],
    "top_logprobs": [
        None,
        {"x": -0.25, "\ufffd": -1.0},
        {"\ufffd": -2.0},
        {"a": -0.5, "b": -1.5},
    ],
    "text_offset": [0, 1, 1, 2],
}


@pytest.mark.parametrize("prompt", ["hé", [1, 7, 6], ["h", 7, 6]])
def test_an_echo_has_log_probabilities_of_prompt_and_answer(prompt: object) -> None:
    wanted = {"prompt": [prompt] if isinstance(prompt, list) else prompt, "logprobs": 1, "echo": True}
    expected = [*PROMPT, Token("a", 1, Logprobs(LOGPROBS[0].chosen, LOGPROBS[0].top))]
    answer = whole(completion(), completion_body(**wanted), [Started(), *expected, END])
    assert answer["choices"] == [{"text": "héa", "index": 0, "logprobs": ECHOED, "finish_reason": "stop"}]
    chunks = streamed(completion(), completion_body(**wanted, stream=True), [Started(), *expected, END])
    told = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in told) == "héa"
    arrays = [choice["logprobs"] for choice in told if choice["logprobs"] is not None]
    assert {key: [item for one in arrays for item in one[key]] for key in ECHOED} == ECHOED
    assert len(arrays) == 4, "as they come"


def test_an_echo_alone() -> None:
    wanted = {"prompt": "hé", "logprobs": 1, "echo": True, "max_tokens": 0}
    end = Finished(FinishReason.LENGTH, Usage(3, 0))
    answer = whole(completion(), completion_body(**wanted), [Started(), *PROMPT, end])
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hé", "length")
    assert choice["logprobs"] == {key: items[:3] for key, items in ECHOED.items()}


def test_the_token_that_ends_an_answer_is_in_the_arrays_and_not_in_the_text() -> None:
    end = Token("", 0, Logprobs(scored(b"</s>", -0.125, 0), ()), sampled=False)
    wanted = completion_body(prompt="hé", logprobs=1, echo=True, max_tokens=1)
    [choice] = whole(completion(), wanted, [Started(), *PROMPT, end, END])["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"][3:]) == ("hé", ["</s>"])
    assert choice["logprobs"]["token_logprobs"][3:] == [-0.125]


def test_what_a_model_puts_before_a_prompt_is_in_no_text() -> None:
    pieces = [b"<s>", b" h", b"i", b"\n"]
    first, *others = pieces
    told = PromptScores(tuple(Logprobs(scored(piece), ()) for piece in others), first)
    answer = [Started(), told, Token("!", 1, Logprobs(scored(b"!"), ())), END]
    [choice] = whole(completion(), completion_body(prompt="hi\n", logprobs=0, echo=True), answer)["choices"]
    assert choice["text"] == "hi\n!"
    assert choice["logprobs"]["tokens"] == ["<s>", " h", "i", "\n", "!"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]


def test_a_character_that_the_prompts_last_token_begins_is_told_before_the_answer() -> None:
    told = [PromptScores((Logprobs(scored(b"\xc3"), ()),), b"h"), Token("a", 1, Logprobs(scored(b"a"), ())), END]
    [choice] = whole(completion(), completion_body(prompt=[5, 6], logprobs=0, echo=True), [Started(), *told])["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("h\ufffda", [0, 1, 2])


def test_each_choice_of_each_prompt_has_its_own() -> None:
    wanted = completion_body(prompt=["hé", "hé"], n=2, logprobs=1, echo=True)
    answer = whole(completion(), wanted, *[ANSWERED] * 4)
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [ECHOED["tokens"]] * 4


def test_log_probabilities_of_a_prompt_as_in_vllm() -> None:
    [choice] = whole(completion(), completion_body(prompt="hé", prompt_logprobs=1), ANSWERED)["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "7": {"logprob": -1.0, "rank": 2, "decoded_token": "\ufffd"},
            "9": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
        },
        {"6": {"logprob": -2.0, "rank": 1, "decoded_token": "\ufffd"}},
    ]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("a", ["a"])
    [other] = whole(completion(), completion_body(prompt="hé", logprobs=1), [Started(), *SCORED, END])["choices"]
    assert "prompt_logprobs" not in other


# Tools.


def call_text(name: str, arguments: str = "{}") -> str:
    return f'{TOOL_CALL_OPEN}{{"name":"{name}","arguments":{arguments}}}{TOOL_CALL_CLOSE}'


def call(number: int, name: str, arguments: str, choice: int = 0) -> Wanted:
    return {
        "id": call_id(number, choice),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def call_id(number: int, choice: int = 0) -> str:
    return hashlib.blake2s(f"7_{choice}_{number}".encode()).hexdigest()[:9]


def test_a_whole_answer_with_calls() -> None:
    text = "\n" + call_text("f", '{"x":1}') + "\n" + call_text("g")
    answer = whole(chat(), chat_body(tools=TOOLS), tokens(*text))
    ChatCompletion.model_validate(answer)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [call(0, "f", '{"x":1}'), call(1, "g", "{}")],
    }


def test_a_streamed_answer_with_calls() -> None:
    outputs = tokens("Well", ". ", call_text("f", '{"x":1}') + " " + call_text("g"), " ")
    chunks = streamed(chat(), chat_body(tools=TOOLS, stream=True), outputs)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": None}, None),
        ({"content": "Well"}, None),
        ({"content": ". "}, None),
        ({"tool_calls": [{"index": 0, **call(0, "f", "")}]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":1}'}}]}, None),
        ({"tool_calls": [{"index": 1, **call(1, "g", "")}]}, None),
        ({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}, None),
        ({}, "tool_calls"),
    ]


def test_a_call_can_be_answered_in_the_next_request() -> None:
    answer = whole(chat(), chat_body(tools=TOOLS), tokens(call_text("f", '{"x":1}')))
    message = answer["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}
    assert turns(*USER, message, result) == (
        ChatTurn("user", "hi"),
        ChatTurn("assistant", "", (ToolCall(call_id(0), "f", '{"x":1}'),)),
        ChatTurn("tool", "2", tool_call_id=call_id(0)),
    )


def test_each_choice_has_calls_of_its_own() -> None:
    answer = whole(chat(), chat_body(tools=TOOLS, n=2), tokens(call_text("f")), tokens(call_text("g")))
    calls = [choice["message"]["tool_calls"] for choice in answer["choices"]]
    assert calls == [[call(0, "f", "{}")], [call(0, "g", "{}", choice=1)]]


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    text = call_text("f") + " and " + call_text("g") + " end"
    message = whole(chat(), chat_body(tools=TOOLS, parallel_tool_calls=False), tokens(text))["choices"][0]["message"]
    assert (message["content"], message["tool_calls"]) == (None, [call(0, "f", "{}")])


def test_an_answer_cut_in_a_call_has_the_call_as_far_as_it_goes() -> None:
    cut = call_text("f").partition("}")[0]
    end = Finished(FinishReason.LENGTH, Usage(1, 1))
    answer = whole(chat(), chat_body(tools=TOOLS), [Token(call_text("g") + cut, 1), end])
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert [one["function"]["arguments"] for one in choice["message"]["tool_calls"]] == ["{}", "{"]
    chunks = streamed(chat(), chat_body(tools=TOOLS, stream=True), [Token(cut, 1), end])
    assert [delta["choices"][0]["delta"].get("content") for delta in chunks] == [None] * 4
    # What clients make of it, they send with their next request.
    sent = [{"role": "user", "content": "hi"}, choice["message"], {"role": "user", "content": "on"}]
    assert [call.arguments for call in chat_request(messages=sent).prompt[1].tool_calls] == ["{}", "{"]


def test_arguments_are_streamed_while_they_are_written() -> None:
    outputs = tokens(*("<tool_call>", '{"name": "f", "arguments": ', '{"x"', ": 1", "}", "}", "</tool_call>"))
    chunks = streamed(chat(), chat_body(tools=TOOLS, stream=True), outputs)
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0] == {"index": 0, **call(0, "f", "")}
    assert [delta["function"]["arguments"] for delta in deltas[1:]] == ['{"x"', ": 1", "}"]
    for chunk in chunks:
        check_answer(chunk, {"$ref": "#/components/schemas/ChatCompletionChunk"})


def test_a_custom_tools_call_has_its_input_as_it_is() -> None:
    text = call_text("patch", '{"input": "a\\n\\"b\\""}') + call_text("f", '{"input":"a"}')
    answer = whole(chat(), chat_body(tools=[*TOOLS, PATCH]), tokens(*text))
    ChatCompletion.model_validate(answer)
    check_answer(answer, {"$ref": "#/components/schemas/ChatCompletion"})
    [choice] = answer["choices"]
    said = {"id": call_id(0), **custom("patch", input='a\n"b"')}
    assert choice["message"]["tool_calls"] == [said, call(1, "f", '{"input":"a"}')]
    assert choice["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call_id(0), "content": "2"}
    [_user, again, answered] = turns(*USER, choice["message"], result)
    assert again.tool_calls[0] == ToolCall(call_id(0), "patch", '{"input":"a\\n\\"b\\""}')
    assert answered.tool_call_id == call_id(0)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ('{"input": "a\\nb\\"\\\\"}', ["a", "\n", "b", '"', "\\"]),
        ('{ "input" :"\\ud83e\\udd99\\u0001"}', ["🦙", "\x01"]),
        ('{"input": ""}', []),
        ('{"text": "a"}', ['{"text": "a"}']),
    ],
)
def test_a_custom_tools_input_is_streamed_while_it_is_written(arguments: str, parts: list[str]) -> None:
    chunks = streamed(chat(), chat_body(tools=[PATCH], stream=True), tokens(*call_text("patch", arguments)))
    for chunk in chunks:
        check_answer(chunk, {"$ref": "#/components/schemas/ChatCompletionChunk"})
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas == [
        {"index": 0, "id": call_id(0), **custom("patch", input="")},
        *({"index": 0, "custom": {"input": part}} for part in parts),
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_cut_in_a_custom_tools_input_has_that_as_far_as_it_goes() -> None:
    end = Finished(FinishReason.LENGTH, Usage(1, 1))
    cut = call_text("patch", '{"input": "é\\n\\u00').partition("}")[0]
    [choice] = whole(chat(), chat_body(tools=[PATCH]), [Token(cut, 1), end])["choices"]
    assert choice["message"]["tool_calls"] == [{"id": call_id(0), **custom("patch", input="é\n")}]
    assert choice["finish_reason"] == "length"


def test_each_choice_has_inputs_of_its_own() -> None:
    text = [call_text("patch", f'{{"input": "{name}"}}') for name in "ab"]
    choices = whole(chat(), chat_body(tools=[PATCH], n=2), *(tokens(*each) for each in text))["choices"]
    assert [choice["message"]["tool_calls"][0]["custom"]["input"] for choice in choices] == ["a", "b"]


def test_calls_are_found_in_the_form_of_the_loaded_model() -> None:
    form = ToolForm(("[CALL]", Slot.NAME, "[WITH]", Slot.ARGUMENTS))
    answer = whole(chat(replace(MODEL_INFO, tool_form=form)), chat_body(tools=TOOLS), tokens('[CALL]f[WITH]{"x":1}'))
    assert answer["choices"][0]["message"]["tool_calls"] == [call(0, "f", '{"x":1}')]


@pytest.mark.parametrize("wanted", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
def test_without_tools_a_call_is_text(wanted: Wanted) -> None:
    [choice] = whole(chat(), chat_body(**wanted), tokens(call_text("f")))["choices"]
    assert choice["message"]["content"] == call_text("f")
    assert choice["finish_reason"] == "stop"


def test_logprobs_outlive_text_that_is_held_as_a_call() -> None:
    outputs = [Token(piece, 1, LOGPROBS[0]) for piece in call_text("f")]
    body = {"tools": TOOLS, "logprobs": True, "top_logprobs": 2}
    answer = whole(chat(), chat_body(**body), [*outputs, END])
    assert len(answer["choices"][0]["logprobs"]["content"]) == len(outputs)
    chunks = streamed(chat(), chat_body(**body, stream=True), [*outputs, END])
    told = [chunk for chunk in chunks if chunk["choices"][0]["logprobs"] is not None]
    assert [chunk["choices"][0]["delta"] for chunk in told] == [{"content": ""}] * len(outputs)


@given(
    texts=st.lists(
        st.sampled_from(
            [
                *(call_text("f"), call_text("g", '{"a":[1]}'), call_text("patch", '{"input":"a\\n"}')),
                *(call_text("patch"), TOOL_CALL_OPEN, " ", "a", "<", ""),
            ]
        )
    ),
    cut=st.integers(1, 20),
    parallel=st.booleans(),
)
def test_a_stream_put_together_is_the_whole_answer(texts: list[str], cut: int, parallel: bool) -> None:
    text = "".join(texts)
    outputs = tokens(*(text[at : at + cut] for at in range(0, len(text), cut)))
    body = {"tools": [*TOOLS, PATCH], "parallel_tool_calls": parallel}
    content, calls, reason = "", {}, None
    for chunk in streamed(chat(), chat_body(**body, stream=True), outputs):
        [choice] = chunk["choices"]
        content += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", []):
            calls[delta["index"]] = calls.get(delta["index"], "") + said(delta)
        reason = choice["finish_reason"] or reason
    [choice] = whole(chat(), chat_body(**body), outputs)["choices"]
    assert (choice["message"]["content"] or "", choice["finish_reason"]) == (content, reason)
    assert list(map(said, choice["message"].get("tool_calls", []))) == list(calls.values())


def said(call: Wanted) -> str:
    return call["custom"]["input"] if "custom" in call else call["function"]["arguments"]


# Failures.


def test_a_failure_in_a_stream_is_an_error_chunk() -> None:
    exchange = chat()
    exchange.receive(chat_body(stream=True, n=2, stream_options={"include_usage": True}))
    exchange.send(0, Started())
    [chunk] = exchange.fail(0, RequestError(Fault.DECODE_FAILED, "request", "decode failed"))
    assert json.loads(chunk) == {
        "error": {"message": "request: decode failed", "type": "server_error", "param": None, "code": "server_error"}
    }
    assert not exchange.done
    *_before, last = exchange.send(1, END)
    assert exchange.done
    # What the failed choice cost is not known.
    assert json.loads(last)["usage"] is None


def test_a_failure_leaves_no_whole_answer() -> None:
    exchange = completion()
    exchange.receive(completion_body())
    assert exchange.fail(0, RequestError(Fault.SHUTTING_DOWN, "request", "bye")) == []
    assert exchange.done
    with pytest.raises(RuntimeError):
        exchange.result()


def test_out_of_turn_is_our_own_mistake() -> None:
    exchange = chat()
    assert not exchange.done
    with pytest.raises(RuntimeError):
        exchange.send(0, END)
    exchange.receive(chat_body())
    with pytest.raises(RuntimeError):
        exchange.result()
    exchange.send(0, END)
    for late in (lambda: exchange.send(0, END), lambda: exchange.fail(0, RequestError(Fault.BUSY, "request", ""))):
        with pytest.raises(RuntimeError):
            late()


# The contract, written down a second time so that a status can't change without a test saying so.
STATUSES: dict[Fault, tuple[int, str, str | None]] = {
    Fault.FRAME_TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Fault.INVALID_JSON: (400, "invalid_request_error", None),
    Fault.BAD_REQUEST: (400, "invalid_request_error", None),
    Fault.NOT_SUPPORTED: (400, "invalid_request_error", None),
    Fault.BUSY: (409, "invalid_request_error", "busy"),
    Fault.PROMPT_TOO_LARGE: (413, "invalid_request_error", "prompt_too_large"),
    Fault.CONTEXT_EXCEEDED: (400, "exceed_context_size_error", "context_length_exceeded"),
    Fault.TOO_MANY_SESSIONS: (503, "server_error", "too_many_sessions"),
    Fault.CONTENT_FILTERED: (400, "invalid_request_error", "content_filter"),
    Fault.NOT_FOUND: (404, "invalid_request_error", "not_found"),
    Fault.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    Fault.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Fault.MEMORY_PRESSURE: (503, "server_error", "memory_pressure"),
    Fault.QUEUE_FULL: (503, "server_error", "queue_full"),
    Fault.TIMED_OUT: (504, "server_error", "timeout"),
    Fault.MODEL_NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    Fault.MODEL_NOT_LOADED: (503, "server_error", "model_not_loaded"),
    Fault.DECODE_FAILED: (500, "server_error", "server_error"),
    Fault.SHUTTING_DOWN: (503, "server_error", "shutting_down"),
    Fault.ENDED: (403, "server_error", "ended"),
}


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_its_status(fault: Fault) -> None:
    status, body, headers = error_body(RequestError(fault, "", "went wrong"))
    expected_status, kind, code = STATUSES[fault]
    assert status == expected_status
    assert json.loads(body) == {"error": {"message": "went wrong", "type": kind, "param": None, "code": code}}
    assert headers == ([("WWW-Authenticate", "Bearer")] if status == 401 else [])


def test_a_prompt_that_is_too_long_is_told_with_both_numbers() -> None:
    told = json.loads(error_body(ContextExceeded(2048, 1024)).body)["error"]
    assert (told["n_prompt_tokens"], told["n_ctx"]) == (2048, 1024)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (60.0, "60")])
def test_retry_after_is_in_whole_seconds(seconds: float, header: str) -> None:
    _status, _body, headers = error_body(
        RequestError(Fault.RATE_LIMITED, "request", "slow down", retry_after_s=seconds)
    )
    assert headers == [("Retry-After", header)]


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "invalid_request_error"), (431, "invalid_request_error"), (500, "server_error")]
)
def test_a_refusal_of_http_has_the_same_shape(status: int, kind: str) -> None:
    assert json.loads(http_error(status, "no")) == {
        "error": {"message": "no", "type": kind, "param": None, "code": None}
    }


# The small bodies.


LIMITS_OF_LIST = RequestLimits(64, max_message_bytes=99)


def test_models() -> None:
    answer = json.loads(models([listed(MODEL_INFO)], 1700000000, LIMITS_OF_LIST))
    assert answer["limits"] == {"message_bytes": 99, "media": 64}
    assert answer["object"] == "list"
    [item] = answer["data"]
    assert item == json.loads(model(listed(MODEL_INFO), 1700000000, LIMITS_OF_LIST))
    assert item == {
        "id": "small-1",
        "object": "model",
        "created": 1700000000,
        "owned_by": "umaserve",
        "aliases": ["small-1"],
        "tags": [],
        "size": 2000,
        "needed": 0,
        "status": {"value": "loaded"},
        "context_length": 4096,
        "max_model_len": 4096,
        "max_tokens": 4096,
        "meta": {
            "n_vocab": 49152,
            "n_ctx": 4096,
            "n_ctx_train": 8192,
            "n_embd": 576,
            "n_params": 134_515_008,
            "size": 2000,
        },
    }
    Model.model_validate(item)


def test_a_model_that_was_never_loaded_tells_the_context_of_its_settings_and_the_cap_on_answers() -> None:
    unloaded = listed(MODEL_INFO, state=ModelState.UNLOADED, info=None, context_tokens=2048)
    told = json.loads(model(unloaded, 0, replace(LIMITS_OF_LIST, max_tokens=100)))
    assert (told["context_length"], told["max_model_len"], told["max_tokens"]) == (2048, 2048, 100)
    assert "meta" not in told


def test_codex_is_told_the_context_by_each_name() -> None:
    several = [
        listed(MODEL_INFO, aliases=("a",), takes=("image", "audio")),
        listed(MODEL_INFO, name="large-2", default=False, context_tokens=0),
    ]
    assert json.loads(models(several, 0, LIMITS_OF_LIST))["models"] == []
    told = json.loads(models(several, 0, LIMITS_OF_LIST, {"client_version": "0.169.0"}))["models"]
    assert [(one["slug"], one["context_window"], one["input_modalities"]) for one in told] == [
        ("small-1", 4096, ["text", "image"]),
        ("a", 4096, ["text", "image"]),
        ("default", 4096, ["text", "image"]),
        ("large-2", None, ["text"]),
    ]
    assert [one["priority"] for one in told] == [0, 1, 2, 3]
    # Without any of these, it refuses the whole list.
    required = {"slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api"}
    required |= {
        "priority",
        "base_instructions",
        "support_verbosity",
        "truncation_policy",
        "supports_parallel_tool_calls",
    }
    assert required | {"experimental_supported_tools", "supports_reasoning_summaries"} <= told[0].keys()


def test_a_context_that_nobody_knows_is_not_told() -> None:
    unknown = listed(MODEL_INFO, state=ModelState.UNLOADED, info=None, context_tokens=0)
    told = json.loads(model(unknown, 0, LIMITS_OF_LIST))
    assert not {"context_length", "max_model_len", "max_tokens"} & told.keys()
    assert json.loads(model(unknown, 0, replace(LIMITS_OF_LIST, max_tokens=100)))["max_tokens"] == 100


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (ModelState.UNLOADED, {"value": "unloaded"}),
        (ModelState.LOADING, {"value": "loading", "progress": 0.333}),
        (ModelState.LOADED, {"value": "loaded"}),
        (ModelState.UNLOADING, {"value": "unloaded"}),
        (ModelState.FAILED, {"value": "unloaded", "failed": True}),
    ],
)
def test_a_models_state(state: ModelState, status: Wanted) -> None:
    assert json.loads(model(listed(MODEL_INFO, state=state, progress=1 / 3), 0, LIMITS_OF_LIST))["status"] == status


@pytest.mark.parametrize(
    ("takes", "modalities"), [((), ["text"]), (("image", "video"), ["text", "image", "video"]), (None, None)]
)
def test_what_a_model_takes(takes: tuple[str, ...] | None, modalities: list[str] | None) -> None:
    told = json.loads(model(listed(MODEL_INFO, takes=takes, room_bytes=7), 0, LIMITS_OF_LIST))
    assert told.get("architecture") == (modalities and {"input_modalities": modalities})
    assert told["available"] == 7


def test_when_a_model_was_last_used() -> None:
    assert (
        json.loads(model(listed(MODEL_INFO, last_used_at=1700000000.9), 0, LIMITS_OF_LIST))["last_used"] == 1700000000
    )


def test_a_model_that_was_never_loaded() -> None:
    unread = listed(
        MODEL_INFO,
        **{"aliases": ("a", "b"), "description": "Slow.", "tags": ("chat",)},
        **{"state": ModelState.UNLOADED, "needed_bytes": 5000, "info": None},
    )
    told = json.loads(model(unread, 5, LIMITS_OF_LIST))
    assert told == {
        "id": "small-1",
        "object": "model",
        "context_length": 4096,
        "max_model_len": 4096,
        "max_tokens": 4096,
        "created": 5,
        "owned_by": "umaserve",
        "aliases": ["small-1", "a", "b"],
        "tags": ["chat"],
        "size": 2000,
        "needed": 5000,
        "status": {"value": "unloaded"},
        "description": "Slow.",
    }
    Model.model_validate(told)


def test_one_of_several_models() -> None:
    several = [
        listed(MODEL_INFO),
        listed(MODEL_INFO, name="large-2", aliases=("big",), default=False, state=ModelState.UNLOADED, info=None),
    ]
    about = replace(facts(), model=lambda _name: None, models=lambda: several)

    def page(path: str) -> Any:
        found = routes()["/v1/models/{model}" if path.count("/") > 2 else path].endpoint
        status, _type, content = found.make(about, Request("GET", path, {}, (), b""))  # type: ignore[union-attr]
        assert status == 200
        return json.loads(content)

    assert [one["id"] for one in page("/v1/models")["data"]] == ["small-1", "large-2"]
    assert page("/v1/models/small-1") == page("/v1/models")["data"][0]
    assert page("/v1/models/big") == page("/v1/models/large-2.gguf") == page("/v1/models")["data"][1]
    with pytest.raises(ModelNotFound) as raised:
        page("/v1/models/gpt-9")
    assert raised.value.message.startswith('model: the model "gpt-9" does not exist: /v1/models lists')
    assert raised.value.copy().message == raised.value.message
    status, content, _headers = error_body(raised.value)
    assert (status, json.loads(content)["error"]["code"]) == (404, "model_not_found")
    several.pop()
    assert [one["id"] for one in page("/v1/models")["data"]] == ["small-1"], "also while it loads"


def test_props_show_no_path() -> None:
    answer = json.loads(props(replace(MODEL_INFO, parallel=4)))
    defaults = answer.pop("default_generation_settings")
    assert defaults["n_ctx"] == 4096
    assert defaults["params"]["temperature"] == chat_request().sampling.temperature
    assert answer == {
        "total_slots": 4,
        "model_alias": "small-1",
        "model_path": "small-1.gguf",
        "chat_template": "{{ messages }}",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "modalities": {"vision": False, "audio": False},
        "lacks": [],
    }


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"input": "a"}, EmbeddingsRequest(Embed(("a",)), False)),
        ({"input": [1, 2], "encoding_format": "float"}, EmbeddingsRequest(Embed((TokenIds((1, 2)),)), False)),
        ({"input": ["a", "b"], "encoding_format": "base64"}, EmbeddingsRequest(Embed(("a", "b")), True)),
        ({"input": [[1], [2]], "dimensions": None}, EmbeddingsRequest(Embed((TokenIds((1,)), TokenIds((2,)))), False)),
        ({"input": ["", "b"]}, EmbeddingsRequest(Embed(("", "b")), False)),
        ({"input": {"prompt_string": "a"}}, EmbeddingsRequest(Embed(("a",)), False)),
        (
            {"input": ["a", {"content": [{"type": "text", "text": t} for t in ("b", "", "c")]}]},
            EmbeddingsRequest(Embed(("a", "bc")), False),
        ),
        ({"input": "a", "dimensions": 8}, EmbeddingsRequest(Embed(("a",)), False, 8)),
        ({"input": ["a" * 100, "b" * 100]}, EmbeddingsRequest(Embed(("a" * 100, "b" * 100)), False)),
    ],
)
def test_embeddings_request(wanted: Wanted, expected: EmbeddingsRequest) -> None:
    assert parse_embeddings(Fields(wanted), LIMITS, 8) == expected


@pytest.mark.parametrize(
    ("wanted", "fault", "expected"),
    [
        ({}, Fault.BAD_REQUEST, "input: expected a string or"),
        ({"input": {}}, Fault.BAD_REQUEST, "input.prompt_string: expected a string, got null"),
        (
            {"input": {"content": "a"}},
            Fault.BAD_REQUEST,
            "input.content: expected an array of 1 to 256 parts, got a string",
        ),
        (
            {"input": [{"content": [{"type": "image_url"}]}]},
            Fault.BAD_REQUEST,
            'input[0].content[0].type: expected "text"',
        ),
        ({"input": []}, Fault.BAD_REQUEST, f"input: expected 1 to {MAX_INPUTS} texts"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, Fault.BAD_REQUEST, f"input: expected 1 to {MAX_INPUTS} texts"),
        ({"input": ["a", None]}, Fault.BAD_REQUEST, "input[1]: expected"),
        ({"input": ["a" * 100, [1] * 101]}, Fault.PROMPT_TOO_LARGE, "input: expected at most 200 bytes, got 201"),
        ({"input": "a", "dimensions": 9}, Fault.BAD_REQUEST, "dimensions: expected a whole number from 1 to 8, got 9"),
        ({"input": "a", "dimensions": 0}, Fault.BAD_REQUEST, "dimensions: expected a whole number from 1 to 8, got 0"),
        (
            {"input": "a", "dimensions": "8"},
            Fault.BAD_REQUEST,
            "dimensions: expected a whole number from 1 to 8, got a",
        ),
        ({"input": "a", "encoding_format": "int8"}, Fault.BAD_REQUEST, 'encoding_format: expected "float" or "base64"'),
    ],
)
def test_a_wrong_embeddings_request_is_refused(wanted: Wanted, fault: Fault, expected: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_embeddings(Fields(wanted), LIMITS, 8)
    assert raised.value.fault is fault
    assert raised.value.message.startswith(expected)


def test_embeddings_answer() -> None:
    embedded = Embedded([[0.6, 0.8], [1.0, 0.0]], 7)
    answer = json.loads(embeddings_result(embedded, EmbeddingsRequest(Embed(()), as_base64=False), "small-1"))
    CreateEmbeddingResponse.model_validate(answer)
    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
        ],
        "model": "small-1",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    packed = json.loads(embeddings_result(embedded, EmbeddingsRequest(Embed(()), as_base64=True), "small-1"))["data"]
    vectors = [struct.unpack("<2f", base64.b64decode(item["embedding"])) for item in packed]
    assert vectors == [pytest.approx(vector) for vector in embedded.vectors]


def test_shortened_vectors_are_of_unit_length_again() -> None:
    vectors = [[0.36, 0.48, 0.8], [0.0, 0.0, 1.0]]
    assert shortened(vectors, None) == shortened(vectors, 3) == vectors
    cut, none = shortened(vectors, 2)
    assert cut == pytest.approx([0.6, 0.8])
    assert none == [0.0, 0.0]
    asked = EmbeddingsRequest(Embed(()), as_base64=False, dimensions=2)
    (first, _second) = json.loads(embeddings_result(Embedded(vectors, 7), asked, "small-1"))["data"]
    assert first["embedding"] == pytest.approx([0.6, 0.8])


def test_tokenize() -> None:
    assert parse_tokenize(Fields({"content": ""}), LIMITS) == (Tokenize("", begins=False), False)
    wanted = {"content": "hi", "add_special": True, "with_pieces": True, "parse_special": False}
    assert parse_tokenize(Fields(wanted), LIMITS) == (Tokenize("hi", special=False), True)
    answer = Tokenized([5, 6], [b"hi", b"\xc3"])
    assert json.loads(tokenize_result(answer, with_pieces=False)) == {"tokens": [5, 6]}
    assert json.loads(tokenize_result(answer, with_pieces=True)) == {
        "tokens": [{"id": 5, "piece": "hi"}, {"id": 6, "piece": [0xC3]}]
    }


def test_detokenize() -> None:
    assert parse_detokenize(Fields({"tokens": []}), LIMITS) == Detokenize(())
    assert parse_detokenize(Fields({"tokens": [1] * 200}), LIMITS) == Detokenize((1,) * 200)
    assert json.loads(detokenize_result(Detokenized("é"))) == {"content": "é"}


@pytest.mark.parametrize(
    ("parse", "wanted", "expected"),
    [
        (parse_tokenize, {}, "content: expected a string, got null"),
        (parse_tokenize, {"content": 1}, "content: expected a string, got a whole number"),
        (parse_tokenize, {"content": "é" * 101}, "content: expected at most 200 bytes, got 202"),
        (parse_tokenize, {"content": "a", "add_special": 1}, "add_special: expected true or false, got a whole number"),
        (parse_tokenize, {"content": "a", "with_pieces": "x"}, "with_pieces: expected true or false, got a string"),
        (parse_detokenize, {}, "tokens: expected an array of token ids, got null"),
        (parse_detokenize, {"tokens": [1] * 201}, "tokens: expected at most 200 tokens, got 201"),
        (parse_detokenize, {"tokens": [0.5]}, "tokens[0]: expected a whole number from 0 to 2147483647, got a number"),
    ],
)
def test_a_wrong_token_request_is_refused(parse: Any, wanted: Wanted, expected: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(Fields(wanted), LIMITS)
    assert raised.value.message == expected
