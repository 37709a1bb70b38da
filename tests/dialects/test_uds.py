"""The Unix socket's two dialects: what each field may be, in which words it is refused, and what comes back."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.commands import Cancel, Command, GetMetrics
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Metrics, Output, Token, Usage
from umaserve.core.requests import ChatTurn, Generate, Grammar, Priority, Sampling, Syntax
from umaserve.dialects import grammars
from umaserve.dialects.dialect import Reply
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.uds.conversation import JsonDialect, LineDialect

# A busy machine is no fault of the code.

LIMITS = RequestLimits(max_prompt_bytes=64)

# The contract, written down a second time so that a code can't change without a test saying so.
CODES = {
    Fault.FRAME_TOO_LARGE: "E_PROTO_FRAME_TOO_LARGE",
    Fault.INVALID_JSON: "E_PROTO_INVALID_JSON",
    Fault.BAD_REQUEST: "E_PROTO_BAD_REQUEST",
    Fault.NOT_SUPPORTED: "E_PROTO_BAD_REQUEST",
    Fault.BUSY: "E_PROTO_BUSY",
    Fault.PROMPT_TOO_LARGE: "E_LIMIT_PROMPT_TOO_LARGE",
    Fault.CONTEXT_EXCEEDED: "E_LIMIT_PROMPT_TOO_LARGE",
    Fault.TOO_MANY_SESSIONS: "E_LIMIT_SESSIONS",
    Fault.CONTENT_FILTERED: "E_CONTENT_FILTER",
    Fault.NOT_FOUND: "E_PROTO_BAD_REQUEST",
    Fault.UNAUTHORIZED: "E_UNAUTHORIZED",
    Fault.RATE_LIMITED: "E_LIMIT_RATE",
    Fault.MEMORY_PRESSURE: "E_LIMIT_MEMORY",
    Fault.QUEUE_FULL: "E_LIMIT_SESSIONS",
    Fault.TIMED_OUT: "E_RUNTIME_TIMEOUT",
    Fault.MODEL_NOT_FOUND: "E_PROTO_BAD_REQUEST",
    Fault.MODEL_NOT_LOADED: "E_RUNTIME_MODEL",
    Fault.DECODE_FAILED: "E_RUNTIME_DECODE",
    Fault.SHUTTING_DOWN: "E_SHUTDOWN",
    Fault.ENDED: "E_RUNTIME_ENDED",
}

Wanted = dict[str, Any]


def request(**wanted: Any) -> bytes:
    return json.dumps({"id": "r1", "prompt": "hi", **wanted}).encode()


def dialect(*, keep_alive: bool = False) -> JsonDialect:
    return JsonDialect(LIMITS, keep_alive)


def running(**wanted: Any) -> JsonDialect:
    started = dialect()
    started.receive(request(**wanted))
    return started


def generate(**wanted: Any) -> Generate:
    command = dialect().receive(request(**wanted))
    assert isinstance(command, Generate)
    return command


def refusal(payload: bytes, to: JsonDialect | LineDialect | None = None) -> RequestError:
    with pytest.raises(RequestError) as raised:
        (to or dialect()).receive(payload)
    return raised.value


def event(reply: Reply | None) -> Wanted:
    assert reply is not None
    values = json.loads(reply.payload)
    assert isinstance(values, dict)
    return values


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# What a request says.


@pytest.mark.parametrize(
    ("cap", "wanted", "given"),
    [
        (None, None, 512),
        (None, 513, 513),
        (None, 10**9, 10**9),
        (2000, None, 2000),
        (9, None, 9),
        (9, 8, 8),
        (9, 10, 9),
    ],
)
def test_an_answer_has_what_is_asked_for_within_the_operators_cap(
    cap: int | None, wanted: int | None, given: int
) -> None:
    limits = RequestLimits(64, cap)
    asked = JsonDialect(limits, keep_alive=False).receive(request(max_tokens=wanted))
    assert isinstance(asked, Generate)
    assert asked.max_tokens == given
    line = LineDialect(limits).receive(b"hi")
    assert isinstance(line, Generate)
    assert line.max_tokens == (cap or 512)


def test_request_with_no_more_than_it_needs() -> None:
    assert generate() == Generate(id="r1", prompt="hi", max_tokens=512)


def test_request_with_every_field() -> None:
    assert generate(
        type="generate",
        id="é-1",
        prompt="Once\u0000 upon",
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repeat_penalty=1.25,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        seed=3,
        stop=["\n", "###"],
        logit_bias={"12": -100, "0": 2.5},
        grammar='root ::= "a"',
        ignore_eos=True,
        cache_prompt=False,
        lora={"style": 0.5, "é": -1},
        slo={"target_ttft_ms": 150, "target_tbt_ms": 80},
        priority="background",
        stream=False,
        keep_alive=True,
        metadata={"user": 1},
    ) == Generate(
        id="é-1",
        prompt="Once\u0000 upon",
        max_tokens=5,
        sampling=Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            repeat_penalty=1.25,
            presence_penalty=-0.5,
            frequency_penalty=0.75,
            seed=3,
            logit_bias=((12, -100.0), (0, 2.5)),
            grammar=Grammar(Syntax.GBNF, 'root ::= "a"', "grammar"),
            ignore_eos=True,
        ),
        stop=("\n", "###"),
        cache_prompt=False,
        lora=(("style", 0.5), ("é", -1.0)),
        priority=Priority.BACKGROUND,
        target_ttft_s=0.15,
        target_tbt_s=0.08,
    )


@pytest.mark.parametrize(
    "unknown",
    [
        {"n": 10**9},
        {"max_token": -1},
        {"Temperature": "hot"},
        {"": None},
        {"sampling": nested(200)},
        {"slo": {"target_e2e_ms": "soon"}},
        {"id ": 5},
    ],
)
def test_unknown_fields_are_ignored(unknown: Wanted) -> None:
    assert generate(**unknown) == generate()


def test_unknown_fields_of_a_turn_are_ignored() -> None:
    assert generate(chat=[{"role": "user", "content": "a", "name": 5}], prompt=None).prompt == (ChatTurn("user", "a"),)


OPTIONAL = [
    *("type", "event", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty"),
    *(
        "frequency_penalty",
        "seed",
        "stop",
        "logit_bias",
        *grammars.FIELDS,
        "ignore_eos",
        "cache_prompt",
        "lora",
        "model",
        "slo",
        "priority",
        "metadata",
        "chat",
        "stream",
    ),
    "keep_alive",
]


@pytest.mark.parametrize("field", OPTIONAL)
def test_null_is_as_good_as_absent(field: str) -> None:
    null = running(**{field: None})
    assert generate(**{field: None}) == generate()
    absent = running()
    for output in (Token("a", 1), Finished(FinishReason.STOP, Usage(1, 1))):
        assert null.send(output) == absent.send(output)


# Ranges. Each row: the field, what is expected of it in the error's words, how to read it from the message, the values
# that pass with what becomes of them, and the values that don't with what the error says came.

Read = Callable[[Generate], object]


def sampling(name: str) -> Read:
    return lambda command: getattr(command.sampling, name)


RANGES: list[tuple[str, str, Read, list[tuple[Any, Any]], list[tuple[Any, str]]]] = [
    (
        "max_tokens",
        "a whole number from 1",
        lambda command: command.max_tokens,
        [(1, 1), (513, 513), (2.0, 2), (1e9, 10**9), (2**63 - 1, 2**63 - 1)],
        [(0, "0"), (-1, "-1"), (-(2**63), str(-(2**63))), (0.5, "a number")],
    ),
    (
        "temperature",
        "a number from 0 to 10",
        sampling("temperature"),
        [(0, 0.0), (0.0, 0.0), (10, 10.0), (0.7, 0.7)],
        [(-0.001, "-0.001"), (10.001, "10.001"), (1e308, "1e+308")],
    ),
    (
        "top_p",
        "a number above 0 up to 1",
        sampling("top_p"),
        [(0.001, 0.001), (1, 1.0), (1.0, 1.0)],
        [(0, "0"), (0.0, "0.0"), (-0.5, "-0.5"), (1.001, "1.001")],
    ),
    (
        "top_k",
        "a whole number from 0 to 1048576",
        sampling("top_k"),
        [(0, 0), (1048576, 1048576)],
        [(-1, "-1"), (1048577, "1048577")],
    ),
    (
        "min_p",
        "a number from 0 to 1",
        sampling("min_p"),
        [(0, 0.0), (1, 1.0)],
        [(-0.001, "-0.001"), (1.001, "1.001")],
    ),
    (
        "repeat_penalty",
        "a number above 0 up to 10",
        sampling("repeat_penalty"),
        [(0.001, 0.001), (10, 10.0)],
        [(0, "0"), (-1, "-1"), (10.001, "10.001")],
    ),
    *(
        (
            penalty,
            "a number from -2 to 2",
            sampling(penalty),
            [(-2, -2.0), (0, 0.0), (2, 2.0)],
            [(-2.001, "-2.001"), (2.001, "2.001")],
        )
        for penalty in ("presence_penalty", "frequency_penalty")
    ),
    (
        # llama.cpp takes 2**32 - 1 to mean a random one.
        "seed",
        "a whole number from -9223372036854775807 to 9223372036854775807",
        sampling("seed"),
        [
            (0, 0),
            (2**32 - 2, 2**32 - 2),
            (2**32 - 1, 0),
            (-1, 2**32 - 2),
            (2**63 - 1, 2**31 - 1),
            (1 - 2**63, 2**31),
        ],
        [(2**63, "9223372036854775808"), (2**64, "1.8446744073709552e+19")],
    ),
    (
        "slo.target_ttft_ms",
        "a number above 0 up to 3.6e+06",
        lambda command: command.target_ttft_s,
        [(1, 0.001), (3_600_000, 3600.0)],
        [(0, "0"), (-1, "-1"), (3_600_000.5, "3600000.5")],
    ),
    (
        "slo.target_tbt_ms",
        "a number above 0 up to 3.6e+06",
        lambda command: command.target_tbt_s,
        [(1, 0.001), (3_600_000, 3600.0)],
        [(0, "0"), (-1, "-1"), (3_600_000.5, "3600000.5")],
    ),
    (
        "logit_bias.7",
        "a number from -100 to 100",
        sampling("logit_bias"),
        [(-100, ((7, -100.0),)), (100, ((7, 100.0),)), (0, ((7, 0.0),))],
        [(-100.5, "-100.5"), (100.5, "100.5")],
    ),
    (
        "stop",
        "at most 16 strings",
        lambda command: command.stop,
        [("a", ("a",)), ([], ()), (["a"] * 16, ("a",) * 16)],
        [(["a"] * 17, "17")],
    ),
    (
        "stop[0]",
        "a non-empty string of at most 256 bytes",
        lambda command: command.stop[0],
        [("x" * 256, "x" * 256), ("é" * 128, "é" * 128)],
        [("", "an empty one"), ("x" * 257, "257 bytes"), ("é" * 129, "258 bytes")],
    ),
    (
        "logit_bias",
        "at most 1024 tokens",
        lambda command: len(command.sampling.logit_bias),
        [({}, 0), ({str(token): 1 for token in range(1024)}, 1024)],
        [({str(token): 1 for token in range(1025)}, "1025")],
    ),
    (
        "logit_bias",
        "token ids as keys",
        sampling("logit_bias"),
        [({"0": 1}, ((0, 1.0),)), ({"999999999": 1}, ((999999999, 1.0),))],
        [
            ({"": 1}, '""'),
            ({"-1": 1}, '"-1"'),
            ({"1e3": 1}, '"1e3"'),
            ({"1\n": 1}, '"1\n"'),
            ({"٣": 1}, '"٣"'),
            ({"1234567890": 1}, '"1234567890"'),
            ({"x" * 500: 1}, f'"{"x" * 32}"'),
        ],
    ),
    (
        "lora",
        "at most 16 adapters",
        lambda command: command.lora and len(command.lora),
        [(None, None), ({}, ()), ({str(adapter): 1 for adapter in range(16)}, 16)],
        [({str(adapter): 1 for adapter in range(17)}, "17")],
    ),
    (
        "lora",
        "names of 1 to 256 bytes",
        lambda command: command.lora,
        [({"a": 1}, (("a", 1.0),)), ({"é" * 128: 1}, (("é" * 128, 1.0),)), ({"a.b: c": 0}, (("a.b: c", 0.0),))],
        [({"": 1}, "0 bytes"), ({"a" * 257: 1}, "257 bytes"), ({"a": 1, "é" * 129: 1}, "258 bytes")],
    ),
    (
        "lora.style",
        "a number from -10 to 10",
        lambda command: command.lora,
        [(-10, (("style", -10.0),)), (10, (("style", 10.0),)), (0, (("style", 0.0),))],
        [(-10.001, "-10.001"), (10.001, "10.001"), (1e308, "1e+308"), (2**63, str(2**63))],
    ),
    (
        "grammar",
        "a non-empty string of at most 65536 bytes",
        lambda command: command.sampling.grammar.text,
        [("g" * 65536, "g" * 65536)],
        [("", "an empty one"), ("g" * 65537, "65537 bytes"), ("é" * 32769, "65538 bytes")],
    ),
    (
        "json_schema",
        "an object of at most 262144 bytes as JSON, nested less than 200 deep",
        lambda command: command.sampling.grammar.text,
        [({}, "{}"), ({"type": "é"}, '{"type":"é"}'), ({"k": "x" * 262136}, '{"k":"' + "x" * 262136 + '"}')],
        [({"k": "x" * 262137}, "262145 bytes"), ({"k": nested(400)}, "a deeper one")],
    ),
    (
        "metadata",
        "an object of at most 1024 bytes as JSON, nested less than 200 deep",
        lambda command: None,
        [({}, None), ({"k": "x" * 1016}, None), ({"k": "é" * 508}, None), ({"k": nested(198)}, None)],
        [({"k": "x" * 1017}, "1025 bytes"), ({"k": "é" * 509}, "1026 bytes"), ({"k": nested(400)}, "a deeper one")],
    ),
    (
        "id",
        "a non-empty string of at most 256 bytes",
        lambda command: command.id,
        [("i", "i"), ("i" * 256, "i" * 256), ("é" * 128, "é" * 128)],
        [("", "an empty one"), ("i" * 257, "257 bytes"), ("é" * 129, "258 bytes")],
    ),
    (
        "prompt",
        "a non-empty string",
        lambda command: command.prompt,
        [(" ", " ")],
        [("", "an empty one")],
    ),
    (
        "priority",
        '"interactive" or "background"',
        lambda command: command.priority,
        [("interactive", Priority.INTERACTIVE), ("background", Priority.BACKGROUND)],
        [("", '""'), ("Background", '"Background"'), ("p" * 500, f'"{"p" * 63}')],
    ),
    ("type", '"metrics" or "generate"', lambda command: command.id, [("generate", "r1")], [("chat", '"chat"')]),
    ("event", '"cancel"', lambda command: command.id, [], [("pause", '"pause"')]),
    (
        "chat",
        "1 to 1024 messages",
        lambda command: len(command.prompt),
        [([{"role": "user", "content": ""}] * 1023, 1024), ([{"role": "user", "content": ""}] * 1024, 1025)],
        [([], "0"), ([{"role": "user", "content": ""}] * 1025, "1025")],
    ),
    (
        "chat[0].role",
        '"system" or "user" or "assistant" or "tool"',
        lambda command: command.prompt[0],
        [(role, ChatTurn(role, "")) for role in ("system", "user", "assistant", "tool")],
        [("", '""'), ("User", '"User"'), ("developer", '"developer"')],
    ),
    (
        "chat[0].content",
        "a string",
        lambda command: command.prompt[0],
        [("", ChatTurn("user", "")), ("c", ChatTurn("user", "c"))],
        [],
    ),
]


def placed(field: str, value: object) -> Wanted:
    """The request's fields with ``value`` where an error message says ``field``."""
    top, _, inner = field.partition(".")
    match top.partition("[")[0], inner:
        case "chat", "":
            return {"chat": [value] if "[" in top else value}
        case "chat", key:
            return {"chat": [{"role": "user", "content": "", key: value}]}
        case name, "":
            return {name: [value] if "[" in top else value}
        case name, key:
            return {name: {key: value}}
    raise AssertionError(field)


