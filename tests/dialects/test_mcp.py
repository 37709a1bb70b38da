"""The Model Context Protocol: which messages are taken, what becomes of calls, and in which words they are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import orjson
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from routes import MODEL_INFO, facts, listed

from umaserve.core.errors import Fault, RequestError, model_not_granted
from umaserve.core.events import (
    Finished,
    FinishReason,
    ModelInfo,
    ModelState,
    Output,
    Prefilled,
    Prefilling,
    Spoken,
    Token,
    Usage,
    VoiceInfo,
)
from umaserve.core.queries import Embed, Embedded, Pair
from umaserve.core.requests import Audio, ChatTurn, Generate, Grammar, Syntax
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import Body
from umaserve.dialects.mcp.answers import EVERY_S
from umaserve.dialects.mcp.errors import ERRORS
from umaserve.dialects.mcp.methods import answer
from umaserve.dialects.mcp.tools import TOOLS
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.routes import EngineQuestion, Handed, SpeechReply, TextReply
from umaserve.dialects.sampling_schemas import DEFAULTS
from umaserve.wire.http_head import Refusal, Request

VOICE = VoiceInfo(("en",), clones=False, name="ann")
FACTS = replace(
    facts(),
    limits=RequestLimits(max_prompt_bytes=200, max_tokens=100),
    model=lambda _name: MODEL_INFO,
    models=lambda: [listed(MODEL_INFO, takes=())],
    new_id=lambda prefix: f"{prefix}1",
    running=lambda: (),
)
STATELESS = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


def post(body: Any, about: Facts = FACTS, **headers: str) -> tuple[int, Any] | Handed:
    """The status and the JSON of the reply to a body, or what it is handed to. Names of headers have underscores."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    reply = answer(about, Request("POST", "/mcp", {}, named, content))
    if isinstance(reply, Handed):
        return reply
    status, head, told = reply
    assert [*head] == ([("Content-Type", "application/json")] if told else [])
    return status, json.loads(told) if told else None


def send(method: str, about: Facts = FACTS, **params: Any) -> Any:
    """The response to a request of a revision with a handshake."""
    reply = post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, about)
    assert isinstance(reply, tuple)
    assert reply[0] == 200
    assert (reply[1]["jsonrpc"], reply[1]["id"]) == ("2.0", 1)
    return reply[1]


def send_alone(method: str, headers: dict[str, str] | None = None, **params: Any) -> tuple[int, Any]:
    """Status and response of a request that stands for itself."""
    sent = {"mcp_protocol_version": STATELESS, "mcp_method": method} | (headers or {})
    reply = post({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META} | params}, **sent)
    assert isinstance(reply, tuple)
    return reply


def hand(tool: str, about: Facts = FACTS, token: str | None = None, **arguments: Any) -> Handed:
    params = {"name": tool, "arguments": arguments} | ({} if token is None else {"_meta": {"progressToken": token}})
    body = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}
    reply = post(body, about, accept="application/json, text/event-stream")
    assert isinstance(reply, Handed)
    return reply


def text_body(tool: str, about: Facts = FACTS, token: str | None = None, **arguments: Any) -> Body:
    endpoint = hand(tool, about, token, **arguments).endpoint
    assert isinstance(endpoint, TextReply)
    return endpoint.new_body(about)


def request(tool: str, about: Facts = FACTS, **arguments: Any) -> Generate:
    [asked] = text_body(tool, about, **arguments).receive(b"")
    return asked


def start(handed: Handed, about: Facts) -> object:
    """Whatever the call asks for; raises ``RequestError``."""
    match handed.endpoint:
        case TextReply() | SpeechReply() as endpoint:
            return endpoint.new_body(about).receive(b"")
        case EngineQuestion() as endpoint:
            return endpoint.parse(b"", about)
    raise AssertionError(handed)


def refusal(tool: str, about: Facts = FACTS, **arguments: Any) -> str:
    """The words in which a call is refused, as the client gets them."""
    reply = post(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}, about
    )
    if isinstance(reply, Handed):
        with pytest.raises(RequestError) as caught:
            start(reply, about)
        status, told, _headers = reply.errors.reply(caught.value)
        reply = status, json.loads(told)
    status, response = reply
    assert (status, response["id"], response["result"]["isError"]) == (200, 1, True)
    [content] = response["result"]["content"]
    return str(content["text"])


def able(**abilities: Any) -> Facts:
    """Facts of a daemon whose one model has these abilities."""
    info = replace(MODEL_INFO, **abilities)
    takes = ("audio",) if info.hears else ()
    return replace(FACTS, model=lambda _name: info, models=lambda: [listed(info, takes=takes)])


