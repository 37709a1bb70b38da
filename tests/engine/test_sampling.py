"""The choice among a few made-up logits, and what is said of them; no model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.core.errors import RequestError
from umaserve.core.events import Logprobs, Scored
from umaserve.core.requests import SAMPLERS, Sampling
from umaserve.engine.sampling.candidates import COLUMNS, Candidates, Logits
from umaserve.engine.sampling.logprobs import Scores, scores_after
from umaserve.engine.sampling.sampler import Sampler

N = 8


def choose(sampling: Sampling, logits: list[float], seen: list[int]) -> int:
    sampler = Sampler(N, (0,), sampling, None)
    sampler.accept_prompt(seen)
    return sampler.sample(np.array(logits, np.float32), Candidates(N))


@pytest.mark.parametrize(
    ("penalty", "seen", "chosen"),
    [
        ({}, [3, 3, 3], 3),
        ({"presence_penalty": 0.9}, [3, 3, 3], 3),
        ({"presence_penalty": 1.1}, [3], 5),
        ({"presence_penalty": 1.1}, [3, 5], 3),
        ({"frequency_penalty": 0.6}, [3], 3),
        ({"frequency_penalty": 0.6}, [3, 3], 5),
        ({"frequency_penalty": 0.6}, [3, 3, 5], 3),
        ({"frequency_penalty": -0.6}, [5, 5], 5),
        ({"repeat_penalty": 2.0}, [3], 5),
        ({"presence_penalty": 1.1}, [3] + [7] * 63, 5),
        ({"presence_penalty": 1.1}, [3] + [7] * 64, 3),
        ({"presence_penalty": 1.1, "penalty_window": 3}, [3, 7, 7], 5),
        ({"presence_penalty": 1.1, "penalty_window": 3}, [3, 7, 7, 7], 3),
        ({"presence_penalty": 1.1, "penalty_window": 200}, [3] + [7] * 199, 5),
        ({"presence_penalty": 1.1, "penalty_window": 0}, [3, 3, 3], 3),
    ],
)
@pytest.mark.parametrize("temperature", [{}, {"temperature": 1.0, "top_k": 1}])
def test_penalties_count_the_last_tokens(penalty: dict, seen: list[int], chosen: int, temperature: dict):
    logits = [0.0, 0.0, 0.0, 3.0, 0.0, 2.0, 0.0, -9.0]
    assert choose(Sampling(**penalty, **temperature), logits, seen) == chosen


FIRST_CUT = ("top_k", "top_p", "min_p", "penalties", "temperature")


@pytest.mark.parametrize(
    ("samplers", "chosen"),
    [
        (SAMPLERS, 5),
        (FIRST_CUT, 3),
        (("temperature", *FIRST_CUT[:4]), 3),
        (("penalties", "temperature", "top_k"), 5),
        (("top_k", "temperature"), 3),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samplers_are_applied_in_their_order(samplers: tuple[str, ...], chosen: int, temperature: float):
    # The cut-off leaves the likeliest token only: before the penalties that is 3, after them 5.
    logits = [0.0, 0.0, 0.0, 3.0, 0.0, 2.0, 0.0, -9.0]
    sampling = Sampling(presence_penalty=2.0, temperature=temperature, top_k=1, samplers=samplers)
    assert choose(sampling, logits, [3]) == chosen


def test_a_cut_by_probability_before_the_number_sees_all_tokens():
    # Of all tokens the first has 0.4 of the probability, of the two likeliest 0.67.
    logits = np.log(np.array([4, 2, 1, 1, 1, 1, 0.001, 0.001], np.float32))
    left = []
    for samplers in (("top_p", "top_k", "temperature"), ("temperature", "top_k", "top_p")):
        sampling = Sampling(temperature=1.0, top_k=2, top_p=0.5, min_p=0.0, samplers=samplers)
        sampler = Sampler(N, (0,), sampling, None)
        sampler.sample(logits.copy(), Candidates(N))
        left.append(len(sampler.left))
    assert left == [2, 1]


def test_penalties_count_the_sampled_tokens():
    sampler = Sampler(N, (0,), Sampling(presence_penalty=10.0), None)
    drawn = [sampler.sample(np.arange(N, dtype=np.float32), Candidates(N)) for _ in range(N)]
    assert drawn == list(reversed(range(N)))


def test_a_bias_beyond_the_vocabulary_is_refused():
    with pytest.raises(RequestError, match="below 8, the vocabulary's size, got 8"):
        Sampler(N, (0,), Sampling(logit_bias=((N, 1.0),)), None)


def test_a_token_beyond_the_vocabulary_that_ends_the_answer_is_refused():
    with pytest.raises(RequestError, match="stop_token_ids: expected token ids below 8, the vocabulary's size, got 8"):
        Sampler(N, (0,), Sampling(stop_token_ids=(N,)), None)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=1)])
def test_no_token_ends_the_answer_before_the_least_number(sampling: Sampling):
    sampler = Sampler(N, (7,), replace(sampling, min_tokens=2, stop_token_ids=(6,)), None)
    drawn = [sampler.sample(np.arange(N, dtype=np.float32), Candidates(N)) for _ in range(3)]
    assert drawn == [5, 5, 7]


def test_tokens_of_another_sampler_are_not_counted_twice():
    sampler = Sampler(N, (7,), Sampling(min_tokens=1), None)
    sampler.follow([1, 2])
    drawn = [sampler.sample(np.arange(N, dtype=np.float32), Candidates(N)) for _ in range(2)]
    assert drawn == [6, 7]


def test_words_that_must_not_come():
    bad_words = [[7], [6, 5], [6, 4, 3]]
    sampler = Sampler(N, (0,), Sampling(), None, bad_words=bad_words)
    assert sampler.sample(np.arange(N, dtype=np.float32), Candidates(N)) == 6
    assert sampler.sample(np.array([0, 0, 0, 1, 2, 3, 0, 9], np.float32), Candidates(N)) == 4
    assert sampler.sample(np.array([0, 0, 1, 2, 0, 0, 0, 9], np.float32), Candidates(N)) == 2
    assert sampler.sample(np.array([0, 0, 1, 2, 0, 0, 0, 9], np.float32), Candidates(N)) == 3


def test_words_that_must_not_come_behind_another_samplers_tokens():
    sampler = Sampler(N, (0,), Sampling(), None, bad_words=[[6, 7]])
    sampler.follow([1, 6])
    assert sampler.sample(np.arange(N, dtype=np.float32), Candidates(N)) == 6


def test_what_is_left_to_draw_from_and_its_chances():
    candidates = Candidates(N)
    sampler = Sampler(N, (0,), Sampling(temperature=1.0, top_k=3, min_p=0.0, top_p=1.0, seed=1), None)
    token = sampler.sample(np.log(np.array([1, 2, 3, 4, 1, 1, 1, 1], np.float32)), candidates)
    assert sampler.left is not None
    scores = scores_after(sampler.left, token, 5, lambda token: b"t%d" % token)
    assert [one.token_id for one in scores.top] == [3, 2, 1]
    assert [math.exp(one.logprob) for one in scores.top] == pytest.approx([4 / 9, 3 / 9, 2 / 9])
    assert scores.chosen == next(one for one in scores.top if one.token_id == token)
    assert scores_after(sampler.left, 7, 0, lambda token: b"").chosen.logprob == -math.inf


def test_a_greedy_choice_leaves_one():
    candidates = Candidates(N)
    sampler = Sampler(N, (0,), Sampling(), None)
    token = sampler.sample(np.arange(N, dtype=np.float32), candidates)
    assert sampler.left is None
    scores = scores_after(candidates.only(token), token, 5, lambda token: b"x")
    assert scores == Logprobs(Scored(7, b"x", 0.0), (Scored(7, b"x", 0.0),))


def report(logits: list[float], chosen: int, n: int):
    return Scores(np.array(logits, np.float32)).report(chosen, n, lambda token: b"t%d" % token)


def test_log_probabilities_are_those_of_the_softmax():
    logits = [0.5, -1.0, 2.0, 2.0, -30.0, 0.0]
    total = math.log(sum(map(math.exp, logits)))
    scores = report(logits, 1, 4)
    assert scores.chosen.logprob == pytest.approx(logits[1] - total, abs=1e-6)
    assert [one.token_id for one in scores.top] == [2, 3, 0, 5], "best first, and by their ids where they are equal"
    assert [one.logprob for one in scores.top] == pytest.approx([logits[i] - total for i in (2, 3, 0, 5)], abs=1e-6)
    assert [one.piece for one in scores.top] == [b"t2", b"t3", b"t0", b"t5"]


@pytest.mark.parametrize(("n", "ids"), [(0, []), (1, [2]), (3, [2, 1, 0]), (50, [2, 1, 0])])
def test_as_many_alternatives_are_reported_as_asked_for_and_as_there_are(n: int, ids: list[int]):
    assert [one.token_id for one in report([1.0, 2.0, 3.0], 0, n).top] == ids


def test_log_probabilities_of_extreme_logits_are_finite():
    scores = report([1e30, -1e30, 0.0], 1, 3)
    assert all(math.isfinite(one.logprob) for one in (scores.chosen, *scores.top))
    assert scores.top[0].logprob == 0.0


def test_log_probabilities_are_of_the_logits_before_sampling_uses_them_up():
    logits = np.array([1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0], np.float32)
    scores = Scores(logits)
    before = scores.report(2, 3, lambda _token: b"")
    Sampler(N, (0,), Sampling(logit_bias=((2, -100.0),)), None).sample(logits, Candidates(N))
    assert scores.report(2, 3, lambda _token: b"") == before


@pytest.mark.parametrize(
    ("penalty", "end", "chosen"),
    [(1.0, 2.1, 0), (1.1, 2.1, 3), (1.0, 1.9, 3), (0.9, 1.9, 0), (1.1, 2.3, 0)],
)
@pytest.mark.parametrize("temperature", [{}, {"temperature": 1.0, "top_k": 1}])
def test_a_length_penalty_makes_the_end_less_likely_above_1(penalty: float, end: float, chosen: int, temperature: dict):
    logits = [end, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, -9.0]
    assert choose(Sampling(length_penalty=penalty, **temperature), logits, []) == chosen


@pytest.mark.parametrize(("penalty", "chosen"), [(1.0, 0), (1.2, 3), (0.5, 0)])
def test_a_length_penalty_does_the_same_to_negative_logits(penalty: float, chosen: int):
    assert choose(Sampling(length_penalty=penalty), [-2.0, -9.0, -9.0, -2.1, -9.0, -9.0, -9.0, -9.0], []) == chosen


def test_a_length_penalty_leaves_an_end_out_that_is_ignored():
    sampling = Sampling(length_penalty=0.5, ignore_eos=True)
    assert choose(sampling, [5.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0], []) == 3


class Whole(Candidates):
    """Leaves all tokens to llama.cpp's top-k."""

    def likeliest(self, logits: Logits, k: int) -> object:
        return self.all(logits)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_vocab=st.integers(1, 4 * COLUMNS),
    top_k=st.one_of(st.integers(1, 60), st.integers(1, COLUMNS + 9)),
    steps=st.sampled_from([None, 100, 8, 1]),
    masked=st.sampled_from([0.0, 0.3, 0.99, 1.0]),
    sampling=st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.5, 1.0, 5.0]), "seed": st.integers(0, 99)},
        optional={"top_p": st.just(0.9), "min_p": st.just(0.1), "presence_penalty": st.just(20.0)},
    ),
)
def test_top_k_of_the_likeliest_tokens_draws_what_that_of_all_draws(
    seed: int, n_vocab: int, top_k: int, steps: int | None, masked: float, sampling: dict
):
    """``steps``: logits are multiples of its inverse, so that many are equal. ``masked``: the share of -inf."""
    random = np.random.default_rng(seed)
    wanted = Sampling(top_k=top_k, **sampling)
    whole, some = (Sampler(n_vocab, (), wanted, None) for _ in range(2))
    logits = random.normal(0, 3, n_vocab).astype(np.float32)
    if steps:
        logits = np.round(logits * steps) / np.float32(steps)
    logits[random.random(n_vocab) < masked] = -np.inf
    logits[random.integers(n_vocab)] = 1.0
    for _ in range(6):
        expected = whole.sample(logits.copy(), Whole(n_vocab))
        assert some.sample(logits.copy(), Candidates(n_vocab)) == expected


def test_few_candidates_are_left_of_many_tokens():
    logits = np.random.default_rng(0).permutation(8 * COLUMNS).astype(np.float32)
    candidates = Candidates(len(logits))
    left = candidates.likeliest(logits, 40)
    ids = candidates.tokens["id"][: left.size]
    assert 40 <= left.size < 80
    assert set(np.argsort(logits)[-40:]) <= set(ids)
    assert list(ids) == sorted(ids)
    assert list(candidates.tokens["logit"][: left.size]) == list(logits[ids])


def test_tokens_without_a_logit_are_left_to_llama():
    logits = np.full(2 * COLUMNS, np.nan, np.float32)
    assert Candidates(len(logits)).likeliest(logits, 40).size == len(logits)