GOOD = [(field, read, value, becomes) for field, _, read, good, _ in RANGES for value, becomes in good]
BAD = [(field, expected, value, got) for field, expected, _, _, bad in RANGES for value, got in bad]


@pytest.mark.parametrize(("field", "read", "value", "becomes"), GOOD, ids=lambda value: str(value)[:24])
def test_value_within_its_range(field: str, read: Read, value: object, becomes: object) -> None:
    got = read(generate(**placed(field, value)))
    assert got == becomes
    assert type(got) is type(becomes)


@pytest.mark.parametrize(("field", "expected", "value", "got"), BAD, ids=lambda value: str(value)[:24])
def test_value_out_of_its_range(field: str, expected: str, value: object, got: str) -> None:
    error = refusal(request(**placed(field, value)))
    assert error.fault is Fault.BAD_REQUEST
    assert error.message == f"{field}: expected {expected}, got {got}"


KINDS: dict[str, Any] = {
    "null": None,
    "a boolean": True,
    "a whole number": 7,
    "a number": 0.5,
    "a string": "text",
    "an array": [1],
    "an object": {"a": 1},
}
NUMBERS = ("a whole number", "a number")

# Each row: the field, what is expected of it in the error's words, and the kinds that it takes.
TYPES: list[tuple[str, str, tuple[str, ...]]] = [
    ("id", "a non-empty string of at most 256 bytes", ("null", "a string")),
    ("prompt", "a non-empty string", ("a string",)),
    ("type", '"metrics" or "generate"', ("null", "a string")),
    ("event", '"cancel"', ("null", "a string")),
    ("max_tokens", "a whole number from 1", ("null", "a whole number")),
    ("temperature", "a number from 0 to 10", ("null", *NUMBERS)),
    ("top_p", "a number above 0 up to 1", ("null", *NUMBERS)),
    ("top_k", "a whole number from 0 to 1048576", ("null", "a whole number")),
    ("min_p", "a number from 0 to 1", ("null", *NUMBERS)),
    ("repeat_penalty", "a number above 0 up to 10", ("null", *NUMBERS)),
    ("presence_penalty", "a number from -2 to 2", ("null", *NUMBERS)),
    ("frequency_penalty", "a number from -2 to 2", ("null", *NUMBERS)),
    ("seed", "a whole number from -9223372036854775807", ("null", "a whole number")),
    ("stop", "a string or an array of strings", ("null", "a string", "an array")),
    ("stop[0]", "a non-empty string of at most 256 bytes", ("a string",)),
    ("logit_bias", "an object", ("null", "an object")),
    ("logit_bias.7", "a number from -100 to 100", NUMBERS),
    ("grammar", "a non-empty string of at most 65536 bytes", ("null", "a string")),
    ("json_schema", "an object", ("null", "an object")),
    ("regex", "a non-empty string of at most 65536 bytes", ("null", "a string")),
    ("guided_json", "a JSON schema, as an object or as its text", ("null", "an object", "a string")),
    ("guided_regex", "a non-empty string of at most 65536 bytes", ("null", "a string")),
    ("guided_choice", "an array of 1 to 500 strings", ("null", "an array")),
    ("guided_choice[0]", "a non-empty string", ("a string",)),
    ("guided_grammar", "a non-empty string of at most 65536 bytes", ("null", "a string")),
    ("structured_outputs", "an object", ("null", "an object")),
    ("structured_outputs.choice", "an array of 1 to 500 strings", ("null", "an array")),
    ("structured_outputs.json_object", "true or false", ("null", "a boolean")),
    ("grammar_syntax", '"gbnf" or "lark"', ("null", "a string")),
    ("ignore_eos", "true or false", ("null", "a boolean")),
    ("cache_prompt", "true or false", ("null", "a boolean")),
    ("lora", "an object", ("null", "an object")),
    ("lora.style", "a number from -10 to 10", NUMBERS),
    ("slo", "an object", ("null", "an object")),
    ("slo.target_ttft_ms", "a number above 0 up to 3.6e+06", ("null", *NUMBERS)),
    ("slo.target_tbt_ms", "a number above 0 up to 3.6e+06", ("null", *NUMBERS)),
    ("priority", '"interactive" or "background"', ("null", "a string")),
    ("metadata", "an object", ("null", "an object")),
    ("model", "a string of at most 256 bytes", ("null", "a string")),
    ("chat", "true, false or an array of messages", ("null", "a boolean", "an array")),
    ("chat[0]", "an object", ("an object",)),
    ("chat[0].role", '"system" or "user" or "assistant" or "tool"', ("a string",)),
    ("chat[0].content", "a string", ("a string",)),
    ("stream", "true or false", ("null", "a boolean")),
    ("keep_alive", "true or false", ("null", "a boolean")),
]
MISTYPED = [(field, expected, kind) for field, expected, takes in TYPES for kind in KINDS if kind not in takes]


