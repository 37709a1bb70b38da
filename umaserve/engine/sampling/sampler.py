"""Sampling: the choice of the next token from a row of logits."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Sequence

import llama_cpp
import numpy as np

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Sampling
from umaserve.engine.sampling.candidates import Candidates, Left, Logits
from umaserve.engine.sampling.chain import DrySamplers, draws, first_cut, new_chain, window
from umaserve.engine.sampling.constraint import Constraint
from umaserve.engine.sampling.steps import EndedStep, Step
from umaserve.engine.sampling.thinking import AfterThoughts, Thinking


class Sampler:
    """One sequence's sampler: length penalty and biases, then the request's samplers in its order, then the grammar's
    check of the result.

    Made and given the prompt on the preparing thread, used on the compute thread. Its C objects are freed with it;
    ``constraint`` and ``thinking`` may be passed on to another sampler.
    Raises ``RequestError`` for a bias of an unknown token, and for an unknown token that ends the answer.
    """

    def __init__(
        self,
        n_vocab: int,
        end_tokens: Sequence[int],
        sampling: Sampling,
        constraint: Constraint | AfterThoughts | None,
        thinking: Thinking | None = None,
        *,
        bad_words: Sequence[Sequence[int]] = (),
        dry: DrySamplers | None = None,
    ):
        """``bad_words``: tokens that never follow one another in the answer. ``dry``: of the model, for requests that
        use DRY."""
        self._end = min(end_tokens, default=0)
        self._end_ids = np.array(end_tokens, np.int64)
        self._length_penalty = sampling.length_penalty
        biases = dict(sampling.logit_bias)
        for field, tokens in (("logit_bias", biases), ("stop_token_ids", sampling.stop_token_ids)):
            for token in tokens:
                if token >= n_vocab:
                    problem = f"expected token ids below {n_vocab}, the vocabulary's size, got {token}"
                    raise RequestError(Fault.BAD_REQUEST, field, problem)
        if sampling.ignore_eos:
            biases.update(dict.fromkeys(end_tokens, -np.inf))
        biases.update((word[0], -np.inf) for word in bad_words if len(word) == 1)
        self._bias_ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)
        self._bad_words = [(tuple(word[:-1]), word[-1]) for word in bad_words if len(word) > 1]
        self._said: deque[int] = deque(maxlen=max((len(before) for before, _last in self._bad_words), default=0))
        """The last tokens of the answer, as many as the longest of the bad words needs."""
        self._endless = sampling.min_tokens
        """Tokens still to come before one may end the answer."""
        self._ending_ids = np.array([*end_tokens, *sampling.stop_token_ids], np.int64)
        self.constraint = constraint
        self.thinking = thinking
        self.window = window(sampling)
        """How many of the last tokens the samplers see."""
        self._chain = new_chain(n_vocab, sampling, dry)
        self._draws = draws(sampling)
        self.step: Step | EndedStep | None = None
        """Step that samples the next token, until that is taken."""
        self.was_late = False
        """Whether a tick did not wait for its token to the end."""
        self.left: Left | None = None
        """The candidates of the latest token, until the next one; ``None`` if that was certain."""
        self.scores_after = sampling.scores_after
        self._top_k = first_cut(sampling)
        """The cut-off before anything else looks at the candidates; 0 if there is none."""
        if self._chain is not None:
            weakref.finalize(self, llama_cpp.llama_sampler_free, self._chain)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Let the samplers see the end of ``tokens``."""
        if self._chain is not None:
            for token in tokens[max(0, len(tokens) - self.window) :]:
                llama_cpp.llama_sampler_accept(self._chain, token)

    def accept_answer(self, tokens: Sequence[int]) -> None:
        """Go on behind these ``tokens`` of the answer, which ``constraint`` and ``thinking`` have seen."""
        self._said.extend(tokens)
        self.accept_prompt(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on behind these ``tokens``, which another sampler of the same request has chosen."""
        for token in tokens:
            if self.thinking is not None:
                self.thinking.forced()
            if self.constraint is not None:
                self.constraint.accept(token)
            if self.thinking is not None:
                self.thinking.accept(token)
        self.accept_answer(tokens)

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
        self._said.append(token)
        self._endless -= 1
        return token

    def _sampled(self, logits: Logits, candidates: Candidates) -> int | None:
        """The next token by its logits; ``None`` if the grammar allows none."""
        if self._length_penalty != 1:
            # Dividing a negative logit would make the end token likelier.
            ends = logits[self._end_ids]
            logits[self._end_ids] = np.where(ends > 0, ends / self._length_penalty, ends * self._length_penalty)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._biases
        if self._endless > 0:
            logits[self._ending_ids] = -np.inf
        for before, last in self._bad_words:
            if before == tuple(self._said)[-len(before) :]:
                logits[last] = -np.inf
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
            self.left = candidates.left(native)
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
