"""The contract websocket-generate on the real daemon: each message, option, action and error, and resuming."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon import ANSWER_S, Daemon
from generate_wire import COUNTING, Conversation, text_of

from umaserve.access.keys import KeyFile

ON = {"ignore_eos": True}
IDS = {"include_token_ids": True}


def ask(daemon: Daemon, prompt: str | list = COUNTING, options: dict | None = None, **parameters) -> list[dict]:
    """All messages of one generation."""
    with Conversation(daemon) as client:
        client.config(prompt, options, **parameters)
        return client.until("completion", "error")


def generated(messages: list[dict]) -> list[dict]:
    """The messages that stand for a token."""
    return [message for message in messages if message["type"] == "token" and not message["finished"]]


def error(messages: list[dict] | dict) -> dict:
    """The error that is the last message."""
    last = messages if isinstance(messages, dict) else messages[-1]
    assert last["type"] == "error", last
    return last


def post(daemon: Daemon, path: str, **body) -> Any:
    return httpx.post(f"http://{daemon.http}{path}", json=body, timeout=ANSWER_S).raise_for_status().json()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Conversation]:
    with Conversation(daemon) as conversation:
        yield conversation


@pytest.fixture(scope="module")
def counted(daemon: Daemon) -> str:
    """What 80 tokens after ``COUNTING`` are."""
    return text_of(ask(daemon, max_tokens=80, **ON))


# -- the flow ----------------------------------------------------------------------------------------------------


def test_the_messages_of_a_generation_and_its_true_token_counts(daemon: Daemon):
    init, *tokens, last, completion = ask(daemon, "Once upon a time", max_tokens=6, cache_prompt=False)
    info = init.pop("model_info")
    assert sorted(init) == ["model", "request_id", "type"]
    assert "SmolLM2" in init["model"]
    assert init["request_id"].startswith("gen_")
    assert (info["version"], info["quantization"], info["max_tokens"]) == ("llama", "Q4_1", 8192)
    so_far = ""
    for position, token in enumerate(tokens):
        so_far += token["token"]
        assert token == {
            "type": "token",
            "token": token["token"],
            "position": position,
            "generated_text": so_far,
            "finish_reason": None,
            "finished": False,
        }
    assert (last["token"], last["finish_reason"], last["finished"]) == ("", "length", True)
    prompt_tokens = len(post(daemon, "/tokenize", content="Once upon a time", add_special=True)["tokens"])
    assert completion == {
        "type": "completion",
        "request_id": init["request_id"],
        "generated_text": so_far,
        "finish_reason": "length",
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 6,
            "total_tokens": prompt_tokens + 6,
            "prefix_reused_tokens": 0,
        },
    }
    assert len(tokens) == 6


FIRST = {
    "control": {"type": "control", "action": "stop"},
    "feedback": {"type": "feedback", "rating": 1},
    "an unknown type": {"type": "generate", "prompt": "Hi"},
    "no type": {"prompt": "Hi"},
    "a type that is no string": {"type": 1},
    "an array": [{"type": "config"}],
    "no JSON": "config",
    "an empty message": "",
}


@pytest.mark.parametrize("first", FIRST)
def test_anything_before_a_config_is_an_invalid_request_and_ends_nothing(client: Conversation, first: str):
    message = FIRST[first]
    client.send_raw(message if isinstance(message, str) else json.dumps(message))
    failure = error(client.receive())
    assert failure["error"] == "invalid_request"
    assert failure["recoverable"]
    client.config(max_tokens=2)
    assert client.until("completion", "error")[-1]["type"] == "completion"


def test_a_connection_serves_one_generation_after_the_other(client: Conversation):
    ids = set()
    for n in (3, 1, 2):
        client.config(max_tokens=n, **ON)
        messages = client.until("completion")
        ids.add(messages[0]["request_id"])
        assert messages[-1]["usage"]["completion_tokens"] == n
    assert len(ids) == 3


def test_a_second_config_has_to_wait_and_the_first_goes_on(client: Conversation, counted: str):
    client.config(max_tokens=40, **ON)
    client.until("init")
    client.config(max_tokens=1)
    messages = client.until("completion")
    (failure,) = [message for message in messages if message["type"] == "error"]
    assert (failure["error"], failure["recoverable"], failure["recovery_action"]) == ("invalid_request", True, "wait")
    assert counted.startswith(text_of(messages))
    assert messages[-1]["usage"]["completion_tokens"] == 40


def test_turns_are_a_prompt_as_well(daemon: Daemon):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    assert len(text_of(ask(daemon, turns, max_tokens=4))) > 3


# -- options -----------------------------------------------------------------------------------------------------


def test_echo_prompt_puts_the_prompt_before_the_answer(daemon: Daemon, counted: str):
    for stream in (True, False):
        messages = ask(daemon, options={"echo_prompt": True, "stream": stream}, max_tokens=4, **ON)
        whole = messages[-1]["generated_text"]
        assert whole.startswith(COUNTING)
        assert counted.startswith(whole.removeprefix(COUNTING))
        assert messages[-1]["usage"]["completion_tokens"] == 4
        if stream:
            assert text_of(messages) == whole
            assert messages[1]["generated_text"] == messages[1]["token"] == COUNTING
            assert messages[2]["generated_text"].startswith(COUNTING)


def test_token_ids_are_those_of_the_text(daemon: Daemon):
    messages = ask(daemon, "Once upon a time", IDS, max_tokens=8)
    ids = [token["token_id"] for token in generated(messages)]
    assert post(daemon, "/detokenize", tokens=ids)["content"] == messages[-1]["generated_text"]


@pytest.mark.parametrize(("wanted", "alternatives"), [(True, 5), (0, 1), (1, 1), (20, 20)])
def test_logprobs_come_with_alternatives_the_chosen_one_first(daemon: Daemon, wanted: object, alternatives: int):
    messages = ask(daemon, "Once upon a time", {"include_logprobs": wanted}, max_tokens=4, temperature=0)
    for token in generated(messages):
        scored = token["logprobs"]
        assert len(scored) == alternatives
        assert scored[0]["token"] == token["token"]
        logprobs = [one["logprob"] for one in scored]
        assert logprobs == sorted(logprobs, reverse=True)
        assert 0 < sum(2.718281828**logprob for logprob in logprobs) <= 1 + 1e-6


def test_timing_is_there_and_adds_up(daemon: Daemon):
    messages = ask(daemon, options={"include_timing": True}, max_tokens=6, **ON)
    timings = [token["timing"] for token in generated(messages)]
    assert timings[0]["token_ms"] == timings[0]["total_ms"] == messages[-1]["timing"]["first_token_ms"] > 0
    for before, after in itertools.pairwise(timings):
        assert after["total_ms"] == pytest.approx(before["total_ms"] + after["token_ms"], abs=0.01)
    assert messages[-1]["timing"]["total_ms"] >= timings[-1]["total_ms"]


def test_without_a_stream_the_completion_has_it_all(daemon: Daemon, counted: str):
    init, completion = ask(daemon, options={"stream": False}, max_tokens=10, **ON)
    assert init["type"] == "init"
    assert completion["usage"]["completion_tokens"] == 10
    assert counted.startswith(completion["generated_text"])


def test_the_text_so_far_can_be_left_out(daemon: Daemon):
    messages = ask(daemon, options={"include_generated_text": False}, max_tokens=5)
    assert not any("generated_text" in message for message in messages[:-1])
    assert messages[-1]["generated_text"] == text_of(messages)


@pytest.mark.parametrize(
    ("option", "field"),
    [("include_token_ids", "token_id"), ("include_logprobs", "logprobs"), ("include_timing", "timing")],
)
def test_what_was_not_asked_for_is_not_there(daemon: Daemon, option: str, field: str):
    asked, not_asked = (ask(daemon, options={option: on}, max_tokens=1)[1] for on in (True, False))
    assert field in asked
    assert field not in not_asked


# -- parameters --------------------------------------------------------------------------------------------------

WILD = {"temperature": 2.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def test_a_seed_repeats_what_a_temperature_makes_of_a_prompt(daemon: Daemon):
    def draw(seed: int) -> str:
        return text_of(ask(daemon, "Once upon a time", max_tokens=8, seed=seed, **WILD, **ON))

    assert draw(1) == draw(1) != draw(2)


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}])
def test_each_way_to_cut_leaves_the_likeliest_token(daemon: Daemon, counted: str, narrow: dict):
    assert counted.startswith(text_of(ask(daemon, max_tokens=8, seed=3, **{**WILD, **narrow}, **ON)))


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 5.0}, {"repeat_penalty": 5.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}],
)
def test_each_penalty_keeps_from_repeating(daemon: Daemon, penalty: dict):
    free, penalized = (
        {token["token_id"] for token in generated(ask(daemon, "Once upon a time", IDS, max_tokens=30, **more, **ON))}
        for more in ({}, penalty)
    )
    assert len(penalized) > len(free)


def test_a_stop_string_ends_the_text_and_is_not_in_it(daemon: Daemon, counted: str):
    for stop in ([" 12", "never"], " 12"):
        messages = ask(daemon, max_tokens=40, stop=stop, **ON)
        assert text_of(messages) == messages[-1]["generated_text"] == counted[: counted.index(" 12")]
        assert messages[-1]["finish_reason"] == messages[-2]["finish_reason"] == "stop"


def test_logit_bias_forbids_and_forces(daemon: Daemon):
    token_id = generated(ask(daemon, options=IDS, max_tokens=1))[0]["token_id"]
    forbidden = generated(ask(daemon, options=IDS, max_tokens=4, logit_bias={token_id: -100}))
    assert token_id not in [token["token_id"] for token in forbidden]
    forced = generated(ask(daemon, options=IDS, max_tokens=4, logit_bias={"1234": 100}))
    assert [token["token_id"] for token in forced] == [1234] * 4


def test_a_grammar_and_a_schema_shape_the_answer(daemon: Daemon):
    assert text_of(ask(daemon, "Yes or no?", max_tokens=10, grammar='root ::= "yes" | "no"')) in ("yes", "no")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    assert set(json.loads(text_of(ask(daemon, "JSON:", max_tokens=40, json_schema=schema)))) == {"ok"}


WRONG = {
    "prompt": {"prompt": 7},
    "prompt ": {"prompt": ""},
    "prompt  ": {},
    "prompt[0].role": {"prompt": [{"role": "robot", "content": "Hi"}]},
    "model": {"prompt": "Hi", "model": "llama-7b"},
    "parameters": {"prompt": "Hi", "parameters": []},
    "options": {"prompt": "Hi", "options": "all"},
    "options.stream": {"prompt": "Hi", "options": {"stream": 1}},
    "options.echo_prompt": {"prompt": "Hi", "options": {"echo_prompt": "yes"}},
    "options.include_token_ids": {"prompt": "Hi", "options": {"include_token_ids": 0}},
    "options.include_logprobs": {"prompt": "Hi", "options": {"include_logprobs": 21}},
    "options.include_timing": {"prompt": "Hi", "options": {"include_timing": []}},
    "options.include_generated_text": {"prompt": "Hi", "options": {"include_generated_text": "no"}},
}
WRONG_PARAMETERS = {
    "max_tokens": [0, -1, 1.5, "10", True],
    "temperature": [-0.1, 10.1, "hot", False],
    "top_p": [0, 1.01, "0.9"],
    "top_k": [-1, 0.5, "40"],
    "min_p": [-1, 2],
    "repetition_penalty": [0, 11],
    "presence_penalty": [-3, 3],
    "frequency_penalty": [-3, 3],
    "seed": [-(2**63), 2**63, 1.5],
    "stop": [1, [""], ["x", 2], ["x"] * 17, "x" * 257],
    "logit_bias": [[], {"x": 1}, {"1": 101}, {"1": None}],
    "ignore_eos": ["yes"],
    "grammar": [7],
    "json_schema": ["{}"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_config_names_its_field_and_ends_nothing(client: Conversation, name: str):
    client.send("config", **WRONG[name])
    failure = error(client.receive())
    assert failure["error"] == "invalid_request"
    assert failure["message"].startswith(name.strip() + ":")
    client.config(max_tokens=1)
    assert client.until("completion", "error")[-1]["type"] == "completion"


@pytest.mark.parametrize("name", WRONG_PARAMETERS)
def test_a_wrong_parameter_names_its_field_also_in_mid_stream(client: Conversation, name: str):
    values = WRONG_PARAMETERS[name]
    for value in values:
        client.send("config", prompt="Hi", parameters={name: value})
        failure = error(client.receive())
        assert failure["error"] == "invalid_request"
        assert failure["message"].startswith(f"parameters.{name}"), failure
    client.config(max_tokens=30, **ON)
    client.until("token")
    for value in values:
        client.control("modify", parameters={name: value})
    messages = client.until("completion")
    failures = [message["message"] for message in messages if message["type"] == "error"]
    assert len(failures) == len(values)
    assert all(message.startswith(f"parameters.{name}") for message in failures), failures
    assert messages[-1]["usage"]["completion_tokens"] == 30


# -- control -----------------------------------------------------------------------------------------------------


def test_stop_ends_with_a_completion_of_what_was_made(client: Conversation, counted: str):
    client.config(max_tokens=500, **ON)
    client.until("init")
    tokens = client.tokens(3)
    client.control("stop")
    tokens += client.until("completion")
    completion = tokens[-1]
    assert completion["finish_reason"] == tokens[-2]["finish_reason"] == "stop"
    assert completion["generated_text"] == text_of(tokens)
    assert completion["usage"]["completion_tokens"] == len(generated(tokens)) < 500
    assert counted.startswith(text_of(tokens)[: len(counted)])


def test_a_stop_that_crossed_the_end_is_none(client: Conversation):
    for _ in range(2):
        client.config(max_tokens=1)
        assert [message["type"] for message in client.until("completion")] == ["init", "token", "token", "completion"]
        client.control("stop")


@pytest.mark.parametrize("action", ["pause", "resume", "modify"])
def test_steering_what_has_ended_is_an_invalid_request(client: Conversation, action: str):
    client.config(max_tokens=1)
    client.until("completion")
    client.control(action, parameters={"temperature": 1})
    assert error(client.receive())["message"].startswith("action:")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"action": "rewind"}, "action"),
        ({}, "action"),
        ({"action": None}, "action"),
        ({"action": 1}, "action"),
        ({"action": "modify"}, "parameters"),
        ({"action": "modify", "parameters": {}}, "parameters"),
        ({"action": "modify", "parameters": 1}, "parameters"),
        ({"action": "modify", "parameters": {"grammar": 'root ::= "a"'}}, "parameters.grammar"),
        ({"action": "modify", "parameters": {"json_schema": {}}}, "parameters.json_schema"),
    ],
)
def test_a_wrong_control_message_ends_nothing(client: Conversation, fields: dict, named: str):
    client.config(max_tokens=20, **ON)
    client.until("init")
    client.send("control", **fields)
    messages = client.until("completion")
    (failure,) = [message for message in messages if message["type"] == "error"]
    assert failure["error"] == "invalid_request"
    assert failure["message"].startswith(f"{named}:")
    assert messages[-1]["usage"]["completion_tokens"] == 20


def test_regenerate_starts_again_while_it_runs_and_after_it(client: Conversation, counted: str):
    client.config(max_tokens=20, **ON)
    first = client.until("init")[-1]
    client.tokens(2)
    client.control("regenerate")
    second = client.until("init")[-1]
    during = client.until("completion")
    client.control("regenerate")
    third, *after = client.until("completion")
    assert len({first["request_id"], second["request_id"], third["request_id"]}) == 3
    for messages in (during, after):
        assert len(generated(messages)) == 20
        assert counted.startswith(text_of(messages))


def test_modify_changes_what_comes_next_and_back(daemon: Daemon, client: Conversation):
    client.config("Once upon a time", {"include_token_ids": True, "include_logprobs": 2}, max_tokens=200, **ON)
    client.until("init")
    cold = client.tokens(3)
    client.control("modify", parameters={"temperature": 2, "top_k": 50, "top_p": 1, "min_p": 0, "seed": 11})
    cold += client.until("modify")[:-1]
    wild = client.tokens(10)
    client.control("modify", parameters={"temperature": 0})
    wild += client.until("modify")[:-1]
    rest = client.tokens(10)
    assert all(map(is_likeliest, cold + rest))
    assert not all(map(is_likeliest, wild))
    # The same seen from outside: what another request makes greedily of just those tokens.
    prompt = post(daemon, "/tokenize", content="Once upon a time", add_special=True)["tokens"]

    def greedy_after(tokens: list[dict], n: int) -> str:
        ids = prompt + [token["token_id"] for token in tokens]
        completion = post(daemon, "/v1/completions", prompt=ids, temperature=0, max_tokens=n, ignore_eos=True)
        return completion["choices"][0]["text"]

    assert not text_of(wild).startswith(greedy_after(cold, 8))
    # One of the two likeliest: it is computed from other cells, and then two that are nearly as good may change places.
    assert greedy_after(cold + wild, 1) in [one["token"] for one in rest[0]["logprobs"]]


def is_likeliest(token: dict) -> bool:
    """Whether no other token is likelier, but an end, which ``ignore_eos`` leaves out."""
    this, other = token["logprobs"][:2]
    return this["logprob"] >= other["logprob"] or other["token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"max_tokens": 12}, "length"),
        ({"stop": [" 11"]}, "stop"),
        ({"logit_bias": {"0": 100}, "ignore_eos": False}, "stop"),
    ],
)
def test_every_kind_of_parameter_can_be_modified(client: Conversation, counted: str, parameters: dict, reason: str):
    client.config(max_tokens=60, **ON)
    client.until("init")
    before = client.tokens(2)
    client.control("pause")
    before += client.until("pause")[:-1]
    client.control("modify", parameters=parameters)
    assert client.receive()["operation"] == "modify"
    client.control("resume")
    messages = client.until("completion")
    assert messages[0]["operation"] == "resume"
    assert messages[-1]["finish_reason"] == reason
    whole = before + messages
    assert counted.startswith(text_of(whole))
    if reason == "length":
        assert messages[-1]["usage"]["completion_tokens"] == max(12, len(before))
    elif "stop" in parameters:
        assert text_of(whole) == counted[: counted.index(" 11")]
    else:
        assert text_of(whole) == text_of(before)


def test_max_tokens_lowered_below_what_there_is_ends_it(client: Conversation):
    client.config(max_tokens=60, **ON)
    client.until("init")
    client.tokens(5)
    client.control("modify", parameters={"max_tokens": 2})
    messages = client.until("completion")
    assert messages[-1]["finish_reason"] == "length"
    assert messages[-1]["usage"]["completion_tokens"] < 60


def test_a_modification_that_is_refused_later_changes_nothing(client: Conversation, counted: str):
    client.config(max_tokens=30, **ON)
    client.until("init")
    client.control("modify", parameters={"logit_bias": {"999999": 1}, "temperature": 2})
    messages = client.until("completion")
    (failure,) = [message for message in messages if message["type"] == "error"]
    assert failure["error"] == "invalid_request"
    assert counted.startswith(text_of(messages))


def test_a_pause_holds_at_once_and_costs_the_others_nothing(daemon: Daemon, counted: str):
    with Conversation(daemon) as paused:
        paused.config(max_tokens=40, **ON)
        paused.until("init")
        before = paused.tokens(5)
        paused.control("pause")
        before += paused.until("pause")[:-1]
        for _ in range(3):
            others = ask(daemon, max_tokens=30, **ON)
            assert others[-1]["usage"]["completion_tokens"] == 30
        paused.control("resume")
        # Nothing came in between.
        assert paused.receive()["operation"] == "resume"
        after = paused.until("completion")
        assert text_of(before + after) == after[-1]["generated_text"]
        assert len(generated(before + after)) == 40
        assert counted.startswith(text_of(before + after))


def test_what_is_paused_can_be_stopped(client: Conversation):
    client.config(max_tokens=40, **ON)
    client.until("init")
    client.tokens(1)
    client.control("pause")
    client.until("pause")
    client.control("stop")
    messages = client.until("completion")
    assert messages[-1]["finish_reason"] == "stop"
    assert not generated(messages)


# -- one place, a content filter, feedback -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one place, a content filter and a file for feedback, that keeps no bytes of what is lost."""
    directory = tmp_path_factory.mktemp("narrow")
    (directory / "patterns").write_text("(?i)forbid+en\n, 13\n")
    flags = ("--parallel", "1", "--content-filter", str(directory / "patterns"), "--resume-bytes", "0")
    yield from running(directory, *flags, "--feedback-log", str(directory / "feedback"))