@pytest.mark.parametrize(("field", "expected", "kind"), MISTYPED)
def test_wrong_kind_is_refused_in_words_that_name_field_and_kind(field: str, expected: str, kind: str) -> None:
    asked = dialect()
    error = refusal(request(**placed(field, KINDS[kind])), asked)
    assert error.fault is Fault.BAD_REQUEST
    assert error.message == f"{field}: expected {expected}, got {kind}"
    assert error.request_id == (None if field == "id" else "r1")
    # What was refused must not leave the connection busy.
    assert asked.receive(request()) == generate()


def test_tables_name_every_field_of_the_messages() -> None:
    named = {field.partition(".")[0].partition("[")[0] for field, _, _ in TYPES}
    renamed = {"sampling", "target_ttft_s", "target_tbt_s"}
    of_other_dialects = {"logprobs", "tools", "must_call", "enable_thinking", "spoken", "recorded"}
    of_other_dialects |= {"length_penalty", "continue_final_message", "add_generation_prompt", "parallel_calls"}
    of_other_dialects |= {"chat_template_kwargs", "splits_thoughts", "stops_in_thoughts", "thought_budget"}
    of_other_dialects |= {
        "wants_progress",
        "wants_prompt",
        "wants_tokens",
        "context",
        "prompt_logprobs",
        "text_bias",
        "scores_after",
        "penalty_window",
        "sound_limit",
        "samplers",
    }
    # Read here too, though its contract has no word of them.
    of_other_dialects |= {field.name for field in fields(Sampling) if field.name.startswith(("dry_", "mirostat"))}
    of_other_dialects |= {"xtc_probability", "xtc_threshold", "adaptive_target", "adaptive_decay", "top_n_sigma"}
    of_other_dialects |= {"dynatemp_range", "dynatemp_exponent", "typical_p", "min_tokens", "bad_words"}
    of_other_dialects |= {"stop_token_ids"}
    assert {field.name for field in fields(Sampling)} - of_other_dialects <= named
    assert {field.name for field in fields(Generate)} - renamed - of_other_dialects <= named
    assert set(OPTIONAL) == named - {"id", "prompt"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "an object"])