# -- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code", "of"),
    [
        (b"{", 400, -32700, None),
        (b"\xff", 400, -32700, None),
        (b"", 400, -32700, None),
        (b"[]", 400, -32600, None),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], 400, -32600, None),
        (5, 400, -32600, None),
        ({}, 400, -32600, None),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": "a" * 257, "method": "ping"}, 400, -32600, None),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, 400, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, 400, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": 1}}, 400, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"progressToken": []}}}, 400, -32602, 1),
        ({"jsonrpc": "2.0", "id": "a", "method": "resources/list"}, 200, -32601, "a"),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, 200, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}, 200, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 1}}, 200, -32602, 1),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": []}},
            200,
            -32602,
            1,
        ),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "2"}}, 200, -32602, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}, 200, -32602, 1),
    ],
)
def test_what_is_no_request_gets_its_code(body: Any, status: int, code: int, of: Any) -> None:
    reply = post(body)
    assert isinstance(reply, tuple)
    assert (reply[0], reply[1]["error"]["code"], reply[1]["id"]) == (status, code, of)
    assert reply[1]["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"method": "notifications/initialized"},
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        {"method": "of/another/revision"},
        {"id": 1, "result": {}},
        {"id": 1, "error": {"code": 1, "message": ""}},
    ],
)
def test_notifications_and_responses_are_taken(body: Any) -> None:
    assert post({"jsonrpc": "2.0"} | body) == (202, None)


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ],
)
def test_a_handshake_agrees_on_a_revision(asked: str, spoken: str) -> None:
    result = send("initialize", protocolVersion=asked, capabilities={}, clientInfo={"name": "a", "version": "1"})
    assert result["result"]["protocolVersion"] == spoken
    assert result["result"]["capabilities"] == {"tools": {}}
    assert result["result"]["serverInfo"]["name"] == "umaserve"


def test_a_ping_is_answered() -> None:
    assert send("ping")["result"] == {}


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
def test_the_version_of_a_handshake_may_be_repeated(version: str) -> None:
    reply = post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, mcp_protocol_version=version)
    assert reply == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


@pytest.mark.parametrize("method", ["ping", "notifications/initialized"])
def test_an_unknown_version_is_refused(method: str) -> None:
    own = {} if method.startswith("notifications") else {"id": 1}
    reply = post({"jsonrpc": "2.0", "method": method} | own, mcp_protocol_version="1900-01-01")
    assert isinstance(reply, tuple)
    assert (reply[0], reply[1]["error"]["code"]) == (400, -32022)
    assert reply[1]["error"]["data"]["supported"] == ["2026-07-28", "2025-11-25", "2025-06-18"]


# -- messages that stand for themselves --------------------------------------------------------------------------


def test_a_server_says_what_it_is() -> None:
    status, response = send_alone("server/discover")
    result = response["result"]
    assert (status, result["resultType"], result["supportedVersions"][0]) == (200, "complete", STATELESS)
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "umaserve"
    assert (result["ttlMs"] > 0, result["cacheScope"]) == (True, "private")


def test_tools_are_listed_with_how_long_that_is_true() -> None:
    _status, response = send_alone("tools/list")
    assert (response["result"]["ttlMs"] > 0, response["result"]["cacheScope"]) == (True, "private")


