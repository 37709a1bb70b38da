"""The relay's messages: those of the contract's traces as they stand there, and all else refused by its field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.relay_codec import (
    MAX_CONCURRENT,
    MAX_COUNT,
    MAX_FEATURES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_LOAD,
    MAX_MODELS,
    MAX_NAME_BYTES,
    MAX_PATH_BYTES,
    MAX_TEXT_BYTES,
    accepted_models,
    encode,
    parse_from_proxy,
    parse_from_worker,
)
from umaserve.wire.relay_messages import (
    Cancel,
    CancelReason,
    Flow,
    FromProxy,
    FromWorker,
    GracefulShutdown,
    ModelsRefresh,
    ModelsUpdate,
    OtherReason,
    Ping,
    Pong,
    Register,
    RegisterAck,
    Request,
    ResponseChunk,
    ResponseComplete,
    TokenCounts,
    WorkerError,
)

FROM_WORKER: list[tuple[str, FromWorker]] = [
    (
        '{"type":"register","worker_name":"gpu-box-1","models":["llama3-8b"],"max_concurrent":4,'
        '"protocol_version":"1","current_load":0}',
        Register("gpu-box-1", ("llama3-8b",), 4, "1", 0),
    ),
    ('{"type":"pong","current_load":1,"timestamp_unix_ms":1760000000000}', Pong(1, 1760000000000)),
    (
        '{"type":"response_complete","request_id":"r-001","status_code":200,'
        '"headers":{"content-type":"application/json"},"body":"{...}",'
        '"token_counts":{"prompt_tokens":42,"completion_tokens":128,"total_tokens":170}}',
        ResponseComplete(
            "r-001", 200, {"content-type": "application/json"}, "{...}", TokenCounts(42, 128, total_tokens=170)
        ),
    ),
    (
        '{"type":"response_complete","request_id":"r-002","status_code":200,"token_counts":{}}',
        ResponseComplete("r-002", 200, token_counts=TokenCounts()),
    ),
    (
        r'{"type":"response_chunk","request_id":"r-002","chunk":"data: {\"choices\":[...]}\n\n"}',
        ResponseChunk("r-002", 'data: {"choices":[...]}\n\n'),
    ),
    (
        '{"type":"models_update","models":["llama3-8b","codellama-13b"],"current_load":1}',
        ModelsUpdate(("llama3-8b", "codellama-13b"), 1),
    ),
    # Not in the traces: the error, the extensions, and all that may be absent.
    ('{"type":"error","code":"backend","message":"gone","request_id":"r-1"}', WorkerError("backend", "gone", "r-1")),
    ('{"type":"error","code":"","message":""}', WorkerError("", "")),
    (
        '{"type":"response_chunk","request_id":"r-1","chunk":"","status_code":101,"headers":{}}',
        ResponseChunk("r-1", "", 101, {}),
    ),
    (
        '{"type":"register","worker_name":"","models":[],"max_concurrent":1,"current_load":2,"features":["flow"],'
        '"instance":"i"}',
        Register("", (), 1, current_load=2, features=("flow",), instance="i"),
    ),
    (
        '{"type":"response_chunk","request_id":"r-1","chunk":"AP8=","encoding":"base64","status_code":200}',
        ResponseChunk("r-1", b"\0\xff", 200),
    ),
    (
        '{"type":"response_complete","request_id":"r-1","status_code":200,"body":"","encoding":"base64"}',
        ResponseComplete("r-1", 200, body=b""),
    ),
    ('{"type":"pong","current_load":0}', Pong(0)),
]

FROM_PROXY: list[tuple[str, FromProxy]] = [
    (
        '{"type":"register_ack","worker_id":"w-a1b2c3","models":["llama3-8b"],"protocol_version":"1"}',
        RegisterAck("w-a1b2c3", ("llama3-8b",), "1"),
    ),
    ('{"type":"ping","timestamp_unix_ms":1760000000000}', Ping(1760000000000)),
    (
        '{"type":"request","request_id":"r-001","model":"llama3-8b","endpoint_path":"/v1/chat/completions",'
        '"is_streaming":false,"body":"{...}","headers":{"accept":"*/*"}}',
        Request("r-001", "llama3-8b", "/v1/chat/completions", False, "{...}", {"accept": "*/*"}),
    ),
    (
        '{"type":"cancel","request_id":"r-002","reason":"client_disconnect"}',
        Cancel("r-002", CancelReason.CLIENT_DISCONNECT),
    ),
    ('{"type":"cancel","request_id":"r-003","reason":"timeout"}', Cancel("r-003", CancelReason.TIMEOUT)),
    (
        '{"type":"graceful_shutdown","reason":"maintenance","drain_timeout_secs":30}',
        GracefulShutdown("maintenance", 30),
    ),
    ('{"type":"models_refresh","reason":"periodic"}', ModelsRefresh("periodic")),
    # Not in the traces.
    ('{"type":"cancel","request_id":"r-3","reason":{"other":"timeout"}}', Cancel("r-3", OtherReason("timeout"))),
    ('{"type":"flow","request_id":"r-2","paused":true}', Flow("r-2", True)),
    (
        '{"type":"register_ack","worker_id":"w-1","models":[],"warnings":["few"],"features":["flow","websocket"]}',
        RegisterAck("w-1", (), None, ("few",), ("flow", "websocket")),
    ),
    ('{"type":"ping"}', Ping()),
    ('{"type":"graceful_shutdown"}', GracefulShutdown()),
    ('{"type":"models_refresh"}', ModelsRefresh()),
    (
        '{"type":"request","request_id":"r-1","model":"","endpoint_path":"/","is_streaming":true,"body":""}',
        Request("r-1", "", "/", True, ""),
    ),
]

ALL = [(parse_from_worker, *pair) for pair in FROM_WORKER] + [(parse_from_proxy, *pair) for pair in FROM_PROXY]


@pytest.mark.parametrize(("parse", "payload", "message"), ALL)
def test_each_message_is_read_and_written_as_it_stands(parse: Any, payload: str, message: FromWorker) -> None:
    assert parse(payload.encode()) == message
    assert orjson.loads(encode(message)) == orjson.loads(payload)


@pytest.mark.parametrize(("parse", "payload", "message"), ALL)
def test_unknown_fields_are_ignored_and_null_is_absent(parse: Any, payload: str, message: FromWorker) -> None:
    values = dict.fromkeys(type(message).__slots__) | orjson.loads(payload) | {"later": [1, {"type": "x"}]}
    assert parse(orjson.dumps(values)) == message


@pytest.mark.parametrize("reason", list(CancelReason))
def test_each_reason_of_the_contract_is_a_word(reason: CancelReason) -> None:
    payload = encode(Cancel("r", reason))
    assert orjson.loads(payload)["reason"] == reason.value
    assert parse_from_proxy(payload) == Cancel("r", reason)


def test_a_reason_that_came_later_cancels_all_the_same() -> None:
    cancel = parse_from_proxy(b'{"type":"cancel","request_id":"r","reason":"preempted"}')
    assert cancel == Cancel("r", OtherReason("preempted"))


@pytest.mark.parametrize(
    ("contexts", "problem"),
    [
        ('"8192"', "contexts: expected an object, got a string"),
        ('{"m": 0}', "contexts: expected whole numbers from 1 to 9007199254740992, got "),
        ('{"m": "8192"}', "contexts: expected whole numbers from 1 to 9007199254740992, got a string"),
        ('{"m": true}', "contexts: expected whole numbers from 1 to 9007199254740992, got "),
        ('{"m": null}', "contexts: expected whole numbers from 1 to 9007199254740992, got null"),
        (orjson.dumps({str(n): 1 for n in range(4097)}).decode(), "contexts: expected at most 4096 of them, got 4097"),
    ],
)
def test_contexts_are_checked(contexts: str, problem: str) -> None:
    payload = f'{{"type":"models_update","models":["m"],"current_load":0,"contexts":{contexts}}}'
    with pytest.raises(RequestError) as refused:
        parse_from_worker(payload.encode())
    assert refused.value.message.startswith(problem)


def test_a_worker_that_takes_none_takes_one() -> None:
    payload = b'{"type":"register","worker_name":"w","models":[],"max_concurrent":0}'
    assert parse_from_worker(payload) == Register("w", (), 1)


# -- there and back ----------------------------------------------------------------------------------------------------

names = st.text(max_size=30)
ids = st.text(min_size=1, max_size=80).filter(lambda text: len(text.encode()) <= MAX_NAME_BYTES)
name_lists = st.lists(names, max_size=4).map(tuple)
loads = st.integers(0, MAX_LOAD)
counts = st.none() | st.integers(0, MAX_COUNT)
contexts = st.none() | st.dictionaries(names, st.integers(1, MAX_COUNT), max_size=4)
header_names = st.text("!#$%&'*+-.^_`|~09AZaz", min_size=1, max_size=20)
header_values = st.text(st.characters(codec="latin-1", categories=["L", "N", "P", "S"]), max_size=20)
headers = st.none() | st.dictionaries(header_names, header_values, max_size=4)
paths = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20).map("/".__add__)

from_worker = st.one_of(
    st.builds(
        Register,
        names,
        name_lists,
        st.integers(1, MAX_CONCURRENT),
        st.none() | names,
        loads,
        name_lists,
        contexts=contexts,
    ),
    st.builds(ModelsUpdate, name_lists, loads, contexts),
    st.builds(ResponseChunk, ids, st.text(), st.none() | st.integers(100, 599), headers),
    st.builds(
        ResponseComplete,
        ids,
        st.integers(200, 599),
        headers,
        st.none() | st.text(),
        st.none() | st.builds(TokenCounts, counts, counts, counts),
    ),
    st.builds(Pong, loads, counts),
    st.builds(WorkerError, names, st.text(), st.none() | ids),
)
reasons = st.sampled_from(CancelReason) | st.builds(OtherReason, st.text())
from_proxy = st.one_of(
    st.builds(RegisterAck, ids, name_lists, st.none() | names, name_lists, name_lists),
    st.builds(Request, ids, names, paths, st.booleans(), st.text(), headers),
    st.builds(Cancel, ids, reasons),
    st.builds(Ping, counts),
    st.builds(GracefulShutdown, st.none() | st.text(), counts),
    st.builds(ModelsRefresh, st.none() | st.text()),
    st.builds(Flow, ids, st.booleans()),
)


@given(from_worker)
def test_what_a_worker_writes_the_proxy_reads(message: FromWorker) -> None:
    assert parse_from_worker(encode(message)) == message


@given(from_proxy)
def test_what_the_proxy_writes_a_worker_reads(message: FromProxy) -> None:
    assert parse_from_proxy(encode(message)) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(sorted({name for _, _, message in ALL for name in type(message).__slots__}))
kinds = st.sampled_from(sorted({orjson.loads(payload)["type"] for _, payload, _ in ALL}))


@given(st.dictionaries(keys, json_values, max_size=8), kinds | st.text())
def test_whatever_comes_is_a_message_or_refused(values: dict[str, Any], kind: str) -> None:
    payload = orjson.dumps(values | {"type": kind})
    for parse in (parse_from_worker, parse_from_proxy):
        refused: RequestError | None = None
        try:
            message = parse(payload)
        except RequestError as error:
            refused = error
        if refused is None:
            assert orjson.loads(encode(message))["type"] == kind
        else:
            assert (refused.fault, "expected" in refused.message) == (Fault.BAD_REQUEST, True)


# -- refusals ----------------------------------------------------------------------------------------------------------

GOOD = {values["type"]: (parse, values) for parse, payload, _ in reversed(ALL) for values in [orjson.loads(payload)]}
"""The first of each type above."""

LOAD = f"a whole number from 0 to {MAX_LOAD}"
TEXT = f"a string of at most {MAX_NAME_BYTES} bytes"
LONG = f"a string of at most {MAX_TEXT_BYTES} bytes"
ID = f"a non-empty string of at most {MAX_NAME_BYTES} bytes"
COUNT = f"a whole number from 0 to {MAX_COUNT}"

REQUIRED = [
    ("register", "worker_name", TEXT),
    ("register", "models", "an array of strings"),
    ("register", "max_concurrent", f"a whole number from 0 to {MAX_CONCURRENT}"),
    ("models_update", "models", "an array of strings"),
    ("models_update", "current_load", LOAD),
    ("response_chunk", "request_id", ID),
    ("response_chunk", "chunk", "a string"),
    ("response_complete", "request_id", ID),
    ("response_complete", "status_code", "a whole number from 200 to 599"),
    ("pong", "current_load", LOAD),
    ("error", "code", TEXT),
    ("error", "message", LONG),
    ("register_ack", "worker_id", ID),
    ("register_ack", "models", "an array of strings"),
    ("request", "request_id", ID),
    ("request", "model", TEXT),
    ("request", "endpoint_path", f"a string of at most {MAX_PATH_BYTES} bytes"),
    ("request", "is_streaming", "true or false"),
    ("request", "body", "a string"),
    ("cancel", "request_id", ID),
    ("cancel", "reason", 'a string or an object with "other"'),
    ("flow", "request_id", ID),
    ("flow", "paused", "true or false"),
]
OPTIONAL = [
    ("register", "protocol_version", TEXT),
    ("register", "current_load", LOAD),
    ("register", "features", "an array of strings"),
    ("register", "instance", TEXT),
    ("register", "contexts", "an object"),
    ("models_update", "contexts", "an object"),
    ("response_chunk", "status_code", "a whole number from 100 to 599"),
    ("response_chunk", "headers", "an object"),
    ("response_complete", "headers", "an object"),
    ("response_complete", "body", "a string"),
    ("response_complete", "token_counts", "an object"),
    ("pong", "timestamp_unix_ms", COUNT),
    ("error", "request_id", ID),
    ("register_ack", "protocol_version", TEXT),
    ("register_ack", "warnings", "an array of strings"),
    ("register_ack", "features", "an array of strings"),
    ("request", "headers", "an object"),
    ("ping", "timestamp_unix_ms", COUNT),
    ("graceful_shutdown", "reason", LONG),
    ("graceful_shutdown", "drain_timeout_secs", COUNT),
    ("models_refresh", "reason", LONG),
]


def refusal(kind: str, changes: dict[str, Any]) -> str:
    """What is said of a good message of ``kind`` with ``changes``."""
    parse, values = GOOD[kind]
    with pytest.raises(RequestError) as raised:
        parse(orjson.dumps(values | changes))
    assert raised.value.fault is Fault.BAD_REQUEST
    return raised.value.message


def test_the_tables_know_every_field() -> None:
    known = {(kind, field) for kind, field, _ in REQUIRED + OPTIONAL}
    assert known == {
        (orjson.loads(encode(message))["type"], name) for _, _, message in ALL for name in type(message).__slots__
    }


VALUES = [
    (True, "a boolean"),
    (7, "a whole number"),
    (1.5, "a number"),
    ("x", "a string"),
    ([], "an array"),
    ({}, "an object"),
]
FITTING = {"string": str, "whole number": int, "an array": list, "an object": dict, "true or": bool}


def wrong_kinds(expected: str) -> list[tuple[object, str]]:
    fitting = {kind for words, kind in FITTING.items() if words in expected.replace("array of strings", "array")}
    return [(value, got) for value, got in VALUES if type(value) not in fitting]


@pytest.mark.parametrize(
    ("kind", "field", "expected", "value", "got"),
    [
        (*row, value, got)
        for table, more in ((REQUIRED, [(None, "null")]), (OPTIONAL, []))
        for row in table
        for value, got in wrong_kinds(row[2]) + more
    ],
)
def test_a_wrong_kind_is_refused_by_the_fields_name(
    kind: str, field: str, expected: str, value: object, got: str
) -> None:
    assert refusal(kind, {field: value}) == f"{field}: expected {expected}, got {got}"


@pytest.mark.parametrize(("kind", "field"), [row[:2] for row in REQUIRED])
def test_a_field_that_must_be_there_is_missed(kind: str, field: str) -> None:
    parse, values = GOOD[kind]
    with pytest.raises(RequestError, match=f"^{field}: expected .*, got null$"):
        parse(orjson.dumps({name: value for name, value in values.items() if name != field}))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("register", {"models": ["a", 1]}, "models[1]: expected a string, got a whole number"),
        ("register", {"features": [None]}, "features[0]: expected a string, got null"),
        ("cancel", {"reason": {}}, f"reason.other: expected {LONG}, got null"),
        ("cancel", {"reason": {"other": 1}}, f"reason.other: expected {LONG}, got a whole number"),
        (
            "response_complete",
            {"token_counts": {"total_tokens": "1"}},
            f"token_counts.total_tokens: expected {COUNT}, got a string",
        ),
        (
            "response_complete",
            {"headers": {"a": 1}},
            f"headers.a: expected a string of at most {MAX_HEADER_BYTES} bytes, got a whole number",
        ),
        (
            "request",
            {"headers": {"a": "b\r\nc: d"}},
            "headers.a: expected Latin-1 without control characters, got 'b\\r\\nc: d'",
        ),
        (
            "response_chunk",
            {"headers": {"a": "\u0100"}},
            "headers.a: expected Latin-1 without control characters, got '\\u0100'",
        ),
        (
            "request",
            {"headers": {"a b": ""}},
            "headers: expected names that are tokens of at most 256 bytes, got 'a b'",
        ),
        ("request", {"headers": {"": ""}}, "headers: expected names that are tokens of at most 256 bytes, got ''"),
        *(
            (
                "request",
                {"endpoint_path": path},
                f"endpoint_path: expected printable ASCII that begins with /, got {shown}",
            )
            for path, shown in [("", "''"), ("v1", "'v1'"), ("/a b", "'/a b'"), ("/\n", "'/\\n'"), ("/é", "'/\\xe9'")]
        ),
        ("flow", {"request_id": ""}, f"request_id: expected {ID}, got an empty one"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_stands(kind: str, changes: dict[str, Any], message: str) -> None:
    assert refusal(kind, changes) == message


@pytest.mark.parametrize(
    ("kind", "field", "most", "over"),
    [
        *(
            (kind, field, "x" * cap, value)
            for kind, field, cap in [
                ("register", "worker_name", MAX_NAME_BYTES),
                ("register", "protocol_version", MAX_NAME_BYTES),
                ("response_chunk", "request_id", MAX_NAME_BYTES),
                ("response_complete", "request_id", MAX_NAME_BYTES),
                ("error", "code", MAX_NAME_BYTES),
                ("error", "message", MAX_TEXT_BYTES),
                ("register_ack", "worker_id", MAX_NAME_BYTES),
                ("request", "model", MAX_NAME_BYTES),
                ("cancel", "reason", MAX_TEXT_BYTES),
                ("graceful_shutdown", "reason", MAX_TEXT_BYTES),
                ("models_refresh", "reason", MAX_TEXT_BYTES),
            ]
            for value in ("x" * (cap + 1), "é" * (cap // 2 + 1))
        ),
        ("request", "endpoint_path", "/" * MAX_PATH_BYTES, "/" * (MAX_PATH_BYTES + 1)),
        ("register", "models", ["m"] * MAX_MODELS, ["m"] * (MAX_MODELS + 1)),
        ("register", "features", ["f"] * MAX_FEATURES, ["f"] * (MAX_FEATURES + 1)),
        ("register", "max_concurrent", MAX_CONCURRENT, MAX_CONCURRENT + 1),
        ("register", "max_concurrent", 1, -1),
        ("register", "current_load", MAX_LOAD, MAX_LOAD + 1),
        ("pong", "current_load", 0, -1),
        ("pong", "timestamp_unix_ms", MAX_COUNT, MAX_COUNT + 1),
        ("response_chunk", "status_code", 100, 99),
        ("response_chunk", "status_code", 599, 600),
        ("response_complete", "status_code", 200, 199),
        ("response_complete", "status_code", 599, 600),
        (
            "request",
            "headers",
            {f"h{i}": "x" for i in range(MAX_HEADERS)},
            {f"h{i}": "x" for i in range(MAX_HEADERS + 1)},
        ),
        ("request", "headers", {"h" * MAX_NAME_BYTES: ""}, {"h" * (MAX_NAME_BYTES + 1): ""}),
        ("request", "headers", {"h": "x" * MAX_HEADER_BYTES}, {"h": "x" * (MAX_HEADER_BYTES + 1)}),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_what_is_at_its_bound_passes_and_what_is_over_is_refused_in_few_words(
    kind: str, field: str, most: object, over: object
) -> None:
    parse, values = GOOD[kind]
    read = orjson.loads(encode(parse(orjson.dumps(values | {field: most}))))
    assert read[field] in (most, {"other": most})
    message = refusal(kind, {field: over})
    assert message.startswith(field)
    assert len(message) < 300 + MAX_NAME_BYTES


@pytest.mark.parametrize("parse", [parse_from_worker, parse_from_proxy])
@pytest.mark.parametrize(
    "payload", [b"", b"{", b'{"type":"ping"} x', b"\xff", b'{"type":"pong","current_load":NaN}', b'"\\ud800"']
)
def test_what_is_no_json_is_refused(parse: Any, payload: bytes) -> None:
    with pytest.raises(RequestError, match="not valid JSON") as raised:
        parse(payload)
    assert raised.value.fault is Fault.INVALID_JSON


@pytest.mark.parametrize(("payload", "got"), [(b"[]", "an array"), (b"null", "null"), (b'"ping"', "a string")])
def test_what_is_no_object_is_refused(payload: bytes, got: str) -> None:
    with pytest.raises(RequestError, match=f"^message: expected an object, got {got}$"):
        parse_from_proxy(payload)


@pytest.mark.parametrize(
    ("kind", "got"), [(None, "null"), ([], "an array"), (1, "a whole number"), ("ping", '"ping"'), ("x" * 99, '"xxx')]
)
def test_a_type_that_is_not_of_that_side_is_refused_with_those_that_are(kind: object, got: str) -> None:
    with pytest.raises(RequestError, match=r"^type: ") as raised:
        parse_from_worker(orjson.dumps({"type": kind, "request_id": "r"}))
    expected = '"register" or "models_update" or "response_chunk" or "response_complete" or "pong" or "error"'
    assert raised.value.message.startswith(f"type: expected {expected}, got {got}")
    assert len(raised.value.message) < 200


def test_a_headers_value_is_trimmed_and_may_be_latin_1() -> None:
    parse, values = GOOD["request"]
    assert parse(orjson.dumps(values | {"headers": {"A": "\t où \t", "b": " "}})).headers == {"A": "où", "b": ""}


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "accepted", "warnings"),
    [
        ([], (), ()),
        (["b", " a ", "", "\t", "a", "b", "A", "*"], ("b", "a", "A", "*"), ()),
        (["1", "2", "3", "4"], ("1", "2", "3", "4"), ()),
        (["1", "2", "3", "4", "4", " "], ("1", "2", "3", "4"), ()),
        (["1", "2", "3", "4", "5", "6"], ("1", "2", "3", "4"), ("models: expected at most 4, left out the last 2",)),
        (["x" * 256, "é" * 128], ("x" * 256, "é" * 128), ()),
        (
            ["x" * 257, "a", "é" * 129, "x" * 257],
            ("a",),
            ("models: expected names of at most 256 bytes, left out 2",),
        ),
        (
            ["x" * 257, "1", "2", "3", "4", "5"],
            ("1", "2", "3", "4"),
            (
                "models: expected names of at most 256 bytes, left out 1",
                "models: expected at most 4, left out the last 1",
            ),
        ),
    ],
)
def test_models_are_trimmed_told_apart_and_capped(
    models: list[str], accepted: tuple[str, ...], warnings: tuple[str, ...]
) -> None:
    assert accepted_models(models, 4) == (accepted, warnings)