def test_payload_of_another_kind(kind: str) -> None:
    error = refusal(json.dumps(KINDS[kind]).encode())
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, f"payload: expected an object, got {kind}")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"{}", "id: expected a non-empty string, got null"),
        (b'{"prompt":"hi"}', "id: expected a non-empty string, got null"),
        (b'{"id":null,"prompt":"hi"}', "id: expected a non-empty string, got null"),
        (b'{"id":"r1"}', "prompt: expected a non-empty string, got null"),
        (b'{"id":"r1","chat":true}', "prompt: expected a non-empty string, got null"),
        (b'{"id":"r1","chat":false}', "prompt: expected a non-empty string, got null"),
        (
            b'{"id":"r1","chat":[{"content":""}]}',
            'chat[0].role: expected "system" or "user" or "assistant" or "tool", got null',
        ),
        (b'{"id":"r1","chat":[{"role":"user"}]}', "chat[0].content: expected a string, got null"),
    ],
)
def test_what_a_request_needs(payload: bytes, message: str) -> None:
    error = refusal(payload)
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, message)


def test_later_items_are_named_by_their_place() -> None:
    assert refusal(request(stop=["a", "b", 5])).message.startswith("stop[2]: ")
    turn = {"role": "user", "content": ""}
    assert refusal(request(chat=[turn, turn, {"role": "user", "content": 5}])).message.startswith("chat[2].content: ")


