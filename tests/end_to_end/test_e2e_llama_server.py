"""llama-server's own paths of a running daemon, with a real model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from daemon import ANSWER_S, FAR_FROM_A_TIE, Daemon

BODY = {"prompt": FAR_FROM_A_TIE, "n_predict": 8, "temperature": 0}


@pytest.fixture(scope="module")
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
        yield http


def answer(http: httpx.Client, **fields) -> dict:
    response = http.post("/completion", json=BODY | fields)
    assert response.status_code == 200, response.text
    return response.json()


def events(http: httpx.Client, **fields) -> list[dict]:
    text = http.post("/completion", json={**BODY, "stream": True, **fields}).text
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-1]]


def test_the_native_and_openais_answer_say_the_same(http: httpx.Client) -> None:
    native = answer(http, n_probs=3, return_tokens=True)
    openai = http.post("/v1/completions", json=BODY | {"logprobs": 3}).json()
    assert native["content"] == openai["choices"][0]["text"]
    assert native["tokens_evaluated"] == openai["usage"]["prompt_tokens"]
    assert native["stop_type"] == "limit"
    scores = native["completion_probabilities"]
    assert [score["id"] for score in scores] == native["tokens"]
    assert [score["token"] for score in scores] == openai["choices"][0]["logprobs"]["tokens"]
    assert {len(score["top_logprobs"]) for score in scores} == {3}


def test_a_stream_says_what_the_whole_answer_does_and_which_stop_string_ended_it(http: httpx.Client) -> None:
    whole = answer(http)
    *pieces, last = events(http)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert (last["stop"], last["tokens_predicted"]) == (True, 8)
    stop = whole["content"][2:4]
    ended = answer(http, stop=[stop, "never"])
    assert (ended["stop_type"], ended["stopping_word"]) == ("word", stop)
    assert ended["content"] == whole["content"][: whole["content"].index(stop)]


def test_a_prompt_of_texts_and_tokens_is_that_of_the_text(http: httpx.Client) -> None:
    first, rest = FAR_FROM_A_TIE[:6], FAR_FROM_A_TIE[6:]
    ids = http.post("/tokenize", json={"content": first}).json()["tokens"]
    more = http.post("/tokenize", json={"content": rest}).json()["tokens"]
    whole, by_ids = answer(http), answer(http, prompt=[*ids, rest])
    assert by_ids["content"] == answer(http, prompt=[first, *more])["content"] == whole["content"]
    assert by_ids["prompt"] == [*ids, rest]


def test_probabilities_after_sampling_are_of_what_is_left(http: httpx.Client) -> None:
    asked = {"n_probs": 10, "post_sampling_probs": True, "temperature": 1, "top_p": 1, "min_p": 0, "seed": 1}
    for chance in answer(http, top_k=3, **asked)["completion_probabilities"]:
        assert len(chance["top_probs"]) == 3
        assert sum(top["prob"] for top in chance["top_probs"]) == pytest.approx(1)
        assert chance["prob"] in [top["prob"] for top in chance["top_probs"]]
    greedy = answer(http, **{**asked, "temperature": 0})["completion_probabilities"]
    assert [(chance["prob"], len(chance["top_probs"])) for chance in greedy] == [(1.0, 1)] * 8


@pytest.mark.parametrize("banned", [[[" 6", False]], {" 6": -100}])
def test_a_text_is_banned(http: httpx.Client, banned: object) -> None:
    assert "6" in answer(http)["content"]
    assert "6" not in answer(http, logit_bias=banned)["content"]


def test_a_long_prompt_tells_its_progress(http: httpx.Client) -> None:
    parts = events(http, prompt="word " * 600, n_predict=1, return_progress=True, cache_prompt=False)
    progress = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert progress[0]["processed"] == 0
    assert progress[-1]["processed"] == progress[-1]["total"] == parts[-1]["tokens_evaluated"]


def test_a_grammar_and_a_schema(http: httpx.Client) -> None:
    assert answer(http, grammar='root ::= "yes" | "no"')["content"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"enum": [5]}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(answer(http, json_schema=schema, n_predict=40)["content"]) == {"a": 5}


def test_what_runs_is_in_slots(http: httpx.Client) -> None:
    with http.stream("POST", "/completion", json={**BODY, "n_predict": 400, "ignore_eos": True, "stream": True}) as one:
        lines = one.iter_lines()  # Kept: httpx closes the connection when it goes.
        next(lines)
        busy = [slot for slot in http.get("/slots").json() if slot["is_processing"]]
        assert [slot["params"]["n_predict"] for slot in busy] == [400]
        assert "prompt" not in busy[0]


def test_a_stream_is_read_on_after_its_client_left(http: httpx.Client) -> None:
    asked = {**BODY, "n_predict": 60, "ignore_eos": True, "stream": True}
    named = {"X-Conversation-Id": "counting"}
    place = {"conv_id": "counting"}
    with http.stream("POST", "/v1/completions", json=asked, headers=named) as stream:
        parts = stream.iter_raw()
        first = next(parts)
    rest = http.get("/v1/stream", params={**place, "from": len(first)}).content
    (told,) = http.post("/v1/streams/lookup", json={"conversation_ids": ["counting", "others"]}).json()
    assert (told["is_done"], told["total_bytes"]) == (True, len(first + rest))
    assert http.get("/v1/stream", params=place).content == first + rest
    *events, done = (first + rest).decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events if event != ":"]
    whole = http.post("/v1/completions", json=asked | {"stream": False}).json()
    assert "".join(texts) == whole["choices"][0]["text"]
    assert http.delete("/v1/stream", params=place).status_code == 204
    assert http.get("/v1/stream", params=place).status_code == 404


def test_models_without_the_tokens_refuse_gaps(http: httpx.Client) -> None:
    refused = http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert refused.status_code == 501
    assert refused.json()["error"]["type"] == "not_supported_error"
    assert http.get("/lora-adapters/").json() == []
