"""Speculative decoding: a second, smaller model makes draft tokens for sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, count
from operator import ne

import llama_cpp
import numpy as np

from umaserve.core.errors import ModelError
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import Draft, Run
from umaserve.settings.daemon import Config

log = logging.getLogger(__name__)

_ADVICE = "; choose a smaller model of the same family"

CATCHING_UP = 32

_SAMPLED = object()
"""Placeholder for a run's ``sampler``: the batch only checks whether there is one."""


@dataclass(slots=True)
class _Drafting:
    """One draft while its tokens are computed."""

    slot: int
    sequence: Sequence[int]
    limit: int
    kept: int = 0
    """Number of tokens, from the start of the sequence, that are already in the KV cache."""
    draft_tokens: list[int] = field(default_factory=list)

    @property
    def cells(self) -> int:
        return len(self.sequence) + self.limit - 1  # the last draft token is never decoded


class Drafter:
    """The model ``config.draft_model``, with as many KV cells and the same sequence ids as ``model``.

    Made and used on the compute thread. Raises ``ModelError`` for a model that can't be loaded, whose vocabulary
    differs from that of ``model``, or that can't remove tokens from a sequence. ``progress`` is as in ``Model``.
    """

    def __init__(self, config: Config, model: Model, progress: Callable[[float], bool]) -> None:
        config = config.for_companion(n_ctx=model.n_ctx, pooling="model")
        self.model = Model(config.draft_model, config, progress, sequences=model.n_seq_max)
        try:
            _check(self.model, model)
        except ModelError:
            self.model.free()
            raise
        self._memory = llama_cpp.llama_get_memory(self.model.context)
        self._batch = Batch(config.n_batch)
        self._batch_tokens = config.n_batch
        self._longest = min(self.model.n_ctx, self.model.n_ctx_train)
        self._threads = 0
        self._held: dict[int, list[int]] = {}
        """The tokens of each slot in this model's KV cache, least recently used slot first."""

    def draft(self, wanted: Sequence[Draft], runs: Sequence[Run], threads: int) -> list[list[int]]:
        """Draft tokens for each of ``wanted``: up to ``limit`` after ``sequence``, chosen greedily one by one.

        A draft is shorter where the answer ends earlier, and empty where the sequence doesn't fit this model's context
        or isn't computed yet: since all streams wait meanwhile, a call computes at most ``CATCHING_UP`` tokens of
        sequences that this model hasn't seen, sequences with the fewest missing tokens first.
        """
        self._set_threads(threads)
        jobs = [_Drafting(runs[one.run].slot, one.sequence, one.limit) for one in wanted]
        going = []
        missing: list[Run] = []
        left = min(self._batch_tokens, CATCHING_UP)
        for job in self._placed(jobs):
            tokens = job.sequence[job.kept : job.kept + left]
            if not tokens:
                break
            left -= len(tokens)
            ready = job.kept + len(tokens) == len(job.sequence)
            missing.append(Run(job.slot, job.kept, tokens, _SAMPLED if ready else None))
            if ready:
                going.append(job)
        draft_tokens = self._decode(missing)
        while going:
            # A failed decode returns no tokens, which ends the loop.
            going = [job for job, token in zip(going, draft_tokens, strict=False) if self._add_draft_token(job, token)]
            last = [(job.slot, job.draft_tokens[-1:]) for job in going]
            draft_tokens = self._decode([Run(slot, len(self._held[slot]), token, _SAMPLED) for slot, token in last])
        return [job.draft_tokens for job in jobs]

    def forget(self, slot: int) -> None:
        """Free this model's cells of the sequence, if it has any."""
        if self._held.pop(slot, None) is not None:
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def free(self) -> None:
        self.model.free()

    def _set_threads(self, threads: int) -> None:
        if threads == self._threads:
            return
        self._threads = threads
        n_batch = min(threads, self.model.n_threads_batch)
        llama_cpp.llama_set_n_threads(self.model.context, min(threads, self.model.n_threads), n_batch)

    def _placed(self, jobs: Sequence[_Drafting]) -> list[_Drafting]:
        """The jobs that fit into the KV cache, least to compute first; cells of others are freed as needed."""
        fitting = [job for job in jobs if job.sequence and job.limit > 0 and job.cells <= self._longest]
        for job in fitting:
            # The last token is always computed again: its logits are needed.
            held = self._held.get(job.slot, [])[: len(job.sequence) - 1]
            job.kept = next(compress(count(), map(ne, held, job.sequence)), len(held))
        placed = []
        taken: set[int] = set()
        free = self.model.n_ctx - sum(map(len, self._held.values()))
        for job in sorted(fitting, key=lambda job: len(job.sequence) - job.kept):
            taken.add(job.slot)
            free += len(self._held.get(job.slot, ()))
            for slot in [slot for slot in self._held if slot not in taken]:
                if job.cells <= free:
                    break
                free += len(self._held[slot])
                self.forget(slot)
            if job.cells > free:
                self.forget(job.slot)
                continue
            free -= job.cells
            self._keep(job)
            placed.append(job)
        return placed

    def _keep(self, job: _Drafting) -> None:
        """Remove the slot's tokens after the first ``job.kept``; the slot may have been forgotten meanwhile."""
        held = self._held.pop(job.slot, [])
        job.kept = min(job.kept, len(held))
        if job.kept < len(held):
            llama_cpp.llama_memory_seq_rm(self._memory, job.slot, job.kept, -1)
        self._held[job.slot] = held[: job.kept]

    def _add_draft_token(self, job: _Drafting, token: int) -> bool:
        """Add a draft token; returns whether another is wanted. An end token is not added and ends the draft."""
        if token in self.model.end_tokens:
            return False
        job.draft_tokens.append(token)
        return len(job.draft_tokens) < job.limit

    def _decode(self, runs: Sequence[Run]) -> list[int]:
        """The likeliest next token of each run with a sampler; empty where llama.cpp fails."""
        if not runs:
            return []
        self._batch.fill(runs)
        code = llama_cpp.llama_decode(self.model.context, self._batch.native)
        if code:
            log.error("draft model: llama_decode returned %d", code)
            llama_cpp.llama_memory_clear(self._memory, False)
            self._held.clear()
            return []
        tokens = []
        for run, end in zip(runs, accumulate(len(run.tokens) for run in runs), strict=True):
            self._held[run.slot] += run.tokens
            if run.sampler is not None:
                native = llama_cpp.llama_get_logits_ith(self.model.context, end - 1)
                tokens.append(int(np.ctypeslib.as_array(native, (self.model.n_vocab,)).argmax()))
        return tokens


def _check(draft: Model, model: Model) -> None:
    """Raise ``ModelError`` unless both models have the same tokens and ``draft`` can remove rejected ones."""
    native = draft.native
    if (
        llama_cpp.llama_model_is_recurrent(native)
        or llama_cpp.llama_model_is_hybrid(native)
        or not llama_cpp.llama_get_memory(draft.context)
    ):
        problem = "it can't take tokens back, which rejected draft tokens need; choose a transformer that makes text"
        raise _error(draft, problem)
    if draft.n_vocab != model.n_vocab:
        raise _error(draft, f"its vocabulary has {draft.n_vocab} tokens, that of {model.name} {model.n_vocab}{_ADVICE}")
    for token in range(model.n_vocab):
        if draft.written(token) != model.written(token):
            shown = f"{draft.written(token)[:32]!r}, in {model.name} {model.written(token)[:32]!r}"
            raise _error(draft, f"its token {token} is {shown}{_ADVICE}")
    if draft.end_tokens != model.end_tokens:
        raise _error(draft, f"other tokens end its answers than those of {model.name}{_ADVICE}")


def _error(draft: Model, problem: str) -> ModelError:
    return ModelError(f"draft model {draft.path}: {problem}")