def test_grammar_excludes_a_schema() -> None:
    error = refusal(request(grammar="g", json_schema={}))
    assert error.fault is Fault.BAD_REQUEST
    assert error.message == "grammar: expected to be absent where json_schema is given, got both"


USER = ChatTurn("user", "hi")
SYSTEM = ChatTurn("system", "be brief")
TURN = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("wanted", "prompt"),
    [
        ({"chat": True}, (USER,)),
        ({"chat": False}, "hi"),
        ({"chat": [TURN]}, (SYSTEM, USER)),
        ({"chat": [TURN], "prompt": None}, (SYSTEM,)),
    ],
)
def test_prompt_of_turns(wanted: Wanted, prompt: object) -> None:
    assert generate(**wanted).prompt == prompt


def turns(*contents: str) -> list[Wanted]:
    return [{"role": "user", "content": content} for content in contents]


@pytest.mark.parametrize(
    "wanted",
    [
        {"prompt": "x" * 64},
        {"prompt": "é" * 32},
        {"prompt": "😀" * 16},
        {"prompt": "x" * 64, "chat": True},
        {"prompt": None, "chat": turns("x" * 32, "é" * 16)},
        {"prompt": "x" * 32, "chat": turns("é" * 16)},
    ],
)
def test_prompt_at_its_cap_in_bytes_and_one_over(wanted: Wanted) -> None:
    generate(**wanted)
    if wanted["prompt"] is None:
        wanted = {**wanted, "chat": [*wanted["chat"], *turns("x")]}
    else:
        wanted = {**wanted, "prompt": wanted["prompt"] + "x"}
    error = refusal(request(**wanted))
    assert (error.fault, error.request_id) == (Fault.PROMPT_TOO_LARGE, "r1")
    assert error.message == "prompt: expected at most 64 bytes, got 65"


# What is no JSON.


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"\x00",
        b"{",
        b'{"id":"r1"',
        b'{"id":"r1",}',
        b"{'id':'r1'}",
        b'{"id":"r1"}{}',
        b'{"id":"r1"}\x00',
        b'{"id":"r1","temperature":NaN}',
        b'{"id":"r1","temperature":Infinity}',
        b'{"id":"r1","temperature":-Infinity}',
        b'{"id":"r1","temperature":1e999}',
        b'{"id":"r1","seed":01}',
        b'{"id":"r1","seed":+1}',
        b'{"id":"r1","seed":0x1}',
        b'{"id":"r1","seed":' + b"9" * 5000 + b"}",
        b'{"id":"r1","prompt":"\xff"}',
        b'{"id":"r1","prompt":"\xc0\xaf"}',  # an overlong slash
        b'{"id":"r1","prompt":"\xe2\x82"}',  # a character cut short
        b'{"id":"r1","prompt":"\xed\xa0\x80"}',  # a surrogate in UTF-8
        b'{"id":"r1","prompt":"\\ud800"}',
        b'{"id":"r1","prompt":"\\udc00\\ud800"}',
        b'{"id":"r1","prompt":"\n"}',
        b'{"id":"r1","prompt":"\\x41"}',
        b"\xef\xbb\xbf{}",
        b'{"id":"r1","prompt":"hi"}'.decode().encode("utf-16"),
        b"// note\n{}",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"":' * 100_000,
    ],
    ids=lambda payload: ascii(payload[:32]),
)
def test_what_is_no_json(payload: bytes) -> None:
    asked = dialect()
    error = refusal(payload, asked)
    assert (error.fault, error.request_id) == (Fault.INVALID_JSON, None)
    assert error.message.startswith("payload: not valid JSON: ")
    reply = asked.fail(error)
    assert event(reply) == {"event": "error", "code": "E_PROTO_INVALID_JSON", "message": error.message}
    assert reply.close


def test_pair_of_surrogate_escapes_is_one_character() -> None:
    command = dialect().receive(b'{"id":"r1","prompt":"\\ud83d\\ude00"}')
    assert command == Generate("r1", "😀", 512)


# No input does worse than a refusal.

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
any_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
)
# Mostly good values, since one wrong field hides what the others would do.
near_requests = st.fixed_dictionaries(
    {"id": st.just("r1") | st.text(max_size=300), "prompt": st.just("hi") | st.text(max_size=70)},
    optional={
        "type": st.sampled_from(["generate", "metrics", "other"]),
        "event": st.none() | st.just("cancel"),
        "max_tokens": st.integers(0, 513),
        "temperature": st.floats(-1, 11),
        "seed": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "stop": st.text(max_size=9) | st.lists(st.text(max_size=9)),
        "logit_bias": st.dictionaries(st.text("0123456789x", max_size=4), st.floats(-101, 101)),
        "json_schema": st.dictionaries(st.text(), any_json, max_size=3),
        "cache_prompt": st.booleans(),
        "lora": st.dictionaries(st.text(max_size=9), st.floats(-11, 11), max_size=17),
        "slo": st.dictionaries(st.sampled_from(["target_ttft_ms", "target_tbt_ms"]), st.floats(-1, 4e6)),
        "metadata": st.dictionaries(st.text(), any_json, max_size=3),
        "chat": st.booleans() | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()})),
        "stream": st.booleans(),
        "keep_alive": st.booleans(),
    },
)
one_wrong_field = st.builds(
    lambda near, name, value: {**near, name: value},
    near_requests,
    st.sampled_from(["id", "prompt", *OPTIONAL]),
    any_json,
)


