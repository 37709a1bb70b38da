"""What the engine makes of a request, against llama.cpp called by hand."""

from __future__ import annotations

import json
import re
import threading

import llama_cpp
import numpy as np
import pytest
from daemon import FAR_FROM_A_TIE, Daemon

from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.model import Model, find
from umaserve.sessions.engine_api import Run
from umaserve.settings.daemon import Config

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "In 1969, the first man",
    "Dear Sir or Madam,\n\nI am writing to",
    FAR_FROM_A_TIE,
]


@pytest.fixture(scope="module")
def greedy_by_hand():
    """llama.cpp's own greedy answers, one sequence at a time: for each step the logits of all tokens."""
    model = Model(find(""), Config(n_ctx=512, parallel=1, threads=1), lambda _fraction: True)
    memory, batch = llama_cpp.llama_get_memory(model.context), Batch(512)

    def answer(prompt: str, n: int) -> list[np.ndarray]:
        llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
        tokens, start, steps = model.tokenize(prompt), 0, []
        while len(steps) < n:
            batch.fill([Run(0, start, tokens, object())])
            assert llama_cpp.llama_decode(model.context, batch.native) == 0
            start += len(tokens)
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.context, -1), (model.n_vocab,))
            steps.append(logits.copy())
            tokens = [int(np.argmax(logits))]
        return steps

    yield {prompt: answer(prompt, 24) for prompt in PROMPTS}
    model.free()


def ids(events: list[dict]) -> list[int]:
    return [event["token_id"] for event in events if event["event"] == "token"]


