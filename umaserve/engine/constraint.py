"""The state of a grammar on one sequence: which tokens it allows next."""

from __future__ import annotations

import copy
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

    llama.cpp has such lazy grammars too, but aborts the process where the token that completes ``after`` continues with
    text that the grammar forbids. Here, such a token is allowed only if nothing or white space follows ``after``, which
    the grammar never sees. ``pieces`` are the bytes of each token id. The C object is freed with this one. Raises
    ``RequestError`` for a grammar that llama.cpp can't parse.
    """

    def __init__(self, vocab: Any, grammar: str, pieces: Sequence[bytes], after: bytes = b"") -> None:
        self._grammar = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if not self._grammar:
            raise RequestError(
                Fault.BAD_REQUEST, "grammar", 'expected GBNF with a rule "root" that llama.cpp can parse'
            )
        self._free_with_this()
        self._pieces = pieces
        self._after = after
        self._waiting = bool(after)
        self._tail = b""
        """While waiting for ``after``: the end of the text, at most one byte shorter than ``after``."""

    def copy(self) -> Constraint:
        """The same grammar in the same state, for another sequence."""
        other = copy.copy(self)
        other._grammar = llama_cpp.llama_sampler_clone(self._grammar)
        other._free_with_this()
        return other

    def _free_with_this(self) -> None:
        weakref.finalize(self, llama_cpp.llama_sampler_free, self._grammar)

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next. Checking one token is cheap; checking the whole vocabulary is not."""
        if self._waiting:
            _before, _after, rest = (self._tail + self._pieces[token]).partition(self._after)
            return not rest.strip()
        alone = one(token)
        candidate = native(alone)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(candidate))
        return bool(alone["logit"][0] != -np.inf)

    def mask(self, logits: Logits, forbidden: int, candidates: Candidates) -> Logits:
        """A copy of ``logits`` with -inf for ``forbidden`` and, unless waiting for ``after``, for all other tokens that
        the grammar forbids."""
        if self._waiting:
            left = logits.copy()
            left[forbidden] = -np.inf
            return left
        candidate = candidates.all(logits)
        llama_cpp.llama_sampler_apply(self._grammar, ctypes.byref(candidate))
        left = np.full_like(logits, -np.inf)
        left[candidates.tokens["id"]] = candidates.tokens["logit"]
        return left

    def accept(self, token: int) -> None:
        """Advance by ``token``, which must be allowed: llama.cpp would abort the process otherwise."""
        if not self._waiting:
            llama_cpp.llama_sampler_accept(self._grammar, token)
            return
        text = self._tail + self._pieces[token]
        self._waiting = self._after not in text
        self._tail = text[1 - len(self._after) :]
