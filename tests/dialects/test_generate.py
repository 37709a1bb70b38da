"""The dialect of ``/generate``: what a client may say and when, in which words it is refused, and what comes back."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.routes import listed
from umaserve.core.commands import Cancel, Command, Feedback, Modify, Pause, Reattach, Replace, Resume, Steering
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    FeedbackKept,
    Finished,
    FinishReason,
    Loading,
    Logprobs,
    Metrics,
    ModelInfo,
    ModelState,
    Output,
    Scored,
    Started,
    Steered,
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
    Sampling,
    Syntax,
    Tool,
    ToolCall,
    Video,
)
from umaserve.dialects import grammars
from umaserve.dialects.dialect import Dialect, Reply
from umaserve.dialects.generate.conversation import GenerateDialect
from umaserve.dialects.generate.request import read_config, with_parameters
from umaserve.dialects.generate.rest import GenerateBody
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.fields import Fields

# A busy machine is no fault of the code.

LIMITS = RequestLimits(max_prompt_bytes=64)
MODEL = ModelInfo("tiny", "llama", "Q4_1", 135, 9, 4096, 2048, 49152, 576, None, "<s>", "</s>")
MODELS = [listed(MODEL, aliases=("small",))]
KEY = "sesame-äöü"
DONE = Finished(FinishReason.LENGTH, Usage(4, 2, 3), Timing(0.01, 0.0452, 1.2405))
USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, "prefix_reused_tokens": 3}

Message = dict[str, Any]


def dialect(*, resumable: bool = True, key: str | None = None, model: ModelInfo | None = MODEL) -> GenerateDialect:
    numbers = itertools.count(1)
    authenticate = None if key is None else key.__eq__
    return GenerateDialect(
        LIMITS,
        lambda _name: model,
        lambda: MODELS,
        lambda: f"gen_{next(numbers)}",
        resumable=resumable,
        authenticate=authenticate,
    )


@pytest.mark.parametrize(("named", "model"), [({}, "small"), ({"model": ""}, "small"), ({"model": "tiny"}, "tiny")])
def test_messages_without_a_model_mean_the_handshakes(named: Message, model: str) -> None:
    asked = GenerateDialect(LIMITS, lambda _name: MODEL, lambda: MODELS, str, resumable=False, asked_model="small")
    command = tell(asked, "config", prompt="Once", **named)
    assert isinstance(command, Generate)
    assert command.model == model


def test_a_handshakes_model_that_is_no_name_is_refused() -> None:
    asked = GenerateDialect(LIMITS, lambda _name: MODEL, lambda: MODELS, str, resumable=False, asked_model="x" * 300)
    assert refusal(asked, "config", prompt="Once").message.startswith("model: expected a string of at most")


def tell(asked: GenerateDialect, kind: object, **fields: Any) -> Command:
    return asked.receive(json.dumps({"type": kind, **fields}).encode())


def control(asked: GenerateDialect, action: object, **fields: Any) -> Command:
    return tell(asked, "control", action=action, **fields)


def running(*, resumable: bool = True, **fields: Any) -> GenerateDialect:
    started = dialect(resumable=resumable)
    tell(started, "config", **{"prompt": "Once", **fields})
    return started


def configured(**fields: Any) -> Generate:
    command = tell(dialect(), "config", **{"prompt": "Once", **fields})
    assert isinstance(command, Generate)
    return command


def refusal(asked: GenerateDialect, kind: object, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        tell(asked, kind, **fields)
    return raised.value


def payloads(reply: Reply | None) -> list[bytes]:
    return [] if reply is None else [*reply.before, reply.payload]


def messages(reply: Reply | None) -> list[Message]:
    return [json.loads(payload) for payload in payloads(reply)]


def sent(asked: GenerateDialect, *outputs: Output) -> list[Message]:
    return [message for output in outputs for message in messages(asked.send(output))]


def refused(asked: GenerateDialect, error: RequestError) -> Message:
    reply = asked.refuse(error)
    assert not reply.close
    (message,) = messages(reply)
    return message


# What a config says.


@pytest.mark.parametrize(
    ("cap", "wanted", "given"), [(None, None, None), (None, 10**9, 10**9), (9, None, 9), (9, 8, 8), (9, 10, 9)]
)
def test_an_answer_has_what_is_asked_for_within_the_operators_cap(
    cap: int | None, wanted: int | None, given: int | None
) -> None:
    limits = RequestLimits(64, cap)
    fields = Fields({"prompt": "Once", "parameters": {"max_tokens": wanted}})
    request, _options = read_config(fields, limits, MODELS, "gen_1")
    assert request.max_tokens == given
    assert with_parameters(request, Fields({"max_tokens": 5}), limits).max_tokens == 5
    assert with_parameters(request, Fields({"top_k": 5}), limits).max_tokens == given


def test_config_with_no_more_than_it_needs() -> None:
    assert configured() == Generate("gen_1", "Once")


PARAMETERS = {
    "max_tokens": 5,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "seed": 3,
    "stop": ["\n\n", "THE END"],
    "logit_bias": {"12": -100},
    "grammar": 'root ::= "a"',
    "ignore_eos": True,
    "cache_prompt": False,
    "lora": {"style": 0.5},
}
PARAMETERS_READ = Generate(
    "gen_1",
    "Once",
    max_tokens=5,
    sampling=Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repeat_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.5,
        seed=3,
        logit_bias=((12, -100.0),),
        grammar=Grammar(Syntax.GBNF, 'root ::= "a"', "parameters.grammar"),
        ignore_eos=True,
    ),
    stop=("\n\n", "THE END"),
    cache_prompt=False,
    lora=(("style", 0.5),),
)


def test_config_with_every_field() -> None:
    assert configured(
        model="tiny",
        parameters=PARAMETERS,
        options={"include_logprobs": 3, "stream": False},
        priority="background",
        slo={"target_ttft_ms": 150, "target_tbt_ms": 80},
    ) == dataclasses.replace(
        PARAMETERS_READ,
        logprobs=3,
        priority=Priority.BACKGROUND,
        target_ttft_s=0.15,
        target_tbt_s=0.08,
        model="tiny",
    )


def test_a_schema_is_kept_as_json() -> None:
    grammar = configured(parameters={"json_schema": {"type": "é"}}).sampling.grammar
    assert grammar == Grammar(Syntax.JSON_SCHEMA, '{"type":"é"}', "")
    assert grammar.field == "parameters.json_schema"


def test_the_other_name_of_the_repetition_penalty() -> None:
    assert configured(parameters={"repeat_penalty": 1.5}).sampling.repeat_penalty == 1.5


@pytest.mark.parametrize(("asked", "logprobs"), [(True, 5), (False, None), (None, None), (0, 0), (20, 20), (7.0, 7)])
def test_how_many_alternatives(asked: object, logprobs: int | None) -> None:
    assert configured(options={"include_logprobs": asked}).logprobs == logprobs


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "tiny.gguf", "small", "default", "", None])
def test_names_of_the_model(name: str | None) -> None:
    assert configured(model=name) == dataclasses.replace(configured(), model=name or "")


def test_one_of_several_models_may_be_named() -> None:
    models = [*MODELS, listed(MODEL, name="large", default=False, state=ModelState.UNLOADED, info=None)]
    request, _options = read_config(Fields({"prompt": "Once", "model": "large"}), LIMITS, models, "gen_1")
    assert request.model == "large"
    with pytest.raises(RequestError, match='model: expected "tiny" or "large" or "default", got "huge"'):
        read_config(Fields({"prompt": "Once", "model": "huge"}), LIMITS, models, "gen_1")


@pytest.mark.parametrize(
    "unknown",
    [
        {"temperature": "hot"},
        {"version": 2},
        {"parameters": {"n": 5, "Temperature": "hot"}},
        {"options": {"Stream": 5}},
        {"slo": {"target_e2e_ms": "soon"}},
        {"auth": 5},
    ],
)
def test_unknown_fields_are_ignored(unknown: Message) -> None:
    assert configured(**unknown) == configured()


FIELDS = ["model", "parameters", "options", "priority", "slo"]
PARAMETER_NAMES = [*PARAMETERS, "repeat_penalty", *grammars.FIELDS]
OPTION_NAMES = ["stream", "echo_prompt", "include_token_ids", "include_logprobs", "include_timing"]
OPTION_NAMES += ["include_generated_text"]


def test_null_is_as_good_as_absent() -> None:
    nulls = dict.fromkeys(FIELDS)
    inner = {"parameters": dict.fromkeys(PARAMETER_NAMES), "options": dict.fromkeys(OPTION_NAMES)}
    for fields in (nulls, inner):
        outputs = (Started(), Token("a", 1), DONE)
        assert configured(**fields) == configured()
        assert sent(running(**fields), *outputs) == sent(running(), *outputs)


def test_a_prompt_of_messages_is_for_the_chat_template() -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert configured(prompt=turns).prompt == (ChatTurn("system", "be brief"), ChatTurn("user", "hi"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": None}, "prompt: expected a non-empty string or an array of messages, got null"),
        ({"prompt": 5}, "prompt: expected a non-empty string or an array of messages, got a whole number"),
        ({"prompt": ""}, "prompt: expected a non-empty string, got an empty one"),
        ({"prompt": []}, "prompt: expected 1 to 1024 messages, got 0"),
        ({"prompt": [{}] * 1025}, "prompt: expected 1 to 1024 messages, got 1025"),
        ({"prompt": [{"role": "user"}]}, "prompt[0].content: expected a string or an array of content, got null"),
        ({"model": "llama-7b"}, 'model: expected "tiny" or "default", got "llama-7b"'),
        ({"model": "m" * 257}, "model: expected a string of at most 256 bytes, got 257 bytes"),
        ({"parameters": []}, "parameters: expected an object, got an array"),
        ({"options": 5}, "options: expected an object, got a whole number"),
        ({"slo": {"target_ttft_ms": 0}}, "slo.target_ttft_ms: expected a number above 0 up to 3.6e+06, got 0"),
        ({"slo": {"target_tbt_ms": "x"}}, "slo.target_tbt_ms: expected a number above 0 up to 3.6e+06, got a string"),
        ({"priority": "high"}, 'priority: expected "interactive" or "background", got "high"'),
        (
            {"parameters": {"repeat_penalty": 1.1, "repetition_penalty": 1.1}},
            "parameters.repeat_penalty: expected to be absent where repetition_penalty is given, got both",
        ),
        (
            {"parameters": {"grammar": "g", "json_schema": {}}},
            "parameters.grammar: expected to be absent where parameters.json_schema is given, got both",
        ),
        ({"parameters": {"lora": {"a": "x"}}}, "parameters.lora.a: expected a number from -10 to 10, got a string"),
        ({"parameters": {"lora": {"a": 10.5}}}, "parameters.lora.a: expected a number from -10 to 10, got 10.5"),
        ({"parameters": {"lora": {"": 1}}}, "parameters.lora: expected names of 1 to 256 bytes, got 0 bytes"),
        ({"parameters": {"cache_prompt": 1}}, "parameters.cache_prompt: expected true or false, got a whole number"),
        (
            {"options": {"include_logprobs": "all"}},
            "options.include_logprobs: expected true, false or a whole number from 0 to 20, got a string",
        ),
        (
            {"options": {"include_logprobs": 21}},
            "options.include_logprobs: expected a whole number from 0 to 20, got 21",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "look"}}]},
            "prompt: expected an array of messages where tools are given, got a string",
        ),
        (
            {"tools": [{"function": {"name": "a b"}}], "prompt": [{"role": "user", "content": "a"}]},
            'tools[0].function.name: expected 1 to 64 letters, digits, _ or -, got "a b"',
        ),
        (
            {"prompt": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "prompt[0].tool_calls[0].function: expected an object, got null",
        ),
        (
            {"options": {"echo_prompt": True}, "prompt": [{"role": "user", "content": "a"}]},
            "options.echo_prompt: expected false where prompt is an array of messages, got true",
        ),
    ],
)
def test_config_that_is_refused(fields: Message, message: str) -> None:
    asked = dialect()
    error = refusal(asked, "config", **{"prompt": "Once", **fields})
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, message)
    assert refused(asked, error)["error"] == "invalid_request"
    assert asked.finished
    assert isinstance(tell(asked, "config", prompt="Once"), Generate)


@pytest.mark.parametrize("name", PARAMETER_NAMES)
def test_every_parameter_is_checked_and_named_by_its_path(name: str) -> None:
    takes_text = name in ("grammar", "regex", "guided_json", "guided_regex", "guided_grammar")
    wrong = [5] if name == "stop" else 5 if takes_text else "x"
    for kind, asked in (("config", dialect()), ("control", running())):
        error = refusal(asked, kind, action="modify", prompt="Once", parameters={name: wrong})
        assert error.fault is Fault.BAD_REQUEST
        assert error.message.startswith(f"parameters.{name}")


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_every_option_is_checked_and_named_by_its_path(name: str) -> None:
    assert refusal(dialect(), "config", prompt="x", options={name: "x"}).message.startswith(
        f"options.{name}: expected "
    )


@pytest.mark.parametrize("turns", [False, True])
def test_prompt_at_its_cap_in_bytes_and_one_over(turns: bool) -> None:
    for n_characters in (32, 33):
        text = "é" * n_characters
        prompt = [{"role": "user", "content": text}] if turns else text
        if n_characters == 32:
            configured(prompt=prompt)
            continue
        error = refusal(dialect(), "config", prompt=prompt)
        assert (error.fault, error.message) == (Fault.PROMPT_TOO_LARGE, "prompt: expected at most 64 bytes, got 66")


# Who speaks when.


def test_it_is_a_dialect_that_always_takes_the_next_message() -> None:
    asked: Dialect = running()
    assert asked.ready


@pytest.mark.parametrize("kind", ["control", "feedback"])
def test_config_comes_first(kind: str) -> None:
    asked = dialect()
    error = refusal(asked, kind, action="regenerate", rating=1)
    assert (error.fault, error.message) == (
        Fault.BAD_REQUEST,
        f'type: expected "config" as the first message, got "{kind}"',
    )
    assert "request_id" not in refused(asked, error)
    assert tell(asked, "config", prompt="Once") == configured()


@pytest.mark.parametrize(
    ("payload", "fault", "message"),
    [
        (b"", Fault.INVALID_JSON, "payload: not valid JSON: "),
        (b"{", Fault.INVALID_JSON, "payload: not valid JSON: "),
        (b"[]", Fault.BAD_REQUEST, "payload: expected an object, got an array"),
        (b"{}", Fault.BAD_REQUEST, 'type: expected "config" or "resume" or "control" or "feedback", got null'),
        (
            b'{"type":5}',
            Fault.BAD_REQUEST,
            'type: expected "config" or "resume" or "control" or "feedback", got a whole',
        ),
        (
            b'{"type":"stop"}',
            Fault.BAD_REQUEST,
            'type: expected "config" or "resume" or "control" or "feedback", got "s',
        ),
    ],
)
def test_what_is_no_message_ends_nothing(payload: bytes, fault: Fault, message: str) -> None:
    for asked in (dialect(), running()):
        with pytest.raises(RequestError) as raised:
            asked.receive(payload)
        assert raised.value.fault is fault
        assert raised.value.message.startswith(message)
        said = refused(asked, raised.value)
        assert (said["error"], said["recoverable"]) == ("invalid_request", True)
        assert said.get("request_id") == asked.request_id
    assert sent(asked, Token("a", 1))[0]["generated_text"] == "a"


@pytest.mark.parametrize("fields", [{}, {"prompt": 5}, {"prompt": "Twice"}])
def test_second_config_is_refused_and_the_first_goes_on(fields: Message) -> None:
    asked = running()
    for kind in ("config", "resume"):
        error = refusal(asked, kind, request_id="gen_9", **fields)
        assert error.fault is Fault.BUSY
        assert refused(asked, error) == {
            "type": "error",
            "error": "invalid_request",
            "message": "request: another request is running on this connection; wait for its completion, or stop it",
            "partial_text": "",
            "recoverable": True,
            "recovery_action": "wait",
            "request_id": "gen_1",
        }
    assert not asked.finished
    assert sent(asked, Token("a", 1))[0]["generated_text"] == "a"


def test_the_next_config_follows_a_completion_or_an_error() -> None:
    asked = running()
    sent(asked, Started(), Token("a", 1), DONE)
    assert asked.finished
    assert tell(asked, "config", prompt="Twice") == Generate("gen_2", "Twice")
    assert sent(asked, Token("b", 1))[0]["generated_text"] == "b"
    asked.fail(RequestError(Fault.MEMORY_PRESSURE, "request", "why"))
    assert asked.finished
    assert tell(asked, "config", prompt="Thrice") == Generate("gen_3", "Thrice")
    assert asked.request_id == "gen_3"


@pytest.mark.parametrize("output", [Started(), Token("a", 1), DONE, Steered(Pause()), Metrics({})])
def test_output_without_a_request_is_our_bug(output: Output) -> None:
    with pytest.raises(RuntimeError):
        dialect().send(output)


@pytest.mark.parametrize("output", [Started(), Token("a", 1), DONE, Loading(0, None), Waiting(1, 1, None), Metrics({})])
def test_output_after_the_end_is_our_bug(output: Output) -> None:
    for end in (DONE, None):
        asked = running()
        if end is None:
            asked.fail(RequestError(Fault.DECODE_FAILED, "request", "why"))
        else:
            asked.send(end)
        with pytest.raises(RuntimeError):
            asked.send(output)


def test_a_start_without_a_model_is_our_bug() -> None:
    asked = dialect(model=None)
    tell(asked, "config", prompt="Once")
    with pytest.raises(RuntimeError):
        asked.send(Started())


# Keys.


@pytest.mark.parametrize("kind", ["config", "resume", "control", "other"])
@pytest.mark.parametrize("auth", [None, "", "sesame", KEY + "x", 5, [KEY]])
def test_who_has_no_key_is_told_how_and_sent_away(kind: str, auth: object) -> None:
    asked = dialect(key=KEY)
    error = refusal(asked, kind, auth=auth, prompt="Once", request_id="gen_1")
    assert error.fault is Fault.UNAUTHORIZED
    reply = asked.refuse(error)
    assert reply.close
    (message,) = messages(reply)
    assert message == {
        "type": "error",
        "error": "invalid_request",
        "message": 'auth: expected a valid key in the first message, as in {"type":"config","auth":"KEY","prompt":"…"}',
        "recoverable": False,
        "recovery_action": "authenticate",
    }


def test_a_key_is_asked_for_once() -> None:
    for first in ({"kind": "config", "prompt": "Once"}, {"kind": "resume", "request_id": "gen_9"}):
        asked = dialect(key=KEY)
        tell(asked, auth=KEY, **first)
        if asked.finished:
            tell(asked, "config", prompt="Once")
        assert control(asked, "pause", auth="wrong") == Pause()


def test_a_config_that_is_wrong_but_for_its_key_needs_no_second() -> None:
    asked = dialect(key=KEY)
    error = refusal(asked, "config", auth=KEY)
    assert KEY not in error.message
    assert not asked.refuse(error).close
    assert isinstance(tell(asked, "config", prompt="Once"), Generate)


# Control.


@pytest.mark.parametrize(("action", "command"), [("stop", Cancel("gen_1")), ("pause", Pause()), ("resume", Resume())])
def test_actions(action: str, command: Command) -> None:
    asked = running()
    assert control(asked, action) == command
    assert control(asked, action) == command
    assert not asked.finished


def test_a_stop_that_crosses_the_end_asks_for_nothing() -> None:
    asked = running()
    asked.send(DONE)
    assert control(asked, "stop") is None


@pytest.mark.parametrize("action", ["pause", "resume", "modify"])
def test_actions_need_a_running_generation(action: str) -> None:
    asked = running()
    asked.send(DONE)
    error = refusal(asked, "control", action=action, parameters={"temperature": 1})
    assert error.message == f"action: expected a running generation to {action}, got none"
    assert "request_id" not in refused(asked, error)
    assert tell(asked, "config", prompt="Once") == Generate("gen_2", "Once")


@pytest.mark.parametrize(("action", "got"), [(None, "null"), (5, "a whole number"), ("Stop", '"Stop"')])
def test_unknown_action_ends_nothing(action: object, got: str) -> None:
    asked = running()
    error = refusal(asked, "control", action=action)
    expected = '"stop" or "pause" or "resume" or "regenerate" or "modify"'
    assert error.message == f"action: expected {expected}, got {got}"
    assert refused(asked, error)["request_id"] == "gen_1"
    assert control(asked, "stop") == Cancel("gen_1")


def test_regenerate_puts_a_new_request_in_place_of_the_running_one() -> None:
    asked = running(parameters=PARAMETERS)
    sent(asked, Started(), Token("a", 1))
    assert control(asked, "regenerate") == Replace(dataclasses.replace(PARAMETERS_READ, id="gen_2"))
    assert asked.request_id == "gen_2"
    init, token = sent(asked, Started(), Token("b", 1))
    assert (init["request_id"], token["generated_text"]) == ("gen_2", "b")
    assert len(list(asked.replay(0))) == 2


def test_regenerate_that_is_refused_leaves_the_running_one() -> None:
    asked = running(parameters=PARAMETERS)
    sent(asked, Started(), Token("a", 1))
    again = control(asked, "regenerate")
    assert isinstance(again, Replace)
    refused(asked, RequestError(Fault.RATE_LIMITED, "request", "why", again.request.id))
    assert asked.request_id == "gen_1"
    assert sent(asked, Token("b", 1))[0]["generated_text"] == "ab"


def test_regenerate_after_the_end_is_the_last_request_again() -> None:
    asked = running(parameters=PARAMETERS, options={"include_token_ids": True})
    asked.send(DONE)
    assert control(asked, "regenerate") == dataclasses.replace(PARAMETERS_READ, id="gen_2")
    assert not asked.finished
    assert sent(asked, Token("b", 7))[0]["token_id"] == 7


def modify(asked: GenerateDialect, **parameters: Any) -> Modify:
    command = control(asked, "modify", parameters=parameters)
    assert isinstance(command, Modify)
    return command


def test_modify_changes_what_it_names() -> None:
    asked = running(parameters=PARAMETERS)
    sampling = dataclasses.replace(PARAMETERS_READ.sampling, temperature=0.9, repeat_penalty=2.0)
    expected = dataclasses.replace(PARAMETERS_READ, sampling=sampling, max_tokens=9, stop=())
    assert modify(asked, temperature=0.9, repetition_penalty=2, max_tokens=9, stop=[], other=5) == Modify(expected)


def test_modifications_become_current_once_they_hold() -> None:
    asked = running(parameters={"temperature": 0.5})
    asked.send(Steered(modify(asked, temperature=0.9)))
    asked.send(Steered(modify(asked, top_p=0.5), RequestError(Fault.BAD_REQUEST, "request", "no")))
    last = modify(asked, top_k=3)
    assert last.request.sampling == Sampling(temperature=0.9, top_k=3)
    # What was asked for last counts, acknowledged or not.
    again = control(asked, "regenerate")
    assert isinstance(again, Replace)
    assert again.request.sampling == Sampling(temperature=0.9, top_k=3)
    # What is said of the old generation changes nothing for the one in its place.
    asked.send(Steered(last))
    assert modify(asked, seed=1).request == dataclasses.replace(
        again.request, sampling=Sampling(temperature=0.9, top_k=3, seed=1)
    )


SEEN = {"type": "image", "data": "aGk="}


def test_messages_may_have_media() -> None:
    films = [{"type": "audio", "data": "b", "sample_rate": 8000}, {"type": "video", "data": "c", "stack_frames": 2}]
    content = [SEEN, {"type": "text", "text": "What?"}, {"type": "audio", "data": "a"}, *films]
    (turn,) = configured(prompt=[{"role": "user", "content": content}]).prompt
    field = "prompt[0].content[{}].data"
    assert (turn.role, turn.content) == ("user", "What?")
    assert turn.attachments == (
        Attachment(0, Image("aGk=", field.format(0))),
        Attachment(5, Audio("a", field.format(2))),
        Attachment(5, Audio("b", field.format(3), 8000)),
        Attachment(5, Video("c", field.format(4), stack_frames=2)),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "prompt[0].content: expected an array of 1 to 256 items, got 0"),
        ([{"type": "image"}], "prompt[0].content[0].data: expected a non-empty string, got null"),
        ([{"type": "image_url"}], 'type: expected "text" or "image" or "audio" or "video", got "image_url"'),
        ([SEEN] * 65, "prompt: expected at most 64 images, sounds and videos in all, got 65"),
    ],
)
def test_media_that_are_refused(content: list[object], message: str) -> None:
    error = refusal(dialect(), "config", prompt=[{"role": "user", "content": content}])
    assert error.fault is Fault.BAD_REQUEST
    assert error.message.endswith(message)


@pytest.mark.parametrize(("n_bytes", "kept"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_large_media_are_not_kept_to_be_asked_again(n_bytes: int, kept: bool) -> None:
    prompt = [{"role": "user", "content": [{"type": "image", "data": "a" * n_bytes}]}]
    asked = dialect()
    first = tell(asked, "config", prompt=prompt)
    assert isinstance(first, Generate)
    assert len(first.prompt[0].attachments[0].media.data) == n_bytes
    assert (asked.held_bytes > n_bytes) == kept
    sent(asked, DONE)
    if kept:
        again = control(asked, "regenerate")
        assert isinstance(again, Generate)
        assert again.has_media
    else:
        assert "too large to be kept" in refusal(asked, "control", action="regenerate").message


def test_a_modification_builds_on_one_that_is_not_acknowledged_yet() -> None:
    asked = running()
    first, second = modify(asked, temperature=0.9), modify(asked, top_k=3)
    assert second.request.sampling == Sampling(temperature=0.9, top_k=3)
    sent(asked, Steered(first), Steered(second), DONE)
    again = control(asked, "regenerate")
    assert isinstance(again, Generate)
    assert again.sampling == Sampling(temperature=0.9, top_k=3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "parameters: expected at least one of"),
        ({}, "parameters: expected at least one of"),
        ([], "parameters: expected an object, got an array"),
        *(
            ({name: value}, f"parameters.{name}: expected to be absent, since it can't change while text is generated")
            for name, value in [*((name, "g") for name in grammars.FIELDS), ("lora", {}), ("cache_prompt", True)]
        ),
        ({"temperature": 11}, "parameters.temperature: expected a number from 0 to 10, got 11"),
    ],
)
def test_modification_that_is_refused_ends_nothing(parameters: object, message: str) -> None:
    asked = running()
    error = refusal(asked, "control", action="modify", parameters=parameters)
    assert error.fault is Fault.BAD_REQUEST
    assert error.message.startswith(message)
    assert modify(asked, top_k=3).request.sampling == Sampling(top_k=3)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("pause", "paused: no tokens until resume"),
        ("resume", "the generation continues"),
        ("modify", "the new parameters apply from the next token on"),
    ],
)
def test_steering_is_acknowledged_or_refused(action: str, says: str) -> None:
    asked = running()
    sent(asked, Token("Once", 1))
    command = control(asked, action, parameters={"temperature": 1})
    assert isinstance(command, Steering)
    expected = {"type": "status", "operation": action, "progress": 100, "message": says}
    assert sent(asked, Steered(command)) == [expected]
    assert sent(asked, Steered(command, RequestError(Fault.BAD_REQUEST, "request", "not now"))) == [
        {
            "type": "error",
            "error": "invalid_request",
            "message": "request: not now",
            "recoverable": True,
            "recovery_action": "modify_request",
            "request_id": "gen_1",
            "partial_text": "Once",
        }
    ]
    assert not asked.finished


# Feedback.


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"rating": 1}, {"rating": 1.0}),
        ({"rating": -0.5, "text": "", "position": 0}, {"rating": -0.5, "text": "", "position": 0}),
        ({"rating": 0, "text": "x" * 8192, "position": 120}, {"rating": 0.0, "text": "x" * 8192, "position": 120}),
    ],
)
def test_feedback_is_on_the_present_or_last_generation(fields: Message, values: Message) -> None:
    asked = running()
    assert tell(asked, "feedback", **fields) == Feedback({"request_id": "gen_1", **values})
    asked.send(DONE)
    assert tell(asked, "feedback", **fields) == Feedback({"request_id": "gen_1", **values})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "rating: expected a number from -1 to 1, got null"),
        ({"rating": True}, "rating: expected a number from -1 to 1, got a boolean"),
        ({"rating": 1.01}, "rating: expected a number from -1 to 1, got 1.01"),
        ({"rating": 1, "text": 5}, "text: expected a string of at most 8192 bytes, got a whole number"),
        ({"rating": 1, "text": "é" * 4097}, "text: expected a string of at most 8192 bytes, got 8194 bytes"),
        ({"rating": 1, "position": -1}, "position: expected a whole number from 0 to 9007199254740992, got -1"),
    ],
)
def test_feedback_that_is_refused(fields: Message, message: str) -> None:
    assert refusal(running(), "feedback", **fields).message == message


@pytest.mark.parametrize(("kept", "says"), [(True, "kept"), (False, "not stored: this server stores no feedback")])
def test_feedback_is_acknowledged_whenever_it_comes(kept: bool, says: str) -> None:
    for asked in (dialect(), running()):
        (message,) = sent(asked, FeedbackKept(kept))
        assert message == {"type": "status", "operation": "feedback", "progress": 100, "message": says}


# The messages of a generation.


def said(message: Message) -> list[tuple[str, Any]]:
    """With the order of the fields, which the contract shows."""
    return list(message.items())


def test_messages_of_a_stream() -> None:
    outputs = sent(running(), Started(), Token(" the", 262), Token("", 0), DONE)
    rest = {"generated_text": " the", "finish_reason": None, "finished": False}
    token = {"type": "token", "token": "", **rest}
    assert [said(message) for message in outputs] == [
        said(message)
        for message in (
            {
                "type": "init",
                "request_id": "gen_1",
                "model": "tiny",
                "model_info": {"version": "llama", "max_tokens": 4096, "quantization": "Q4_1", "parameters": 135},
            },
            {"type": "token", "token": " the", "position": 0, **rest},
            {"type": "token", "token": "", "position": 1, **rest},
            {**token, "finish_reason": "length", "finished": True},
            {
                "type": "completion",
                "request_id": "gen_1",
                "generated_text": " the",
                "finish_reason": "length",
                "usage": USAGE,
            },
        )
    ]


LOGPROBS = Logprobs(
    Scored(262, b" the", -0.5), (Scored(9, b"\xc3", -0.25), Scored(262, b" the", -0.5), Scored(1, b"a", -math.inf))
)


def test_everything_that_can_be_included() -> None:
    include = {"include_token_ids": True, "include_logprobs": 3, "include_timing": True}
    asked = running(options=include)
    token, last, completion = sent(asked, Token(" the", 262, LOGPROBS, 0.1563, 0.0425), DONE)
    assert said(token) == said(
        {
            "type": "token",
            "token": " the",
            "position": 0,
            "token_id": 262,
            "generated_text": " the",
            "logprobs": [
                {"token": " the", "token_id": 262, "logprob": -0.5},
                {"token": "\ufffd", "token_id": 9, "logprob": -0.25},
                {"token": "a", "token_id": 1, "logprob": -9999.0},
            ],
            "timing": {"token_ms": 42.5, "total_ms": 156.3},
            "finish_reason": None,
            "finished": False,
        }
    )
    assert last == {
        "type": "token",
        "token": "",
        "generated_text": " the",
        "finish_reason": "length",
        "finished": True,
    }
    assert completion["timing"] == {"first_token_ms": 45.2, "total_ms": 1240.5}


def test_logprobs_without_token_ids_and_no_cumulative_text() -> None:
    asked = running(options={"include_logprobs": 0, "include_generated_text": False})
    token, last, completion = sent(asked, Token(" the", 262, Logprobs(LOGPROBS.chosen, ())), DONE)
    assert token["logprobs"] == [{"token": " the", "logprob": -0.5}]
    assert "generated_text" not in token
    assert "generated_text" not in last
    assert completion["generated_text"] == " the"


def test_echoed_prompt_is_a_token_of_its_own_and_in_all_the_text() -> None:
    asked = running(options={"echo_prompt": True, "include_token_ids": True, "include_timing": True})
    init, echo, token, last, completion = sent(asked, Started(), Token(" upon", 5), DONE)
    assert init["type"] == "init"
    assert echo == {
        "type": "token",
        "token": "Once",
        "generated_text": "Once",
        "finish_reason": None,
        "finished": False,
    }
    assert {message["generated_text"] for message in (token, last, completion)} == {"Once upon"}


@pytest.mark.parametrize("echo", [False, True])
def test_unstreamed_text_comes_with_the_completion_alone(echo: bool) -> None:
    asked = running(options={"stream": False, "echo_prompt": echo})
    init, completion = sent(asked, Started(), Token(" upon", 1), Token(" a", 2), DONE)
    assert (init["type"], completion["type"]) == ("init", "completion")
    assert completion["generated_text"] == ("Once upon a" if echo else " upon a")


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_are_the_contracts(reason: FinishReason) -> None:
    expected = "stop" if reason is FinishReason.CANCELLED else reason.value
    last, completion = sent(running(), Finished(reason, Usage(4, 2)))
    assert last["finish_reason"] == completion["finish_reason"] == expected


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (Loading(0.678, 3.5), ("model_loading", 67, "loading the model", {"eta_seconds": 3.5})),
        (Loading(0.0, None), ("model_loading", 0, "loading the model", {})),
        (Loading(1.5, None), ("model_loading", 100, "loading the model", {})),
        (Waiting(2, 5, 1.25), ("queued", 0, "position 2 of 5", {"position": 2, "eta_seconds": 1.25})),
        (Waiting(1, 1, None), ("queued", 0, "position 1 of 1", {"position": 1})),
    ],
)
def test_status_while_it_waits(output: Output, message: tuple[str, int, str, Message]) -> None:
    operation, progress, text, more = message
    (got,) = sent(running(options={"stream": False}), output)
    assert said(got) == said({"type": "status", "operation": operation, "progress": progress, "message": text, **more})


def test_a_status_is_told_again_only_when_it_changes() -> None:
    dialect = running()
    outputs = [Loading(0.5, None), Loading(0.5, None), Waiting(2, 5, 1.0), Waiting(2, 5, 1.0), Waiting(1, 5, 1.0)]
    assert [len(sent(dialect, output)) for output in outputs] == [1, 0, 1, 0, 1]


# Errors. The contract's eight, written down a second time so that a change needs a test to agree.

ERRORS = {
    Fault.FRAME_TOO_LARGE: ("invalid_request", True, "modify_request"),
    Fault.INVALID_JSON: ("invalid_request", True, "modify_request"),
    Fault.BAD_REQUEST: ("invalid_request", True, "modify_request"),
    Fault.NOT_SUPPORTED: ("invalid_request", True, "modify_request"),
    Fault.BUSY: ("invalid_request", True, "wait"),
    Fault.NOT_FOUND: ("invalid_request", True, "restart"),
    Fault.UNAUTHORIZED: ("invalid_request", False, "authenticate"),
    Fault.PROMPT_TOO_LARGE: ("context_length_exceeded", True, "reduce_prompt"),
    Fault.CONTEXT_EXCEEDED: ("context_length_exceeded", True, "reduce_prompt"),
    Fault.CONTENT_FILTERED: ("content_filter", True, "modify_request"),
    Fault.MEMORY_PRESSURE: ("memory_pressure", True, "retry"),
    Fault.QUEUE_FULL: ("rate_limited", True, "retry"),
    Fault.TOO_MANY_SESSIONS: ("rate_limited", True, "retry"),
    Fault.RATE_LIMITED: ("rate_limited", True, "retry"),
    Fault.TIMED_OUT: ("timeout", True, "retry"),
    Fault.MODEL_NOT_FOUND: ("invalid_request", True, "modify_request"),
    Fault.MODEL_NOT_LOADED: ("model_loading_error", False, "none"),
    Fault.DECODE_FAILED: ("internal_error", False, "none"),
    Fault.SHUTTING_DOWN: ("internal_error", True, "reconnect"),
    Fault.ENDED: ("internal_error", False, "ask_operator"),
}


def test_every_fault_and_every_error_type_of_the_contract_is_mapped() -> None:
    assert set(ERRORS) == set(Fault)
    assert {name for name, _, _ in ERRORS.values()} == {
        *("invalid_request", "context_length_exceeded", "content_filter", "memory_pressure"),
        *("timeout", "internal_error", "model_loading_error", "rate_limited"),
    }


@pytest.mark.parametrize("fault", Fault)
def test_error_of_the_running_generation_ends_it_with_its_text(fault: Fault) -> None:
    asked = running()
    sent(asked, Started(), Token("a", 1), Token("b", 2))
    reply = asked.fail(RequestError(fault, "request", "why"))
    assert not reply.close
    name, recoverable, action = ERRORS[fault]
    (message,) = messages(reply)
    assert said(message) == said(
        {
            "type": "error",
            "error": name,
            "message": "request: why",
            "recoverable": recoverable,
            "recovery_action": action,
            "request_id": "gen_1",
            "partial_text": "ab",
        }
    )
    assert asked.finished
    assert asked.request_id == "gen_1"


def test_error_says_when_to_try_again() -> None:
    error = RequestError(Fault.RATE_LIMITED, "request", "why", retry_after_s=0.2501)
    assert messages(running().fail(error))[0]["retry_after_ms"] == 251
    assert refused(dialect(), error)["retry_after_ms"] == 251


def test_error_while_nothing_runs_ends_nothing() -> None:
    error = RequestError(Fault.SHUTTING_DOWN, "request", "why")
    ended = running()
    ended.send(DONE)
    kept = list(ended.replay(0))
    for asked in (dialect(), ended):
        (message,) = messages(asked.fail(error))
        assert "request_id" not in message
        assert "partial_text" not in message
    assert list(ended.replay(0)) == kept


# Resuming.


@pytest.mark.parametrize(("fields", "position"), [({"position": 7}, 7), ({"position": 0}, 0), ({}, 0)])
def test_resume_comes_first_or_while_nothing_runs(fields: Message, position: int) -> None:
    ended = running()
    ended.send(DONE)
    for asked in (dialect(), ended):
        assert tell(asked, "resume", request_id="gen_9", **fields) == Reattach("gen_9", position)
        message = refused(asked, RequestError(Fault.NOT_FOUND, "request", "no such generation", "gen_9"))
        assert (message["request_id"], message["recovery_action"]) == ("gen_9", "restart")
        assert isinstance(tell(asked, "config", prompt="Once"), Generate)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "request_id: expected a non-empty string of at most 256 bytes, got null"),
        ({"request_id": "i" * 257}, "request_id: expected a non-empty string of at most 256 bytes, got 257 bytes"),
        (
            {"request_id": "i", "position": "x"},
            "position: expected a whole number from 0 to 9007199254740992, got a str",
        ),
    ],
)
def test_resume_that_is_refused(fields: Message, message: str) -> None:
    assert refusal(dialect(), "resume", **fields).message.startswith(message)


def test_resume_is_unknown_where_nothing_is_kept() -> None:
    error = refusal(dialect(resumable=False), "resume", request_id="gen_1")
    assert error.message == 'type: expected "config" or "control" or "feedback", got "resume"'
    with pytest.raises(RuntimeError):
        running(resumable=False).replay(0)
    with pytest.raises(RuntimeError):
        dialect().replay(0)


tokens = st.lists(st.builds(lambda text, id_: Token(text, id_), st.text(max_size=5), st.integers(0, 9)), max_size=12)
options = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in OPTION_NAMES if name not in ("stream", "include_logprobs")}
)


@given(tokens, options, st.data(), st.sampled_from(["running", "finished", "failed"]))
def test_replay_repeats_what_was_sent_and_loses_nothing(
    generated: list[Token], wanted: Message, data: st.DataObject, state: str
) -> None:
    lost = data.draw(st.integers(0, len(generated)), "lost after")
    received = data.draw(st.integers(0, lost), "received")
    asked = running(options=wanted)
    asked.send(Started())
    original = [payload for token in generated for payload in payloads(asked.send(token))]
    if state == "finished":
        original += payloads(asked.send(DONE))
    elif state == "failed":
        original += payloads(asked.fail(RequestError(Fault.DECODE_FAILED, "request", "why")))
    first, *replayed = asked.replay(received)
    assert json.loads(first) == {
        "type": "status",
        "operation": "resume",
        "progress": 100,
        "message": f"from token {received} of {len(generated)} so far",
        "request_id": "gen_1",
    }
    assert replayed == original[received:]
    # It goes on as if nothing had been.
    if state == "running":
        undisturbed = running(options=wanted)
        sent(undisturbed, Started(), *generated)
        assert [asked.send(output) for output in (Token("!", 1), DONE)] == [
            undisturbed.send(output) for output in (Token("!", 1), DONE)
        ]


def test_replay_beyond_what_was_sent_is_refused() -> None:
    asked = running()
    sent(asked, Started(), Token("a", 1))
    assert len(list(asked.replay(1))) == 1
    with pytest.raises(RequestError) as raised:
        asked.replay(2)
    assert raised.value.fault is Fault.BAD_REQUEST
    assert raised.value.message == "position: expected at most 1, the number of tokens sent so far, got 2"
    assert sent(asked, Token("b", 1))[0]["generated_text"] == "ab"


def test_replay_of_an_unstreamed_generation_is_its_end() -> None:
    asked = running(options={"stream": False})
    sent(asked, Started(), Token("a", 1))
    assert len(list(asked.replay(0))) == 1
    completion = payloads(asked.send(DONE))
    assert list(asked.replay(0))[1:] == completion


def test_an_unstreamed_generation_tells_all_that_can_be_included_at_its_end() -> None:
    include = {"stream": False, "include_token_ids": True, "include_logprobs": 3}
    _init, completion = sent(running(options=include), Started(), Token(" the", 262, LOGPROBS), DONE)
    assert completion["token_ids"] == [262]
    assert completion["logprobs"][0][0] == {"token": " the", "token_id": 262, "logprob": -0.5}


def test_what_is_made_while_the_missed_is_told_is_told_too() -> None:
    asked = running()
    sent(asked, Started(), Token("a", 1))
    missed = asked.replay(0)
    next(missed)
    sent(asked, Token("b", 1), DONE)
    assert [json.loads(message).get("token") for message in missed] == ["a", "b", "", None]


def test_what_is_held_grows_with_what_is_kept() -> None:
    assert dialect().held_bytes == 0
    asked = running(options={"include_logprobs": True})
    sizes = [asked.held_bytes]
    for output in (Token("a", 1, LOGPROBS), Token("", 2, LOGPROBS), DONE):
        asked.send(output)
        sizes.append(asked.held_bytes)
    assert sizes[0] >= len("Once")
    assert sizes == sorted(set(sizes))
    small, large = running(), running(parameters=PARAMETERS)
    assert large.held_bytes > small.held_bytes
    assert running(prompt=[{"role": "user", "content": "a" * 64}]).held_bytes > small.held_bytes
    tell_nothing = running(resumable=False)
    before = tell_nothing.held_bytes
    tell_nothing.send(Token("", 1))
    assert tell_nothing.held_bytes == before


# Tools.

LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
ASKS = [{"role": "user", "content": "Look."}]
CALL = '{"name": "look", "arguments": {"at": "it"}}'


def test_tools_are_offered_and_results_are_in_the_order_of_their_calls() -> None:
    calls = [{"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id_ in "ab"]
    turns = [
        *ASKS,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "B", "tool_call_id": "b"},
        {"role": "tool", "content": "A", "tool_call_id": "a"},
    ]
    request = configured(prompt=turns, tools=[LOOK])
    assert request.tools == (Tool("look", "Looks.", '{"type":"object"}'),)
    assert request.prompt == (
        ChatTurn("user", "Look."),
        ChatTurn("assistant", "", (ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))),
        ChatTurn("tool", "A", tool_call_id="a"),
        ChatTurn("tool", "B", tool_call_id="b"),
    )
    assert running(prompt=ASKS, tools=[LOOK]).held_bytes > running(prompt=ASKS).held_bytes


@pytest.mark.parametrize("by", ["itself", "a resumed stream", "another process"])
def test_the_completion_has_the_calls_apart_from_the_text(by: str) -> None:
    asked = running(prompt=ASKS, tools=[LOOK])
    text = f"I look.<tool_call>{CALL}</tool_call>"
    tokens = sent(asked, Started(), *(Token(char, 1) for char in text[:30]))
    if by == "another process":
        kept, asked = asked.kept, dialect()
        assert kept is not None
        asked.take_over(kept)
    *more, _, completion = sent(asked, *(Token(char, 1) for char in text[30:]), DONE)
    assert "".join(message["token"] for message in (tokens + more)[1:]) == completion["generated_text"] == text
    if by == "a resumed stream":
        completion = json.loads([*asked.replay(3)][-1])
    assert completion["text"] == "I look."
    (call,) = completion["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "look", "arguments": '{"at": "it"}'})
    assert call["id"]


@pytest.mark.parametrize(
    "text", ["None.", f"<tool_call>{CALL[:-9]}", '<tool_call>{"name": "other", "arguments": {}}</tool_call>']
)
def test_a_completion_has_no_calls_but_whole_ones_of_tools_that_are_there(text: str) -> None:
    *_, completion = sent(running(prompt=ASKS, tools=[LOOK]), Started(), Token(text, 1), DONE)
    assert completion["generated_text"] == text
    assert not {"text", "tool_calls"} & completion.keys()


def test_rest_has_the_calls_too() -> None:
    asked, _ = body(prompt=ASKS, tools=[LOOK])
    for output in (Started(), Token(f"<tool_call>{CALL}</tool_call>", 1), DONE):
        asked.send(0, output)
    told = json.loads(asked.result())
    assert (told["text"], [call["function"]["name"] for call in told["tool_calls"]]) == ("", ["look"])


# REST.


def body(**fields: Any) -> tuple[GenerateBody, Generate]:
    asked = GenerateBody(LIMITS, lambda _name: MODEL, lambda: MODELS, "gen_1")
    (request,) = asked.receive(json.dumps({"prompt": "Once", **fields}).encode())
    return asked, request


def test_rest_answer_in_one_piece() -> None:
    asked, request = body(max_tokens=5)
    assert request == Generate("gen_1", "Once", max_tokens=5)
    assert not asked.streaming
    assert [asked.send(0, output) for output in (Waiting(1, 1, None), Started(), Token(" upon", 1), DONE)] == [[]] * 4
    assert said(json.loads(asked.result())) == said(
        {
            "id": "gen_1",
            "model": "tiny",
            "generated_text": " upon",
            "finish_reason": "length",
            "usage": USAGE,
        }
    )


def test_rest_answer_with_timing_and_the_prompt() -> None:
    asked, _ = body(options={"include_timing": True, "echo_prompt": True})
    sent_nothing = [asked.send(0, output) for output in (Token(" upon", 1), DONE)]
    assert sent_nothing == [[], []]
    result = json.loads(asked.result())
    assert result["generated_text"] == "Once upon"
    assert result["timing"] == {"first_token_ms": 45.2, "total_ms": 1240.5}


def test_rest_parameters_stand_at_the_top_or_in_their_object_which_goes_before() -> None:
    assert body(**PARAMETERS)[1] == body(parameters=PARAMETERS)[1] == PARAMETERS_READ
    _, request = body(temperature=0.5, top_k=3, parameters={"temperature": 0.25})
    assert request.sampling == Sampling(temperature=0.25, top_k=3)


@pytest.mark.parametrize(
    ("fields", "stream"),
    [
        ({}, False),
        ({"stream": True}, True),
        ({"options": {"stream": True}}, True),
        ({"stream": True, "options": {"stream": False}}, False),
    ],
)
def test_rest_streams_where_asked_to(fields: Message, stream: bool) -> None:
    asked, _ = body(**fields)
    assert asked.streaming is stream


@pytest.mark.parametrize("wanted", [{}, {"echo_prompt": True, "include_token_ids": True, "include_timing": True}])
def test_rest_stream_has_the_messages_of_the_websocket(wanted: Message) -> None:
    asked, _ = body(stream=True, options=wanted)
    socket = running(options=wanted)
    for output in (Loading(0.5, 1.0), Started(), Token("a", 1), Token("b", 2), DONE):
        assert asked.send(0, output) == payloads(socket.send(output))
    assert json.loads(asked.result())["generated_text"].endswith("ab")


def test_rest_error_is_the_websockets() -> None:
    error = RequestError(Fault.MEMORY_PRESSURE, "request", "why", retry_after_s=1)
    asked, _ = body(stream=True)
    socket = running()
    for output in (Started(), Token("a", 1)):
        asked.send(0, output)
        socket.send(output)
    assert asked.fail(0, error)[0] == socket.fail(error).payload


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "payload: not valid JSON: "),
        (b"5", "payload: expected an object, got a whole number"),
        (b"{}", "prompt: expected a non-empty string or an array of messages, got null"),
        (b'{"prompt":"a","stream":5}', "stream: expected true or false, got a whole number"),
        (b'{"prompt":"a","temperature":11}', "temperature: expected a number from 0 to 10, got 11"),
        (b'{"prompt":"a","model":"b"}', 'model: expected "tiny" or "default", got "b"'),
        (
            b'{"prompt":"a","parameters":{"top_k":-1}}',
            "parameters.top_k: expected a whole number from 0 to 1048576, got",
        ),
    ],
)
def test_rest_body_that_is_refused(payload: bytes, message: str) -> None:
    asked = GenerateBody(LIMITS, lambda _name: MODEL, lambda: MODELS, "gen_1")
    with pytest.raises(RequestError) as raised:
        asked.receive(payload)
    assert raised.value.message.startswith(message)
    error = json.loads(asked.fail(0, raised.value)[0])
    assert (error["error"], error["message"]) == ("invalid_request", raised.value.message)
    with pytest.raises(RuntimeError):
        asked.result()


@pytest.mark.parametrize("output", [Steered(Pause()), FeedbackKept(True), Metrics({})])
def test_rest_asks_for_nothing_but_a_generation(output: Output) -> None:
    with pytest.raises(RuntimeError):
        body()[0].send(0, output)
    with pytest.raises(RuntimeError):
        GenerateBody(LIMITS, lambda _name: MODEL, lambda: MODELS, "gen_1").send(0, DONE)
    with pytest.raises(RuntimeError):
        body()[0].result()


# No input does worse than a refusal.

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
any_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
)
some_parameters = st.dictionaries(st.sampled_from(PARAMETER_NAMES), any_json | st.just(1), max_size=4)
near_messages = st.fixed_dictionaries(
    {"type": st.sampled_from(["config", "control", "control", "feedback", "resume", "other"])},
    optional={
        "prompt": st.just("Once") | any_json,
        "action": st.sampled_from(["stop", "pause", "resume", "regenerate", "modify", "other"]),
        "parameters": some_parameters | any_json,
        "options": options | any_json,
        "rating": st.floats(-2, 2) | any_json,
        "text": st.text(max_size=9) | any_json,
        "position": st.integers(-1, 9) | any_json,
        "request_id": st.just("gen_1") | any_json,
        "auth": any_json,
        "model": st.just("tiny") | any_json,
        "slo": any_json,
        "priority": any_json,
    },
)


def check_conversation(asked: GenerateDialect, inputs: list[bytes]) -> None:
    """Each input gives a command or a refusal that changes nothing; what runs can be run to its end."""
    command: Command | None
    for payload in inputs:
        before = asked.request_id, asked.finished
        try:
            command = asked.receive(payload)
        except RequestError as error:
            message = refused(asked, error)
            command = None
        match command:
            case None:
                assert message["error"] in ("invalid_request", "context_length_exceeded")
                assert (asked.request_id, asked.finished) == before
            case Generate() | Replace():
                assert not asked.finished
                assert asked.request_id != before[0]
                assert sent(asked, Started(), Token("a", 1))[0]["request_id"] == asked.request_id
            case Modify() | Pause() | Resume():
                assert sent(asked, Steered(command))[0]["type"] == "status"
            case Cancel():
                *_, completion = sent(asked, Finished(FinishReason.CANCELLED, Usage(1, 1)))
                assert (completion["type"], completion["generated_text"][-1:]) == ("completion", "a")
            case Feedback():
                assert sent(asked, FeedbackKept(True))[0]["operation"] == "feedback"
            case _:
                assert isinstance(command, Reattach)
                assert asked.finished
    if not asked.finished:
        sent(asked, DONE)
    assert isinstance(tell(asked, "config", prompt="Once"), Generate)


@given(st.lists(any_json | near_messages, max_size=8))
def test_no_json_does_worse_than_a_refusal(values: list[object]) -> None:
    check_conversation(dialect(), [json.dumps(value).encode() for value in values])


@given(st.lists(st.binary(), max_size=4))
def test_no_bytes_do_worse_than_a_refusal(inputs: list[bytes]) -> None:
    check_conversation(dialect(), inputs)


@given(any_json | near_messages)
def test_no_rest_body_does_worse_than_a_refusal(value: object) -> None:
    asked = GenerateBody(LIMITS, lambda _name: MODEL, lambda: MODELS, "gen_1")
    try:
        asked.receive(json.dumps(value).encode())
    except RequestError as error:
        answer = asked.fail(0, error)[0]
    else:
        for output in (Started(), Token("a", 1), DONE):
            asked.send(0, output)
        answer = asked.result()
    assert ("error" in json.loads(answer)) is not ("generated_text" in json.loads(answer))


@pytest.mark.parametrize("field", ["prompt", "parameters", "options", "slo", "auth", "position", "type", "other"])
def test_no_depth_of_a_field_does_worse_than_a_refusal(field: str) -> None:
    for depth in (*range(190, 270), 500, 1000):
        deep = "[" * depth + "]" * depth
        message = f'{{"type":"config","prompt":"hi","{field}":{{"json_schema":{{"k":{deep}}}}}}}'
        check_conversation(dialect(), [message.encode()])