def at_once(daemon: Daemon, requests: list[dict]) -> list[list[dict]]:
    """Events of all ``requests``, run at the same time."""
    answers: list[list[dict]] = [[]] * len(requests)

    def ask(index: int) -> None:
        answers[index] = daemon.ask(**requests[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def check_greedy(events: list[dict], steps: list[np.ndarray], rounding: float, prompt: str) -> None:
    """Each token is the reference's best; or, once, one that is as good to within ``rounding``, which ends the check.

    The shape of a batch changes the order of llama.cpp's sums, so that two tokens that are nearly equally good may
    change places; what follows is then another text.
    """
    for index, (token, logits) in enumerate(zip(ids(events), steps, strict=True)):
        assert logits[token] >= logits.max() - rounding, f"{prompt!r}: token {index}"
        if token != np.argmax(logits):
            assert index >= 1, f"{prompt!r}: not even the first token is the same"
            return


def test_greedy_is_llama_cpps_own_alone(own_daemon, greedy_by_hand):
    daemon = own_daemon("--no-speculation")
    for prompt, expected in greedy_by_hand.items():
        events = daemon.ask(prompt, max_tokens=24, ignore_eos=True, cache_prompt=False)
        check_greedy(events, expected, 0.0, prompt)
        assert daemon.metrics()["last_batch_size"] == 1


def test_greedy_is_llama_cpps_own_in_a_batch_of_eight(daemon: Daemon, greedy_by_hand):
    requests = [{"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "cache_prompt": False} for prompt in PROMPTS]
    for prompt, events in zip(PROMPTS, at_once(daemon, requests), strict=True):
        check_greedy(events, greedy_by_hand[prompt], 0.5, prompt)


def test_a_long_prompt_in_chunks_beside_a_stream_changes_neither(daemon: Daemon):
    # Texts far from a tie: the shape of a batch changes the rounding, and two nearly equal tokens may change places.
    long = {"prompt": ", ".join(map(str, range(1, 121))) + ",", "max_tokens": 12}
    short = {"prompt": FAR_FROM_A_TIE, "max_tokens": 60, "ignore_eos": True}
    for request in (long, short):
        request["cache_prompt"] = False
    alone = [ids(daemon.ask(**request))[:10] for request in (long, short)]
    assert [ids(events)[:10] for events in at_once(daemon, [long, short])] == alone


def test_the_same_seed_gives_the_same_text_and_another_one_another(daemon: Daemon):
    def sample(seed: int) -> str:
        # Computed anew each time: what is reused may have been computed in a longer batch, which rounds otherwise.
        return daemon.text(PROMPTS[1], temperature=1.0, seed=seed, max_tokens=20, cache_prompt=False)

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_no_seed_is_a_new_one_each_time(daemon: Daemon):
    assert len({daemon.text(PROMPTS[1], temperature=1.5, max_tokens=20) for _ in range(4)}) > 1


def test_cut_offs_at_their_ends_are_greedy(daemon: Daemon):
    greedy = daemon.text(FAR_FROM_A_TIE, max_tokens=12)
    for cut_off in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert daemon.text(FAR_FROM_A_TIE, max_tokens=12, temperature=1.0, **cut_off) == greedy, cut_off


def test_a_penalty_changes_a_repeating_text(daemon: Daemon):
    prompt = "la la la la la la la"
    assert daemon.text(prompt, max_tokens=16) != daemon.text(prompt, max_tokens=16, repeat_penalty=2.0)


def test_a_stop_string_ends_the_text_before_it_and_is_never_partly_sent(daemon: Daemon):
    whole = daemon.text(FAR_FROM_A_TIE, max_tokens=40)
    # Within a word, over a token border, and one that only seems to begin.
    middle = len(whole) // 2
    for stop in (whole[middle : middle + 7], whole[middle - 1 : middle + 1]):
        *tokens, end = daemon.ask(FAR_FROM_A_TIE, max_tokens=40, stop=[stop, "\0never"])
        assert "".join(token["text"] for token in tokens) == whole[: whole.index(stop)]
        assert end["reason"] == "stop"
    assert daemon.text(FAR_FROM_A_TIE, max_tokens=40, stop=whole[middle : middle + 7] + "\0") == whole


def test_a_bias_bans_and_forces_tokens(daemon: Daemon):
    first, second = ids(daemon.ask(PROMPTS[0], max_tokens=2))
    assert first not in ids(daemon.ask(PROMPTS[0], max_tokens=1, logit_bias={str(first): -100}))
    assert ids(daemon.ask(PROMPTS[0], max_tokens=3, logit_bias={str(second): 100})) == [second] * 3


def test_ignore_eos_goes_on_where_the_answer_would_end(daemon: Daemon):
    chat = {"prompt": "Say: hi", "chat": True, "max_tokens": 120}
    *_, end = daemon.ask(**chat)
    assert end["reason"] == "stop"
    *_, end = daemon.ask(**chat, ignore_eos=True)
    assert (end["reason"], end["usage"]["completion_tokens"]) == ("length", 120)


def test_a_grammar_binds_the_text(daemon: Daemon):
    grammar = 'root ::= ("yes" | "no") "." [0-9]{3}'
    *tokens, end = daemon.ask("Is the sky blue?", grammar=grammar, max_tokens=20)
    assert re.fullmatch(r"(yes|no)\.[0-9]{3}", "".join(token["text"] for token in tokens))
    assert end["reason"] == "stop"


def test_a_grammar_that_is_complete_ends_even_when_the_end_is_masked(daemon: Daemon):
    for temperature in (0.0, 1.0):
        events = daemon.ask("Hi", grammar='root ::= "ok"', ignore_eos=True, max_tokens=20, temperature=temperature)
        assert "".join(event["text"] for event in events[:-1]) == "ok"
        assert events[-1]["reason"] == "stop"


@pytest.mark.parametrize(
    "grammar",
    ['root ::= "a"+', "root ::= " + "(" * 900 + '"a"' + ")" * 900, 'root ::= ("a"{0,1000}){0,1000} "b"{900}'],
    ids=["simple", "deep", "repeated"],
)
@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-40},
        {"temperature": 10},
        {"repeat_penalty": 1e-46},
        {"temperature": 1, "repeat_penalty": 1e-30},
    ],
    ids=str,
)
def test_extreme_settings_beside_a_grammar_keep_to_it(daemon: Daemon, grammar: str, extreme: dict):
    open_ended = {"top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 5, "logit_bias": {"81": -100}}
    text = daemon.text("Hi", grammar=grammar, **open_ended, **extreme)
    assert set(text) <= {"a", "b"}


def test_a_json_schema_binds_the_text(daemon: Daemon):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    for seed in range(3):
        text = daemon.text("A person as JSON:", json_schema=schema, max_tokens=80, temperature=0.8, seed=seed)
        value = json.loads(text)
        assert sorted(value) == ["age", "name"]
        assert isinstance(value["age"], int)


def test_characters_over_token_borders_arrive_whole(daemon: Daemon):
    grammar = 'root ::= "日本語 🙂 ñ " [ぁ-ん]{4}'
    *tokens, end = daemon.ask("Repeat:", grammar=grammar, max_tokens=60)
    texts = [token["text"] for token in tokens]
    assert "" in texts, "no character was split over tokens: the test shows nothing"
    assert "".join(texts).startswith("日本語 🙂 ñ ")
    assert "\ufffd" not in "".join(texts)
    assert end["usage"]["completion_tokens"] == len(tokens)


def test_a_character_cut_off_by_the_length_is_marked_as_such(daemon: Daemon):
    *tokens, _ = daemon.ask("Repeat:", grammar='root ::= "🙂🙂🙂"', max_tokens=1)
    assert [token["text"] for token in tokens] == ["\ufffd"]


def test_chat_uses_the_models_template(daemon: Daemon):
    by_hand = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    expected = daemon.ask(by_hand, max_tokens=20, cache_prompt=False)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}
    assert daemon.ask(None, chat=[system, user], max_tokens=20, cache_prompt=False) == expected
    assert daemon.ask(user["content"], chat=[system], max_tokens=20, cache_prompt=False) == expected
    assert daemon.ask(user["content"], chat=True, max_tokens=20)[-1]["usage"]["prompt_tokens"] > 20


def test_the_context_is_filled_to_its_end_and_not_beyond(own_daemon):
    daemon = own_daemon("--n-ctx", "256")
    *_, end = daemon.ask("Once upon a time", ignore_eos=True)
    assert end["reason"] == "length"
    assert end["usage"]["total_tokens"] == 256
    (error,) = daemon.ask("one two " * 200, max_tokens=1)
    assert error["code"] == "E_LIMIT_PROMPT_TOO_LARGE"
    said = "prompt: expected at most 255 tokens, got 40[0-9]. This model's maximum context length is 256 tokens, .*"
    assert re.fullmatch(said, error["message"])
    for max_tokens in (252, 253, 1e9):
        *_, end = daemon.ask("Once upon a time", max_tokens=max_tokens, ignore_eos=True)
        assert (end["reason"], end["usage"]["total_tokens"]) == ("length", 256)


def test_more_work_than_the_kv_holds_waits_and_fails_nobody(own_daemon):
    daemon = own_daemon("--n-ctx", "256")
    requests = [{"prompt": prompt, "max_tokens": 100, "ignore_eos": True} for prompt in PROMPTS]
    for events in at_once(daemon, requests):
        assert events[-1]["reason"] == "length"
    assert daemon.wait_until_quiet()["kv_cells_total"] == 256


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv-type", "q8_0", "--flash-attn", "on"],
        ["--kv-type-k", "q8_0", "--kv-type-v", "q4_0"],
        ["--flash-attn", "off"],
        ["--flash-attn", "off", "--kv-type", "q8_0", "--kv-type-v", "f16"],
        ["--n-batch", "32", "--n-ubatch", "16", "--parallel", "4"],
        ["--n-batch", "8", "--n-ubatch", "8", "--parallel", "8"],
        ["--threads", "1", "--threads-batch", "2"],
    ],
)
def test_engine_settings_serve(own_daemon, flags: list[str]):
    daemon = own_daemon("--n-ctx", "1024", *flags)
    requests = [{"prompt": prompt, "max_tokens": 10, "ignore_eos": True} for prompt in PROMPTS]
    answers = at_once(daemon, requests)
    assert [events[-1]["reason"] for events in answers] == ["length"] * 8
    assert "Paris" in daemon.text(PROMPTS[0], max_tokens=8)
