"""The OpenAI API on the real daemon, by OpenAI's own Python client."""

from __future__ import annotations

import asyncio
import json
import math
import random
import string
from collections import Counter

import httpx
import jsonschema
import openai
import pydantic
import pytest
from daemon import CHAT_FAR_FROM_A_TIE, FAR_FROM_A_TIE, Daemon

from umaserve.access.keys import KeyFile

MODEL = "SmolLM2-135M-Instruct.Q4_1"
COLOURS = [{"role": "user", "content": "Name three colours."}]
LONG = {"max_completion_tokens": 500, "extra_body": {"ignore_eos": True}}

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in "ab"},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "add": SUM}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]


@pytest.fixture(scope="module")
def client(daemon: Daemon):
    with openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory):
    """A daemon that embeds, filters and wants keys, and its keys by name; ``once`` may ask one time a minute."""
    directory = tmp_path_factory.mktemp("keyed")
    file = KeyFile(str(directory / "keys.json"), missing_ok=True)
    keys = {"ann": file.add("ann"), "once": file.add("once", requests_per_minute=1)}
    (directory / "patterns").write_text("forbidden\n")
    flags = ["--http", "127.0.0.1:0", "--pooling", "mean"]
    flags += ["--api-keys", str(directory / "keys.json"), "--content-filter", str(directory / "patterns")]
    daemon = Daemon(directory, *flags, env={"UMA_THREADS": "1"})

    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=keys.get(key, key), max_retries=0)

    yield client
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def chat(client: openai.OpenAI, messages=CHAT_FAR_FROM_A_TIE, **more):
    fields = {"temperature": 0, "max_completion_tokens": 12} | more
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def complete(client: openai.OpenAI, prompt=FAR_FROM_A_TIE, **more):
    return client.completions.create(model=MODEL, prompt=prompt, **{"temperature": 0, "max_tokens": 6} | more)


def text(answer) -> str:
    return answer.choices[0].message.content


def spelled(word: str) -> dict:
    """Fields that leave the model only ``word`` to say."""
    return {"max_completion_tokens": 100, "extra_body": {"grammar": f'root ::= "{word}"'}}


# -- models ------------------------------------------------------------------------------------------------------


def test_models_are_listed_and_retrieved(client: openai.OpenAI):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "umaserve")
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError, match='model: the model "gpt-9" does not exist'):
        client.models.retrieve("gpt-9")


# -- chat --------------------------------------------------------------------------------------------------------


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI):
    # Computed anew: what is reused changes how llama.cpp rounds.
    anew = {"extra_body": {"cache_prompt": False}}
    whole = chat(client, **anew)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **anew))
    *parts, last, usage = chunks
    assert whole.model == MODEL
    assert whole.choices[0].message.role == parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text(whole) != ""
    assert whole.choices[0].finish_reason == last.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert whole.usage.completion_tokens == 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert len({(chunk.id, chunk.created, chunk.system_fingerprint) for chunk in chunks}) == 1