ANSWERS: dict[type, list[Output]] = {
    Generate: [Token("a", 1), Finished(FinishReason.STOP, Usage(1, 1))],
    GetMetrics: [Metrics({"sessions": 1})],
    Cancel: [],
}


def check_answer(payload: bytes, asked: JsonDialect) -> None:
    """A command or a refusal, and each of them with events that can be written and that no client can make large."""
    try:
        command = asked.receive(payload)
    except RequestError as error:
        refused = asked.fail(error)
        replies = [refused]
        closes = event(refused)["code"] != "E_PROTO_BUSY"
    else:
        replies = [reply for output in ANSWERS[type(command)] if (reply := asked.send(output))]
        closes = None
    for reply in replies:
        assert "event" in event(reply)
        assert closes in (None, reply.close)
        # Metadata is capped as it is written; an id of 256 bytes can get six times as long. The rest is ours.
        assert len(reply.payload) < 1024 + 6 * 256 + 1024


@given(st.binary(), st.booleans())
def test_no_bytes_do_worse_than_a_refusal(payload: bytes, busy: bool) -> None:
    check_answer(payload, running() if busy else dialect())


@given(any_json | near_requests | one_wrong_field, st.booleans())
def test_no_json_does_worse_than_a_refusal(value: object, busy: bool) -> None:
    check_answer(json.dumps(value).encode(), running() if busy else dialect())


@pytest.mark.parametrize("field", OPTIONAL)
def test_no_depth_of_a_field_does_worse_than_a_refusal(field: str) -> None:
    # The parser reads deeper than the writer writes, and events nest what they echo once more.
    for depth in (*range(190, 270), 500, 1000):
        deep = "[" * depth + "]" * depth
        check_answer(f'{{"id":"r1","prompt":"hi","{field}":{{"k":{deep}}}}}'.encode(), dialect())


# Errors and the id.


@pytest.mark.parametrize(
    ("id_", "echoed"),
    [
        ("r1", True),
        ("é" * 128, True),
        ('"\n\u0000', True),
        ("é" * 129, False),
        ("i" * 257, False),
        (5, False),
        (None, False),
        (["r1"], False),
    ],
)
@pytest.mark.parametrize(
    "wanted", [{"prompt": 5}, {"event": "pause"}, {"type": 5}, {"type": "metrics", "keep_alive": 5}]
)
def test_error_carries_the_id_where_it_has_one(wanted: Wanted, id_: object, echoed: bool) -> None:
    asked = dialect()
    error = refusal(request(**{"id": id_, **wanted}), asked)
    reply = asked.fail(error)
    common = {"id": id_} if echoed else {}
    assert event(reply) == {**common, "event": "error", "code": "E_PROTO_BAD_REQUEST", "message": error.message}
    assert reply.close


def test_every_fault_has_a_code() -> None:
    assert set(CODES) == set(Fault)


@pytest.mark.parametrize("fault", Fault)
def test_error_before_a_request(fault: Fault) -> None:
    reply = dialect(keep_alive=True).fail(RequestError(fault, "field", "said é"))
    assert event(reply) == {"event": "error", "code": CODES[fault], "message": "field: said é"}
    assert reply.close is (fault is not Fault.BUSY)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.BUSY])
@pytest.mark.parametrize("named", [None, "r1", "other"])
def test_error_of_the_running_request_ends_it(fault: Fault, named: str | None) -> None:
    asked = dialect(keep_alive=True)
    asked.receive(request(keep_alive=True, metadata={"k": 1}))
    reply = asked.fail(RequestError(fault, "request", "why", named))
    assert event(reply) == {
        "id": "r1",
        "metadata": {"k": 1},
        "event": "error",
        "code": CODES[fault],
        "message": "request: why",
    }
    assert reply.close
    with pytest.raises(RuntimeError):
        asked.send(Token("late", 1))


# One request at a time.


@pytest.mark.parametrize(
    ("second", "id_"),
    [
        (request(id="r2"), "r2"),
        (request(id="r1"), "r1"),
        (request(id="r2", stream=False, keep_alive=True, metadata={"second": 1}), "r2"),
        (request(id="r2", max_tokens=-1), "r2"),
        (b'{"id":"r2"}', "r2"),
        (b"{}", None),
        (b'{"type":"metrics"}', None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_second_request_is_refused_and_the_first_goes_on(second: bytes, id_: str | None, stream: bool) -> None:
    first = running(stream=stream, metadata={"first": 1})
    undisturbed = running(stream=stream, metadata={"first": 1})
    outputs: list[Output] = [Token("a", 1), Token("b", 2), Finished(FinishReason.LENGTH, Usage(3, 2))]
    for output in outputs:
        error = refusal(second, first)
        reply = first.fail(error)
        assert event(reply) == {
            **({} if id_ is None else {"id": id_}),
            "event": "error",
            "code": "E_PROTO_BUSY",
            "message": "request: another request is running on this connection; wait for its eos, or cancel it",
        }
        assert not reply.close
        assert first.send(output) == undisturbed.send(output)
    assert first.receive(request(id="r2")) == generate(id="r2")


def test_request_while_metrics_are_due_is_refused() -> None:
    asked = dialect(keep_alive=True)
    asked.receive(b'{"type":"metrics"}')
    assert refusal(request(), asked).fault is Fault.BUSY
    asked.send(Metrics({}))
    assert asked.receive(request()) == generate()


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("id_", ["r1", "another", "i" * 256])
def test_cancel(idle: bool, id_: str) -> None:
    asked = dialect() if idle else running()
    assert asked.receive(json.dumps({"event": "cancel", "id": id_, "reason": {}}).encode()) == Cancel(id_)
    if not idle:
        assert event(asked.send(Finished(FinishReason.CANCELLED, Usage(1, 0))))["reason"] == "cancelled"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "id: expected a non-empty string, got null"),
        ({"id": None}, "id: expected a non-empty string, got null"),
        ({"id": 5}, "id: expected a non-empty string of at most 256 bytes, got a whole number"),
        ({"id": ""}, "id: expected a non-empty string of at most 256 bytes, got an empty one"),
        ({"id": "i" * 257}, "id: expected a non-empty string of at most 256 bytes, got 257 bytes"),
        ({"id": "r1", "event": "Cancel"}, 'event: expected "cancel", got "Cancel"'),
        ({"id": "r1", "event": "x" * 500}, f'event: expected "cancel", got "{"x" * 63}'),
    ],
)
def test_cancel_that_cant_be_read(values: Wanted, message: str) -> None:
    error = refusal(json.dumps({"event": "cancel", **values}).encode())
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, message)