@pytest.mark.parametrize("method", ["ping", "initialize", "resources/list"])
def test_a_method_that_the_revision_has_not_is_not_found(method: str) -> None:
    status, response = send_alone(method, protocolVersion="2025-11-25")
    assert (status, response["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize(
    ("headers", "params", "code"),
    [
        ({"mcp_method": "tools/call"}, {}, -32020),
        ({"mcp_protocol_version": "2025-11-25"}, {}, -32020),
        ({}, {"_meta": META | {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}}, -32022),
        ({}, {"_meta": META | {"io.modelcontextprotocol/protocolVersion": 5}}, -32022),
        ({}, {"_meta": {}}, -32602),
        ({}, {"_meta": {"io.modelcontextprotocol/protocolVersion": STATELESS}}, -32602),
    ],
)
def test_what_its_headers_do_not_say_is_refused(headers: dict[str, str], params: dict[str, Any], code: int) -> None:
    status, response = send_alone("tools/list", headers, **params)
    assert (status, response["error"]["code"], response["id"]) == (400, code, 1)


def test_a_name_is_repeated_in_a_header() -> None:
    encoded = f"=?base64?{base64.b64encode(b'status').decode()}?="
    for name in ("status", encoded):
        status, response = send_alone("tools/call", {"mcp_name": name}, name="status")
        assert (status, response["result"]["isError"]) == (200, False)
    for headers in ({}, {"mcp_name": "ask"}, {"mcp_name": "=?base64?%?="}):
        status, response = send_alone("tools/call", headers, name="status")
        assert (status, response["error"]["code"]) == (400, -32020)


# -- the list of tools -------------------------------------------------------------------------------------------


def names(about: Facts) -> list[str]:
    return [tool["name"] for tool in send("tools/list", about)["result"]["tools"]]


def test_tools_are_listed_that_a_model_can_serve() -> None:
    assert names(FACTS) == ["ask", "status"]
    assert names(able(writes=False, embeds=True)) == ["embed", "status"]
    assert names(able(writes=False, ranks=True)) == ["rerank", "status"]
    assert names(able(hears=True)) == ["ask", "transcribe", "status"]
    assert names(replace(FACTS, voice=VOICE)) == ["ask", "speak", "status"]


def test_tools_are_listed_that_a_model_may_serve_which_nobody_has_loaded() -> None:
    unknown = listed(MODEL_INFO, info=None, takes=None, state=ModelState.UNLOADED)
    assert names(replace(FACTS, models=lambda: [unknown])) == ["ask", "embed", "rerank", "transcribe", "status"]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: str(tool.name))
