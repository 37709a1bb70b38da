"""What llama.cpp's samplers leave of made-up logits, beside the chain that llama-server makes for the same request."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest

from umaserve.core.requests import ADAPTIVE_P, SAMPLERS, Sampling
from umaserve.engine.sampling import chain
from umaserve.engine.sampling.candidates import Candidates, Logits, native
from umaserve.engine.sampling.chain import DrySamplers
from umaserve.engine.sampling.sampler import Sampler
from umaserve.settings.model_files import default_model

N = 3000
SEED = 5
BASE = Sampling(temperature=0.8, seed=SEED)
FLAT = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=SEED)
PROMPT = [7, 8, 9, 10, 7, 8, 9]
"""Repeats three tokens, so that DRY has something to say about the next one."""


@pytest.fixture(scope="module")
def vocab() -> Iterator[Any]:
    """The default model's vocabulary, without its weights."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(default_model().encode(), params)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


def logits_of(seed: int) -> Logits:
    logits = np.random.default_rng(seed).normal(0, 3, N).astype(np.float32)
    logits[PROMPT] += 8
    return logits


def init_dry(vocab: Any, sampling: Sampling) -> Any:
    breakers = sampling.dry_sequence_breakers
    texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
    numbers = sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length, sampling.dry_penalty_last_n
    return llama_cpp.llama_sampler_init_dry(vocab, *numbers, texts, len(breakers))


def llama_servers_chain(vocab: Any, sampling: Sampling) -> Any:
    """The chain of llama-server's ``common_sampler_init``, which has all samplers, also those that are off."""
    made = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    penalties = sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
    of_name: dict[str, Callable[[], Any]] = {
        "penalties": lambda: llama_cpp.llama_sampler_init_penalties(N, sampling.penalty_window, *penalties),
        "dry": lambda: init_dry(vocab, sampling),
        "top_n_sigma": lambda: llama_cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
        "top_k": lambda: llama_cpp.llama_sampler_init_top_k(sampling.top_k),
        "typ_p": lambda: llama_cpp.llama_sampler_init_typical(sampling.typical_p, 0),
        "top_p": lambda: llama_cpp.llama_sampler_init_top_p(sampling.top_p, 0),
        "min_p": lambda: llama_cpp.llama_sampler_init_min_p(sampling.min_p, 0),
        "xtc": lambda: llama_cpp.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 0, SEED),
        "temperature": lambda: llama_cpp.llama_sampler_init_temp_ext(
            sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        ),
    }
    surprise = sampling.mirostat_tau, sampling.mirostat_eta
    adaptive = sampling.adaptive_target, sampling.adaptive_decay
    if sampling.mirostat:
        samplers = [llama_cpp.llama_sampler_init_temp(sampling.temperature)]
        if sampling.mirostat == 1:
            samplers.append(llama_cpp.llama_sampler_init_mirostat(N, SEED, *surprise, 100))
        else:
            samplers.append(llama_cpp.llama_sampler_init_mirostat_v2(SEED, *surprise))
    else:
        samplers = [of_name[name]() for name in sampling.samplers if name != ADAPTIVE_P]
        if ADAPTIVE_P in sampling.samplers:
            samplers.append(llama_cpp.llama_sampler_init_adaptive_p(*adaptive, SEED))
        else:
            samplers.append(llama_cpp.llama_sampler_init_dist(SEED))
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(made, sampler)
    return made


def chances(left: Any) -> dict[int, float]:
    return {int(one["id"]): float(one["p"]) for one in left if one["p"] > 0}