def test_usage_is_streamed_only_where_it_is_asked_for(client: openai.OpenAI):
    assert all(chunk.usage is None and chunk.choices for chunk in chat(client, stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_different_and_each_has_its_end(client: openai.OpenAI, stream: bool):
    answer = chat(client, COLOURS, n=2, seed=1, temperature=1.5, stream=stream)
    texts, ends = {0: "", 1: ""}, Counter()
    for choice in (choice for part in (answer if stream else [answer]) for choice in part.choices):
        texts[choice.index] += (choice.delta if stream else choice.message).content or ""
        ends[choice.index] += choice.finish_reason is not None
    assert ends == {0: 1, 1: 1}
    assert texts[0] != texts[1]


def test_stop_ends_the_text_before_it(client: openai.OpenAI):
    whole = text(chat(client))
    stop = whole[len(whole) // 2 :][:4]
    answer = chat(client, stop=["never said", stop])
    assert text(answer) == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_repeats_and_another_differs(client: openai.OpenAI):
    # Few letters of two: llama.cpp rounds by where a sequence's cells lie, and of many words that are nearly as likely
    # as each other one or the other would change places.
    fields = {"temperature": 2, "max_completion_tokens": 100, "extra_body": {"grammar": "root ::= [ab]{8}"}}
    first, again, *others = (text(chat(client, seed=seed, **fields)) for seed in (7, 7, 8, 9, 10))
    assert len(first) == 8
    assert first == again
    assert set(others) != {first}


def test_log_probabilities_of_what_was_said_and_what_was_not(client: openai.OpenAI):
    answer = chat(client, logprobs=True, top_logprobs=3)
    scores = answer.choices[0].logprobs.content
    assert b"".join(bytes(score.bytes) for score in scores).decode() == text(answer)
    for score in scores:
        assert [top.logprob for top in score.top_logprobs] == sorted(
            (t.logprob for t in score.top_logprobs), reverse=True
        )
        assert score.top_logprobs[0].token == score.token
        assert score.top_logprobs[0].logprob == score.logprob
        assert 0 < sum(math.exp(top.logprob) for top in score.top_logprobs) <= 1.0001
    streamed = [
        s for part in chat(client, logprobs=True, stream=True) for s in getattr(part.choices[0].logprobs, "content", [])
    ]
    assert [s.token for s in streamed] == [s.token for s in scores]
    assert [s.logprob for s in streamed] == pytest.approx([s.logprob for s in scores], abs=0.1), "but for rounding"
    assert all(s.top_logprobs == [] for s in streamed)


def test_logit_bias_forces_a_token_and_bans_another(client: openai.OpenAI, daemon: Daemon):
    content = {"content": "x"}
    (token,) = httpx.post(f"http://{daemon.http}/tokenize", json=content).json()["tokens"]
    assert text(chat(client, logit_bias={str(token): 100})) == "x" * 12
    first = complete(client, logprobs=0, max_tokens=1).choices[0]
    (token,) = httpx.post(f"http://{daemon.http}/tokenize", json={"content": first.text}).json()["tokens"]
    assert complete(client, logit_bias={str(token): -100}, max_tokens=1).choices[0].text != first.text


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repeat_penalty": 1.3}}]
)
def test_penalties_lessen_repeats(client: openai.OpenAI, penalty: dict):
    def different_tokens(**fields) -> int:
        answer = complete(client, "one one one one one one one one", max_tokens=24, logprobs=0, **fields)
        return len(set(answer.choices[0].logprobs.tokens))

    assert different_tokens(**penalty) > different_tokens() + 3


def test_json_object(client: openai.OpenAI):
    answer = chat(client, response_format={"type": "json_object"}, max_completion_tokens=200)
    assert isinstance(json.loads(text(answer)), dict)
    assert answer.choices[0].finish_reason == "stop"


def test_an_answer_is_one_of_thousands_of_texts(client: openai.OpenAI):
    dice = random.Random(1)
    texts = ["".join(dice.choices(string.ascii_lowercase + " ", k=dice.randint(3, 20))) for _ in range(4000)]
    form = {"type": "json_schema", "json_schema": {"name": "text", "schema": {"enum": texts}}}
    assert json.loads(text(chat(client, response_format=form, max_completion_tokens=60))) in texts


def test_json_by_a_schema_and_by_a_class(client: openai.OpenAI):
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "green"]},
            "shades": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 3},
            "liked": {"type": ["boolean", "null"]},
        },
        "required": ["colour", "shades", "liked"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": schema}}
    jsonschema.validate(json.loads(text(chat(client, response_format=form, max_completion_tokens=120))), schema)

    worded = complete(client, "A colour as JSON:", max_tokens=120, extra_body={"response_format": form})
    jsonschema.validate(json.loads(worded.choices[0].text), schema)

    class Verdict(pydantic.BaseModel):
        good: bool
        grade: int

    parsed = client.chat.completions.parse(
        model=MODEL, messages=COLOURS, response_format=Verdict, temperature=0, max_completion_tokens=200
    )
    assert isinstance(parsed.choices[0].message.parsed, Verdict)


def test_characters_split_over_tokens_are_whole_in_every_chunk(client: openai.OpenAI):
    word = "🦙 é 漢字 👩‍👩‍👧 end"
    parts = [part.choices[0].delta.content or "" for part in chat(client, stream=True, **spelled(word))]
    assert "".join(parts) == word
    assert len(parts) > 4


def test_what_the_client_says_comes_through_in_any_script(client: openai.OpenAI):
    said = [{"role": "user", "content": [{"type": "text", "text": "Здравствуй "}, {"type": "text", "text": "🦙"}]}]
    assert chat(client, said).usage.prompt_tokens > chat(client, [{"role": "user", "content": "a"}]).usage.prompt_tokens


def test_llama_cpps_extras_are_honoured(client: openai.OpenAI):
    answer = chat(client, **spelled("ha"))
    assert (text(answer), answer.choices[0].finish_reason) == ("ha", "stop")
    assert answer.timings["predicted_n"] == answer.usage.completion_tokens
    assert answer.timings["predicted_per_second"] > 0
    assert list(chat(client, stream=True))[-1].timings["predicted_n"] == 12
    said = text(chat(client, max_completion_tokens=6))
    for one_choice in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0001}):
        assert text(chat(client, max_completion_tokens=6, temperature=2, extra_body=one_choice)) == said
    short = [{"role": "user", "content": "Say only: yes"}]
    assert chat(client, short, max_completion_tokens=40).usage.completion_tokens < 40
    ignored = chat(client, short, max_completion_tokens=40, extra_body={"ignore_eos": True})
    assert ignored.usage.completion_tokens == 40


