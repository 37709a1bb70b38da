"""A grammar at work on one sequence: which tokens it lets through, and how far it has come."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from umaserve.engine.candidates import Candidates, Logits, native, one
from umaserve.errors import Fault, RequestError


class Constraint:
    """Binds a sequence to ``grammar``: from its first token on or, with ``after``, once its text has contained that.

    llama.cpp has such a lazy grammar too, but ends the process where the token that completes ``after`` goes on with
    something that the grammar forbids. Here such a token is not let through, unless it goes on with white space alone,
    which the grammar then never sees. ``pieces`` are the bytes of each token id. The C object is freed with this one.
    """

    def __init__(self, vocab: Any, grammar: str, pieces: Sequence[bytes], after: bytes = b"") -> None:
        self._grammar = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if not self._grammar:
            raise RequestError(
                Fault.BAD_REQUEST, "grammar", 'expected GBNF with a rule "root" that llama.cpp can parse'
            )
        weakref.finalize(self, llama_cpp.llama_sampler_free, self._grammar)
        self._pieces = pieces
        self._after = after
        self._waiting = bool(after)
        self._tail = b""
        """While it waits: the end of the text, one byte shorter than ``after``."""

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next. To ask about one is cheap, about the whole vocabulary is not."""
        if self._waiting:
            _before, _after, rest = (self._tail + self._pieces[token]).partition(self._after)
            return not rest.strip()
        alone = one(token)
        candidate = native(alone)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(candidate))
        return bool(alone["logit"][0] != -np.inf)

    def mask(self, logits: Logits, forbidden: int, candidates: Candidates) -> Logits:
        """A copy of ``logits`` without ``forbidden``, nor anything else that the grammar, if it holds, forbids."""
        if self._waiting:
            left = logits.copy()
            left[forbidden] = -np.inf
            return left
        candidate = candidates.fill(logits)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(candidate))
        left = np.full_like(logits, -np.inf)
        left[candidates.tokens["id"]] = candidates.tokens["logit"]
        return left

    def accept(self, token: int) -> None:
        """Go on by ``token``. One that is not allowed would end the process."""
        if not self._waiting:
            llama_cpp.llama_sampler_accept(self._grammar, token)
            return
        text = self._tail + self._pieces[token]
        self._waiting = self._after not in text
        self._tail = text[1 - len(self._after) :]