def running(directory: Path, *flags: str) -> Iterator[Daemon]:
    daemon = Daemon(directory, "--http", "127.0.0.1:0", *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def test_who_waits_for_a_place_hears_where_it_stands(narrow: Daemon):
    with Conversation(narrow) as first, Conversation(narrow) as second, Conversation(narrow) as third:
        first.config("Once", max_tokens=512, **ON)
        first.until("token")
        for client in (second, third):
            client.config(max_tokens=2)
        for position, client in enumerate((second, third), 1):
            status = client.until("queued")[-1]
            assert status["type"] == "status"
            assert status["progress"] == 0
            assert status["position"] == position
            assert status["message"] == f"position {position} of 2"
        first.control("stop")
        for client in (second, third):
            assert client.until("completion")[-1]["usage"]["completion_tokens"] == 2


def test_with_one_place_others_run_while_one_is_paused_which_then_goes_on(narrow: Daemon, counted: str):
    with Conversation(narrow) as paused:
        paused.config(max_tokens=20, **ON)
        paused.until("init")
        before = paused.tokens(5)
        paused.control("pause")
        before += paused.until("pause")[:-1]
        for _ in range(2):
            assert ask(narrow, "Once", max_tokens=30, **ON)[-1]["usage"]["completion_tokens"] == 30
        paused.control("resume")
        assert paused.receive()["operation"] == "resume"
        after = paused.until("completion")
        assert len(generated(before + after)) == 20
        assert counted.startswith(text_of(before + after))


def test_a_prompt_with_forbidden_text_is_refused(narrow: Daemon):
    failure = error(ask(narrow, "This is FORBIDDEN fruit"))
    assert failure["error"] == "content_filter"
    assert "forbid" not in failure["message"].lower()
    assert failure["partial_text"] == ""


def test_an_answer_ends_before_forbidden_text(narrow: Daemon, counted: str):
    messages = ask(narrow, max_tokens=60, **ON)
    assert messages[-1]["finish_reason"] == messages[-2]["finish_reason"] == "content_filter"
    assert text_of(messages) == messages[-1]["generated_text"] == counted[: counted.index(", 13")]


def test_feedback_is_checked_acknowledged_and_written_down(narrow: Daemon, tmp_path: Path):
    with Conversation(narrow) as client:
        client.config(max_tokens=3)
        request_id = client.until("completion")[0]["request_id"]
        wrong = {
            "rating": [None, 2, -1.5, "good", True],
            "text": [1, "x" * 8193],
            "position": [-1, 0.5, "start"],
        }
        for name, values in wrong.items():
            for value in values:
                client.send("feedback", **{"rating": 1, name: value})
                assert error(client.receive())["message"].startswith(f"{name}:")
        client.send("feedback", rating=-0.5, text="Zu kurz, é\n", position=2)
        status = client.receive()
        assert (status["type"], status["operation"], status["progress"]) == ("status", "feedback", 100)
        assert status["message"] == "kept"
        client.send("feedback", rating=1)
        assert client.receive()["message"] == "kept"
    path = Path(narrow.path).parent / "feedback"
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["request_id"] == second["request_id"] == request_id
    assert (first["rating"], first["text"], first["position"]) == (-0.5, "Zu kurz, é\n", 2)
    assert second["rating"] == 1
    assert "text" not in second
    assert first["time"]


def test_feedback_that_nobody_keeps_says_so(client: Conversation):
    client.config(max_tokens=1)
    client.until("completion")
    client.send("feedback", rating=0)
    assert client.receive()["message"].startswith("not stored")


# -- errors ------------------------------------------------------------------------------------------------------


def test_a_prompt_too_long_says_both_numbers(client: Conversation):
    client.config("one two " * 5000, max_tokens=10)
    failure = error(client.until("error"))
    assert failure["error"] == "context_length_exceeded"
    assert "10001" in failure["message"] or "10000" in failure["message"], failure
    assert "8192" in failure["message"]
    client.config("x" * (256 * 1024 + 1))
    failure = error(client.until("error"))
    assert failure["error"] == "context_length_exceeded"
    assert "262145" in failure["message"]
    assert "262144" in failure["message"]


def test_too_little_memory_is_an_error_and_no_crash(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--memory-reserve", "1000GiB")
    failure = error(ask(daemon))
    assert (failure["error"], failure["recoverable"], failure["recovery_action"]) == ("memory_pressure", True, "retry")
    assert failure["retry_after_ms"] > 0
    assert daemon.process.poll() is None


def test_what_takes_too_long_or_comes_too_often_is_refused(own_daemon):
    daemon = own_daemon(
        "--http", "127.0.0.1:0", "--request-timeout", "0.5", "--rate-requests", "1", "--resume-window", "0"
    )
    with Conversation(daemon) as client:
        client.config(max_tokens=512, **ON)
        messages = client.until("error")
        failure = error(messages)
        assert (failure["error"], failure["recoverable"], failure["recovery_action"]) == ("timeout", True, "retry")
        assert failure["partial_text"] == text_of(messages) != ""
        assert failure["request_id"] == messages[0]["request_id"]
        client.config(max_tokens=1)
        failure = error(client.receive())
        assert (failure["error"], failure["recoverable"]) == ("rate_limited", True)
        assert 0 < failure["retry_after_ms"] <= 60_000
        client.send("resume", request_id=messages[0]["request_id"])
        assert error(client.receive())["message"].startswith("type:")


def test_at_shutdown_what_does_not_end_in_time_fails_with_its_text(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--drain-timeout", "0.5")
    with Conversation(daemon) as running, Conversation(daemon) as late:
        running.config(max_tokens=512, **ON)
        running.until("init")
        tokens = running.tokens(2)
        daemon.process.send_signal(signal.SIGTERM)
        late.config(max_tokens=1)
        tokens += running.until("error")
        failure = error(tokens)
        assert (failure["error"], failure["recovery_action"]) == ("internal_error", "reconnect")
        assert failure["partial_text"] == text_of(tokens)
        assert running.close_code() == 1001
        assert error(late.receive())["error"] == "internal_error"
        assert late.close_code() == 1001
    assert daemon.process.wait(ANSWER_S) == 0


GATED = """
import sys
from umaserve.remote.process import EngineProcess
load = EngineProcess.load
def gated(self, config, allowance, progress):
    progress(0.5)
    sys.stdin.read()
    return load(self, config, allowance, progress)
EngineProcess.load = gated
from umaserve.cli import main
sys.exit(main())
"""
"""The daemon, whose model is loaded when its standard input ends."""


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    made = []

    def make(*flags: str) -> Daemon:
        daemon = Daemon.__new__(Daemon)
        daemon.path, daemon._log_path = str(tmp_path / "uma.sock"), tmp_path / "log"
        command = [sys.executable, "-c", GATED, "--socket", daemon.path, "--http", "127.0.0.1:0", "--threads", "1"]
        with daemon._log_path.open("ab") as log:
            daemon.process = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stderr=log)
        made.append(daemon)
        daemon.wait_for_socket()
        daemon.wait_for(lambda values: values["state"] == "loading")
        return daemon

    yield make
    for daemon in made:
        daemon.process.stdin.close()
        daemon.stop()
        assert "Traceback" not in daemon.logs, daemon.logs


def test_while_the_model_loads_there_is_its_progress(gated: Callable[..., Daemon], counted: str):
    daemon = gated()
    with Conversation(daemon) as client:
        client.config(max_tokens=4, **ON)
        for _ in range(2):
            status = client.receive()
            assert (status["type"], status["operation"], status["progress"]) == ("status", "model_loading", 50)
            assert status["eta_seconds"] > 0
        daemon.process.stdin.close()
        # The request waits for its first tick on a slow box, which its client is told.
        *before, _ = client.until("init")
        assert {message.get("operation") for message in before} <= {"model_loading", "queued"}, before
        assert counted.startswith(text_of(client.until("completion")))


def test_a_model_that_cannot_be_loaded(gated: Callable[..., Daemon]):
    daemon = gated("--n-ctx", "4194304", "--kv-type", "f32")
    with Conversation(daemon) as client:
        client.config(max_tokens=4)
        client.until("model_loading")
        daemon.process.stdin.close()
        failure = error(client.until("error"))
        assert (failure["error"], failure["recoverable"]) == ("model_loading_error", False)
        assert ".gguf" not in failure["message"]
        assert client.close_code() == 1001
    assert daemon.process.wait(ANSWER_S) == 1


# -- resuming ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def resumed(daemon: Daemon, request_id: str, position: int = 0, **options) -> Iterator[Conversation]:
    with Conversation(daemon, **options) as client:
        client.send("resume", request_id=request_id, position=position)
        yield client


def wait_until_lost(daemon: Daemon) -> None:
    daemon.wait_for(lambda values: values["detached_generations"] == 1)


def test_a_stream_goes_on_over_lost_connections_and_neither_repeats_nor_loses_a_token(daemon: Daemon, counted: str):
    with Conversation(daemon) as client:
        client.config(max_tokens=80, **ON)
        request_id = client.until("init")[-1]["request_id"]
        tokens = client.tokens(1)
        client.kill()
        wait_until_lost(daemon)
    for step in (7, 3, 0, 12):
        with resumed(daemon, request_id, len(tokens)) as client:
            status = client.receive()
            assert (status["type"], status["operation"], status["request_id"]) == ("status", "resume", request_id)
            tokens += client.tokens(step)
            client.kill()
            wait_until_lost(daemon)
    with resumed(daemon, request_id, len(tokens)) as client:
        _status, *rest = client.until("completion")
    assert text_of(tokens + rest) == counted == rest[-1]["generated_text"]
    tokens += generated(rest)
    assert [token["position"] for token in tokens] == list(range(80))
    assert len(tokens) == rest[-1]["usage"]["completion_tokens"] == 80
    assert [token["generated_text"] for token in tokens] == list(
        itertools.accumulate(token["token"] for token in tokens)
    )
    daemon.wait_for(lambda values: values["detached_generations"] == 0)


def test_what_had_finished_can_be_had_from_any_position(daemon: Daemon):
    with Conversation(daemon) as client:
        client.config(options={"include_token_ids": True, "include_logprobs": 2, "include_timing": True}, max_tokens=6)
        messages = client.until("completion")
        request_id = messages[0]["request_id"]
        tokens, end = generated(messages), messages[-2:]
        client.kill()
        for position in range(len(tokens) + 1):
            wait_until_lost(daemon)
            with resumed(daemon, request_id, position) as again:
                assert again.until("completion")[1:] == tokens[position:] + end
                again.kill()
        wait_until_lost(daemon)
        with resumed(daemon, request_id, 7) as wrong:
            assert error(wrong.receive())["message"].startswith("position: expected at most 6")
            wrong.send("resume", request_id=request_id, position=6)
            assert wrong.until("completion")[1:] == end
            # It is this connection's now, which goes on as any other.
            wrong.config(max_tokens=1)
            assert wrong.until("completion")[-1]["usage"]["completion_tokens"] == 1


def test_what_was_paused_when_it_was_lost_can_go_on(daemon: Daemon, counted: str):
    with Conversation(daemon) as client:
        client.config(max_tokens=20, **ON)
        request_id = client.until("init")[-1]["request_id"]
        client.tokens(2)
        client.control("pause")
        client.until("pause")
        client.kill()
        wait_until_lost(daemon)
    with resumed(daemon, request_id) as again:
        tokens = again.until("resume")
        again.control("resume")
        tokens += again.until("completion")
        assert len(generated(tokens)) == 20
        assert counted.startswith(text_of(tokens))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "request_id"),
        ({"request_id": 1}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 300}, "request_id"),
        ({"request_id": "gen_000000000000000000000000"}, "request_id"),
        ({"request_id": "gen_0", "position": -1}, "position"),
        ({"request_id": "gen_0", "position": "0"}, "position"),
    ],
)
def test_a_wrong_resume_names_its_field_and_ends_nothing(client: Conversation, fields: dict, named: str):
    client.send("resume", **fields)
    failure = error(client.receive())
    assert failure["error"] == "invalid_request"
    assert failure["message"].startswith(f"{named}:")
    client.config(max_tokens=1)
    assert client.until("completion", "error")[-1]["type"] == "completion"