# -- tools -------------------------------------------------------------------------------------------------------

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def calls_of(answer) -> list[tuple[str, dict]]:
    message = answer.choices[0].message
    for call in message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def streamed_calls(chunks) -> list[tuple[str, dict]]:
    calls: dict[int, list[str]] = {}
    for delta in (chunk.choices[0].delta for chunk in chunks):
        assert not delta.content
        for call in delta.tool_calls or ():
            name_and_arguments = calls.setdefault(call.index, ["", ""])
            name_and_arguments[0] += call.function.name or ""
            name_and_arguments[1] += call.function.arguments or ""
    return [(name, json.loads(arguments)) for name, arguments in calls.values()]


def test_a_required_call_is_made_streamed_and_answered(client: openai.OpenAI):
    fields = {"tools": TOOLS[:1], "tool_choice": "required", "max_completion_tokens": 100}
    answer = chat(client, ASK, **fields)
    assert answer.choices[0].finish_reason == "tool_calls"
    ((name, _arguments),) = calls_of(answer)
    assert name == "get_weather"
    assert streamed_calls(chat(client, ASK, stream=True, **fields)) == calls_of(answer)

    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees, sunny"}
    told = chat(client, [*ASK, message, result], tools=TOOLS[:1])
    assert "18 degrees" in text(told)
    assert told.choices[0].message.tool_calls is None


def test_a_named_function_is_called(client: openai.OpenAI):
    chosen = {"type": "function", "function": {"name": "add"}}
    answer = chat(client, ASK, tools=TOOLS, tool_choice=chosen, max_completion_tokens=100)
    assert [name for name, _arguments in calls_of(answer)] == ["add"]


