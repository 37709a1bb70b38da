"""llama.cpp's chain of samplers for one request: as llama-server makes it."""

from __future__ import annotations

import ctypes
import functools
import secrets
import weakref
from typing import Any

import llama_cpp

from umaserve.core.requests import ADAPTIVE_P, Sampling

MIN_TEMPERATURE = 1e-3
"""Temperature below which sampling is greedy: the result would be the same, and dividing by the temperature could
overflow."""
MIROSTAT = "mirostat"
MIROSTAT_TOKENS = 100
"""Likeliest tokens by which Mirostat 1 estimates how fast probabilities fall, as in llama-server."""
NO_CHANCE = 1e-37
"""Share of the likeliest token's probability below which a token is never drawn."""

KEPT_DRY = 8
"""DRY samplers that are kept for further requests with the same parameters."""

_CHANGES_BEST = ("penalties", "dry", "typ_p", "xtc")
"""Samplers after which another token may be the likeliest."""


def draws(sampling: Sampling) -> bool:
    """Whether tokens are drawn by chance; otherwise the likeliest one is taken."""
    if sampling.temperature >= MIN_TEMPERATURE:
        return True
    return not sampling.mirostat and ("temperature" not in sampling.samplers or sampling.dynatemp_range > 0)


def used(sampling: Sampling) -> tuple[str, ...]:
    """The samplers that make a difference, in their order."""
    if sampling.mirostat and draws(sampling):
        return "temperature", MIROSTAT
    on = {
        "penalties": penalizes(sampling),
        "dry": avoids_repetition(sampling),
        "top_n_sigma": sampling.top_n_sigma > 0,
        "top_k": sampling.top_k > 0,
        "typ_p": sampling.typical_p < 1,
        "top_p": sampling.top_p < 1,
        "min_p": sampling.min_p > 0,
        "xtc": sampling.xtc_probability > 0 and sampling.xtc_threshold <= 0.5,
        "temperature": True,
    }
    names = tuple(name for name in sampling.samplers if on.get(name, False))
    if draws(sampling):
        return names
    before = () if sampling.mirostat else names[: names.index("temperature")]
    return before[: max((at + 1 for at, name in enumerate(before) if name in _CHANGES_BEST), default=0)]


def penalizes(sampling: Sampling) -> bool:
    penalties = sampling.repeat_penalty - 1, sampling.presence_penalty, sampling.frequency_penalty
    return "penalties" in sampling.samplers and sampling.penalty_window > 0 and any(penalties)


def avoids_repetition(sampling: Sampling) -> bool:
    return "dry" in sampling.samplers and sampling.dry_multiplier > 0 and sampling.dry_penalty_last_n > 0


def window(sampling: Sampling) -> int:
    """How many of the last tokens the samplers see."""
    of_penalties = sampling.penalty_window if penalizes(sampling) else 0
    return max(of_penalties, sampling.dry_penalty_last_n if avoids_repetition(sampling) else 0)


def first_cut(sampling: Sampling) -> int:
    """``top_k``, where no sampler before it looks at the other candidates; else 0."""
    names = used(sampling)
    if "top_k" not in names:
        return 0
    # A fixed temperature leaves their order as it is.
    before = set(names[: names.index("top_k")]) - ({"temperature"} if not sampling.dynatemp_range else set())
    return 0 if before else sampling.top_k


class DrySamplers:
    """DRY samplers of one model. llama.cpp looks through all of the vocabulary for the sequence breakers of each, which
    takes 60 ms at 49,152 tokens, a copy 0.2 ms; so requests with equal parameters get copies of one."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self._made = functools.lru_cache(KEPT_DRY)(self._make)

    def copy(self, sampling: Sampling) -> Any:
        """A new sampler that has seen no tokens, to be freed by the caller."""
        made = self._made(
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            sampling.dry_penalty_last_n,
            sampling.dry_sequence_breakers,
        )
        return llama_cpp.llama_sampler_clone(made.native)

    def _make(self, multiplier: float, base: float, allowed: int, last_n: int, breakers: tuple[str, ...]) -> _Freed:
        texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
        sampler = llama_cpp.llama_sampler_init_dry(self._vocab, multiplier, base, allowed, last_n, texts, len(breakers))
        return _Freed(sampler)


class _Freed:
    """A native sampler that is freed with this object."""

    def __init__(self, native: Any) -> None:
        self.native = native
        weakref.finalize(self, llama_cpp.llama_sampler_free, native)


def new_chain(n_vocab: int, sampling: Sampling, dry: DrySamplers | None = None) -> Any:
    """A chain for ``sampling``, to be freed by the caller; ``None`` where the likeliest token is taken as it is."""
    names = used(sampling)
    if not names and not draws(sampling):
        return None
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    seed = secrets.randbelow(2**32 - 1) if sampling.seed is None else sampling.seed
    for name in names:
        for native in _samplers(name, n_vocab, sampling, seed, dry):
            llama_cpp.llama_sampler_chain_add(chain, native)
    if MIROSTAT not in names:
        llama_cpp.llama_sampler_chain_add(chain, _choice(sampling, seed))
    return chain


def _samplers(name: str, n_vocab: int, sampling: Sampling, seed: int, dry: DrySamplers | None) -> list[Any]:
    """The native samplers that make up one of ``used``."""
    match name:
        case "penalties":
            penalties = sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
            return [llama_cpp.llama_sampler_init_penalties(n_vocab, sampling.penalty_window, *penalties)]
        case "dry":
            assert dry is not None
            return [dry.copy(sampling)]
        case "top_n_sigma":
            return [llama_cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma)]
        case "top_k":
            return [llama_cpp.llama_sampler_init_top_k(sampling.top_k)]
        case "typ_p":
            return [_possible(), llama_cpp.llama_sampler_init_typical(sampling.typical_p, 1)]
        case "top_p":
            return [llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1)]
        case "min_p":
            return [llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1)]
        case "xtc":
            return [llama_cpp.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 1, seed)]
        case "temperature" if sampling.dynatemp_range and not sampling.mirostat:
            of_entropy = sampling.dynatemp_range, sampling.dynatemp_exponent
            return [llama_cpp.llama_sampler_init_temp_ext(sampling.temperature, *of_entropy)]
        case "temperature":
            return [llama_cpp.llama_sampler_init_temp(sampling.temperature)]
    assert name == MIROSTAT
    surprise = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat == 1:
        return [_possible(), llama_cpp.llama_sampler_init_mirostat(n_vocab, seed, *surprise, MIROSTAT_TOKENS)]
    return [llama_cpp.llama_sampler_init_mirostat_v2(seed, *surprise)]


def _possible() -> Any:
    """A sampler that leaves no candidates without a chance, such as those that a grammar forbids. With them,
    llama.cpp's entropy isn't a number, and any token would pass."""
    return llama_cpp.llama_sampler_init_min_p(NO_CHANCE, 1)


def _choice(sampling: Sampling, seed: int) -> Any:
    """The sampler that chooses a token of those that are left."""
    if not draws(sampling):
        return llama_cpp.llama_sampler_init_greedy()
    if ADAPTIVE_P in sampling.samplers:
        return llama_cpp.llama_sampler_init_adaptive_p(sampling.adaptive_target, sampling.adaptive_decay, seed)
    return llama_cpp.llama_sampler_init_dist(seed)