def of_llama_server(vocab: Any, sampling: Sampling, rows: list[Logits]) -> list[tuple[int, dict[int, float]]]:
    """Each token drawn, and the chances of the tokens that were left."""
    made, drawn = llama_servers_chain(vocab, sampling), []
    for token in PROMPT:
        llama_cpp.llama_sampler_accept(made, token)
    for logits in rows:
        tokens = np.zeros(N, [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        tokens["id"], tokens["logit"] = np.arange(N), logits
        array = native(tokens)
        llama_cpp.llama_sampler_apply(made, ctypes.byref(array))
        token = int(array.data[array.selected].id)
        drawn.append((token, {one.id: one.p for one in array.data[: array.size] if one.p > 0}))
        llama_cpp.llama_sampler_accept(made, token)
    llama_cpp.llama_sampler_free(made)
    return drawn


CASES = {
    "defaults": {},
    "dry": {"dry_multiplier": 0.8},
    "dry, all of it": {
        "dry_multiplier": 3.0,
        "dry_base": 2.0,
        "dry_allowed_length": 1,
        "dry_sequence_breakers": ("x",),
    },
    "dry, a window too short": {"dry_multiplier": 3.0, "dry_penalty_last_n": 3},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "typical_p": {"typical_p": 0.6},
    "xtc": {"xtc_probability": 0.9, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    "dynatemp from 0": {"temperature": 0.0, "dynatemp_range": 0.7},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "adaptive_p": {"samplers": (*SAMPLERS, ADAPTIVE_P), "adaptive_target": 0.3, "adaptive_decay": 0.5},
    "adaptive_p that is off": {"samplers": (ADAPTIVE_P, "min_p")},
    "all": {"dry_multiplier": 0.8, "typical_p": 0.9, "xtc_probability": 0.5, "presence_penalty": 0.5},
    "another order": {"samplers": ("temperature", "xtc", "typ_p", "top_k"), "typical_p": 0.9, "xtc_probability": 0.5},
    "none": {"samplers": ()},
}


@pytest.mark.parametrize("base", [BASE, FLAT], ids=["cut", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_left_and_drawn_is_llama_servers(vocab: Any, name: str, base: Sampling) -> None:
    sampling = dataclasses.replace(base, **CASES[name])
    rows = [logits_of(seed) for seed in range(12)]
    sampler, candidates = Sampler(N, (0,), sampling, None, dry=DrySamplers(vocab)), Candidates(N)
    sampler.accept_prompt(PROMPT)
    for logits, (token, wanted) in zip(rows, of_llama_server(vocab, sampling, rows), strict=True):
        assert sampler.sample(logits.copy(), candidates) == token
        assert sampler.left is not None
        found = chances(sampler.left)
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-7)


GREEDY = {name: CASES[name] for name in ("dry", "typical_p", "xtc", "all", "defaults", "top_n_sigma")}


@pytest.mark.parametrize("name", GREEDY)
def test_without_temperature_the_likeliest_that_the_samplers_leave_is_taken(vocab: Any, name: str) -> None:
    sampling = dataclasses.replace(BASE, **GREEDY[name], temperature=0.0)
    rows = [logits_of(seed) for seed in range(12)]
    sampler, candidates = Sampler(N, (0,), sampling, None, dry=DrySamplers(vocab)), Candidates(N)
    sampler.accept_prompt(PROMPT)
    wanted = [token for token, _left in of_llama_server(vocab, sampling, rows)]
    assert [sampler.sample(logits.copy(), candidates) for logits in rows] == wanted


@pytest.mark.parametrize("wanted", [{"typical_p": 0.5}, {"mirostat": 1}, {"mirostat": 2}])
def test_tokens_that_are_forbidden_change_nothing_for_the_others(wanted: dict[str, Any]) -> None:
    logits = np.linspace(0, 3, 40).astype(np.float32)
    left = []
    for masked in (0, 20):
        row = np.concatenate([logits, np.full(masked, -np.inf, np.float32)])
        sampler = Sampler(40, (0,), dataclasses.replace(FLAT, **wanted), None)
        sampler.sample(row, Candidates(40 + masked))
        left.append(chances(sampler.left))
    assert left[0] == pytest.approx(left[1])
    assert len(left[0]) > 1


def test_typical_tokens_are_those_of_what_an_earlier_sampler_leaves() -> None:
    # Here llama-server takes the likeliest tokens, since its entropy isn't a number.
    logits = np.concatenate([np.linspace(5, 6, 10), np.zeros(10)]).astype(np.float32)
    left = []
    for row, wanted in ((logits, {"top_n_sigma": 1.0}), (logits[:10], {})):
        sampler = Sampler(len(row), (0,), dataclasses.replace(FLAT, typical_p=0.5, **wanted), None)
        sampler.sample(row.copy(), Candidates(len(row)))
        left.append(chances(sampler.left))
    assert left[0] == pytest.approx(left[1])
    assert 9 not in left[0], "the likeliest is not typical"


def test_equal_parameters_share_one_look_through_the_vocabulary(vocab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = llama_cpp.llama_sampler_init_dry
    monkeypatch.setattr(chain.llama_cpp, "llama_sampler_init_dry", lambda *given: made.append(given) or init(*given))
    dry, sampling = DrySamplers(vocab), dataclasses.replace(BASE, dry_multiplier=1.0)
    first, second = (Sampler(N, (0,), sampling, None, dry=dry) for _ in range(2))
    first.accept_prompt(PROMPT)
    assert len(made) == 1
    # The copies share nothing that they have seen.
    row = np.zeros(N, np.float32)
    row[10] = 1.0
    greedy = [Sampler(N, (0,), dataclasses.replace(sampling, temperature=0.0), None, dry=dry) for _ in range(2)]
    greedy[0].accept_prompt(PROMPT)
    assert [one.sample(row.copy(), Candidates(N)) == 10 for one in greedy] == [False, True]
    assert len(made) == 1
    assert second.sample(row.copy(), Candidates(N)) >= 0
