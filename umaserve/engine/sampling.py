"""The choice of the next token from a row of logits."""

from __future__ import annotations

import ctypes
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from umaserve.errors import Fault, RequestError
from umaserve.messages import Sampling

PENALTY_WINDOW = 64
"""The last tokens that ``repeat_penalty`` looks at, the prompt's among them."""

MIN_TEMPERATURE = 1e-3
"""Below it sampling is greedy, which it would be in all but name; dividing by it could overflow."""

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

Logits = npt.NDArray[np.float32]


class Candidates:
    """llama.cpp's array of candidate tokens over the whole vocabulary, reused for every row."""

    def __init__(self, n_vocab: int) -> None:
        self.tokens = np.zeros(n_vocab, _CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)

    def fill(self, logits: Logits) -> Any:
        self.tokens["id"] = self._ids
        self.tokens["logit"] = logits
        return _native(self.tokens)


def _native(tokens: npt.NDArray[Any]) -> Any:
    pointer = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    return llama_cpp.llama_token_data_array(data=pointer, size=len(tokens), selected=-1, sorted=False)


class Sampler:
    """One sequence's sampler: biases, then penalties, cut-offs and temperature, then the grammar's word on the result.

    Made and shown the prompt on the preparing thread, used on the compute thread. Its C objects are freed with it.
    """

    def __init__(self, vocab: Any, n_vocab: int, end_tokens: Sequence[int], sampling: Sampling, grammar: str | None):
        self._end = min(end_tokens, default=0)
        biases = dict(sampling.logit_bias)
        for token in biases:
            if token >= n_vocab:
                raise RequestError(
                    Fault.BAD_REQUEST,
                    f"logit_bias: expected token ids below {n_vocab}, the vocabulary's size, got {token}",
                )
        if sampling.ignore_eos:
            biases.update(dict.fromkeys(end_tokens, -np.inf))
        self._bias_ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)
        self._grammar = None if grammar is None else self._owned(_grammar(vocab, grammar))
        plain = sampling.temperature < MIN_TEMPERATURE and sampling.repeat_penalty == 1
        self._chain = None if plain else self._owned(_chain(n_vocab, sampling))

    def _owned(self, native: Any) -> Any:
        weakref.finalize(self, llama_cpp.llama_sampler_free, native)
        return native

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Let the penalties see the end of the prompt."""
        if self._chain is not None:
            for token in tokens[-PENALTY_WINDOW:]:
                llama_cpp.llama_sampler_accept(self._chain, token)

    def sample(self, logits: Logits, candidates: Candidates) -> int:
        """The next token. ``logits``, one value for each token of the vocabulary, are used up."""
        if len(self._bias_ids):
            logits[self._bias_ids] += self._biases
        token = self._choose(logits, candidates)
        if self._grammar is not None:
            allowed = self._by_grammar(token, logits, candidates)
            if allowed is None:
                return self._end
            token = allowed
            llama_cpp.llama_sampler_accept(self._grammar, token)
        if self._chain is not None:
            llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, logits: Logits, candidates: Candidates) -> int:
        if self._chain is None:
            return int(np.argmax(logits))
        native = candidates.fill(logits)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(native))
        token = int(native.data[native.selected].id)
        # Extreme settings drive the probabilities out of floating point's range, and llama.cpp then takes any token,
        # also one that is masked; accepting one that the grammar forbids would end the process.
        return token if logits[token] != -np.inf else int(np.argmax(logits))

    def _by_grammar(self, token: int, logits: Logits, candidates: Candidates) -> int | None:
        """``token`` if the grammar allows it, else the choice among those that it does; ``None`` if there are none.

        Asking about one token is cheap, about the whole vocabulary is not, and most tokens are right at once.
        """
        alone = np.array([(token, 1.0, 0.0)], _CANDIDATE)
        native = _native(alone)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(native))
        if alone["logit"][0] != -np.inf and logits[token] != -np.inf:
            return token
        native = candidates.fill(logits)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(native))
        allowed = np.full_like(logits, -np.inf)
        allowed[candidates.tokens["id"]] = candidates.tokens["logit"]
        if allowed.max() == -np.inf:
            # The text is complete, and the end is masked by ignore_eos: llama.cpp would abort on any token.
            return None
        return self._choose(allowed, candidates)


def _grammar(vocab: Any, grammar: str) -> Any:
    native = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not native:
        raise RequestError(Fault.BAD_REQUEST, 'grammar: expected GBNF with a rule "root" that llama.cpp can parse')
    return native


def _chain(n_vocab: int, sampling: Sampling) -> Any:
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())

    def add(native: Any) -> None:
        llama_cpp.llama_sampler_chain_add(chain, native)

    if sampling.repeat_penalty != 1:
        add(llama_cpp.llama_sampler_init_penalties(n_vocab, PENALTY_WINDOW, sampling.repeat_penalty, 0.0, 0.0))
    if sampling.temperature < MIN_TEMPERATURE:
        add(llama_cpp.llama_sampler_init_greedy())
        return chain
    if sampling.top_k:
        add(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
    if sampling.top_p < 1:
        add(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p:
        add(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
    add(llama_cpp.llama_sampler_init_temp(sampling.temperature))
    seed = secrets.randbelow(2**32 - 1) if sampling.seed is None else sampling.seed
    add(llama_cpp.llama_sampler_init_dist(seed))
    return chain
