"""llama-server's own ``/completion``: its requests, its answers whole and streamed, and its errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
import standin
from documents import ROOT
from http_world import CONFIG, HEALTH, HttpWorld, post
from routes import facts, routes
from standin import StandInEngine

from umaserve.core.errors import ContextExceeded, Fault, ModelNotFound, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Logprobs,
    ModelInfo,
    Output,
    Placed,
    Prefilled,
    Prefilling,
    Scored,
    Started,
    Timing,
    Token,
    Usage,
)
from umaserve.core.queries import Embed, Embedded, Pair
from umaserve.core.requests import ADAPTIVE_P, SAMPLERS, Generate, Infill, MixedText, Priority, Sampling, TokenIds
from umaserve.dialects.facts import RunningAnswer
from umaserve.dialects.llama_server.absent import ABSENT
from umaserve.dialects.llama_server.adapters import lora_adapters
from umaserve.dialects.llama_server.completions import NativeBody
from umaserve.dialects.llama_server.embeddings import embedding_result, parse_embedding
from umaserve.dialects.llama_server.errors import ERRORS
from umaserve.dialects.llama_server.metrics import llama_metrics
from umaserve.dialects.llama_server.requests import NativeRequest, infill_request, native_request
from umaserve.dialects.llama_server.rerank import RerankRequest, parse_rerank, rerank_result
from umaserve.dialects.llama_server.slots import slots
from umaserve.dialects.parameters import RequestLimits, json_body
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Request

LIMITS = RequestLimits(max_prompt_bytes=100)
PLAIN = Sampling(temperature=0.8)


def asked(**values: Any) -> NativeRequest:
    return native_request(Fields({"prompt": "Hi"} | values), LIMITS, "cmpl-1", ("first", "second"))


def sampling(**values: Any) -> Sampling:
    return asked(**values).choices[0].sampling


# Requests.


def test_the_defaults_are_llama_servers() -> None:
    assert asked() == NativeRequest((Generate("cmpl-1", "Hi", None, PLAIN),), -1)


def test_every_field_is_read() -> None:
    request = asked(
        n_predict=7,
        temperature=0.5,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        repeat_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=3,
        ignore_eos=True,
        stop=["x", ""],
        n_probs=10,
        cache_prompt=False,
        stream=True,
        return_tokens=True,
        timings_per_token=True,
        response_fields=["content"],
        id_slot=3,
        priority="background",
        slo={"target_tbt_ms": 50},
    )
    chosen = Sampling(0.5, 0.5, 5, 0.1, 1.1, 0.2, 0.3, 3, ignore_eos=True)
    one = Generate(
        "cmpl-1",
        "Hi",
        7,
        chosen,
        ("x",),
        10,
        cache_prompt=False,
        priority=Priority.BACKGROUND,
        target_tbt_s=0.05,
    )
    assert request == NativeRequest(
        (one,), 7, stream=True, return_tokens=True, timings_per_token=True, response_fields=("content",)
    )


@pytest.mark.parametrize(
    ("values", "n_predict", "max_tokens"),
    [
        ({"n_predict": -1}, -1, None),
        ({"n_predict": 0}, 0, 1),
        ({"max_tokens": 5}, 5, 5),
        ({"max_tokens": 5, "n_predict": 6}, 6, 6),
    ],
)
def test_the_length_has_three_names(values: dict[str, int], n_predict: int, max_tokens: int | None) -> None:
    request = asked(**values)
    assert (request.n_predict, request.choices[0].max_tokens) == (n_predict, max_tokens)


def test_the_length_is_capped_as_the_operator_says() -> None:
    capped = native_request(Fields({"prompt": "Hi"}), replace(LIMITS, max_tokens=9), "id")
    assert capped.choices[0].max_tokens == 9


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([1, 2], [TokenIds((1, 2))]),
        ([1, "a", "b", 2], [MixedText((TokenIds((1,)), "a", "b", TokenIds((2,))))]),
        (["a", [1], ["b", 2]], ["a", TokenIds((1,)), MixedText(("b", TokenIds((2,))))]),
        ({"prompt_string": "a", "multimodal_data": []}, ["a"]),
        ([[1], {"prompt_string": "a"}], [TokenIds((1,)), "a"]),
    ],
)
def test_prompts_of_text_tokens_and_both(prompt: Any, prompts: list[Any]) -> None:
    assert [choice.prompt for choice in asked(prompt=prompt).choices] == prompts


def test_several_answers_to_a_prompt_have_seeds_and_ids_of_their_own() -> None:
    choices = asked(prompt=["a", "b"], n_cmpl=2, seed=5).choices
    assert [(c.id, c.prompt, c.sampling.seed) for c in choices] == [
        ("cmpl-1-0", "a", 5),
        ("cmpl-1-1", "a", 6),
        ("cmpl-1-2", "b", 5),
        ("cmpl-1-3", "b", 6),
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"seed": -1},
        {"seed": 2**32 - 1},
        {"grammar": ""},
        {"stop": ""},
        {"stop": [""]},
        {"logit_bias": []},
        {"mirostat": 0, "typical_p": 1.0, "xtc_probability": 0, "dry_multiplier": 0.0},
        {"samplers": []},
        {"samplers": list(SAMPLERS)},
        {"samplers": "edskypmxt"},
        {"t_max_predict_ms": 500, "n_indent": 2, "n_keep": -1},
    ],
)
def test_what_llama_servers_clients_send_for_nothing_special(values: dict[str, Any]) -> None:
    assert sampling(**values) == PLAIN
    assert asked(**values).choices[0].stop == ()


def test_an_empty_schema_is_any_object() -> None:
    grammar = sampling(json_schema={}).grammar
    assert grammar is not None
    assert grammar.text == '{"type":"object"}'


def test_only_the_samplers_that_are_named_are_used() -> None:
    assert sampling(samplers=["top_k", "infill"], top_k=7).samplers == ("top_k",)
    assert sampling().samplers == SAMPLERS


@pytest.mark.parametrize(
    "samplers",
    [["temperature", "top_k", "min_p"], "tkm", ["Temp", "top-k", "minp"], ["temperature", "quark", "topk", "min-p"]],
)
def test_samplers_are_used_in_the_order_of_the_request(samplers: Any) -> None:
    assert sampling(samplers=samplers).samplers == ("temperature", "top_k", "min_p")


def test_all_samplers_have_a_letter_and_other_names() -> None:
    assert sampling(samplers="edskypmxta").samplers == (*SAMPLERS, ADAPTIVE_P)
    names = ["penalties", "dry", "top-n-sigma", "topk", "typ", "nucleus", "minp", "xtc", "temp", "adaptive-p"]
    assert sampling(samplers=names).samplers == (*SAMPLERS, ADAPTIVE_P)


def test_a_base_of_dry_below_one_is_the_default() -> None:
    assert sampling(dry_base=0.5).dry_base == 1.75
    assert sampling(dry_base=2).dry_base == 2


def test_an_empty_prompt_is_one() -> None:
    assert [choice.prompt for choice in asked(prompt=["", "a"]).choices] == ["", "a"]


@pytest.mark.parametrize("bias", [[[5, -1.5], [6, False]], {"5": -1.5, "6": False}])
def test_biases_as_pairs_or_an_object(bias: Any) -> None:
    assert sampling(logit_bias=bias).logit_bias == ((5, -1.5), (6, -100.0))


@pytest.mark.parametrize("bias", [[[5, -1.5], ["the", 2], ["", False]], {"5": -1.5, "the": 2, "": False}])
def test_biases_of_texts(bias: Any) -> None:
    chosen = sampling(logit_bias=bias)
    assert chosen.logit_bias == ((5, -1.5),)
    assert chosen.text_bias == (("the", 2.0), ("", -100.0))


@pytest.mark.parametrize(
    ("lora", "adapters"),
    [
        (None, None),
        ([], ()),
        ([{"id": 1, "scale": 0.5}, {"id": 0}], (("second", 0.5), ("first", 1.0))),
        ({"first": 0.5}, (("first", 0.5),)),
    ],
)
def test_adapters_by_number_or_name(lora: Any, adapters: Any) -> None:
    assert asked(lora=lora).choices[0].lora == adapters


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": None}, "prompt: expected a string or an array of token ids, got null"),
        ({"prompt": []}, "prompt: expected 1 to 16 texts, got 0"),
        ({"prompt": [1, {}]}, "prompt[1]: expected a whole number from 0 to 2147483647, got an object"),
        ({"prompt": ["x" * 60, 1, "x" * 40]}, "prompt: expected at most 100 bytes, got 101"),
        (
            {"prompt": {"prompt_string": "a", "multimodal_data": ["QUJD"]}},
            "prompt.multimodal_data: expected to be absent: send images and sounds to /v1/chat/completions",
        ),
        ({"n_predict": -2}, "n_predict: expected a whole number from -1, got -2"),
        ({"n_probs": 101}, "n_probs: expected a whole number from 0 to 100, got 101"),
        (
            {"seed": 2**63},
            f"seed: expected a whole number from {1 - 2**63} to {2**63 - 1}, got {2**63}",
        ),
        ({"tfs_z": 0.5}, "tfs_z: expected to be absent: llama.cpp has this sampler no more; use min_p"),
        ({"mirostat": 3}, "mirostat: expected a whole number from 0 to 2, got 3"),
        ({"typical_p": 1.5}, "typical_p: expected a number from 0 to 1, got 1.5"),
        ({"xtc_threshold": "a"}, "xtc_threshold: expected a number from 0 to 1, got a string"),
        (
            {"dry_sequence_breakers": ["\n", "x" * 41]},
            "dry_sequence_breakers[1]: expected a non-empty string of at most 40 bytes, got 41 bytes",
        ),
        ({"dry_multiplier": -1}, "dry_multiplier: expected a number from 0 to 100, got -1"),
        ({"top_n_sigma": -2}, "top_n_sigma: expected a number from -1 to 100, got -2"),
        ({"adaptive_decay": 1}, "adaptive_decay: expected a number from 0 to 0.99, got 1"),
        ({"min_tokens": -1}, "min_tokens: expected a whole number from 0 to 2147483647, got -1"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]: expected a whole number from 0, got -1"),
        ({"stop_token_ids": 5}, "stop_token_ids: expected an array of 0 to 1024 token ids, got a whole number"),
        ({"bad_words": [5]}, "bad_words[0]: expected a non-empty string of at most 256 bytes, got a whole number"),
        ({"n_predict": 1e308}, f"n_predict: expected a whole number from -1 to {2**63 - 1}, got 1e+308"),
        ({"samplers": ["top_k", "topk"]}, "samplers: expected each sampler once, got one repeated"),
        ({"samplers": [1]}, "samplers[0]: expected a non-empty string of at most 32 bytes, got a whole number"),
        ({"logit_bias": [[1]]}, "logit_bias: expected pairs of a token id or a text and its bias"),
        ({"logit_bias": [[True, 1]]}, "logit_bias: expected pairs of a token id or a text and its bias"),
        ({"logit_bias": {"a": "b"}}, "logit_bias: expected a number from -100 to 100, got a string"),
        (
            {"logit_bias": [["a" * 257, 1]]},
            "logit_bias: expected a string of at most 256 bytes, got 257 bytes",
        ),
        ({"logit_bias": {"5": 101}}, "logit_bias.5: expected a number from -100 to 100, got 101"),
        ({"logit_bias": [["a", 1]] * 1025}, "logit_bias: expected an array of 0 to 1024 pairs, got 1025"),
        ({"logit_bias": 5}, "logit_bias: expected an object or an array of pairs, got a whole number"),
        ({"lora": [{"id": 2}]}, "lora[0].id: expected a number below 2, got 2"),
        ({"lora": [5]}, "lora[0]: expected an object, got a whole number"),
        ({"n": 8, "prompt": ["a"] * 16}, "n: expected at most 2 for 16 prompts, got 8"),
        ({"post_sampling_probs": 1}, "post_sampling_probs: expected true or false, got a whole number"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**values)
    assert caught.value.message == said


GAP = {"input_prefix": "a(", "input_suffix": ")"}


def gap(**values: Any) -> NativeRequest:
    return infill_request(Fields(GAP | values), LIMITS, "cmpl-1")


def test_a_gap_to_fill() -> None:
    extra = [{"text": "x", "filename": "y"}, {"text": ""}]
    asked = gap(prompt="b", input_extra=extra, n_predict=5, samplers=["top_k", "top_p", "infill"])
    (request,) = asked.choices
    assert request.prompt == Infill("a(", ")", "b", (("y", "x"), ("", "")))
    assert (request.max_tokens, request.sampling) == (5, replace(PLAIN, samplers=("top_k", "top_p")))
    assert gap() == NativeRequest((Generate("cmpl-1", Infill("a(", ")"), None, PLAIN),), -1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input_prefix": None}, "input_prefix: expected a string, got null"),
        ({"input_suffix": 5}, "input_suffix: expected a string, got a whole number"),
        ({"prompt": [1]}, "prompt: expected a string, got an array"),
        ({"input_extra": {}}, "input_extra: expected an array of 0 to 1024 objects, got an object"),
        ({"input_extra": [{"filename": "ok"}]}, "input_extra[0].text: expected a string, got null"),
        (
            {"input_extra": [{"filename": 123, "text": "a"}]},
            "input_extra[0].filename: expected a string of at most 256 bytes, got a whole number",
        ),
        ({"input_extra": [{"text": "x" * 98}]}, "input_prefix: expected at most 100 bytes, got 101"),
    ],
)
def test_a_gap_that_is_described_wrongly(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        gap(**values)
    assert caught.value.message == said


# Answers.

END = Finished(FinishReason.LENGTH, Usage(5, 2, 3), Timing(0.5, 1.0, 1.5))
SCORES = Logprobs(Scored(7, b"\xc3", -0.5), (Scored(7, b"\xc3", -0.5), Scored(8, b"b", float("-inf"))))
OUTPUTS = (Started(), Placed(), Prefilled(5, 3, 0.5), Token("a\n", 6, elapsed_s=1.0), Token("b", 7, elapsed_s=1.5))


def body() -> NativeBody:
    return NativeBody(replace(facts(), model=lambda _name: StandInEngine().info))


def events(values: dict[str, Any], *outputs: Output) -> list[Any]:
    one = body()
    one.receive(orjson.dumps({"prompt": "Hi", "stream": True} | values))
    return [orjson.loads(event) for output in outputs for event in one.send(0, output)]


def whole(values: dict[str, Any], *outputs: Output) -> Any:
    one = body()
    for index, _ in enumerate(one.receive(orjson.dumps({"prompt": "Hi"} | values))):
        assert not one.done
        assert [one.send(index, output) for output in outputs] == [[]] * len(outputs)
    assert one.done
    return orjson.loads(one.result())


def test_a_whole_answer() -> None:
    answer = whole({"return_tokens": True, "n_predict": 2}, *OUTPUTS, END)
    settings, timings = answer.pop("generation_settings"), answer.pop("timings")
    assert answer == {
        "index": 0,
        "content": "a\nb",
        "tokens": [6, 7],
        "id_slot": -1,
        "stop": True,
        "model": "stand-in",
        "tokens_predicted": 2,
        "tokens_evaluated": 5,
        "prompt": "Hi",
        "has_new_line": True,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": 6,
    }
    assert (settings["n_predict"], settings["temperature"], settings["seed"]) == (2, 0.8, 2**32 - 1)
    assert (timings["cache_n"], timings["prompt_n"], timings["prompt_ms"]) == (3, 2, 500.0)
    assert (timings["predicted_n"], timings["predicted_ms"], timings["predicted_per_second"]) == (2, 500.0, 2.0)
    assert whole({}, *OUTPUTS, END)["tokens"] == []


def test_an_answer_that_goes_on_behind_its_end_says_so_in_biases() -> None:
    biased = {"logit_bias": [[5, 1.5]], "n_predict": 2}
    for wanted, told in (({}, []), ({"ignore_eos": True}, [{"token": standin.END, "bias": None}])):
        settings = whole({**biased, **wanted}, *OUTPUTS, END)["generation_settings"]
        assert settings["logit_bias"] == [{"token": 5, "bias": 1.5}, *told]


@pytest.mark.parametrize(
    ("end", "kind", "word"),
    [
        (replace(END, reason=FinishReason.STOP), "eos", ""),
        (replace(END, reason=FinishReason.STOP, stop_string="x"), "word", "x"),
        (replace(END, reason=FinishReason.CONTENT_FILTER), "none", ""),
    ],
)
def test_why_an_answer_ended(end: Finished, kind: str, word: str) -> None:
    answer = whole({}, *OUTPUTS, end)
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == (kind, word, False)


@pytest.mark.parametrize(("n_predict", "truncated"), [(2, False), (3, True), (-1, True)])
def test_an_answer_that_the_context_ended_is_truncated(n_predict: int, truncated: bool) -> None:
    assert whole({"n_predict": n_predict}, *OUTPUTS, END)["truncated"] is truncated


def test_several_answers_are_an_array() -> None:
    answers = whole({"prompt": ["a", [1], [1, "b"]]}, *OUTPUTS, END)
    assert [(answer["index"], answer["prompt"]) for answer in answers] == [(0, "a"), (1, [1]), (2, [1, "b"])]


def test_only_the_fields_asked_for() -> None:
    paths = ["content", "timings/predicted_n", "generation_settings/nothing", "content/x", "stop"]
    assert whole({"response_fields": paths}, *OUTPUTS, END) == {
        "content": "a\nb",
        "timings/predicted_n": 2,
        "stop": True,
    }
    assert events({"response_fields": ["stop"]}, *OUTPUTS, END)[-1] == {"stop": True}


def test_a_stream_has_an_event_for_each_token_and_one_for_the_end() -> None:
    piece = {"index": 0, "stop": False, "id_slot": -1, "tokens_evaluated": 5}
    *pieces, last = events({}, *OUTPUTS, Token("c", 7, elapsed_s=1.5, sampled=False), END)
    assert pieces == [
        {**piece, "content": "a\n", "tokens": [6], "tokens_predicted": 1},
        {**piece, "content": "b", "tokens": [7], "tokens_predicted": 2},
        {**piece, "content": "c", "tokens": [], "tokens_predicted": 2},
    ]
    assert (last["stop"], last["content"], last["tokens"], last["tokens_predicted"]) == (True, "", [], 2)
    assert last["generation_settings"]["stream"] is True
    assert body().end is None


def test_timings_with_each_token() -> None:
    first, second, _last = events({"timings_per_token": True}, *OUTPUTS, END)
    assert (first["timings"]["prompt_ms"], first["timings"]["predicted_n"]) == (500.0, 1)
    assert (second["timings"]["predicted_ms"], second["timings"]["predicted_n"]) == (500.0, 2)


def test_the_prompts_progress_is_told_in_streams_that_ask_for_it() -> None:
    first, *_ = events({"return_progress": True}, Started(), Placed(), Prefilling(9, 2, 5, 0.25), *OUTPUTS[2:], END)
    assert first["prompt_progress"] == {"total": 9, "cache": 2, "processed": 5, "time_ms": 250}
    assert (first["stop"], first["content"], first["tokens"]) == (False, "", [])
    assert "timings" not in first
    timed = {"return_progress": True, "timings_per_token": True}
    timings = events(timed, Started(), Placed(), Prefilling(9, 2, 5, 0.25))[0]["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"]) == (2, 3, 250.0, 0)
    asking = {"return_progress": True}
    assert [asked(**asking, stream=stream).choices[0].wants_progress for stream in (True, False)] == [True, False]


def test_probabilities_of_each_token() -> None:
    scored = {"id": 7, "token": "", "bytes": [0xC3], "logprob": -0.5}
    expected = [
        {**scored, "top_logprobs": [scored, {"id": 8, "token": "b", "bytes": [98], "logprob": -9999.0}]},
    ]
    token = Token("", 7, SCORES)
    assert whole({"n_probs": 2}, token, END)["completion_probabilities"] == expected
    first, last = events({"n_probs": 2}, token, END)
    assert first["completion_probabilities"] == expected
    assert "completion_probabilities" not in last


def test_probabilities_after_sampling() -> None:
    values = {"n_probs": 2, "post_sampling_probs": True}
    scored = {"id": 7, "token": "", "bytes": [0xC3], "prob": pytest.approx(0.607, abs=1e-3)}
    expected = [{**scored, "top_probs": [scored, {"id": 8, "token": "b", "bytes": [98], "prob": 0.0}]}]
    token = Token("", 7, SCORES)
    answer = whole(values, token, END)
    assert answer["completion_probabilities"] == expected
    assert answer["generation_settings"]["post_sampling_probs"] is True
    assert events(values, token, END)[0]["completion_probabilities"] == expected


# Errors.


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (Fault.BAD_REQUEST, 400, "invalid_request_error"),
        (Fault.NOT_SUPPORTED, 501, "not_supported_error"),
        (Fault.CONTEXT_EXCEEDED, 400, "exceed_context_size_error"),
        (Fault.UNAUTHORIZED, 401, "authentication_error"),
        (Fault.QUEUE_FULL, 503, "unavailable_error"),
        (Fault.DECODE_FAILED, 500, "server_error"),
    ],
)
def test_errors_have_llama_servers_form(fault: Fault, status: int, kind: str) -> None:
    error = RequestError(fault, "a", "b")
    reply = ERRORS.reply(error)
    expected = {"error": {"code": status, "message": "a: b", "type": kind}}
    assert (reply.status, orjson.loads(reply.body)) == (status, expected)
    one = body()
    one.receive(b'{"prompt":"Hi","stream":true}')
    assert [orjson.loads(event) for event in one.fail(0, error)] == [expected]


DOCUMENTS = ("a", "", "c")


def rerank(**values: Any) -> RerankRequest:
    return parse_rerank(json_body(orjson.dumps({"query": "q", "documents": DOCUMENTS} | values)), LIMITS)


def test_documents_are_ranked_by_their_scores() -> None:
    pairs = tuple(Pair("q", document) for document in DOCUMENTS)
    asked = rerank(top_n=2)
    assert asked == RerankRequest(Embed(pairs, ranks=True), "", 2, as_tei=False, return_text=False)
    scores = Embedded([[-1.0], [2.5], [-1.0]], 9)
    assert orjson.loads(rerank_result(scores, asked, "m")) == {
        "model": "m",
        "object": "list",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
        "results": [{"index": 1, "relevance_score": 2.5}, {"index": 0, "relevance_score": -1.0}],
    }
    with_text = rerank(documents=["a", {"text": ""}, "c"], top_n=1, return_documents=True, return_text=False)
    assert with_text.query == asked.query
    assert orjson.loads(rerank_result(scores, with_text, "m"))["results"] == [
        {"index": 1, "relevance_score": 2.5, "document": {"text": ""}}
    ]
    tei = rerank(documents=None, texts=DOCUMENTS, return_text=True)
    assert orjson.loads(rerank_result(scores, tei, "m")) == [
        {"index": 1, "score": 2.5, "text": ""},
        {"index": 0, "score": -1.0, "text": "a"},
        {"index": 2, "score": -1.0, "text": "c"},
    ]
    assert orjson.loads(rerank_result(scores, rerank(documents=None, texts=["a"]), "m"))[0] == {
        "index": 1,
        "score": 2.5,
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"query": None}, "query: expected a non-empty string, got null"),
        ({"documents": None}, "documents: expected an array of 1 to 256 strings, got null"),
        ({"documents": []}, "documents: expected an array of 1 to 256 strings, got 0"),
        ({"documents": ["a", 5]}, "documents[1]: expected a string, got a whole number"),
        ({"documents": None, "texts": [None]}, "texts[0]: expected a string, got null"),
        ({"query": "q" * 40}, "documents: expected at most 100 bytes, got 122"),
        ({"texts": ["a"]}, "texts: expected to be absent where documents are given"),
        ({"model": 1}, "model: expected a string of at most 256 bytes, got a whole number"),
        ({"top_n": 0}, "top_n: expected a whole number from 1, got 0"),
        ({"return_documents": 1}, "return_documents: expected true or false, got a whole number"),
        ({"documents": [{"content": "a"}]}, "documents[0].text: expected a string, got null"),
        ({"return_text": 1}, "return_text: expected true or false, got a whole number"),
    ],
)
def test_documents_that_are_described_wrongly(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        rerank(**values)
    assert caught.value.message == said


def test_a_prompt_beyond_the_context_is_told_in_tokens() -> None:
    error = orjson.loads(ERRORS.reply(ContextExceeded(20, 10)).body)["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 20, 10)


# What runs, adapters, embeddings, metrics.


def running(prompt: str | None = None) -> RunningAnswer:
    request = Generate("r", "secret", 9, replace(PLAIN, seed=5), ("stop here",))
    return RunningAnswer(4, INFO.name, request, 7, 3, 2, 1, prompt)


INFO = replace(StandInEngine().info, parallel=2)


def test_slots_tell_what_runs_without_the_clients_texts() -> None:
    first, second = orjson.loads(slots(INFO, [running()], wants_idle=True))
    params = first.pop("params")
    assert first == {
        "id": 0,
        "n_ctx": StandInEngine().info.context_tokens,
        "speculative": False,
        "is_processing": True,
        "id_task": 4,
        "n_prompt_tokens": 7,
        "n_prompt_tokens_processed": 3,
        "n_prompt_tokens_cache": 2,
        "next_token": [{"has_next_token": True, "n_remain": 8, "n_decoded": 1}],
    }
    assert (params["seed"], params["n_predict"], params["temperature"]) == (5, 9, 0.8)
    assert (second["id"], second["is_processing"], len(second)) == (1, False, 4)
    told = orjson.dumps([first, params]).decode()
    assert "secret" not in told
    assert "stop here" not in told


def test_slots_where_none_is_idle() -> None:
    both = [running(), running("mine")]
    assert [slot.get("prompt") for slot in orjson.loads(slots(INFO, both, wants_idle=False))] == [None, "mine"]
    with pytest.raises(RequestError, match=r"^slots: no slot is idle") as caught:
        slots(INFO, both, wants_idle=True)
    assert ERRORS.reply(caught.value).status == 503


@pytest.mark.parametrize("shown", [False, True])
def test_a_clients_prompt_is_in_slots_only_if_the_operator_says_so(shown: bool) -> None:
    world = HttpWorld(config=replace(CONFIG, slots_prompts=shown))
    world.send(post("/completion", {"prompt": ["our ", 5, " secret"], "stream": True}))
    (session,) = world.sessions.running()
    session.slot = 0
    world.send(HEALTH.replace(b"/health", b"/slots"))
    (answer,) = world.services.facts().running()
    assert answer.prompt == ("our 5 secret" if shown else None)
    world.close()


def page(path: str, query: dict[str, str]) -> Any:
    """Of a daemon with the models "stand-in", which answers once, "other", "unread" and no more."""
    other = replace(INFO, name="other", adapters=("a",), parallel=3, bos="<o>")
    infos = {"": INFO, INFO.name: INFO, "other": other, "unread": None}

    def model(name: str) -> ModelInfo | None:
        if name not in infos:
            raise ModelNotFound(name)
        return infos[name]

    known = replace(facts(), model=model, running=lambda: [running()])
    status, _type, body = routes()[path].endpoint.make(known, Request("GET", path, query, (), b""))
    assert status == 200
    return orjson.loads(body)


def test_pages_are_about_the_model_of_the_query() -> None:
    for query in ({}, {"model": ""}, {"model": INFO.name}):
        assert page("/props", query)["model_alias"] == INFO.name
        assert page("/lora-adapters", query) == []
        assert [slot["is_processing"] for slot in page("/slots", query)] == [True, False]
    other = {"model": "other"}
    props = page("/props", other)
    assert (props["model_alias"], props["total_slots"], props["bos_token"]) == ("other", 3, "<o>")
    assert [one["name"] for one in page("/lora-adapters", other)] == ["a"]
    assert [slot["is_processing"] for slot in page("/slots", {**other, "fail_on_no_slot": "1"})] == [False] * 3


@pytest.mark.parametrize("path", ["/props", "/slots", "/lora-adapters"])
def test_pages_about_models_that_are_not_there_or_not_known_yet(path: str) -> None:
    with pytest.raises(ModelNotFound):
        page(path, {"model": "gpt-9"})
    with pytest.raises(RequestError, match="a request that names it loads it") as caught:
        page(path, {"model": "unread"})
    assert ERRORS.reply(caught.value).status == 503
    with pytest.raises(RequestError, match="at most 256 bytes"):
        page(path, {"model": "x" * 257})


def test_adapters_have_numbers_and_no_paths() -> None:
    info = replace(StandInEngine().info, adapters=("b", "a"))
    listed = [(item["id"], item["name"], item["path"]) for item in orjson.loads(lora_adapters(info))]
    assert listed == [(0, "b", ""), (1, "a", "")]


@pytest.mark.parametrize("key", ["content", "input"])
def test_embeddings_in_the_native_form(key: str) -> None:
    assert parse_embedding(Fields({key: ["a", [1]]}), LIMITS) == (Embed(("a", TokenIds((1,)))), 2)
    made = embedding_result(Embedded([[0.5, 0.5], [1.0, 0.0]], 3), 2)
    assert orjson.loads(made) == [{"index": 0, "embedding": [[0.5, 0.5]]}, {"index": 1, "embedding": [[1.0, 0.0]]}]


@pytest.mark.parametrize(
    ("norm", "vector"), [(-1, [3.0, -1.0, 0.0]), (0, [32760.0, -10920.0, 0.0]), (1, [0.75, -0.25, 0.0])]
)
def test_vectors_are_normalized_as_asked(norm: int, vector: list[float]) -> None:
    asked = parse_embedding(Fields({"content": "a", "embd_normalize": norm}), LIMITS)
    assert asked == (Embed(("a",), raw=True), norm)
    nothing = [0.0, 0.0, 0.0]
    made = orjson.loads(embedding_result(Embedded([[3.0, -1.0, 0.0], nothing], 3), norm))
    assert [item["embedding"] for item in made] == [[vector], [nothing]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "content: expected a string or an array of token ids, got null"),
        ({"input": 5}, "input: expected a string or an array of token ids, got a whole number"),
        ({"content": "a", "embd_normalize": 3}, "embd_normalize: expected a whole number from -1 to 2, got 3"),
        ({"content": ["x" * 60, "x" * 60]}, "content: expected at most 100 bytes, got 120"),
    ],
)
def test_bad_embedding_requests(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_embedding(Fields(values), LIMITS)
    assert caught.value.message == said


def test_metrics_have_llama_servers_names() -> None:
    values = {"prompt_tokens_total": 30, "prompt_seconds_total": 1.5, "active_sessions": 2, "name": "x"}
    values |= {"batch_sessions_total": 30, "batch_calls_total": 12, "longest_sequence_tokens": 99}
    told = llama_metrics(values).decode().splitlines()
    assert "# TYPE llamacpp:prompt_tokens_total counter" in told
    assert "llamacpp:prompt_tokens_total 30" in told
    assert "llamacpp:prompt_tokens_seconds 20.0" in told
    assert "llamacpp:requests_processing 2" in told
    assert "llamacpp:predicted_tokens_seconds 0.0" in told
    assert "# TYPE llamacpp:n_busy_slots_per_decode gauge" in told
    assert "llamacpp:n_busy_slots_per_decode 2.5" in told
    assert "# TYPE llamacpp:n_tokens_max counter" in told
    assert "llamacpp:n_tokens_max 99" in told


@pytest.mark.parametrize("wanted", [False, True])
def test_the_operator_chooses_llama_servers_metrics(wanted: bool) -> None:
    world = HttpWorld(config=replace(CONFIG, llama_metrics=wanted))
    world.send(HEALTH.replace(b"/health", b"/metrics"))
    received = world.received()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (b"llamacpp:requests_deferred" in received) is wanted
    assert (b"\r\nProcess-Start-Time-Unix: " in received) is wanted
    world.close()


@pytest.fixture
def world():
    world = HttpWorld()
    yield world
    world.close()


@pytest.mark.parametrize("path", ["/completion", "/completions", "/completion/"])
def test_the_paths_answer_in_the_native_form(world: HttpWorld, path: str) -> None:
    world.send(post(path, {"n_predict": 2}))
    head, _, reply = world.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert orjson.loads(reply)["error"]["type"] == "invalid_request_error"


def test_a_client_that_leaves_cancels_what_it_asked_for(world: HttpWorld) -> None:
    world.send(post("/completion", {"prompt": ["a", "b"], "stream": True}))
    running = world.sessions.running
    assert [session.caller.dialect for session in running()] == ["llama-server"] * 2
    world.client.close()
    world.turn()
    assert not list(running())


# What operators change.


def asked_of_operators(
    path: str, body: Any = None, peer: str = "ip:127.0.0.1", **info: Any
) -> tuple[HttpWorld, int, Any]:
    world = HttpWorld(peer)
    served = replace(world.engine.info, **info)
    world.services.models.info = lambda _name, _caller: served  # type: ignore[method-assign]
    world.send(post(path, body))
    received = world.received()
    world.close()
    return world, int(received.split()[1]), orjson.loads(received.partition(b"\r\n\r\n")[2])


def test_what_is_cached_is_erased() -> None:
    world, status, reply = asked_of_operators("/slots/0?action=erase")
    assert (status, reply) == (200, {"id_slot": 0, "n_erased": 7})
    assert world.services.models.moved == [("erase", "stand-in")]


@pytest.mark.parametrize(
    ("action", "moved", "tokens", "n_bytes"),
    [("save", ("save 0", "a.bin"), "n_saved", "n_written"), ("restore", ("restore", "a.bin"), "n_restored", "n_read")],
)
def test_what_a_slot_held_is_saved_and_restored(action: str, moved: tuple[str, str], tokens: str, n_bytes: str) -> None:
    world, status, reply = asked_of_operators(f"/slots/0?action={action}", {"filename": "a.bin"})
    took = {f"{action}_ms": 250.0}
    assert (status, reply) == (200, {"id_slot": 0, "filename": "a.bin", tokens: 300, n_bytes: 5000, "timings": took})
    assert world.services.models.moved == [moved]


def test_a_slot_that_cannot_be_restored() -> None:
    _, status, reply = asked_of_operators("/slots/0?action=restore", {"filename": "none"})
    assert (status, reply["error"]["message"]) == (404, 'filename: there is no "none"')


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/slots/0?action=save", 400, "filename: expected "),
        ("/slots/0?action=restore", 400, "filename: expected "),
        ("/slots/0?action=burn", 400, 'action: expected "erase" or "save" or "restore", got "burn"'),
        ("/slots/0", 400, 'action: expected "erase" or "save" or "restore", got ""'),
        ("/slots/99?action=erase", 400, "id: expected a number from 0 to "),
        ("/slots/-1?action=erase", 400, "id: expected a number from 0 to "),
        ("/slots/..%2Fx?action=save", 400, "id: expected a number from 0 to "),
        ("/props", 501, "props: no property can be changed: say with each request what it needs"),
    ],
)
def test_what_operators_cannot_do(path: str, status: int, said: str) -> None:
    world, found, reply = asked_of_operators(path)
    assert (found, reply["error"]["message"][: len(said)]) == (status, said)
    assert world.services.models.moved == []


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ("DELETE /v1/models", 405, "method: expected GET or HEAD, got DELETE"),
        ("GET /tools", 404, "path: there is no /tools: no tool runs here"),
        ("POST /cors-proxy?url=http://a/", 404, "path: there is no /cors-proxy: requests are not passed on"),
        ("POST /v1/systemone", 404, "path: there is no /v1/systemone: decision models are not served"),
        ("PUT /tools", 404, "path: there is no /tools: see /openapi.json"),
    ],
)
def test_what_is_not_served_says_what_to_do_instead(world: HttpWorld, request_: str, status: int, said: str) -> None:
    world.send(f"{request_} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    head, _, body = world.received().removesuffix(b"<closed>").partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert orjson.loads(body)["error"]["message"].startswith(said)


def test_what_is_not_served_is_in_the_guide_and_no_route() -> None:
    served = {f"{route.method} {path}" for path, of in routes().items() for route in of.each}
    assert served.isdisjoint(ABSENT)
    guide = (ROOT / "docs/guide/apis.md").read_text()
    for request in ABSENT:
        assert f"`{request}`" in guide


@pytest.mark.parametrize("path", ["/slots/0?action=erase", "/lora-adapters", "/props"])
def test_others_change_nothing(path: str) -> None:
    world, status, _reply = asked_of_operators(path, [], peer="ip:10.0.0.7")
    assert status == 403
    assert world.services.models.moved == []
    assert world.services.models.scales is None


def test_scales_of_adapters_are_set() -> None:
    wanted = [{"id": 1, "scale": 0.5}, {"id": 0, "scale": 0}]
    world, status, reply = asked_of_operators("/lora-adapters", wanted, adapters=("a", "b", "c"))
    assert (status, reply) == (200, {"success": True})
    assert world.services.models.scales == (("b", 0.5),)
    listed = orjson.loads(lora_adapters(replace(INFO, adapters=("a", "b")), world.services.models.scales))
    assert [(one["id"], one["scale"]) for one in listed] == [(0, 0.0), (1, 0.5)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "body: expected an array of adapters, got an object"),
        ([{"id": 3}], "body[0].id: expected a number below 2, got 3"),
        ([{"id": 0, "scale": 11}], "body[0].scale: expected a number from -10 to 10, got 11"),
    ],
)
def test_scales_that_are_refused(body: Any, said: str) -> None:
    world, status, reply = asked_of_operators("/lora-adapters", body, adapters=("a", "b"))
    assert (status, reply["error"]["message"]) == (400, said)
    assert world.services.models.scales is None