def test_with_auto_the_model_chooses_between_words_and_calls(client: openai.OpenAI):
    answer = chat(client, ASK, tools=TOOLS[:1])
    assert answer.choices[0].message.tool_calls is None
    assert text(answer)
    # Having called once, even a small model calls again.
    function = {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "C"}'}
    called = {"role": "assistant", "tool_calls": [{"id": "c0", "type": "function", "function": function}]}
    again = [*ASK, called, {"role": "user", "content": "What is the weather in Rome?"}]
    fields = {"tools": TOOLS[:1], "tool_choice": "auto", "max_completion_tokens": 80}
    chunks = list(chat(client, again, stream=True, **fields))
    assert streamed_calls(chunks)[0] == ("get_weather", {"city": "Rome", "unit": "C"})
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chat(client, again, tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None


# -- completions -------------------------------------------------------------------------------------------------


def test_completions_of_a_string_of_several_and_of_token_ids(client: openai.OpenAI, daemon: Daemon):
    prompts = [FAR_FROM_A_TIE, "10, 9, 8, 7, 6,"]
    alone = [complete(client, prompt) for prompt in prompts]
    ids = [httpx.post(f"http://{daemon.http}/tokenize", json={"content": p}).json()["tokens"] for p in prompts]
    assert complete(client, ids[0]).choices == alone[0].choices
    together = [complete(client, prompts), complete(client, ids), complete(client, prompts, n=2)]
    said = [answer.choices[0].text for answer in alone]
    assert [[c.text for c in answer.choices] for answer in together] == [said, said, [said[0]] * 2 + [said[1]] * 2]
    assert [c.index for c in together[2].choices] == [0, 1, 2, 3]
    used = together[2].usage
    assert (used.prompt_tokens, used.completion_tokens) == (sum(map(len, ids)), 4 * 6)
    assert complete(client, max_tokens=openai.NOT_GIVEN, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


def test_echo_and_the_stream_of_a_completion(client: openai.OpenAI):
    said = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == f"{FAR_FROM_A_TIE}{said}"
    parts = [part.choices[0] for part in complete(client, echo=True, stream=True)]
    assert "".join(part.text for part in parts) == f"{FAR_FROM_A_TIE}{said}"
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]


def test_log_probabilities_of_a_completion(client: openai.OpenAI):
    choice = complete(client, logprobs=2).choices[0]
    scores = choice.logprobs
    assert "".join(scores.tokens) == choice.text
    assert [choice.text.index(token, at) for token, at in zip(scores.tokens, scores.text_offset, strict=True)] == (
        scores.text_offset
    )
    for token, logprob, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2


def test_a_prompt_has_the_log_probabilities_that_it_had_as_an_answer(client: openai.OpenAI, daemon: Daemon):
    answer = complete(client, logprobs=1).choices[0]
    whole = FAR_FROM_A_TIE + answer.text
    ids = httpx.post(f"http://{daemon.http}/tokenize", json={"content": whole}).json()["tokens"]
    vllms = {"prompt_logprobs": 1}
    for prompt in (whole, ids):
        echoed = complete(client, prompt, echo=True, logprobs=1, max_tokens=0, n=2, extra_body=vllms)
        assert echoed.choices[0].logprobs.tokens == echoed.choices[1].logprobs.tokens
        choice, usage = echoed.choices[0], echoed.usage
        scores = choice.logprobs
        assert (choice.text, choice.finish_reason, "".join(scores.tokens)) == (whole, "length", whole)
        assert (len(scores.tokens), usage.prompt_tokens, usage.completion_tokens) == (len(ids), len(ids), 0)
        assert (scores.token_logprobs[0], scores.top_logprobs[0], choice.prompt_logprobs[0]) == (None, None, None)
        answered = len(answer.logprobs.tokens)
        assert scores.tokens[-answered:] == answer.logprobs.tokens
        assert scores.token_logprobs[-answered:] == pytest.approx(answer.logprobs.token_logprobs, abs=0.15)
        told = [one[str(token)]["logprob"] for one, token in zip(choice.prompt_logprobs[1:], ids[1:], strict=True)]
        assert told == scores.token_logprobs[1:]
    parts = [part.choices[0] for part in complete(client, whole, echo=True, logprobs=1, max_tokens=1, stream=True)]
    assert [token for part in parts if part.logprobs for token in part.logprobs.tokens][: len(ids)] == scores.tokens


# -- embeddings --------------------------------------------------------------------------------------------------


def test_a_model_without_embeddings_says_what_would_give_them(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="load an embedding model, or choose --pooling mean") as caught:
        client.embeddings.create(model=MODEL, input="hello")
    assert caught.value.param == "model"


def test_embeddings_in_both_encodings(keyed):
    with keyed("ann") as client:
        texts = ["A cat sat on the mat.", "A cat lay on the rug.", "Stock markets fell by 3% in March."]
        by_default = client.embeddings.create(model=MODEL, input=texts)
        as_floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
        (alone,) = client.embeddings.create(model=MODEL, input=texts[1]).data
    vectors = [one.embedding for one in as_floats.data]
    assert [one.index for one in by_default.data] == [0, 1, 2]
    assert [len(vector) for vector in vectors] == [576] * 3
    for one, vector in zip(by_default.data, vectors, strict=True):
        assert one.embedding == pytest.approx(vector, abs=1e-6)
        assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-4)
    assert alone.embedding == pytest.approx(vectors[1], abs=1e-3)

    def likeness(a: int, b: int) -> float:
        return sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True))

    assert likeness(0, 1) > likeness(0, 2)
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens > 20


