"""Ollama's bodies: what each field may be, in which words it is refused, and which lines come back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import ollama
import pytest
from routes import facts, routes

from tests.support.routes import MODEL_INFO, listed
from umaserve.chat_format.written_calls import written
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Logprobs,
    ModelInfo,
    ModelState,
    Output,
    Scored,
    Started,
    Timing,
    Token,
    Usage,
    Waiting,
)
from umaserve.core.queries import Embed, Embedded
from umaserve.core.requests import Attachment, ChatTurn, Generate, Grammar, Image, Priority, Sampling, Syntax, ToolCall
from umaserve.core.tool_call_format import TOLD_IN_WORDS, TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Slot, ToolForm
from umaserve.dialects.ollama import models
from umaserve.dialects.ollama.answers import ChatBody, GenerateBody
from umaserve.dialects.ollama.embeddings import embed_result, embeddings_result, parse_embed, parse_embeddings
from umaserve.dialects.ollama.errors import ERRORS, error_body
from umaserve.dialects.ollama.requests import TextRequest, chat_request, generate_request
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Request

LIMITS = RequestLimits(max_prompt_bytes=200, max_tokens=100)
FACTS = replace(
    facts(),
    model=lambda _name: MODEL_INFO,
    models=lambda: [listed(MODEL_INFO)],
    limits=LIMITS,
    now=lambda: 1_700_000_000,
    new_id=lambda prefix: f"{prefix}1",
)
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SAMPLING = Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.0, repeat_penalty=1.1)


def chat(info: ModelInfo | None = MODEL_INFO, **fields: Any) -> TextRequest:
    return chat_request(
        json.dumps({"model": "any", "messages": HELLO} | fields).encode(), LIMITS, lambda _name: info, "c1"
    )


def asked(**fields: Any) -> Generate:
    request = chat(**fields).request
    assert request is not None
    return request


def generation(**fields: Any) -> TextRequest:
    return generate_request(
        json.dumps({"model": "any", "prompt": "Hello"} | fields).encode(), LIMITS, lambda _name: MODEL_INFO, "g1"
    )


THINKER = replace(MODEL_INFO, thinks=True)


# -- requests ----------------------------------------------------------------------------------------------------


def test_a_chat_is_read_with_ollamas_defaults() -> None:
    assert chat() == TextRequest(
        Generate(
            "c1", (ChatTurn("user", "Hello"),), max_tokens=100, sampling=SAMPLING, splits_thoughts=True, model="any"
        ),
        "any",
        stream=True,
        unloads=False,
    )


def test_options_are_read() -> None:
    request = asked(
        options={
            "temperature": 0,
            "top_k": 5,
            "top_p": 0.5,
            "min_p": 0.1,
            "repeat_penalty": 1.5,
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "seed": 7,
            "num_predict": 9,
            "num_ctx": 4096,
            "num_gpu": -1,
            "use_mmap": True,
            "stop": ["x", "y"],
        },
        priority="background",
    )
    assert request.sampling == Sampling(0.0, 0.5, 5, 0.1, 1.5, 1.0, -1.0, 7)
    assert (request.max_tokens, request.stop, request.priority) == (9, ("x", "y"), Priority.BACKGROUND)


@pytest.mark.parametrize("tokens", [-1, -2])
def test_an_answer_without_a_limit_has_the_operators(tokens: int) -> None:
    assert asked(options={"num_predict": tokens}).max_tokens == 100


def test_a_negative_seed_is_any() -> None:
    assert asked(options={"seed": -1}).sampling == SAMPLING


def test_a_seed_may_have_64_bits() -> None:
    assert [asked(options={"seed": seed}).sampling.seed for seed in (7, 2**32 + 6, 2**63 - 1)] == [7, 7, 2**31 - 1]


@pytest.mark.parametrize(("given", "window"), [(None, 64), (0, 0), (64, 64), (256, 256), (-1, 2**31 - 1)])
def test_the_penalties_window_may_have_any_length(given: int | None, window: int) -> None:
    assert asked(options={"repeat_last_n": given}).sampling == replace(SAMPLING, penalty_window=window)


def test_a_format_is_any_object_or_a_schema() -> None:
    assert asked(format="").sampling.grammar is None
    assert asked(format="json").sampling.grammar == Grammar(Syntax.JSON_SCHEMA, '{"type":"object"}', "format")
    schema = {"type": "array"}
    assert asked(format=schema).sampling.grammar == Grammar(Syntax.JSON_SCHEMA, '{"type":"array"}', "format")


@pytest.mark.parametrize(
    ("think", "thinks", "kwargs"),
    [(None, None, {}), (False, False, {}), (True, True, {}), ("low", True, {"reasoning_effort": "low"})],
)
def test_thinking_is_asked_for(think: object, thinks: bool | None, kwargs: dict[str, object]) -> None:
    request = asked(think=think, info=THINKER)
    assert (request.enable_thinking, request.chat_template_kwargs) == (thinks, kwargs)


@pytest.mark.parametrize(
    ("keep_alive", "unloads"),
    [
        *((off, True) for off in (0, 0.0, "0", "0s", "0h0m")),
        *((on, False) for on in (None, -1, "-1", 300, "5m", "1h30m", "1.5h")),
    ],
)
def test_without_messages_the_model_is_loaded_or_unloaded(keep_alive: object, unloads: bool) -> None:
    assert chat(messages=[], keep_alive=keep_alive) == TextRequest(None, "any", stream=True, unloads=unloads)
    assert generation(prompt="", keep_alive=keep_alive, stream=False) == TextRequest(None, "any", False, unloads)


@pytest.mark.parametrize(
    ("choice", "n_tools", "must_call"),
    [
        (None, 1, False),
        ("auto", 1, False),
        ("none", 0, False),
        ("required", 1, True),
        ({"type": "function", "function": {"name": "weather"}}, 1, True),
        ({"type": "function", "name": "weather"}, 1, True),
    ],
)
def test_clients_may_require_a_call_or_none(choice: object, n_tools: int, must_call: bool) -> None:
    request = asked(tools=[WEATHER], tool_choice=choice, format="json")
    assert (len(request.tools), request.must_call, request.parallel_calls) == (n_tools, must_call, not must_call)
    # The format is that of answers in words.
    assert (request.sampling.grammar is None) == must_call


def test_results_of_tools_belong_to_their_calls() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("weather", "sum", "weather")]
    results = [{"role": "tool", "content": name, "tool_name": name} for name in ("sum", "weather", "weather")]
    messages = [*HELLO, {"role": "assistant", "tool_calls": calls}, *results]
    _hello, said, *answers = asked(messages=messages, tools=[WEATHER]).prompt
    assert isinstance(said, ChatTurn)
    assert [(call.name, call.arguments) for call in said.tool_calls] == [
        ("weather", '{"n":1}'),
        ("sum", '{"n":1}'),
        ("weather", '{"n":1}'),
    ]
    first, second, third = (call.id for call in said.tool_calls)
    assert len({first, second, third}) == 3
    assert [turn.tool_call_id for turn in answers if isinstance(turn, ChatTurn)] == [second, first, third]
    # The next request finds this one's prompt in the cache.
    assert asked(messages=[*messages, *HELLO], tools=[WEATHER]).prompt[1] == said


def test_results_may_name_their_calls_and_need_not_have_one() -> None:
    call = {"id": "abc", "function": {"index": 0, "name": "weather", "arguments": {}}}
    named = {"role": "tool", "content": "18", "tool_call_id": "abc"}
    messages = [{"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [call]}, named]
    stray = {"role": "tool", "content": "19"}
    assert asked(messages=[*messages, stray]).prompt == (
        ChatTurn("assistant", "", tool_calls=(ToolCall("abc", "weather", "{}"),), thoughts="Hm"),
        ChatTurn("tool", "18", tool_call_id="abc"),
        ChatTurn("tool", "19"),
    )


def test_images_come_before_the_text() -> None:
    image = Attachment(0, Image("QUJD", "messages[0].images[0]"))
    assert asked(messages=[HELLO[0] | {"images": ["QUJD"]}]).prompt == (
        ChatTurn("user", "Hello", attachments=(image,)),
    )
    request = generation(prompt="", images=["QUJD"]).request
    assert request is not None
    assert request.prompt == (ChatTurn("user", "", attachments=(Attachment(0, Image("QUJD", "images[0]")),)),)


def test_a_prompt_is_a_turn_or_raw() -> None:
    turns = (ChatTurn("system", "Be brief."), ChatTurn("user", "Hello"))
    request = generation(system="Be brief.", context=None, template="", suffix="").request
    assert request is not None
    assert request.prompt == turns
    raw = generation(raw=True, context=[], stream=False).request
    assert raw is not None
    assert raw.prompt == "Hello"
    assert not raw.splits_thoughts


def test_a_context_comes_before_the_turn() -> None:
    request = generation(context=[1, 2]).request
    assert request is not None
    assert (request.context, request.prompt) == ((1, 2), (ChatTurn("user", "Hello"),))


def test_tokens_are_wanted_of_a_turn_of_text() -> None:
    told = [generation(**fields).request for fields in ({}, {"raw": True}, {"images": ["QUJD"]})]
    assert [request and request.wants_tokens for request in told] == [True, False, False]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": None}, "model: expected a non-empty string of at most 256 bytes, got null"),
        ({"model": ""}, "model: expected a non-empty string of at most 256 bytes, got an empty one"),
        ({"messages": {}}, "messages: expected an array of 0 to 1024 messages, got an object"),
        ({"messages": ["a"]}, "messages[0]: expected an object, got a string"),
        (
            {"messages": [{"role": "bot"}]},
            'messages[0].role: expected "system" or "user" or "assistant" or "tool", got "bot"',
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: expected a string, got an array"),
        ({"messages": [{"role": "user", "content": "x" * 201}]}, "messages: expected at most 200 bytes, got 201"),
        (
            {"messages": [{"role": "user", "images": ["data:image/png;base64,QUJD"]}]},
            'messages[0].images[0]: expected the base64 of an image alone, got one that begins with "data:"',
        ),
        ({"messages": [{"role": "user", "images": [1]}]}, "messages[0].images[0]: expected a non-empty string, got a"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}]},
            "messages[0].tool_calls[0].function.arguments: expected an object, got a string",
        ),
        ({"messages": [{"role": "assistant", "thinking": 1}]}, "messages[0].thinking: expected a string, got a whole"),
        ({"messages": [{"role": "tool", "tool_name": 1}]}, "messages[0].tool_name: expected a string of at most 256"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name: expected 1 to 64 letters"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, 'tools[0].type: expected "function", got "custom"'),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "weather"}}},
            "tool_choice.custom.name: expected the name of one of the tools",
        ),
        (
            {"tools": [WEATHER], "tool_choice": "any"},
            'tool_choice: expected "none" or "auto" or "required", got "any"',
        ),
        (
            {"tools": [WEATHER], "tool_choice": "required", "options": {"regex": "a"}},
            "tool_choice: expected no required call where options.regex is given, got both",
        ),
        ({"stream": 1}, "stream: expected true or false, got a whole number"),
        ({"options": []}, "options: expected an object, got an array"),
        ({"options": {"temperature": "hot"}}, "options.temperature: expected a number from 0 to 10, got a string"),
        ({"options": {"temperature": 11}}, "options.temperature: expected a number from 0 to 10, got 11"),
        ({"options": {"seed": 2**63}}, "options.seed: expected a whole number "),
        ({"options": {"seed": "x"}}, "options.seed: expected a whole number from "),
        ({"options": {"num_ctx": 0}}, "options.num_ctx: expected a whole number from 1 to 2147483647, got 0"),
        ({"options": {"num_predict": 0}}, "options.num_predict: expected a whole number from 1, or -1 for no limit"),
        ({"options": {"num_predict": -3}}, "options.num_predict: expected a whole number from 1, or -1 for no limit"),
        ({"options": {"num_predict": []}}, "options.num_predict: expected a whole number from 1, or -1 for no limit"),
        ({"options": {"repeat_last_n": -2}}, "options.repeat_last_n: expected a whole number from -1 to "),
        ({"options": {"num_gpu": "all"}}, "options.num_gpu: expected a whole number from -1 to 2147483647, got a str"),
        ({"options": {"use_mmap": 1}}, "options.use_mmap: expected true or false, got a whole number"),
        ({"options": {"stop": [""]}}, "options.stop[0]: expected a non-empty string"),
        ({"options": {"mirostat": 3}}, "options.mirostat: expected a whole number from 0 to 2, got 3"),
        ({"format": "xml"}, 'format: expected "json" or a JSON schema as an object, got "xml"'),
        ({"format": 1}, 'format: expected "json" or a JSON schema as an object, got a whole number'),
        (
            {"format": "json", "options": {"regex": "a"}},
            "format: expected to be absent where options.regex is given, got both",
        ),
        ({"think": "a lot"}, 'think: expected true, false or "low" or "medium" or "high", got "a lot"'),
        ({"think": 1}, 'think: expected true, false or "low" or "medium" or "high", got a whole number'),
        ({"think": True}, "think: expected false, since this model does not think"),
        ({"keep_alive": "soon"}, 'keep_alive: expected seconds, or a duration such as "5m", got "soon"'),
        ({"keep_alive": True}, 'keep_alive: expected seconds, or a duration such as "5m", got a boolean'),
        ({"keep_alive": "1" * 65}, 'keep_alive: expected seconds, or a duration such as "5m", got "1111'),
        ({"top_logprobs": 2}, "top_logprobs: expected to be absent where logprobs isn't true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected a whole number from 0 to 20, got 21"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert str(caught.value).startswith(problem)
    body = json.loads(ERRORS.reply(caught.value).body)
    assert body == {"error": str(caught.value)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"template": "{{ .Prompt }}"}, "template: expected to be absent: the model's own chat template is used"),
        ({"suffix": "end"}, "suffix: expected to be absent: this server fills no gaps in a text"),
        (
            {"raw": True, "system": "a"},
            "system: expected to be absent: with raw, the model gets nothing but the prompt",
        ),
        ({"raw": True, "images": ["QUJD"]}, "images: expected to be absent: with raw"),
        ({"context": "a"}, "context: expected an array of token ids, got a string"),
        ({"context": ""}, "context: expected an array of token ids, got a string"),
        ({"context": [1, -1]}, "context[1]: expected a whole number from 0 to 2147483647, got -1"),
        ({"context": [True]}, "context[0]: expected a whole number from 0 to 2147483647, got a boolean"),
        ({"context": [2**31]}, "context[0]: expected a whole number from 0 to 2147483647, got 2147483648"),
        ({"context": [1] * 201}, "context: expected at most 200 tokens, got 201"),
        (
            {"context": ["a"] * MODEL_INFO.context_tokens},
            "context: expected fewer than 4096 tokens, this daemon's context, got 4096",
        ),
        ({"raw": True, "context": [1]}, "context: expected to be absent: with raw"),
        ({"images": ["QUJD"], "context": [1]}, "context: expected to be absent: an earlier conversation of tokens"),
        ({"prompt": 1}, "prompt: expected a string, got a whole number"),
        ({"system": "x" * 200}, "prompt: expected at most 200 bytes, got 205"),
    ],
)
def test_a_wrong_field_of_a_generation_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        generation(**fields)
    assert str(caught.value).startswith(problem)


def test_a_context_is_not_judged_before_it_is_known() -> None:
    given = json.dumps({"model": "any", "prompt": "Hello", "context": [1] * 5000}).encode()
    limits = RequestLimits(max_prompt_bytes=10_000)
    with pytest.raises(RequestError, match="context: expected fewer than 4096 tokens"):
        generate_request(given, limits, lambda _name: MODEL_INFO, "g1")
    assert generate_request(given, limits, lambda _name: None, "g1").request is not None


def test_a_larger_context_than_the_daemons_is_no_reason_to_refuse() -> None:
    assert chat(options={"num_ctx": 10**6}) == chat()


# -- answers -----------------------------------------------------------------------------------------------------

END = Finished(FinishReason.STOP, Usage(5, 3), Timing(0.5, 2.0, 3.0))


def answer(outputs: Sequence[Output], **fields: Any) -> tuple[ChatBody, list[Any]]:
    body = ChatBody(FACTS, "c1")
    body.receive(json.dumps({"model": "any", "messages": HELLO} | fields).encode())
    data = [line for output in [Started(), Waiting(1, 1, None), *outputs] for line in body.send(0, output)]
    assert all(b"\n" not in line and body.frame(line) == line + b"\n" for line in data)
    return body, [json.loads(line) for line in data]


def test_a_stream_ends_with_its_counts_and_times() -> None:
    body, lines = answer([Token("Hi", 1, elapsed_s=2.0), Token("", 2), END])
    assert body.streaming
    assert body.stream_type == "application/x-ndjson"
    assert body.end is None
    assert lines == [
        {
            "model": "small-1:latest",
            "created_at": "2023-11-14T22:13:22.000000Z",
            "message": {"role": "assistant", "content": "Hi"},
            "done": False,
        },
        {
            "model": "small-1:latest",
            "created_at": "2023-11-14T22:13:23.000000Z",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "total_duration": 3_000_000_000,
            "load_duration": 500_000_000,
            "prompt_eval_count": 5,
            "prompt_eval_duration": 1_500_000_000,
            "eval_count": 3,
            "eval_duration": 1_000_000_000,
        },
    ]


def test_a_whole_answer_says_what_the_lines_say() -> None:
    body, lines = answer([Token("H", 1), Token("i", 2), END], stream=False)
    assert lines == []
    whole = json.loads(body.result())
    _, (*_, last) = answer([END])
    assert whole == last | {"message": {"role": "assistant", "content": "Hi"}}


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_object_of_a_generation_has_the_tokens(stream: bool) -> None:
    body = GenerateBody(FACTS, "g1")
    body.receive(json.dumps({"model": "any", "prompt": "Hello", "stream": stream}).encode())
    lines = [line for output in (Token("Hi", 3), replace(END, tokens=(1, 2, 3))) for line in body.send(0, output)]
    *before, last = map(json.loads, lines if stream else [body.result()])
    assert not any("context" in line for line in before)
    assert last["context"] == [1, 2, 3]


def test_a_stream_that_fails_ends_with_an_error() -> None:
    body, _lines = answer([Token("Hi", 1)])
    assert body.fail(0, RequestError(Fault.TIMED_OUT, "request", "took too long")) == [
        b'{"error":"request: took too long"}'
    ]


def test_the_model_is_loaded_without_a_line_of_counts() -> None:
    body = GenerateBody(FACTS, "g1")
    assert body.receive(b'{"model": "any"}') == ()
    assert not body.streaming
    assert json.loads(body.result()) == {
        "model": "small-1:latest",
        "created_at": "2023-11-14T22:13:20.000000Z",
        "response": "",
        "done": True,
        "done_reason": "load",
    }
    loading = GenerateBody(replace(FACTS, model=lambda _name: None), "g1")
    with pytest.raises(RequestError, match="model: still loading"):
        loading.receive(b'{"model": "any"}')


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_told_apart(stream: bool) -> None:
    tokens = [Token("<think>Hm</think>", 1, thoughts="Hm", answer=""), Token("Hi", 1, thoughts="", answer="Hi")]
    body, lines = answer([*tokens, END], stream=stream)
    said = [part["message"] for part in (lines if stream else [json.loads(body.result())])]
    assert "".join(message.get("thinking", "") for message in said) == "Hm"
    assert "".join(message["content"] for message in said) == "Hi"


def test_log_probabilities_are_told() -> None:
    chosen, other = Scored(1, b"a", -0.5), Scored(2, b"\xf0", -float("inf"))
    _, (line, _end) = answer([Token("a", 1, Logprobs(chosen, (chosen, other))), END], logprobs=True, top_logprobs=2)
    told = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert line["logprobs"] == [
        told | {"top_logprobs": [told, {"token": "\ufffd", "logprob": -9999.0, "bytes": [240]}]}
    ]


CALL = TOOL_CALL_OPEN + '\n{"name": "weather", "arguments": {\n"city": "Par\\nis"\r\n}}\n' + TOOL_CALL_CLOSE


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_comes_in_one_piece(stream: bool) -> None:
    text = f"I look. {CALL}{CALL}"
    body, lines = answer([*(Token(part, 1) for part in text), END], tools=[WEATHER], stream=stream)
    answers = lines if stream else [json.loads(body.result())]
    calls = [call for part in answers for call in part["message"].get("tool_calls", ())]
    function = {"name": "weather", "arguments": {"city": "Par\nis"}}
    assert [call["function"] for call in calls] == [{"index": 0} | function, {"index": 1} | function]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(part["message"]["content"] for part in answers) == "I look. "
    assert answers[-1]["done_reason"] == "stop"


FORMS = {
    "told in words": TOLD_IN_WORDS,
    "Mistral": ToolForm(("[TOOL_CALLS]", Slot.NAME, "[CALL_ID]", Slot.ID, "[ARGS]", Slot.ARGUMENTS), between=""),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_ollamas_client_calls_its_tools_and_gets_an_answer(form: ToolForm, stream: bool) -> None:
    asked_for = [ToolCall("firstid01", "weather", '{"city": "Paris"}'), ToolCall("firstid02", "add", '{"a": 2}')]
    said = iter(["I look.\n" + written(form, asked_for), "Mild."])
    prompts = []

    def serve(request: httpx.Request) -> httpx.Response:
        limits = RequestLimits(max_prompt_bytes=10_000)
        model = replace(MODEL_INFO, tool_form=form)
        body = ChatBody(replace(FACTS, model=lambda _name: model, limits=limits), f"c{len(prompts)}")
        prompts.append(body.receive(request.read())[0].prompt)
        text = next(said)
        outputs = [*(Token(text[at : at + 2], 1) for at in range(0, len(text), 2)), END]
        lines = [body.frame(line) for output in outputs for line in body.send(0, output)]
        return httpx.Response(200, content=b"".join(lines) if body.streaming else body.result())

    client = ollama.Client(host="http://umaserve", transport=httpx.MockTransport(serve))
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "add")]
    messages: list[Any] = list(HELLO)
    for _ in range(2):
        answer = client.chat("any", messages, tools=tools, stream=stream)
        parts = [part.message for part in (answer if stream else [answer])]
        calls = [call for part in parts for call in part.tool_calls or ()]
        content = "".join(part.content or "" for part in parts)
        messages.append({"role": "assistant", "content": content, "tool_calls": calls})
        messages += [{"role": "tool", "tool_name": call.function.name, "content": "18"} for call in calls]
    assert content == "Mild."
    _hello, first, *results = prompts[-1]
    assert first.content == "I look.\n"
    assert [(call.name, json.loads(call.arguments)) for call in first.tool_calls] == [
        ("weather", {"city": "Paris"}),
        ("add", {"a": 2}),
    ]
    assert [turn.tool_call_id for turn in results] == [call.id for call in first.tool_calls]


# -- the model ---------------------------------------------------------------------------------------------------


def test_the_model_is_told() -> None:
    (told,) = json.loads(models.tags(FACTS))["models"]
    assert told["name"] == told["model"] == "small-1:latest"
    assert told["details"]["parameter_size"] == "134.52M"
    assert len(told["digest"]) == 64
    (running,) = json.loads(models.running(FACTS))["models"]
    assert running["context_length"] == 4096
    shown = json.loads(models.show(b'{"name": "small-1"}', FACTS))
    assert shown["model_info"]["llama.context_length"] == 4096
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["parameters"] == "num_ctx 4096"
    assert "license" not in shown
    licensed = replace(FACTS, models=lambda: [listed(replace(MODEL_INFO, license="apache-2.0"))])
    assert json.loads(models.show(b'{"name": "small-1"}', licensed)) == shown | {"license": "apache-2.0"}
    assert json.loads(models.show(b'{"model": "small-1:latest"}', FACTS)) == shown
    # As Ollama's client in Go sends it.
    assert json.loads(models.show(b'{"model": "", "name": "small-1"}', FACTS)) == shown


def test_a_model_may_be_in_the_memory_of_a_gpu() -> None:
    with_gpu = replace(FACTS, models=lambda: [listed(replace(MODEL_INFO, gpu_bytes=5))])
    (on_gpu,) = json.loads(models.running(with_gpu))["models"]
    (on_cpu,) = json.loads(models.running(FACTS))["models"]
    assert (on_gpu["size_vram"], on_cpu["size_vram"]) == (5, 0)


def test_what_a_model_can_do() -> None:
    assert models.capabilities(replace(MODEL_INFO, chat_template=None)) == ["completion"]
    assert models.capabilities(replace(MODEL_INFO, sees=True)) == ["completion", "tools", "vision"]
    assert models.capabilities(THINKER) == ["completion", "tools", "thinking"]


def test_names_have_a_tag() -> None:
    assert models.full_name(replace(MODEL_INFO, name="small:8b")) == "small:8b"


def test_several_models_are_told() -> None:
    states = {"small-1": ModelState.LOADED, "large-2": ModelState.UNLOADED, "new": ModelState.LOADING}
    info = {"new": None}
    several = [
        listed(MODEL_INFO, name=name, state=state, info=info.get(name, replace(MODEL_INFO, name=name)))
        for name, state in states.items()
    ]
    about = replace(FACTS, models=lambda: several)
    tags = json.loads(models.tags(about))["models"]
    assert [told["name"] for told in tags] == ["small-1:latest", "large-2:latest", "new:latest"]
    assert [told["details"]["format"] for told in tags] == ["gguf", "gguf", ""]
    assert [told["size"] for told in tags] == [2000] * 3
    assert len({told["digest"] for told in tags}) == 3
    assert [told["name"] for told in json.loads(models.running(about))["models"]] == ["small-1:latest"]
    known = json.loads(models.show(b'{"model": "large-2"}', about))
    assert known["model_info"]["general.basename"] == "large-2"
    assert known["capabilities"] == ["completion", "tools"]
    new = json.loads(models.show(b'{"model": "new"}', about))
    assert (new["model_info"], new["capabilities"]) == ({"general.basename": "new"}, ["completion"])
    assert new["parameters"] == ""
    assert new.keys() == known.keys()
    assert new["details"].keys() == known["details"].keys()
    assert models.pull(b'{"model": "new"}', about) == (True, b'{"status":"success"}')


def test_a_model_that_was_never_loaded_tells_what_its_file_says() -> None:
    unloaded = listed(MODEL_INFO, state=ModelState.UNLOADED, info=None, architecture="qwen2", context_tokens=32768)
    about = replace(FACTS, models=lambda: [unloaded])
    (told,) = json.loads(models.tags(about))["models"]
    assert (told["context_length"], told["details"]["family"]) == (32768, "qwen2")
    shown = json.loads(models.show(b'{"model": "small-1"}', about))
    assert shown["details"] == told["details"]
    assert shown["model_info"] == {
        "general.basename": "small-1",
        "general.architecture": "qwen2",
        "qwen2.context_length": 32768,
    }
    assert json.loads(models.running(about)) == {"models": []}


def test_only_models_that_are_there_can_be_pulled() -> None:
    assert models.pull(b'{"model": "small-1"}', FACTS) == (True, b'{"status":"success"}')
    assert models.pull(b'{"model": "small-1:latest", "stream": false}', FACTS) == (False, b'{"status":"success"}')
    for ask in (lambda body: models.pull(body, FACTS), lambda body: models.show(body, FACTS)):
        with pytest.raises(RequestError) as caught:
            ask(b'{"model": "other"}')
        assert caught.value.fault is Fault.MODEL_NOT_FOUND
        assert error_body(caught.value)[:2] == (404, b'{"error":"model \'other\' not found"}')
        with pytest.raises(RequestError, match="model: expected a non-empty string of at most 256 bytes, got null"):
            ask(b"{}")
        with pytest.raises(RequestError, match="model: expected a non-empty string of at most 256 bytes, got an empty"):
            ask(b'{"model": "", "name": ""}')


@pytest.mark.parametrize("path", ["/api/create", "/api/copy", "/api/push", "/api/delete", "/api/blobs/{digest}"])
def test_models_are_the_operators(path: str) -> None:
    with pytest.raises(RequestError, match="request: models can't be made, copied or deleted here: the operator of"):
        routes()[path].endpoint.make(FACTS, None)


@pytest.mark.parametrize(("agent", "found"), [("ollama-python/0.6", True), ("ollama/0.12", True), ("curl", False)])
def test_ollamas_clients_find_a_server_at_the_root(agent: str, found: bool) -> None:
    request = Request("GET", "/", {}, (("user-agent", agent),), b"")
    root = routes()["/"]
    assert root.methods == ("GET", "HEAD")
    assert root.public
    answer = (200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")
    assert (root.endpoint.make(request) == answer) == found


# -- embeddings --------------------------------------------------------------------------------------------------


def test_texts_are_embedded() -> None:
    assert parse_embed(Fields({"input": "a", "truncate": True}), LIMITS, MODEL_INFO) == (Embed(("a",)), None)
    two = {"input": ["a", "b"], "dimensions": 2}
    assert parse_embed(Fields(two), LIMITS, MODEL_INFO) == (Embed(("a", "b")), 2)
    assert parse_embeddings(Fields({"prompt": "a"}), LIMITS, MODEL_INFO) == Embed(("a",))
    answer = Embedded([[0.5, 1.0]], 3)
    assert json.loads(embed_result(answer, None, MODEL_INFO, 0.25)) == {
        "model": "small-1:latest",
        "embeddings": [[0.5, 1.0]],
        "total_duration": 250_000_000,
        "load_duration": 0,
        "prompt_eval_count": 3,
    }
    assert json.loads(embed_result(answer, 1, MODEL_INFO, 0.25))["embeddings"] == [[1.0]]
    assert json.loads(embeddings_result(answer)) == {"embedding": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "input: expected a string or an array of strings, got null"),
        ({"input": []}, "input: expected 1 to 256 texts, got 0"),
        ({"input": ["a"] * 257}, "input: expected 1 to 256 texts, got 257"),
        ({"input": ["a", 1]}, r"input\[1\]: expected a non-empty string, got a whole number"),
        ({"input": ["a" * 100, "a" * 101]}, "input: expected at most 200 bytes, got 201"),
        ({"input": "a", "dimensions": 0}, "dimensions: expected a whole number from 1 to"),
        ({"input": "a", "dimensions": 1 << 30}, "dimensions: expected a whole number from 1 to"),
        ({"input": "a", "truncate": 1}, "truncate: expected true or false, got a whole number"),
        ({"input": "a", "options": {"num_ctx": 0}}, "options.num_ctx: expected a whole number from 1 to 2147483647"),
        ({"input": "a", "keep_alive": []}, "keep_alive: expected seconds"),
    ],
)
def test_a_wrong_field_of_embeddings_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        parse_embed(Fields(fields), LIMITS, MODEL_INFO)