def test_the_arguments_of_a_tool_are_a_schema_by_itself(tool: Any) -> None:
    schema = tool.listed()["inputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert "$ref" not in json.dumps(schema)


# -- calls -------------------------------------------------------------------------------------------------------


def test_a_question_is_a_request_for_text() -> None:
    assert request("ask", prompt="Why?") == Generate(
        "mcp-1",
        (ChatTurn("user", "Why?"),),
        max_tokens=100,
        sampling=DEFAULTS,
        splits_thoughts=True,
        model="small-1",
    )
    asked = request("ask", prompt="Why?", system="Be brief.", model="m", max_tokens=5, temperature=0)
    assert asked.prompt == (ChatTurn("system", "Be brief."), ChatTurn("user", "Why?"))
    assert (asked.model, asked.max_tokens, asked.sampling.temperature) == ("m", 5, 0)
    schema = request("ask", prompt="a", json_schema={"type": "null"}).sampling.grammar
    assert schema == Grammar(Syntax.JSON_SCHEMA, '{"type":"null"}', "json_schema")


def test_a_recording_is_a_request_for_its_transcript() -> None:
    asked = request("transcribe", able(hears=True), audio="UklGRg==", language="de", prompt="Anna")
    assert isinstance(asked.prompt, tuple)
    [turn] = asked.prompt
    assert [one.media for one in turn.attachments] == [Audio("UklGRg==", "audio")]
    assert "de" in turn.content
    assert "Anna" in turn.content
    assert (asked.model, asked.sampling.temperature) == ("small-1", 0)


def test_a_long_recording_is_not_copied() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    reply = post(body | {"params": {"name": "transcribe", "arguments": {"audio": "A" * (2 << 20)}}}, able(hears=True))
    assert isinstance(reply, Handed)
    assert isinstance(reply.endpoint, TextReply)
    [asked] = reply.endpoint.new_body(FACTS).receive(b"")
    assert isinstance(asked.prompt, tuple)
    assert isinstance(asked.prompt[0].attachments[0].media.data, memoryview)


def asked_of(handed: Handed, about: Facts) -> Any:
    assert isinstance(handed.endpoint, EngineQuestion)
    return handed.endpoint.parse(b"", about)


def test_texts_are_embedded() -> None:
    about = able(embeds=True, embedding_length=3)
    asked = asked_of(hand("embed", about, input=["a", "b"], dimensions=1), about)
    assert (asked.query, asked.model) == (Embed(("a", "b")), "small-1")
    response = json.loads(asked.render(Embedded([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], 2)))
    found = response["result"]["structuredContent"]
    assert [one["embedding"] for one in found["data"]] == [[1.0], [1.0]]
    assert json.loads(response["result"]["content"][0]["text"]) == found


def test_documents_are_ranked() -> None:
    about = able(ranks=True)
    asked = asked_of(hand("rerank", about, query="q", documents=["a", "b"], top_n=1), about)
    assert asked.query == Embed((Pair("q", "a"), Pair("q", "b")), ranks=True)
    response = json.loads(asked.render(Embedded([[0.1], [0.9]], 2)))
    assert response["id"] == "c"
    assert response["result"]["structuredContent"]["results"] == [{"index": 1, "relevance_score": 0.9}]


def test_a_text_is_read_aloud_as_one_file() -> None:
    about = replace(FACTS, voice=VOICE)
    endpoint = hand("speak", about, input="Hello.").endpoint
    assert isinstance(endpoint, SpeechReply)
    body = endpoint.new_body(about)
    assert body.receive(b"").text == "Hello."
    for output in (Spoken(b"\0\0\0\0"), Spoken(b"\0\0\x80\x3f"), Finished(FinishReason.STOP, Usage(0, 0))):
        assert body.send(0, output) == []
    assert (body.done, body.streaming) == (True, False)
    [sound] = json.loads(body.result())["result"]["content"]
    file = base64.b64decode(sound["data"])
    assert (sound["type"], sound["mimeType"], file[:4], file[-4:]) == ("audio", "audio/wav", b"RIFF", b"\0\0\xff\x7f")


def test_the_server_is_shown() -> None:
    result = send("tools/call", replace(able(embeds=True), voice=VOICE), name="status")["result"]
    shown = result["structuredContent"]
    assert shown["models"] == [
        {
            "name": "small-1",
            "default": True,
            "state": "loaded",
            "context_tokens": 4096,
            "tools": ["ask", "embed"],
        }
    ]
    assert (shown["voice"]["name"], shown["answers_in_progress"]) == ("ann", 0)


def test_a_call_without_a_model_means_the_first_one_that_is_able() -> None:
    models = [listed(MODEL_INFO), listed(replace(MODEL_INFO, name="e", embeds=True), default=False)]
    about = replace(FACTS, models=lambda: models)
    assert asked_of(hand("embed", about, input="a"), about).model == "e"
    assert asked_of(hand("embed", about, input="a", model="small-1"), about).model == "small-1"


def test_what_a_tool_refuses_is_a_result() -> None:
    assert refusal("ask") == "prompt: expected a non-empty string, got null"
    assert refusal("ask", prompt="a", temperature=11).startswith("temperature: expected a number from 0 to 10")
    assert refusal("ask", prompt="a" * 201) == "prompt: expected at most 200 bytes, got 201"
    assert refusal("ask", prompt="a", top_k=1).startswith("top_k: expected to be absent: this tool has json_schema, ")
    assert refusal("status", a=1) == "a: expected to be absent: this tool has none"
    assert refusal("embed", input=5).startswith("input: expected a string")
    assert refusal("rerank", query="q", documents=[]).startswith("documents: expected an array of 1 to 256")
    assert refusal("transcribe", audio="").startswith("audio: expected a non-empty string")
    assert refusal("speak", input="a").startswith("voice: can't be used")


def test_a_refusal_says_when_to_try_again() -> None:
    error = RequestError(Fault.RATE_LIMITED, "request", "too many", retry_after_s=2.5)
    status, told, _headers = hand("ask", prompt="a").errors.reply(error)
    assert (status, json.loads(told)["result"]["content"][0]["text"]) == (200, "request: too many (try again in 3 s)")


def test_a_model_that_the_key_may_not_use_is_refused() -> None:
    def refused(name: str) -> ModelInfo | None:
        raise model_not_granted(name)

    assert refusal("embed", replace(FACTS, model=refused), input="a", model="m").startswith("model: expected a model")


# -- answers -----------------------------------------------------------------------------------------------------

END = Finished(FinishReason.STOP, Usage(3, 2))
OUTPUTS: Sequence[Output] = (
    Prefilling(3, 0, 2, 0.1),
    Prefilled(3),
    Token("He", 1, elapsed_s=0.2),
    Token("llo", 2, elapsed_s=0.2 + 2 * EVERY_S),
    Token(" you", 3, elapsed_s=0.2 + 2 * EVERY_S),
    END,
)


def test_an_answer_is_one_response() -> None:
    body = text_body("ask", prompt="a")
    body.receive(b"")
    assert [message for output in OUTPUTS for message in body.send(0, output)] == []
    assert (body.streaming, body.done) == (False, True)
    result = json.loads(body.result())["result"]
    assert result == {
        "content": [{"type": "text", "text": "Hello you"}],
        "isError": False,
        "_meta": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    }


def test_progress_is_told_where_it_is_wanted() -> None:
    body = text_body("ask", token="t", prompt="a")
    [asked] = body.receive(b"")
    assert asked.wants_progress
    *told, last = [json.loads(message) for output in OUTPUTS for message in body.send(0, output)]
    assert {one["method"] for one in told} == {"notifications/progress"}
    assert [one["params"] for one in told] == [
        {"progressToken": "t", "progress": 2, "message": "2 of 3 tokens of the prompt are read"},
        {"progressToken": "t", "progress": 5, "message": "Hello"},
    ]
    assert (last["id"], last["result"]["content"][0]["text"]) == ("c", "Hello you")


def test_a_client_that_reads_no_events_gets_none() -> None:
    params = {"name": "ask", "arguments": {"prompt": "a"}, "_meta": {"progressToken": 1}}
    reply = post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, accept="application/json")
    assert isinstance(reply, Handed)
    assert isinstance(reply.endpoint, TextReply)
    assert not reply.endpoint.new_body(FACTS).streaming