# The events.

USAGE = Usage(prompt_tokens=3, completion_tokens=2, prefix_reused_tokens=1)
USAGE_JSON = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prefix_reused_tokens": 1}


@pytest.mark.parametrize(("reason", "said"), [("STOP", "stop"), ("LENGTH", "length"), ("CANCELLED", "cancelled")])
def test_events_of_a_stream(reason: str, said: str) -> None:
    asked = running()
    events = [
        event(asked.send(output))
        for output in (Token("Hé", 12), Token("", 0), Token('"\n\u0000😀', 99), Finished(FinishReason[reason], USAGE))
    ]
    assert events == [
        {"id": "r1", "event": "token", "text": "Hé", "token_id": 12},
        {"id": "r1", "event": "token", "text": "", "token_id": 0},
        {"id": "r1", "event": "token", "text": '"\n\u0000😀', "token_id": 99},
        {"id": "r1", "event": "eos", "reason": said, "usage": USAGE_JSON},
    ]


def test_every_finish_reason_is_said() -> None:
    for reason in FinishReason:
        assert event(running().send(Finished(reason, USAGE)))["reason"] == reason.name.lower()


@pytest.mark.parametrize(("texts", "whole"), [(["Hé", "", "llo"], "Héllo"), ([], "")])
def test_unstreamed_text_comes_with_the_eos_alone(texts: list[str], whole: str) -> None:
    asked = running(stream=False)
    assert [asked.send(Token(text, 1)) for text in texts] == [None] * len(texts)
    eos = asked.send(Finished(FinishReason.STOP, USAGE))
    assert event(eos) == {"id": "r1", "event": "eos", "reason": "stop", "text": whole, "usage": USAGE_JSON}


METADATA: list[Wanted] = [{}, {"user": "é", "n": [1, {"deep": None}]}, {"id": "x", "event": "y", "close": 1}]


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("stream", [True, False])
def test_metadata_is_on_every_event_of_its_request_and_not_of_the_next(metadata: Wanted, stream: bool) -> None:
    asked = dialect(keep_alive=True)
    for carries in (True, False, True):
        asked.receive(request(stream=stream, metadata=metadata if carries else None))
        replies = [asked.send(Token("a", 1)), asked.send(Finished(FinishReason.STOP, USAGE))]
        events = [event(reply) for reply in replies if reply is not None]
        assert len(events) == 1 + stream
        for sent in events:
            assert sent["id"] == "r1"
            assert sent.get("metadata") == (metadata if carries else None)
            assert ("metadata" in sent) is carries
    asked.receive(b'{"type":"metrics"}')
    assert event(asked.send(Metrics({}))) == {"event": "metrics"}


def test_a_request_leaves_nothing_to_the_next() -> None:
    asked = dialect()
    asked.receive(request(stream=False, keep_alive=True))
    asked.send(Token("first", 1))
    asked.send(Finished(FinishReason.STOP, USAGE))
    asked.receive(request(stream=False))
    asked.send(Token("second", 1))
    eos = asked.send(Finished(FinishReason.STOP, USAGE))
    assert eos is not None
    assert eos.close
    assert event(eos)["text"] == "second"


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("wish", [True, False, None])
def test_the_request_says_whether_to_stay_else_the_server(server: bool, wish: bool | None) -> None:
    stays = server if wish is None else wish
    asked = dialect(keep_alive=server)
    # Metrics end the session by the contract.
    told_to_stay = wish is True
    asked.receive(request(keep_alive=wish))
    token, eos = asked.send(Token("a", 1)), asked.send(Finished(FinishReason.STOP, USAGE))
    asked.receive(json.dumps({"type": "metrics", "keep_alive": wish}).encode())
    metrics = asked.send(Metrics({}))
    assert [reply and reply.close for reply in (token, eos, metrics)] == [False, not stays, not told_to_stay]


def test_metrics_of_models_are_one_object_beside_the_flat_names() -> None:
    asked, models = dialect(), {"chat": {"state": "loaded", "threads": 2}}
    asked.receive(b'{"type":"metrics"}')
    told = event(asked.send(Metrics({"state": "ready"}, models)))
    assert told == {"event": "metrics", "state": "ready", "models": models}
    asked.receive(b'{"type":"metrics"}')
    told = event(asked.send(Metrics({}, {**models, "code": {}}, {"chat": ("a", "b")})))
    assert told["models"] == {"chat": {**models["chat"], "aliases": ["a", "b"]}, "code": {}}


def test_metrics() -> None:
    asked = dialect()
    assert asked.receive(b'{"type":"metrics","id":5,"prompt":5}') == GetMetrics()
    values: dict[str, int | float | str] = {"tokens_total": 2**53, "tick_s": 0.25, "model": "é"}
    reply = asked.send(Metrics(values))
    assert event(reply) == {"event": "metrics", **values}


@pytest.mark.parametrize("output", [Token("a", 1), Finished(FinishReason.STOP, USAGE), Metrics({})])
def test_output_without_a_request_is_our_bug(output: Output) -> None:
    with pytest.raises(RuntimeError):
        dialect().send(output)
    ended = running()
    ended.send(Finished(FinishReason.STOP, USAGE))
    with pytest.raises(RuntimeError):
        ended.send(output)