def test_who_goes_away_may_come_back(daemon: Daemon, counted: str):
    """Browsers close with 1001 where a page is left, or loaded again."""
    with Conversation(daemon) as client:
        client.config(max_tokens=80, **ON)
        request_id = client.until("init")[-1]["request_id"]
        client.tokens(2)
        client.go_away()
        wait_until_lost(daemon)
    with resumed(daemon, request_id) as again:
        assert text_of(again.until("completion")) == counted


def test_after_a_goodbye_nothing_is_kept(daemon: Daemon):
    with Conversation(daemon) as client:
        client.config(max_tokens=500, **ON)
        request_id = client.until("init")[-1]["request_id"]
        client.tokens(2)
    daemon.wait_until_quiet()
    with resumed(daemon, request_id) as again:
        assert error(again.receive())["message"].startswith("request_id:")


def test_more_than_the_memory_for_it_is_not_kept(narrow: Daemon):
    with Conversation(narrow) as client:
        client.config(max_tokens=500, **ON)
        request_id = client.until("init")[-1]["request_id"]
        client.tokens(2)
        client.kill()
    narrow.wait_until_quiet()
    with resumed(narrow, request_id) as again:
        assert error(again.receive())["message"].startswith("request_id:")


def test_a_generation_is_its_own_tenants_only(tmp_path: Path):
    keys = KeyFile(str(tmp_path / "keys"), missing_ok=True)
    alice, bob = ({"additional_headers": {"Authorization": f"Bearer {keys.add(name)}"}} for name in ("alice", "bob"))
    for daemon in running(tmp_path, "--api-keys", str(tmp_path / "keys")):
        with Conversation(daemon, **alice) as client:
            client.config(max_tokens=10, **ON)
            request_id = client.until("init")[-1]["request_id"]
            client.kill()
            wait_until_lost(daemon)
        with resumed(daemon, request_id, **bob) as other:
            assert error(other.receive())["message"].startswith("request_id:")
        with resumed(daemon, request_id, **alice) as again:
            assert len(generated(again.until("completion"))) == 10