@pytest.mark.parametrize(
    ("reason", "words"), [(FinishReason.LENGTH, "its limit of 2 tokens"), (FinishReason.CONTENT_FILTER, "filter")]
)
def test_an_answer_that_is_cut_off_says_so(reason: FinishReason, words: str) -> None:
    body = text_body("ask", prompt="a")
    body.receive(b"")
    body.send(0, replace(END, reason=reason))
    [_said, note] = json.loads(body.result())["result"]["content"]
    assert words in note["text"]


def test_a_transcript_that_lacks_its_end_is_none() -> None:
    body = text_body("transcribe", able(hears=True), audio="UklGRg==")
    body.receive(b"")
    with pytest.raises(RequestError, match="is truncated"):
        body.send(0, replace(END, reason=FinishReason.LENGTH))


def test_an_error_in_a_stream_is_its_last_message() -> None:
    body = text_body("ask", token="t", prompt="a")
    body.receive(b"")
    [failed] = body.fail(0, RequestError(Fault.DECODE_FAILED, "request", "failed")) or []
    assert json.loads(failed)["result"]["isError"]
    assert body.done


def test_what_is_refused_before_a_body_is_an_error_without_an_id() -> None:
    refused = [
        ERRORS.reply(RequestError(Fault.UNAUTHORIZED, "Authorization", "expected an API key")),
        ERRORS.reply(Refusal(405, "method: expected POST, got GET", [("Allow", "POST")])),
        ERRORS.reply(Refusal(500, "request: internal error")),
    ]
    assert [reply.status for reply in refused] == [401, 405, 500]
    assert [json.loads(reply.body)["error"]["code"] for reply in refused] == [-32600, -32600, -32603]
    assert {json.loads(reply.body)["id"] for reply in refused} == {None}
    assert ("WWW-Authenticate", "Bearer") in refused[0].headers


# -- bad input ---------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = {name for tool in TOOLS.values() for name in tool.arguments.field_names()}
CALLS = st.fixed_dictionaries(
    {"name": st.sampled_from([*TOOLS]) | VALUES},
    optional={
        "arguments": st.dictionaries(st.sampled_from(sorted(ARGUMENTS)), VALUES | st.text(max_size=20)) | VALUES,
        "_meta": st.fixed_dictionaries({}, optional={"progressToken": VALUES} | dict.fromkeys(META, VALUES)) | VALUES,
        "protocolVersion": VALUES,
        "cursor": VALUES,
    },
)
METHODS = ("initialize", "ping", "tools/list", "tools/call", "server/discover", "notifications/initialized")
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | VALUES, "method": st.sampled_from(METHODS) | VALUES},
    optional={"id": st.integers(0, 9) | VALUES, "params": CALLS | VALUES, "result": VALUES},
)


@given(MESSAGES | VALUES, st.sampled_from([None, STATELESS, "2025-06-18", "x"]))
@settings(max_examples=examples(1000), deadline=None)
def test_whatever_comes_gets_a_response(message: Any, version: str | None) -> None:
    headers = {} if version is None else {"mcp_protocol_version": version, "mcp_method": "tools/call"}
    content = orjson.dumps(message) if _fits(message) else json.dumps(message).encode()
    about = replace(able(embeds=True, ranks=True, hears=True), voice=VOICE)
    reply = post(content, about, **headers)
    if isinstance(reply, Handed):
        try:
            assert start(reply, about)
        except RequestError as error:
            status, told, _headers = reply.errors.reply(error)
            assert status == 200
            assert json.loads(told)["result"]["isError"]
        return
    status, response = reply
    assert status in (200, 202, 400, 404)
    assert (status == 202) == (response is None)
    assert response is None or ("result" in response) != ("error" in response)


def _fits(message: Any) -> bool:
    try:
        orjson.dumps(message)
    except TypeError:
        return False
    return True