def test_a_text_that_is_too_long_to_embed_is_named_among_the_others(keyed):
    with (
        keyed("ann") as client,
        pytest.raises(openai.BadRequestError, match=r"input\[1\]: expected at most 512 tokens, got \d+") as caught,
    ):
        client.embeddings.create(model=MODEL, input=["short", "one two " * 10000, "short"])
    assert caught.value.code == "context_length_exceeded"


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 99}, "temperature", None),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role", None),
        ({"logit_bias": {"999999": 1}}, "logit_bias", None),
        ({"extra_body": {"grammar": "root ::= ("}}, "grammar", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"messages": [{"role": "user", "content": "one two " * 10000}]}, None, "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_names_its_field(client: openai.OpenAI, fields: dict, param: str, code: str, stream: bool):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **fields, stream=stream)
    kind = "invalid_request_error" if code is None else "exceed_context_size_error"
    assert (caught.value.type, caught.value.param, caught.value.code) == (kind, param, code)


def test_who_has_no_key_and_who_has_asked_too_often(keyed):
    with keyed("uma_wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        chat(client)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    with keyed("once") as client:
        assert text(chat(client, max_completion_tokens=2))
        with pytest.raises(openai.RateLimitError) as limited:
            chat(client)
    assert (limited.value.type, limited.value.code) == ("rate_limit_error", "rate_limit_exceeded")
    assert 0 < int(limited.value.response.headers["retry-after"]) <= 60


def test_what_the_content_filter_forbids(keyed):
    with keyed("ann") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, [{"role": "user", "content": "Say forbidden"}])
        assert caught.value.code == "content_filter"
        answer = chat(client, **spelled("It is forbidden here"))
    assert (text(answer), answer.choices[0].finish_reason) == ("It is ", "content_filter")


# -- clients that leave, and many at once ------------------------------------------------------------------------


def test_a_stream_that_is_closed_early_frees_the_server(client: openai.OpenAI, daemon: Daemon):
    with chat(client, n=2, stream=True, **LONG) as stream:
        next(iter(stream))
        assert daemon.metrics()["active_sessions"] > 0
    values = daemon.wait_until_quiet()
    assert values["active_sessions"] == 0


def test_a_client_that_runs_out_of_patience_frees_the_server(client: openai.OpenAI, daemon: Daemon):
    with pytest.raises(openai.APITimeoutError):
        chat(client.with_options(timeout=0.3), **LONG)
    daemon.wait_until_quiet()


def test_streams_of_an_asynchronous_client_run_side_by_side(daemon: Daemon):
    words = [" ".join([word] * 12) for word in ("alpha", "beta", "gamma", "delta")]
    order: list[int] = []

    async def one(client: openai.AsyncOpenAI, index: int) -> str:
        said = ""
        grammar = {"grammar": f'root ::= "{words[index]}"'}
        async for chunk in await complete(client, stream=True, max_tokens=100, extra_body=grammar):
            said += chunk.choices[0].text
            order.append(index)
        return said

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{daemon.http}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, index) for index in range(len(words))))

    assert asyncio.run(all_of_them()) == words
    first_end = min(len(order) - order[::-1].index(index) for index in range(len(words)))
    assert set(order[:first_end]) == {0, 1, 2, 3}