def test_json_takes_a_payload_at_any_time() -> None:
    # The refusal of a second request must not wait for the first.
    assert dialect().ready
    assert running().ready


# Lines.


def lines(*prompts: str) -> LineDialect:
    asked = LineDialect(LIMITS)
    for prompt in prompts:
        asked.receive(prompt.encode())
    return asked


@pytest.mark.parametrize("line", ["hi", " ", '{"id":"r1"}', "Metrics", "metrics ", "\u0000", "é\r", "x" * 64, "é" * 32])
def test_a_line_is_a_prompt_as_it_stands(line: str) -> None:
    assert LineDialect(LIMITS).receive(line.encode()) == Generate("", line, 512)


def test_a_line_of_metrics_is_answered_in_one() -> None:
    asked = LineDialect(LIMITS)
    assert asked.receive(b"metrics") == GetMetrics()
    reply = asked.send(Metrics({"tokens_total": 5, "model": "a\nb"}))
    assert reply.payload.endswith(b"\n")
    assert reply.payload.count(b"\n") == 1
    assert event(reply) == {"tokens_total": 5, "model": "a\nb"}
    assert not reply.close


@pytest.mark.parametrize(
    ("line", "fault", "message"),
    [
        (b"", Fault.BAD_REQUEST, "prompt: expected a non-empty string, got an empty one"),
        (b"x" * 65, Fault.PROMPT_TOO_LARGE, "prompt: expected at most 64 bytes, got 65"),
        ("é".encode() * 33, Fault.PROMPT_TOO_LARGE, "prompt: expected at most 64 bytes, got 66"),
        (b"\xff", Fault.BAD_REQUEST, "prompt: expected UTF-8, got invalid start byte"),
        (b"ok\xe2\x82", Fault.BAD_REQUEST, "prompt: expected UTF-8, got unexpected end of data"),
        (b"\xed\xa0\x80", Fault.BAD_REQUEST, "prompt: expected UTF-8, got invalid continuation byte"),
    ],
)
def test_a_line_that_cant_be_a_prompt(line: bytes, fault: Fault, message: str) -> None:
    asked = LineDialect(LIMITS)
    error = refusal(line, asked)
    assert (error.fault, error.message) == (fault, message)
    assert asked.ready
    assert asked.fail(error) == Reply(f"error: {CODES[fault]}: {message}\n".encode(), False)


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("hi", Finished(FinishReason.STOP, USAGE)),
        ("metrics", Metrics({})),
        ("hi", RequestError(Fault.DECODE_FAILED, "request", "why")),
        ("metrics", RequestError(Fault.DECODE_FAILED, "request", "why")),
    ],
)
def test_the_next_line_waits_for_the_end_of_this_one(line: str, end: Output | RequestError) -> None:
    asked = LineDialect(LIMITS)
    assert asked.ready
    asked.receive(line.encode())
    assert not asked.ready
    if line == "hi":
        asked.send(Token("a", 1))
        assert not asked.ready
    if isinstance(end, RequestError):
        asked.fail(end)
    else:
        asked.send(end)
    assert asked.ready


@pytest.mark.parametrize("reason", FinishReason)
def test_text_as_it_comes_then_a_newline(reason: FinishReason) -> None:
    asked = lines("hi")
    outputs: list[Output] = [Token("Hé", 1), Token("", 2), Token("l\nlo", 3), Finished(reason, USAGE)]
    assert [asked.send(output) for output in outputs] == [
        Reply("Hé".encode(), False),
        Reply(b"", False),
        Reply(b"l\nlo", False),
        Reply(b"\n", False),
    ]


@pytest.mark.parametrize("fault", Fault)
def test_error_line_of_each_fault(fault: Fault) -> None:
    # After these no next line can be told from the rest of a lost one, or nobody is left to take it.
    closes = fault in (Fault.FRAME_TOO_LARGE, Fault.TOO_MANY_SESSIONS, Fault.SHUTTING_DOWN)
    assert lines().fail(RequestError(fault, "request", "why")) == Reply(
        f"error: {CODES[fault]}: request: why\n".encode(), closes
    )


@pytest.mark.parametrize(
    ("texts", "start"),
    [([], b""), ([""], b""), (["a"], b"\n"), (["a", ""], b"\n"), (["", "a"], b"\n")],
)
def test_an_error_starts_its_own_line(texts: list[str], start: bytes) -> None:
    asked = lines("hi")
    for text in texts:
        asked.send(Token(text, 1))
    error = RequestError(Fault.DECODE_FAILED, "request", "why")
    assert asked.fail(error).payload == start + b"error: E_RUNTIME_DECODE: request: why\n"
    assert asked.fail(error).payload == b"error: E_RUNTIME_DECODE: request: why\n"


def test_an_answers_end_is_a_lines_end() -> None:
    asked = lines("hi")
    asked.send(Token("a", 1))
    asked.send(Finished(FinishReason.STOP, USAGE))
    assert asked.fail(refusal(b"", asked)).payload.startswith(b"error: ")


@given(st.text(alphabet=st.sampled_from(string.whitespace + "ab\x1c\x85\u2028\u2029") | st.characters(codec="utf-8")))
def test_an_error_is_one_line_whatever_it_says(message: str) -> None:
    said = lines().fail(RequestError(Fault.DECODE_FAILED, "request", message)).payload.decode()
    assert len(said.splitlines()) == 1
    assert said.endswith("\n")
    assert said.split()[3:] == message.split()


@given(st.binary())
def test_no_line_does_worse_than_a_refusal(line: bytes) -> None:
    asked = LineDialect(LIMITS)
    command: Command
    try:
        command = asked.receive(line)
    except RequestError as error:
        reply = asked.fail(error)
        assert reply.payload.count(b"\n") == 1
        assert not reply.close
        assert asked.ready
    else:
        assert command == (GetMetrics() if line == b"metrics" else Generate("", line.decode(), 512))
        assert not asked.ready
