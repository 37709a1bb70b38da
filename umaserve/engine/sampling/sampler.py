"""Sampling: the choice of the next token from a row of logits."""

from __future__ import annotations

import ctypes
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Sampling
from umaserve.engine.sampling.candidates import Candidates, Left, Logits
from umaserve.engine.sampling.constraint import Constraint
from umaserve.engine.sampling.steps import Step
from umaserve.engine.sampling.thinking import AfterThoughts, Thinking

MIN_TEMPERATURE = 1e-3
"""Temperature below which sampling is greedy: the result would be the same, and dividing by the temperature could
overflow."""


class Sampler:
    """One sequence's sampler: length penalty and biases, then penalties, cut-offs and temperature in the request's
    order, then the grammar's check of the result.

    Made and given the prompt on the preparing thread, used on the compute thread. Its C objects are freed with it;
    ``constraint`` and ``thinking`` may be passed on to another sampler.
    Raises ``RequestError`` for a bias of an unknown token.
    """

    def __init__(
        self,
        n_vocab: int,
        end_tokens: Sequence[int],
        sampling: Sampling,
        constraint: Constraint | AfterThoughts | None,
        thinking: Thinking | None = None,
    ):
        self._end = min(end_tokens, default=0)
        self._end_ids = np.array(end_tokens, np.int64)
        self._length_penalty = sampling.length_penalty
        biases = dict(sampling.logit_bias)
        for token in biases:
            if token >= n_vocab:
                raise RequestError(
                    Fault.BAD_REQUEST,
                    "logit_bias",
                    f"expected token ids below {n_vocab}, the vocabulary's size, got {token}",
                )
        if sampling.ignore_eos:
            biases.update(dict.fromkeys(end_tokens, -np.inf))
        self._bias_ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)
        self.constraint = constraint
        self.thinking = thinking
        self.penalty_window = sampling.penalty_window if _penalizes(sampling) else 0
        """How many of the last tokens the penalties see."""
        plain = sampling.temperature < MIN_TEMPERATURE and not _penalizes(sampling)
        self._chain = None if plain else _chain(n_vocab, sampling)
        self._draws = sampling.temperature >= MIN_TEMPERATURE
        self.step: Step | None = None
        """Step that samples the next token, until that is taken."""
        self.was_late = False
        """Whether a tick did not wait for its token to the end."""
        self.left: Left | None = None
        """The candidates of the latest token, until the next one; ``None`` if that was certain."""
        self.scores_after = sampling.scores_after
        self._top_k = _first_cut(sampling)
        """The cut-off before anything else looks at the candidates; 0 if there is none."""
        if self._chain is not None:
            weakref.finalize(self, llama_cpp.llama_sampler_free, self._chain)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Let the penalties see the end of ``tokens``."""
        if self._chain is not None:
            for token in tokens[max(0, len(tokens) - self.penalty_window) :]:
                llama_cpp.llama_sampler_accept(self._chain, token)

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on behind these ``tokens``, which another sampler of the same request has chosen."""
        for token in tokens:
            if self.thinking is not None:
                self.thinking.forced()
            if self.constraint is not None:
                self.constraint.accept(token)
            if self.thinking is not None:
                self.thinking.accept(token)
        self.accept_prompt(tokens)

    def sample(self, logits: Logits, candidates: Candidates) -> int:
        """The next token. ``logits``, one value for each token of the vocabulary, are overwritten. Raises
        ``RequestError`` where the grammar has become too complex to follow."""
        token = None if self.thinking is None else self.thinking.forced()
        self.left = None
        if token is None:
            token = self._sampled(logits, candidates)
            if token is None:
                self.left = None
                return self._end
        elif self.constraint is not None:
            self.constraint.accept(token)
        if self.thinking is not None:
            self.thinking.accept(token)
        if self._chain is not None:
            llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def _sampled(self, logits: Logits, candidates: Candidates) -> int | None:
        """The next token by its logits; ``None`` if the grammar allows none."""
        if self._length_penalty != 1:
            # Dividing a negative logit would make the end token likelier.
            ends = logits[self._end_ids]
            logits[self._end_ids] = np.where(ends > 0, ends / self._length_penalty, ends * self._length_penalty)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._biases
        token = self._choose(logits, candidates)
        if self.constraint is not None:
            return self._by_grammar(self.constraint, token, logits, candidates)
        return token

    def _choose(self, logits: Logits, candidates: Candidates) -> int:
        if self._chain is None:
            return int(logits.argmax())
        native = candidates.likeliest(logits, self._top_k) if self._top_k else candidates.all(logits)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(native))
        token = int(native.data[native.selected].id)
        if self._draws:
            self.left = candidates.tokens[: native.size]
        # With extreme settings, probabilities overflow, and llama.cpp may select any token, even a masked one.
        return token if logits[token] != -np.inf else int(logits.argmax())

    def _by_grammar(
        self, grammar: Constraint | AfterThoughts, token: int, logits: Logits, candidates: Candidates
    ) -> int | None:
        """Advance ``grammar`` by ``token`` if it allows that, as it mostly does, else by one chosen from the tokens
        that it allows; returns the token, ``None`` if there are none."""
        while logits[token] == -np.inf or not grammar.accept(token):
            logits = grammar.mask(logits, token)
            if logits.max() == -np.inf:
                # The text is complete, and ignore_eos masks the end tokens.
                return None
            token = self._choose(logits, candidates)
        return token


def _penalizes(sampling: Sampling) -> bool:
    penalties = sampling.repeat_penalty - 1, sampling.presence_penalty, sampling.frequency_penalty
    return sampling.penalty_window > 0 and any(penalties)


def _first_cut(sampling: Sampling) -> int:
    """``top_k``, where no sampler before it looks at the other candidates; else 0."""
    before = sampling.samplers[: sampling.samplers.index("top_k")] if "top_k" in sampling.samplers else ()
    looks = {"penalties": _penalizes(sampling), "top_p": sampling.top_p < 1, "min_p": sampling.min_p > 0}
    # The temperature leaves their order as it is.
    return 0 if any(looks.get(name, False) for name in before) else max(0, sampling.top_k)


def _chain(n_vocab: int, sampling: Sampling) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())

    def add(native: Any) -> None:
        llama_cpp.llama_sampler_chain_add(chain, native)

    penalties = sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
    greedy = sampling.temperature < MIN_TEMPERATURE
    for name in _before_greedy(sampling.samplers) if greedy else sampling.samplers:
        match name:
            case "penalties" if _penalizes(sampling):
                add(llama_cpp.llama_sampler_init_penalties(n_vocab, sampling.penalty_window, *penalties))
            case "top_k" if sampling.top_k:
                add(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
            case "top_p" if sampling.top_p < 1:
                add(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
            case "min_p" if sampling.min_p:
                add(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
            case "temperature":
                add(llama_cpp.llama_sampler_init_temp(sampling.temperature))
    if greedy:
        add(llama_cpp.llama_sampler_init_greedy())
        return chain
    seed = secrets.randbelow(2**32 - 1) if sampling.seed is None else sampling.seed
    add(llama_cpp.llama_sampler_init_dist(seed))
    return chain


def _before_greedy(samplers: tuple[str, ...]) -> tuple[str, ...]:
    """Samplers that change which token is the likeliest: the penalties, and what leaves them fewer candidates."""
    before = samplers[: samplers.index("temperature")] if "temperature" in samplers else samplers
    return before[: before.index("penalties") + 1] if "penalties" in before else ()
